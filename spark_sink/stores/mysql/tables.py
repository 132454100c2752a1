"""Tables of a MySQL database that the store creates, changes and compares.

In MySQL every CREATE and ALTER commits at once. So no such statement is part of a transaction, and each can be
repeated. If a job is killed between two statements, its next start executes the remaining ones.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.stores.mysql.connection import LOCK_TIMEOUT_S, literal, quoted
from kafka_ratchet.spark_sink.stores.mysql.job_state import JobState
from kafka_ratchet.spark_sink.stores.mysql.types import (
    KEY_COLUMN,
    WIDENINGS,
    definition,
    described,
    key_expression,
    widens,
)
from kafka_ratchet.spark_sink.stores.sql_job_state import BOOKKEEPING
from kafka_ratchet.spark_sink.stores.sql_tables import SqlTables, staged_before
from kafka_ratchet.spark_sink.stores.sql_types import Column
from kafka_ratchet.spark_sink.stores.store import require_columns

if TYPE_CHECKING:
    from kafka_ratchet.spark_sink.stores.mysql.connection import Database

DUPLICATE_ENTRY = 1062
"""Error number of the server for a second row with one value of a unique index."""

CREATE = (
    "CREATE TABLE IF NOT EXISTS {jobs} (result VARCHAR(64) NOT NULL, job VARCHAR(64) NOT NULL, "
    "generation BIGINT NOT NULL, PRIMARY KEY (result, job)) {options}",
    "CREATE TABLE IF NOT EXISTS {offsets} (result VARCHAR(64) NOT NULL, job VARCHAR(64) NOT NULL, "
    "topic VARCHAR(249) NOT NULL, `partition` INT NOT NULL, next_offset BIGINT NOT NULL, "
    "identity BIGINT NOT NULL, PRIMARY KEY (result, job, topic, `partition`)) {options}",
    "CREATE TABLE IF NOT EXISTS {marks} (result VARCHAR(64) NOT NULL, job VARCHAR(64) NOT NULL, "
    "topic VARCHAR(249) NOT NULL, relation VARCHAR(64) NOT NULL, topic_id VARCHAR(32) NOT NULL, "
    "table_id VARCHAR(16) NOT NULL, filled TINYINT(1) NOT NULL, PRIMARY KEY (result, job, topic, relation)) {options}",
    "CREATE TABLE IF NOT EXISTS {decisions} (id BIGINT AUTO_INCREMENT PRIMARY KEY, result VARCHAR(64) NOT NULL, "
    "job VARCHAR(64) NOT NULL, topic VARCHAR(249) NOT NULL, decided DATETIME(6) NOT NULL, decision LONGTEXT NOT NULL) "
    "{options}",
    "CREATE TABLE IF NOT EXISTS {rules} (result VARCHAR(64) NOT NULL, job VARCHAR(64) NOT NULL, "
    "rule LONGTEXT NOT NULL, PRIMARY KEY (result, job)) {options}",
)
"""Statements that create the tables for the job's state, in this order: if the second table exists, the first does
too."""


class Tables(SqlTables["Database"]):
    """Result, rejects, bookkeeping and staging tables of one job.

    Args:
        state: the job's state.
    """

    widenings = WIDENINGS

    def __init__(self, state: JobState) -> None:
        super().__init__(state.where)
        self._state = state

    @property
    def options(self) -> str:
        """Return the options that follow each CREATE TABLE, because the server's defaults may differ."""
        return f"ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE {self._state.collation}"

    def create_bookkeeping(self, database: Database) -> None:
        """Create the missing tables for the job's state.

        Raises:
            StoreError: one of the tables has an engine other than InnoDB.
        """
        for statement in CREATE:
            self._state.run(database, statement, options=self.options)
        for name in BOOKKEEPING:
            self._require_engine(database, f"ratchet_sink_{name}")

    def _require_engine(self, database: Database, name: str) -> None:
        found = self._state.described(database, name)
        if found is not None:
            self._state.marks.require_engine(name, found[0])

    def create_tables(
        self,
        database: Database,
        tables: Mapping[str, Sequence[Column]],
        key: tuple[str, ...],
        evolving: str | None = None,
    ) -> None:
        """Create the missing tables, for the job's state and in `tables`, and the index over the key.

        Each statement commits at once. If a job is killed between two statements, the next job creates the remaining
        tables.

        Args:
            database: connection without an open transaction.
            tables: columns of each table, by its name.
            key: key columns of the first table.
            evolving: name of the table that `evolve` will change; None: none.

        Raises:
            SchemaDiffers: a table has other columns.
            StoreError: a table has another engine, or a second unique index.
        """
        # Two jobs at once could each give the table an id. The lock goes with the session.
        creating = f"ratchet:{hashlib.sha256(self._state.schema.encode()).hexdigest()[:12]}:tables"
        if not self._state.get_lock(database, creating, LOCK_TIMEOUT_S):
            raise StoreError(
                f"{self._state.where}: another job has been creating tables for {LOCK_TIMEOUT_S} s. Run the job again"
            )
        try:
            self.create_bookkeeping(database)
            for name, columns in tables.items():
                parts = [definition(column, self._state.collation) for column in columns]
                if key and name == self._state.result:
                    parts += _key_parts(key)
                self._state.run(
                    database,
                    "CREATE TABLE IF NOT EXISTS {table} ({parts}) {options}",
                    table=self._state.table(name),
                    parts=", ".join(parts),
                    options=self.options,
                )
                self._require_engine(database, name)
                self.require_fits(database, name, columns, evolves=name == evolving)
            if key:
                self._create_key(database, key)
            self._state.marks.give_ids(database)
        finally:
            self._state.run(database, "DO RELEASE_LOCK({name})", name=literal(creating))

    def _create_key(self, database: Database, key: tuple[str, ...]) -> None:
        import pymysql

        column, index = _key_parts(key)
        wanted = [] if key_column(key) in self._all_columns(database, self._state.result) else [column]
        if not self._has_key(database, key):
            wanted.append(index)
        if not wanted:
            return
        added = ", ".join(f"ADD {part}" for part in wanted)
        try:
            self._state.run(
                database, "ALTER TABLE {table} {added}", table=self._state.table(self._state.result), added=added
            )
        except pymysql.IntegrityError as error:
            if error.args[0] != DUPLICATE_ENTRY:
                raise
            raise StoreError(
                f"{self._state.where}: the table has several rows of one key ({', '.join(key)}), so that these columns "
                "cannot be its key. Delete all rows of such a key but one, or choose another table or key"
            ) from None

    def require_key(self, database: Database, key: tuple[str, ...]) -> None:
        """Refuse a table without the index over its key, or with a second unique index.

        MySQL finds the row to update by any unique index (ON DUPLICATE KEY UPDATE).

        Raises:
            StoreError: the indexes were changed.
        """
        if not self._has_key(database, key):
            raise StoreError(
                f"{self._state.where}: the index {key_column(key)} over the key ({', '.join(key)}) was dropped. "
                "Start the job again: it creates the index"
            )

    def _has_key(self, database: Database, key: tuple[str, ...]) -> bool:
        """Return whether the index over the key exists.

        Raises:
            StoreError: there is a second unique index, so that MySQL could update rows of other keys.
        """
        found = self._state.run(
            database,
            "SELECT TABLE_NAME, INDEX_NAME, COLUMN_NAME FROM information_schema.STATISTICS "
            "WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME = {result_name} AND NON_UNIQUE = 0",
            schema=literal(self._state.schema),
            result_name=literal(self._state.result),
        )
        there = {index: column for table, index, column in found if table == self._state.result}
        for index in there:
            if index != key_column(key):
                raise StoreError(
                    f"{self._state.where}: the table has the unique index {index} in addition to its key "
                    f"({', '.join(key)}), and MySQL would change rows of other keys by it. ALTER TABLE "
                    f"{self._state.table(self._state.result)} DROP INDEX {quoted(index)}, or choose another table"
                )
        return there.get(key_column(key)) == key_column(key)

    def new_staging(self, database: Database, generation: int, columns: Sequence[str]) -> str:
        """Create a staging table for a generation.

        Args:
            database: connection without an open transaction.
            generation: generation of the job.
            columns: SQL definition of each column.

        Returns:
            Name of the table.
        """
        name = f"{self._state.staging}{generation}_{uuid.uuid4().hex[:8]}"
        self._state.run(
            database,
            "CREATE TABLE {table} ({columns}) {options}",
            table=self._state.table(name),
            columns=", ".join(columns),
            options=self.options,
        )
        return name

    def defined(self, column: Column) -> str:
        """Return the SQL definition of a column for CREATE TABLE."""
        return definition(column, self._state.collation)

    def staged(self, database: Database, newest: int) -> list[tuple[str, int, float | None]]:
        """Return name, bytes and creation time of the staging tables up to a generation.

        The time is in seconds since 1970.
        """
        found = self._state.run(
            database,
            "SELECT TABLE_NAME, COALESCE(DATA_LENGTH, 0) + COALESCE(INDEX_LENGTH, 0), UNIX_TIMESTAMP(CREATE_TIME) "
            "FROM information_schema.TABLES WHERE TABLE_SCHEMA = {schema} AND LEFT(TABLE_NAME, {length}) = {prefix}",
            schema=literal(self._state.schema),
            length=literal(len(self._state.staging)),
            prefix=literal(self._state.staging),
        )
        return [
            (name, int(size), None if made is None else float(made))
            for name, size, made in found
            if staged_before(name, self._state.staging, newest)
        ]

    def drop_table(self, database: Database, table: str) -> None:
        """Drop a staging table."""
        self._state.run(database, "DROP TABLE IF EXISTS {table}", table=self._state.table(table))

    def drop_staged(self, table: str) -> None:
        """Drop a staging table that no job uses any more, on a separate connection."""
        with self._state.database() as database:
            self.drop_table(database, table)

    def drop_staging(self, database: Database, newest: int) -> None:
        """Drop the staging tables up to a generation."""
        for table, _, _ in self.staged(database, newest):
            self.drop_table(database, table)

    def columns(self, database: Database, table: str) -> list[Column]:
        """Return the columns of a table without the generated key columns; empty: the table is missing."""
        return [column for name, column in self._all_columns(database, table).items() if not is_key_column(name)]

    def _all_columns(self, database: Database, table: str) -> dict[str, Column]:
        found = self._state.run(
            database,
            "SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, COLUMN_COMMENT FROM information_schema.COLUMNS "
            "WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME = {name} ORDER BY ORDINAL_POSITION",
            schema=literal(self._state.schema),
            name=literal(table),
        )
        return {column: described(column, kind, comment) for of, column, kind, comment in found if of == table}

    def require_types(self, database: Database, table: str, columns: Sequence[Column]) -> None:
        """Require that the columns have the expected types: MySQL rounds decimals without an error.

        Raises:
            SchemaDiffers: a column has another type, or is missing.
            StoreError: see `_require_given`.
        """
        expected = dict(columns)
        self._require_given(database, table, expected)
        present = {name: kind for name, kind in self.columns(database, table) if name in expected}
        require_columns(self._state.where, present, expected, table)

    def _require_given(self, database: Database, table: str, columns: Mapping[str, str]) -> None:
        """Require that the server stores in these columns the values that the job inserts.

        Raises:
            StoreError: a column is generated, or numbered by the server.
        """
        found = self._state.run(
            database,
            "SELECT TABLE_NAME, COLUMN_NAME, EXTRA FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = {schema} "
            "AND TABLE_NAME = {name} AND (EXTRA LIKE '%auto_increment%' OR EXTRA LIKE '%GENERATED%') "
            "AND EXTRA NOT LIKE '%DEFAULT_GENERATED%'",
            schema=literal(self._state.schema),
            name=literal(table),
        )
        for of, name, extra in found:
            if of == table and name in columns:
                raise StoreError(
                    f"{self._state.where}: column {name} of {table} is {extra}, so that the server stores other values "
                    f"than the job inserts. Nothing was added. Make the column a plain {columns[name]}, or choose "
                    "another table"
                )

    def free_columns(self, database: Database, table: str) -> set[str]:
        """Return the columns that may be null, or that the table itself fills.

        See `SqlTables.free_columns`.
        """
        found = self._state.run(
            database,
            "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = {schema} "
            "AND TABLE_NAME = {name} AND (IS_NULLABLE = 'YES' OR COLUMN_DEFAULT IS NOT NULL "
            "OR EXTRA LIKE '%auto_increment%' OR EXTRA LIKE '%GENERATED%')",
            schema=literal(self._state.schema),
            name=literal(table),
        )
        return {str(column) for of, column in found if of == table}

    def widens(self, before: str, after: str) -> bool:
        """Return whether a column's type becomes wider, see `SqlTables.widens`."""
        return widens(before, after)

    def evolve(self, database: Database, table: str, columns: Sequence[Column]) -> None:
        """Apply the changes of `missing` one by one.

        Each ALTER TABLE commits at once; if a job is killed between two changes, its next start applies the remaining
        ones.

        Raises:
            SchemaDiffers: see `missing`.
        """
        for change in self.missing(database, table, columns):
            self._state.run(
                database,
                "ALTER TABLE {table} {verb} COLUMN {column}",
                table=self._state.table(table),
                verb="ADD" if change.is_new else "MODIFY",
                column=self.defined(Column(change.column, change.type)),
            )


def key_column(key: Sequence[str]) -> str:
    """Return the common name of a key's generated column and its index; each job gets the same."""
    return KEY_COLUMN + hashlib.sha256("\0".join(sorted(key)).encode()).hexdigest()[:16]


def is_key_column(name: str) -> bool:
    """Return whether a column is a generated key column."""
    return name.startswith(KEY_COLUMN)


def _key_parts(key: tuple[str, ...]) -> list[str]:
    name = quoted(key_column(key))
    expression = key_expression(tuple(sorted(key)))
    return [f"{name} BINARY(32) GENERATED ALWAYS AS ({expression}) STORED INVISIBLE", f"UNIQUE INDEX {name} ({name})"]
