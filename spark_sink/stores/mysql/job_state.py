"""State of a job in a MySQL database, and the sessions that read and change it."""

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
from kafka_ratchet.spark_sink.stores.mysql.marks import ID, Marks
from kafka_ratchet.spark_sink.stores.mysql.types import names, table_parts
from kafka_ratchet.spark_sink.stores.sql_job_state import OF_JOB, SqlJobState, Statements

if TYPE_CHECKING:
    from kafka_ratchet.spark_sink.stores.mysql.connection import Database

END_TIMEOUT_S = 5.0
"""Seconds that a take-over waits for the end of a session that it has killed."""

RULES_BROKEN = frozenset({1048, 1062, 1216, 1217, 1364, 1369, 1451, 1452, 1526, 1906, 3105, 3819, 4025})
"""Error numbers of the server for a row that breaks a rule of its table.

They stand for NOT NULL, a unique index, a foreign key (four numbers), a column without a default, and a view's
condition. The last ones stand for a row outside of all partitions, a generated column (MariaDB, MySQL) and a CHECK
(MySQL, MariaDB).
"""

NO_SUCH_TABLE = 1146
"""Error number of the server for a missing table."""


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
    """State of a job in a MySQL database, see `SqlJobState`.

    A session that commits holds a lock of the server named after its job and generation.

    Args:
        location: see `MysqlStore`.
        name: the job's name.
        topic: the topic that the offsets belong to.
        topic_id: the topic's id; 0: unknown.
        relations: the tables that the offsets belong to: the result table and, if there is one, the table of rejects.

    Raises:
        OptionRefused: the url or the table's name cannot be used.
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
        """Return the state of another job with the same result table."""
        return JobState(self._location, name, self._topic, 0)

    def is_moved(self, database: Database) -> bool:
        """Return whether the result table has rows and an id from jobs of another database.

        The tables with the state of those jobs are in the other database. If a job of this database gave the id,
        `ratchet_sink_marks` contains it.
        """
        found = self.described(database, self.result)
        given = None if found is None else ID.search(found[1])
        if given is None or self.generations(database) or not self.is_filled(database, self.result):
            return False
        if not self.has_table(database, "ratchet_sink_marks"):
            return True
        known = "SELECT 1 FROM {marks} WHERE result = {result} AND table_id = {id} LIMIT 1"
        return not self.run(database, known, id=literal(given[1]))

    # -- sessions

    @contextmanager
    def database(self, generation: int | None = None) -> Iterator[Database]:
        """Connect to the database for the duration of one call.

        Args:
            generation: generation of the calling job, so that a take-over finds the session; None: the caller is not a
                job.

        Raises:
            RuleBroken: a row breaks a rule of its table.
            StoreError: the database refuses, or does not answer.
        """
        import pymysql

        try:
            with session(self.address) as (database, server):
                if server.folds_names and (self.schema, self.result) != (self.schema.lower(), self.result.lower()):
                    raise StoreError(
                        f"{self.where}: this server ignores case in names of tables. Write the table and its database "
                        "in lower case, so that all jobs use the same name"
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
        """End the session that commits for generation `newest`, if there is one.

        If that run is frozen, its session would keep its locks. If this user may not end the session, `take_over` waits
        until the server does so, after `connection.IDLE_S`.
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
        """Request a named lock for the session; return whether the session got it."""
        [(got,)] = execute(database, f"SELECT GET_LOCK({literal(name)}, {seconds})")
        return bool(got == 1)

    # -- statements

    def table(self, name: str) -> str:
        """Return the quoted name of a table in the result table's database."""
        return quoted(self.schema, name)

    def literal(self, value: str | int) -> str:
        return literal(value)

    def names(self, columns: Sequence[str]) -> str:
        return names(columns)

    def execute(self, database: Database, statement: str) -> list[tuple[Any, ...]]:
        return execute(database, statement)

    def described(self, database: Database, name: str) -> tuple[str, str] | None:
        """Return the engine and the comment of a table; None: there is no such table.

        For a view, the engine is empty.
        """
        found = self.run(
            database,
            "SELECT TABLE_NAME, ENGINE, TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = {schema} "
            "AND TABLE_NAME = {name}",
            schema=literal(self.schema),
            name=literal(name),
        )
        # Compared again here: these columns may have a collation that ignores upper and lower case.
        return next(((engine or "", comment or "") for table, engine, comment in found if table == name), None)

    def is_there(self, database: Database) -> bool:
        """Return whether the tables for generations and offsets exist; only the table created last is checked."""
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
