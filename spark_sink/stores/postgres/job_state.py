"""What a PostgreSQL database keeps about a job beside its rows: generation and offsets, and the tables themselves."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import StoreError, refuse
from kafka_ratchet.spark_sink.stores import topic_ids
from kafka_ratchet.spark_sink.stores.evolution import Change, changes
from kafka_ratchet.spark_sink.stores.postgres.marks import Marks
from kafka_ratchet.spark_sink.stores.postgres.tasks import Connection
from kafka_ratchet.spark_sink.stores.postgres.types import WIDENINGS, Column, conninfo, table_parts, widens
from kafka_ratchet.spark_sink.stores.store import require_columns
from kafka_ratchet.spark_sink.stores.topic_ids import StoredId

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

    Database = psycopg.Connection[tuple[Any, ...]]

LOCK_TIMEOUT_MS = 30_000
"""How long a statement waits for another session's lock, in milliseconds. No holder keeps one for longer than a commit,
and a take-over ends the sessions of the holder before it; who still waits is told so instead of hanging."""

VISIT_TIMEOUT_MS = 10_000
"""How long a session that holds no job may do nothing amid a transaction, in milliseconds. None of its own is long."""

END_TIMEOUT_MS = 5_000
"""How long a take-over waits until a session it has ended is gone, in milliseconds."""

NULL_IS_A_KEY = 150_000
"""server_version_num of the first PostgreSQL whose unique indexes can treat null as a value (NULLS NOT DISTINCT)."""

SCHEMA_LOCK = 0x7261746368657421
"""Advisory lock under which tables are made: two CREATE TABLE IF NOT EXISTS at once can still collide."""


class JobState:
    """The bookkeeping of one job and topic, in the tables `ratchet_sink_jobs` and `ratchet_sink_offsets`.

    Args:
        url: see `PostgresStore`.
        password: see `PostgresStore`.
        table: the result table.
        name: the job's name.
        topic: the topic.
        topic_id: its id, or 0.
        relations: the tables that the offsets belong to: the result's, and where there is one, the rejects'.

    Raises:
        OptionRefused: see `PostgresStore`.
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
        self._conninfo, where = conninfo(url, password)
        self.where = f"{table} in {where}"
        self._schema = table_parts(table)[:-1]
        self._table_name, self._name, self._topic, self._topic_id = table, name, topic, topic_id
        self.marks = Marks(self, topic_id, relations)
        self._url, self._password = url, password
        digest = hashlib.sha256(f"{table}\0{name}".encode()).hexdigest()[:12]
        # Of this job alone, with the holder's generation behind it, and short enough not to be cut off: a take-over
        # ends the sessions and drops the staging tables of the generations before it.
        self._application = f"sink:{name[:24]}:{digest}:"
        self._staging = f"ratchet_stage_{digest}_"

    def of_job(self, name: str) -> JobState:
        """The bookkeeping of another job over the same result table."""
        return JobState(self._url, self._password, self._table_name, name, self._topic, 0)

    # -- sessions

    @contextmanager
    def database(self, generation: int | None = None) -> Iterator[Database]:
        """A connection for the time of one call.

        Args:
            generation: the holder's; None: the caller does not hold the job, or not yet.

        Raises:
            StoreError: the database refuses, or does not answer.
        """
        import psycopg

        application = "sink-visitor" if generation is None else self.application(generation)
        try:
            with psycopg.connect(
                self._conninfo, autocommit=True, application_name=application, client_encoding="UTF8"
            ) as database:
                database.execute(f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
                # The server ends a session that hangs amid a take-over: it has no generation to be found by.
                if generation is None:
                    database.execute(f"SET idle_in_transaction_session_timeout = {VISIT_TIMEOUT_MS}")
                yield database
        except psycopg.Error as error:
            refuse(self.where, error, "the database and the job's rights in it")

    def application(self, generation: int) -> str:
        """What the sessions of a holder are called."""
        return f"{self._application}{generation}"

    def connection(self, generation: int) -> Connection:
        """How tasks connect under that name."""
        return Connection(self._conninfo, self.application(generation), LOCK_TIMEOUT_MS)

    def end_sessions(self, database: Database, newest: int) -> None:
        """End those of holders up to that generation: the open COPY of a frozen one would block the next holder."""
        found = database.execute(
            "SELECT pid, application_name FROM pg_stat_activity "
            "WHERE starts_with(application_name, %s) AND datname = current_database()",
            (self._application,),
        ).fetchall()
        for pid, application in found:
            if _is_older(application, self._application, newest):
                database.execute("SELECT pg_terminate_backend(%s, %s)", (pid, END_TIMEOUT_MS))

    # -- statements

    def table(self, name: str) -> sql.Identifier:
        """The name of a table in the result table's schema."""
        from psycopg import sql

        return sql.Identifier(*self._schema, name)

    def text(self, statement: str, **parts: Any) -> sql.Composed:
        """A statement with its names and values in place; what this class knows need not be given."""
        from psycopg import sql

        known = {
            "jobs": self.table("ratchet_sink_jobs"),
            "offsets": self.table("ratchet_sink_offsets"),
            "result": sql.Literal(self._table_name),
            "job": sql.Literal(self._name),
            "topic": sql.Literal(self._topic),
            "identity": sql.Literal(topic_ids.first_bits(self._topic_id)),
        }
        return sql.SQL(statement).format(**known, **parts)

    def run(self, database: Database, statement: str, **parts: Any) -> list[tuple[Any, ...]]:
        """Execute a statement; its rows, if it has any."""
        cursor = database.execute(self.text(statement, **parts))
        return cursor.fetchall() if cursor.description else []

    def task_statements(self, copy: str) -> dict[str, str]:
        """What the tasks execute, as text in which `%s` stand for partition and offset."""
        statements = {
            "holder": "SELECT generation FROM {jobs} WHERE result = {result} AND job = {job} FOR SHARE",
            "first": "INSERT INTO {offsets} VALUES ({result}, {job}, {topic}, %s, %s, {identity}) "
            "ON CONFLICT DO NOTHING",
            "stored": "SELECT next FROM {offsets} WHERE result = {result} AND job = {job} AND topic = {topic} "
            "AND partition = %s FOR UPDATE",
            "move": "UPDATE {offsets} SET next = %s, identity = {identity} "
            "WHERE result = {result} AND job = {job} AND topic = {topic} AND partition = %s",
        }
        return {name: self.text(text).as_string(None) for name, text in statements.items()} | {"copy": copy}

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
            "SELECT partition, next FROM {offsets} WHERE result = {result} AND job = {job} AND topic = {topic} "
            "ORDER BY partition",
        )
        return {int(partition): int(offset) for partition, offset in found}

    def take_over(self, database: Database) -> int:
        """A new generation. Waits for commits that are on their way."""
        [(generation,)] = self.run(
            database,
            "INSERT INTO {jobs} AS job VALUES ({result}, {job}, 1) ON CONFLICT (result, job) "
            "DO UPDATE SET generation = job.generation + 1 RETURNING generation",
        )
        return int(generation)

    def lock(self, database: Database) -> None:
        """Keep the generation as it is until the transaction ends: who takes over waits, or has been before."""
        self.run(database, "SELECT 1 FROM {jobs} WHERE result = {result} AND job = {job} FOR UPDATE")

    def other_jobs(self, database: Database) -> list[str]:
        """Names of other jobs that have offsets of the topic, in order."""
        if not self._is_there(database):
            return []
        found = self.run(
            database,
            "SELECT job, max(identity) FROM {offsets} WHERE result = {result} AND job <> {job} AND topic = {topic} "
            "GROUP BY job ORDER BY job",
        )
        return [str(job) for job, identity in found if not StoredId("", int(identity)).is_other(self._topic_id)]

    def known_topic(self, database: Database) -> StoredId:
        """The id of the topic that the offsets belong to."""
        if not self._is_there(database):
            return StoredId()
        found = self.run(
            database,
            "SELECT max(identity) FROM {offsets} WHERE result = {result} AND job = {job} AND topic = {topic}",
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
        from psycopg import sql

        for partition, offset in end.items():
            self.run(
                database,
                "INSERT INTO {offsets} VALUES ({result}, {job}, {topic}, {partition}, {next}, {identity}) "
                "ON CONFLICT (result, job, topic, partition) DO UPDATE SET next = {next}, identity = {identity}",
                partition=sql.Literal(partition),
                next=sql.Literal(offset),
            )

    # -- tables

    def create_tables(
        self,
        database: Database,
        tables: Mapping[str, Sequence[Column]],
        key: Sequence[str],
        evolving: str | None = None,
    ) -> None:
        """Make what is not there yet: bookkeeping, `tables` and the index over `key` of the first of them.

        Args:
            database: amid a transaction.
            tables: columns of each.
            key: of the first table.
            evolving: the table that `evolve` is to be called for.

        Raises:
            SchemaDiffers: a table is there with other columns.
            StoreError: the server is too old for a key.
        """
        from psycopg import sql

        database.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
        self.run(
            database,
            "CREATE TABLE IF NOT EXISTS {jobs} "
            "(result text, job text, generation bigint NOT NULL, PRIMARY KEY (result, job))",
        )
        self.run(
            database,
            "CREATE TABLE IF NOT EXISTS {offsets} (result text, job text, topic text, partition integer, "
            "next bigint NOT NULL, identity bigint NOT NULL, PRIMARY KEY (result, job, topic, partition))",
        )
        self.marks.create(database)
        for name, columns in tables.items():
            definitions = [sql.Identifier(column.name) + sql.SQL(f" {column.type}") for column in columns]
            self.run(
                database,
                "CREATE TABLE IF NOT EXISTS {table} ({definitions})",
                table=self.table(name),
                definitions=sql.SQL(", ").join(definitions),
            )
            if name == evolving:
                self.missing(database, name, columns)
            else:
                self.require_columns(database, name, columns)
        if key:
            self._create_key(database, next(iter(tables)), key)

    def _create_key(self, database: Database, table: str, key: Sequence[str]) -> None:
        from psycopg import sql

        if database.info.server_version < NULL_IS_A_KEY:
            raise StoreError(f"{self.where}: results with a key need PostgreSQL 15 or newer. Upgrade the server")
        digest = hashlib.sha256("\0".join([self._table_name, *key]).encode()).hexdigest()[:16]
        self.run(
            database,
            "CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {table} ({key}) NULLS NOT DISTINCT",
            index=sql.Identifier(f"ratchet_key_{digest}"),
            table=self.table(table),
            key=sql.SQL(", ").join(map(sql.Identifier, key)),
        )

    def new_staging(self, generation: int) -> str:
        """Name for a staging table of that holder."""
        return f"{self._staging}{generation}_{uuid.uuid4().hex[:8]}"

    def staged(self, database: Database, newest: int) -> list[tuple[str, int]]:
        """Names and bytes of the staging tables that holders up to that generation have left."""
        found = self.run(
            database,
            "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relnamespace = (SELECT relnamespace "
            "FROM pg_class WHERE oid = {jobs_name}::regclass) AND relkind = 'r' AND starts_with(relname, {prefix})",
            jobs_name=self._literal(self.table("ratchet_sink_jobs")),
            prefix=self._literal(self._staging),
        )
        return [(table, size) for table, size in found if _is_older(table.rpartition("_")[0], self._staging, newest)]

    def drop_staged(self, table: str, newest: int) -> None:
        """Remove one of them, from outside of the job."""
        with self.database() as database:
            self.end_sessions(database, newest)  # one that is frozen amid a COPY would keep the table
            self.run(database, "DROP TABLE IF EXISTS {table}", table=self.table(table))

    def drop_staging(self, database: Database, newest: int) -> None:
        """Remove what holders up to that generation have left."""
        for table, _ in self.staged(database, newest):
            self.run(database, "DROP TABLE IF EXISTS {table}", table=self.table(table))

    def columns(self, database: Database, table: str) -> list[Column]:
        """The columns of a table in the result table's schema; none where there is no such table."""
        found = self.run(
            database,
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass({name}) "
            "AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            name=self._literal(self.table(table)),
        )
        return [Column(str(column), str(data_type)) for column, data_type in found]

    def require_columns(self, database: Database, table: str, columns: Sequence[Column]) -> None:
        """Raise `SchemaDiffers` unless a table of the result table's schema has these columns."""
        present = {column.name: column.type for column in self.columns(database, table)}
        expected = {column.name: column.type for column in columns}
        require_columns(self.where, present, expected, table)

    def missing(self, database: Database, table: str, columns: Sequence[Column]) -> list[Change]:
        """What has to be done to a table so that it has these columns.

        Raises:
            SchemaDiffers: it cannot be done.
        """
        present = {column.name: column.type for column in self.columns(database, table)}
        expected = {column.name: column.type for column in columns}
        return changes(self.where, present, expected, widens, WIDENINGS)

    def evolve(self, database: Database, table: str, columns: Sequence[Column]) -> None:
        """Do it, in the caller's transaction. PostgreSQL writes a table anew whose types change.

        Raises:
            SchemaDiffers: see `missing`.
        """
        from psycopg import sql

        for change in self.missing(database, table, columns):
            statement = (
                "ALTER TABLE {table} ADD COLUMN {column} {type}"
                if change.is_new
                else "ALTER TABLE {table} ALTER COLUMN {column} TYPE {type}"
            )
            self.run(
                database,
                statement,
                table=self.table(table),
                column=sql.Identifier(change.column),
                type=sql.SQL(change.type),  # one of `types.PLAIN` or numeric(p,s)
            )

    def _is_there(self, database: Database) -> bool:
        names = [self._literal(self.table(name)) for name in ("ratchet_sink_jobs", "ratchet_sink_offsets")]
        [(both,)] = self.run(
            database,
            "SELECT to_regclass({one}) IS NOT NULL AND to_regclass({two}) IS NOT NULL",
            one=names[0],
            two=names[1],
        )
        return bool(both)

    @staticmethod
    def _literal(value: str | sql.Identifier) -> sql.Literal:
        from psycopg import sql

        return sql.Literal(value if isinstance(value, str) else value.as_string(None))


def _is_older(name: str, prefix: str, newest: int) -> bool:
    generation = name.removeprefix(prefix)
    return generation.isdecimal() and int(generation) <= newest
