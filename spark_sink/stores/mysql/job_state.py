"""What a MySQL database keeps about a job beside its rows: generation and offsets, and the tables themselves.

Every CREATE and ALTER commits by itself in MySQL. So none of them stands in a transaction, each is one that can be said
again, and a job that is killed between two of them finds the rest to do when it is started again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import StoreError, refuse
from kafka_ratchet.spark_sink.stores import topic_ids
from kafka_ratchet.spark_sink.stores.mysql.connection import (
    execute,
    literal,
    quoted,
    read_url,
    session,
    spoken,
)
from kafka_ratchet.spark_sink.stores.mysql.marks import Marks
from kafka_ratchet.spark_sink.stores.mysql.types import (
    table_parts,
)
from kafka_ratchet.spark_sink.stores.topic_ids import StoredId

if TYPE_CHECKING:
    from kafka_ratchet.spark_sink.stores.mysql.connection import Database

END_TIMEOUT_S = 5.0
"""How long a take-over waits until a session it has ended is gone, in seconds."""

NO_SUCH_TABLE = 1146
"""The server's number for a table that is not there."""


class JobState:
    """The bookkeeping of one job and topic, in the tables `ratchet_sink_jobs` and `ratchet_sink_offsets`.

    Args:
        url: see `MysqlStore`.
        password: see `MysqlStore`.
        table: the result table.
        name: the job's name.
        topic: the topic.
        topic_id: its id, or 0.
        relations: the tables that the offsets belong to: the result's, and where there is one, the rejects'.

    Raises:
        OptionRefused: see `MysqlStore`.
    """

    def __init__(
        self,
        url: str,
        password: str | None,
        table: str,
        name: str,
        topic: str,
        topic_id: int,
        relations: Sequence[str] = (),
    ) -> None:
        address = read_url(url, password)
        self.schema, self.result = table_parts(table, address.database)
        # By the session's database a server decides what it replicates, where it is told to leave some out.
        self.address = replace(address, parameters={**address.parameters, "database": self.schema})
        self.where = f"{self.schema}.{self.result} on {self.address.host}"
        self._table_name, self._name, self._topic, self._topic_id = table, name, topic, topic_id
        self.marks = Marks(self, topic_id, relations)
        self._url, self._password = url, password
        self.collation = ""
        # Of this job alone, with the holder's generation behind it: a take-over ends the sessions and drops the
        # staging tables of the generations before it.
        digest = hashlib.sha256(f"{self.schema}\0{self.result}\0{name}".encode()).hexdigest()[:12]
        self._lock, self.staging = f"ratchet:{digest}:", f"ratchet_stage_{digest}_"

    def of_job(self, name: str) -> JobState:
        """The bookkeeping of another job over the same result table."""
        return JobState(self._url, self._password, self._table_name, name, self._topic, 0)

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
        """A table of the result table's database, quoted."""
        return quoted(self.schema, name)

    def run(self, database: Database, statement: str, **parts: str) -> list[tuple[Any, ...]]:
        """Run a statement with its names and values in place; what this class knows need not be given."""
        known = {
            "jobs": self.table("ratchet_sink_jobs"),
            "offsets": self.table("ratchet_sink_offsets"),
            "result": literal(self.result),
            "job": literal(self._name),
            "topic": literal(self._topic),
            "identity": literal(topic_ids.first_bits(self._topic_id)),
        }
        return execute(database, statement.format(**{**known, **parts}))

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

    # -- generation and offsets

    def generation(self, database: Database) -> int:
        """The newest holder's number; 0: there was none."""
        if not self._is_there(database):
            return 0
        found = self.run(database, "SELECT generation FROM {jobs} WHERE result = {result} AND job = {job}")
        return int(found[0][0]) if found else 0

    def generations(self, database: Database) -> dict[str, int]:
        """The newest holder of each job that writes to the result table; none where there is no bookkeeping."""
        if not self._is_there(database):
            return {}
        return dict(self.run(database, "SELECT job, generation FROM {jobs} WHERE result = {result}"))

    def stored(self, database: Database) -> dict[int, int]:
        """Next offset of each partition."""
        if not self._is_there(database):
            return {}
        found = self.run(
            database,
            "SELECT `partition`, next_offset FROM {offsets} "
            "WHERE result = {result} AND job = {job} AND topic = {topic} ORDER BY `partition`",
        )
        return {int(partition): int(offset) for partition, offset in found}

    def take_over(self, database: Database) -> int:
        """A new generation. Waits for a commit that is on its way."""
        self.run(
            database,
            "INSERT INTO {jobs} VALUES ({result}, {job}, 1) ON DUPLICATE KEY UPDATE generation = generation + 1",
        )
        return self.generation(database)

    def lock(self, database: Database) -> None:
        """Keep the generation as it is until the transaction ends: who takes over waits, or has been before."""
        self.run(database, "SELECT generation FROM {jobs} WHERE result = {result} AND job = {job} FOR UPDATE")

    def other_jobs(self, database: Database) -> list[str]:
        """Names of other jobs that have offsets of the topic, in order."""
        if not self._is_there(database):
            return []
        found = self.run(
            database,
            "SELECT job, MAX(identity) FROM {offsets} WHERE result = {result} AND job <> {job} AND topic = {topic} "
            "GROUP BY job ORDER BY job",
        )
        return [str(job) for job, identity in found if not StoredId("", int(identity)).is_other(self._topic_id)]

    def known_topic(self, database: Database) -> StoredId:
        """The id of the topic that the offsets belong to."""
        if not self._is_there(database):
            return StoredId()
        found = self.run(
            database,
            "SELECT MAX(identity) FROM {offsets} WHERE result = {result} AND job = {job} AND topic = {topic}",
        )
        return StoredId(self.marks.topic_id(database), int(found[0][0] or 0))

    def write_mode(self, database: Database) -> str:
        return self.marks.write_mode(database) if self.generation(database) else ""

    def inconsistency(self, database: Database) -> tuple[str, str]:
        return self.marks.inconsistency(database) if self.stored(database) else ("", "")

    def forget(self, database: Database) -> None:
        """Remove the offsets of job and topic."""
        self.run(database, "DELETE FROM {offsets} WHERE result = {result} AND job = {job} AND topic = {topic}")

    def move(self, database: Database, end: Mapping[int, int]) -> None:
        """Store these offsets."""
        for partition, offset in end.items():
            self.run(
                database,
                "INSERT INTO {offsets} VALUES ({result}, {job}, {topic}, {partition}, {next}, {identity}) "
                "ON DUPLICATE KEY UPDATE next_offset = {next}, identity = {identity}",
                partition=literal(partition),
                next=literal(offset),
            )

    def _is_there(self, database: Database) -> bool:
        """Whether the job has its tables; the second is made after the first."""
        import pymysql

        try:
            self.run(database, "SELECT 1 FROM {offsets} LIMIT 0")
        except pymysql.MySQLError as error:
            if error.args[0] == NO_SUCH_TABLE:
                return False
            raise
        return True
