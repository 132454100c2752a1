"""State of a job in a MySQL database, apart from its rows, with the sessions that read and change it."""

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
"""Seconds that a take-over waits for the end of a session it has killed."""

RULES_BROKEN = frozenset({1048, 1062, 1216, 1217, 1364, 1369, 1451, 1452, 1526, 1906, 3105, 3819, 4025})
"""Numbers of the server for a row that a rule of its table refuses.

NOT NULL, a unique index, a foreign key (four), a column without a default, a view's condition, no partition, a
generated column (MariaDB, MySQL), a CHECK (MySQL, MariaDB).
"""

NO_SUCH_TABLE = 1146
"""Number of the server for a missing table."""


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
    """State of the job, see `SqlJobState`.

    A committing session holds a lock with the name of its job and generation.

    Args:
        location: see `MysqlStore`.
        name: the job's name.
        topic: the topic.
        topic_id: the topic's id, or 0.
        relations: the tables that the offsets belong to: the result's, and the rejects' if there is one.

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
        # A server may replicate some databases only, and decides by the session's database.
        self.address = replace(address, parameters={**address.parameters, "database": self.schema})
        self.where = f"{self.schema}.{self.result} on {self.address.host}"
        self.marks: Marks = Marks(self, topic_id, relations)
        self._location = location
        self.collation = ""
        # Prefix of this job alone; the holder's generation follows it. A take-over ends the sessions and drops the
        # staging tables of the earlier generations.
        digest = hashlib.sha256(f"{self.schema}\0{self.result}\0{name}".encode()).hexdigest()[:12]
        self._lock, self.staging = f"ratchet:{digest}:", f"ratchet_stage_{digest}_"

    def of_job(self, name: str) -> JobState:
        """Return the bookkeeping of another job over the same result table."""
        return JobState(self._location, name, self._topic, 0)

    # -- sessions

    @contextmanager
    def database(self, generation: int | None = None) -> Iterator[Database]:
        """Connect for the time of one call.

        Args:
            generation: the holder's, by which a take-over finds the session; None: the caller holds no job.

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
        """End the committing session of that generation's holder.

        A frozen one would keep its locks. Without the right to end it, `take_over` waits until the server ends it after
        `connection.IDLE_S`.
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
        """Request a lock of that name for the session; return whether it has the lock now."""
        [(got,)] = execute(database, f"SELECT GET_LOCK({literal(name)}, {seconds})")
        return bool(got == 1)

    # -- statements

    def table(self, name: str) -> str:
        """Quote a name in the result table's database."""
        return quoted(self.schema, name)

    def literal(self, value: str | int) -> str:
        return literal(value)

    def names(self, columns: Sequence[str]) -> str:
        return names(columns)

    def execute(self, database: Database, statement: str) -> list[tuple[Any, ...]]:
        return execute(database, statement)

    def described(self, database: Database, name: str) -> tuple[str, str] | None:
        """Return engine and comment of a table; None: there is no such table.

        The engine of a view is empty.
        """
        found = self.run(
            database,
            "SELECT TABLE_NAME, ENGINE, TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = {schema} "
            "AND TABLE_NAME = {name}",
            schema=literal(self.schema),
            name=literal(name),
        )
        # Compared again here: these columns may have a collation that does not tell cases apart.
        return next(((engine or "", comment or "") for table, engine, comment in found if table == name), None)

    def is_there(self, database: Database) -> bool:
        """Return whether the job has both its tables; the one looked for is made last."""
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
