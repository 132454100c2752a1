"""Tables of a PostgreSQL database that the store creates, changes and compares."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.stores.postgres.job_state import JobState
from kafka_ratchet.spark_sink.stores.postgres.types import WIDENINGS, widens
from kafka_ratchet.spark_sink.stores.sql_tables import SqlTables, staged_before
from kafka_ratchet.spark_sink.stores.sql_types import Column
from kafka_ratchet.spark_sink.stores.store import require_columns

if TYPE_CHECKING:
    from kafka_ratchet.spark_sink.stores.postgres.types import Database

NULL_IS_A_KEY = 150_000
"""Version number (server_version_num) of the first PostgreSQL with NULLS NOT DISTINCT: unique indexes that treat null
as a value."""

SCHEMA_LOCK = 0x7261746368657421
"""Number of the advisory lock for creating tables: two simultaneous CREATE TABLE IF NOT EXISTS can still collide."""

CREATE = (
    "CREATE TABLE IF NOT EXISTS {jobs} (result text, job text, generation bigint NOT NULL, PRIMARY KEY (result, job))",
    "CREATE TABLE IF NOT EXISTS {offsets} (result text, job text, topic text, partition integer, "
    "next bigint NOT NULL, identity bigint NOT NULL, PRIMARY KEY (result, job, topic, partition))",
)
CREATE_MARKS = (
    "CREATE TABLE IF NOT EXISTS {marks} (result text, job text, topic text, relation text, topic_id text NOT NULL, "
    "oid bigint NOT NULL, filenode bigint NOT NULL, offsets_oid bigint NOT NULL, filled boolean NOT NULL, "
    "PRIMARY KEY (result, job, topic, relation))",
    "CREATE TABLE IF NOT EXISTS {decisions} (result text, job text, topic text, "
    "decided timestamptz NOT NULL DEFAULT now(), decision text NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {rules} (result text, job text, rule text NOT NULL, PRIMARY KEY (result, job))",
)
"""Statements that create the tables that an earlier version of the job did not have."""


class Tables(SqlTables["Database"]):
    """Result, rejects, bookkeeping and staging tables of one job.

    Args:
        state: the job's state.
    """

    widenings = WIDENINGS

    def __init__(self, state: JobState) -> None:
        super().__init__(state.where)
        self._state = state

    def create_marks(self, database: Database) -> None:
        """Create the missing tables of `CREATE_MARKS`."""
        for statement in CREATE_MARKS:
            self._state.run(database, statement)

    def create_tables(
        self,
        database: Database,
        tables: Mapping[str, Sequence[Column]],
        key: Sequence[str],
        evolving: str | None = None,
    ) -> None:
        """Create the missing tables, for the job's state and in `tables`, and the index over the key.

        Args:
            database: connection during a transaction.
            tables: columns of each table, by its name.
            key: key columns of the first table.
            evolving: name of the table that `evolve` will change; None: none.

        Raises:
            SchemaDiffers: a table has other columns.
            StoreError: there is a key, and the server is older than PostgreSQL 15, or a collation makes different keys
                equal.
        """
        from psycopg import sql

        database.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
        for statement in CREATE:
            self._state.run(database, statement)
        self.create_marks(database)
        for name, columns in tables.items():
            definitions = [sql.Identifier(column.name) + sql.SQL(f" {column.type}") for column in columns]
            self._state.run(
                database,
                "CREATE TABLE IF NOT EXISTS {table} ({definitions})",
                table=self._state.table(name),
                definitions=sql.SQL(", ").join(definitions),
            )
            self.require_fits(database, name, columns, evolves=name == evolving)
        if key:
            self.require_collations(database, next(iter(tables)), key)
            self._create_key(database, next(iter(tables)), key)

    def _create_key(self, database: Database, table: str, key: Sequence[str]) -> None:
        from psycopg import sql

        if database.info.server_version < NULL_IS_A_KEY:
            raise StoreError(f"{self._where}: results with a key need PostgreSQL 15 or newer. Upgrade the server")
        digest = hashlib.sha256("\0".join([self._state.result, *key]).encode()).hexdigest()[:16]
        self._state.run(
            database,
            "CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {table} ({key}) NULLS NOT DISTINCT",
            index=sql.Identifier(f"ratchet_key_{digest}"),
            table=self._state.table(table),
            key=sql.SQL(", ").join(map(sql.Identifier, key)),
        )

    def new_staging(self, generation: int) -> str:
        """Return a name for a staging table of a generation."""
        return f"{self._state.staging}{generation}_{uuid.uuid4().hex[:8]}"

    def staged(self, database: Database, newest: int) -> list[tuple[str, int]]:
        """Return name and bytes of the staging tables up to a generation."""
        found = self._state.run(
            database,
            "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relnamespace = (SELECT relnamespace "
            "FROM pg_class WHERE oid = {jobs_name}::regclass) AND relkind = 'r' AND starts_with(relname, {prefix})",
            jobs_name=self._state.name_literal("ratchet_sink_jobs"),
            prefix=self._state.literal(self._state.staging),
        )
        return [(table, size) for table, size in found if staged_before(table, self._state.staging, newest)]

    def drop_staged(self, table: str, newest: int) -> None:
        """Drop a staging table on a separate connection, after ending the job's sessions up to generation `newest`."""
        with self._state.database() as database:
            self._state.end_sessions(database, newest)  # a task frozen during a COPY would keep the table
            self._state.run(database, "DROP TABLE IF EXISTS {table}", table=self._state.table(table))

    def drop_staging(self, database: Database, newest: int) -> None:
        """Drop the staging tables up to a generation."""
        for table, _ in self.staged(database, newest):
            self._state.run(database, "DROP TABLE IF EXISTS {table}", table=self._state.table(table))

    def columns(self, database: Database, table: str) -> list[Column]:
        """Return the columns of a table in the result's schema; empty: the table is missing."""
        found = self._state.run(
            database,
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass({name}) "
            "AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            name=self._state.name_literal(table),
        )
        return [Column(str(column), str(data_type)) for column, data_type in found]

    def free_columns(self, database: Database, table: str) -> set[str]:
        """Return the columns that may be null, or that the table itself fills.

        See `SqlTables.free_columns`.
        """
        found = self._state.run(
            database,
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass({name}) AND attnum > 0 AND NOT attisdropped "
            "AND (NOT attnotnull OR atthasdef OR attidentity <> '' OR attgenerated <> '')",
            name=self._state.name_literal(table),
        )
        return {str(column) for (column,) in found}

    def widens(self, before: str, after: str) -> bool:
        """Return whether the type widens, see `SqlTables.widens`."""
        return widens(before, after)

    def require_types(self, database: Database, table: str, columns: Sequence[Column]) -> None:
        """Require that each column has the expected type or a wider one: PostgreSQL rounds without an error.

        Columns outside of `columns` are not checked; another job has added them.

        Raises:
            SchemaDiffers: a column is missing or has another type.
        """
        present, expected = dict(self.columns(database, table)), dict(columns)
        found = {
            name: kind if widens(kind, present[name]) else present[name]
            for name, kind in expected.items()
            if name in present
        }
        require_columns(self._where, found, expected, table)

    def require_collations(self, database: Database, table: str, key: Sequence[str]) -> None:
        """Refuse a table if the collation of a key column makes different values equal.

        The index over the key and all comparisons use the column's collation, so that one key would replace another.

        Raises:
            StoreError: a column of the key has such a collation.
        """
        from psycopg import sql

        if not key:
            return
        found = self._state.run(
            database,
            "SELECT attname, collname FROM pg_attribute JOIN pg_collation ON pg_collation.oid = attcollation "
            "WHERE attrelid = to_regclass({name}) AND attnum > 0 AND NOT attisdropped AND NOT collisdeterministic",
            name=self._state.name_literal(table),
        )
        for column, collation in found:
            if column in key:
                at, name = (each.as_string(None) for each in (self._state.table(table), sql.Identifier(str(column))))
                raise StoreError(
                    f"{self._where}: column {column} of {table} has the collation {collation}, which treats different "
                    "texts as equal, so that the row of one key would replace that of another. Nothing was added. "
                    f'ALTER TABLE {at} ALTER COLUMN {name} TYPE text COLLATE "C", or choose another table'
                )

    def evolve(self, database: Database, table: str, columns: Sequence[Column]) -> None:
        """Apply the changes of `missing` in the caller's transaction; a change of type rewrites the table.

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
            self._state.run(
                database,
                statement,
                table=self._state.table(table),
                column=sql.Identifier(change.column),
                type=sql.SQL(change.type),  # one of `types.PLAIN` or numeric(p,s)
            )
