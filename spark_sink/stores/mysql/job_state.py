"""What a MySQL database keeps about a job beside its rows, and the sessions in which it is read and changed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import StoreError, refuse, refuse_rule
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.mysql.connection import (
    execute,
    literal,
    quoted,
    read_url,
    session,
    spoken,
)
from kafka_ratchet.spark_sink.stores.mysql.marks import Marks
from kafka_ratchet.spark_sink.stores.mysql.types import names, table_parts
from kafka_ratchet.spark_sink.stores.sql_job_state import OF_JOB, SqlJobState, Statements

if TYPE_CHECKING:
    from kafka_ratchet.spark_sink.stores.mysql.connection import Database

END_TIMEOUT_S = 5.0
"""How long a take-over waits until a session it has ended is gone, in seconds."""

RULES_BROKEN = frozenset({1048, 1062, 1216, 1217, 1364, 1369, 1451, 1452, 1526, 1906, 3105, 3819, 4025})
"""The server's numbers for a row that a rule of its table refuses.

NOT NULL, a unique index, a foreign key (four), a column without a default, a view's condition, no partition, a
generated column (MariaDB, MySQL), a CHECK (MySQL, MariaDB).
"""

NO_SUCH_TABLE = 1146
"""The server's number for a table that is not there."""


STATEMENTS = Statements(
    stored=f"SELECT `partition`, next_offset FROM {{offsets}} {OF_JOB} ORDER BY `partition`",  # noqa: S608
    move="INSERT INTO {offsets} VALUES ({result}, {job}, {topic}, {partition}, {next}, {identity}) "
    "ON DUPLICATE KEY UPDATE next_offset = {next}, identity = {identity}",
    take_over="INSERT INTO {jobs} VALUES ({result}, {job}, 1) ON DUPLICATE KEY UPDATE generation = generation + 1",
    note_write_mode="INSERT INTO {rules} VALUES ({result}, {job}, {write_mode}) "
    "ON DUPLICATE KEY UPDATE rule = {write_mode}",
    decide="INSERT INTO {decisions} (result, job, topic, decided, decision) "
    "VALUES ({result}, {job}, {topic}, UTC_TIMESTAMP(6), {decision})",
)


class JobState(SqlJobState["Database"]):
    """See `SqlJobState`; a session amid its commit holds a lock that is named after its job and generation.

    Args:
        location: see `MysqlStore`.
        name: the job's name.
        topic: the topic.
        topic_id: its id, or 0.
        relations: the tables that the offsets belong to: the result's, and where there is one, the rejects'.

    Raises:
        OptionRefused: see `MysqlStore`.
    """

    statements = STATEMENTS

    def __init__(
        self, location: TableLocation, name: str, topic: str, topic_id: int, relations: Sequence[str] = ()
    ) -> None:
        address = read_url(location.url, location.password)
        self.schema, result = table_parts(location.table, address.database)
        super().__init__(result, name, topic, topic_id)
        # By the session's database a server decides what it replicates, where it is told to leave some out.
        self.address = replace(address, parameters={**address.parameters, "database": self.schema})
        self.where = f"{self.schema}.{self.result} on {self.address.host}"
        self.marks: Marks = Marks(self, topic_id, relations)
        self._location = location
        self.collation = ""
        # Of this job alone, with the holder's generation behind it: a take-over ends the sessions and drops the
        # staging tables of the generations before it.
        digest = hashlib.sha256(f"{self.schema}\0{self.result}\0{name}".encode()).hexdigest()[:12]
        self._lock, self.staging = f"ratchet:{digest}:", f"ratchet_stage_{digest}_"

    def of_job(self, name: str) -> JobState:
        """The bookkeeping of another job over the same result table."""
        return JobState(self._location, name, self._topic, 0)

    # -- sessions

    @contextmanager
    def database(self, generation: int | None = None) -> Iterator[Database]:
        """A connection for the time of one call.

        Args:
            generation: the holder's, by which a take-over finds the session; None: it is nobody's.

        Raises:
            StoreError: the database refuses, or does not answer.
        """
        import pymysql

        try:
            with session(self.address) as (database, server):
                if server.folds_names and (self.schema, self.result) != (self.schema.lower(), self.result.lower()):
                    raise StoreError(
                        f"{self.where}: this server does not tell cases in names of tables apart. Write the table and "
                        "its database in lower case, so that all jobs call it the same"
                    )
                self.collation = server.collation
                if generation is not None:
                    self.get_lock(database, f"{self._lock}{generation}", 0)
                yield database
        except pymysql.Error as error:
            if error.args and error.args[0] in RULES_BROKEN:
                refuse_rule(self.where, str(spoken(error)))
            refuse(self.where, spoken(error), "the database and the job's rights in it")

    def end_sessions(self, database: Database, newest: int) -> None:
        """End the session in which the holder of that generation is amid its commit.

        A frozen one would keep its locks. Where the server lets nobody end it, it does so itself after
        `connection.IDLE_S`, for which `take_over` waits.
        """
        import pymysql

        held = f"SELECT IS_USED_LOCK({literal(f'{self._lock}{newest}')})"
        [(found,)] = execute(database, held)
        if found is None:
            return
        try:
            execute(database, f"KILL {int(found)}")
        except pymysql.Error:  # it has just ended, or belongs to another user
            return
        deadline = time.monotonic() + END_TIMEOUT_S
        while execute(database, held)[0][0] is not None and time.monotonic() < deadline:
            time.sleep(0.02)

    @staticmethod
    def get_lock(database: Database, name: str, seconds: int) -> bool:
        """Ask for a lock of that name, which goes with the session; whether it has it now."""
        [(got,)] = execute(database, f"SELECT GET_LOCK({literal(name)}, {seconds})")
        return bool(got == 1)

    # -- statements

    def table(self, name: str) -> str:
        """In the result table's database, quoted."""
        return quoted(self.schema, name)

    def literal(self, value: str | int) -> str:
        return literal(value)

    def names(self, columns: Sequence[str]) -> str:
        return names(columns)

    def execute(self, database: Database, statement: str) -> list[tuple[Any, ...]]:
        return execute(database, statement)

    def described(self, database: Database, name: str) -> tuple[str, str] | None:
        """Engine and comment of a table; the engine of a view is empty. None: there is no such table."""
        found = self.run(
            database,
            "SELECT TABLE_NAME, ENGINE, TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = {schema} "
            "AND TABLE_NAME = {name}",
            schema=literal(self.schema),
            name=literal(name),
        )
        # Compared once more: these columns may be of a collation that does not tell cases apart.
        return next(((engine or "", comment or "") for table, engine, comment in found if table == name), None)

    def is_there(self, database: Database) -> bool:
        """Whether the job has its tables; the second is made after the first."""
        import pymysql

        try:
            self.run(database, "SELECT 1 FROM {offsets} LIMIT 0")
        except pymysql.MySQLError as error:
            if error.args[0] == NO_SUCH_TABLE:
                return False
            raise
        return True

    def has_table(self, database: Database, name: str) -> bool:
        return self.described(database, name) is not None
