"""DuckDB file, open only during a call: other processes can read it between calls."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import Interrupted, StoreError, first_line, refuse, refuse_rule
from kafka_ratchet.spark_sink.stores.evolution import ColumnChange, changes, is_larger
from kafka_ratchet.spark_sink.stores.store import require_columns, without_free

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

LOCK_PATIENCE_S = 30.0
"""Seconds that a call waits while another process, a job or reader, has the file open."""

LOCK_PAUSE_S = 0.1
"""Seconds between two attempts to open the file."""

CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
"""Settings of a connection: DuckDB downloads and loads no extension; its wheel contains Parquet."""


INTERRUPTED = "Query interrupted"
"""Message of DuckDB's RuntimeError after a signal handler has raised an exception during a query.

The handler's exception is lost: the RuntimeError has no `__cause__`.
"""

INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
WIDENINGS = "TINYINT, SMALLINT and INTEGER become larger integers, FLOAT becomes DOUBLE, and DECIMAL gets more digits"


class DatabaseFile:
    """DuckDB file on a disk of this machine.

    Args:
        path: absolute path.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def writing(self) -> Iterator[DuckDBPyConnection]:
        """Run a transaction on the file, and commit it unless the caller raises."""
        with self._errors(), self._connect(read_only=False) as database:
            database.begin()
            yield database
            database.commit()

    @contextmanager
    def reading(self) -> Iterator[DuckDBPyConnection]:
        """Open the file read-only; a missing file counts as an empty database."""
        import duckdb

        with (
            self._errors(),
            self._connect(read_only=True) if self.path.exists() else duckdb.connect() as database,
        ):
            yield database

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert DuckDB's errors into errors of this package.

        Raises:
            Interrupted: a signal has ended a query.
            RuleBroken: a row breaks a constraint of the table.
            StoreError: the file cannot be read or written.
        """
        import duckdb

        try:
            yield
        except duckdb.ConstraintException as error:
            refuse_rule(self.path, first_line(error))
        except duckdb.Error as error:
            refuse(self.path, error, "the file and its rights")
        except RuntimeError as error:
            if str(error) != INTERRUPTED:
                raise
            raise Interrupted(
                f"{self.path}: a signal has interrupted a query of the job (Ctrl-C, or a time limit of the program "
                "around it). Rows and offsets agree: the commit is complete, or left no trace. Run the job again to "
                "continue"
            ) from None

    def _connect(self, *, read_only: bool) -> DuckDBPyConnection:
        """Connect to the file, waiting while another process has it open."""
        import duckdb

        deadline = time.monotonic() + LOCK_PATIENCE_S
        while True:
            try:
                return duckdb.connect(str(self.path), read_only=read_only, config=CONFIG)
            except duckdb.IOException as error:
                if "lock" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(LOCK_PAUSE_S)

    def make_folder(self) -> None:
        """Create the folder that contains the file.

        Raises:
            StoreError: the folder cannot be created, or the path of the file is a folder.
        """
        if self.path.is_dir():
            raise StoreError(f"{self.path} is a folder, not a DuckDB file. Choose another path")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"{self.path}: the folder of this file cannot be made ({error.strerror}). Choose another path"
            ) from None

    def create_table(self, database: DuckDBPyConnection, table: str, schema: pa.Schema) -> None:
        """Create a table with the columns of `schema`, unless it exists."""
        database.register("wanted", schema.empty_table())
        create = f"CREATE TABLE IF NOT EXISTS {quoted(table)} AS SELECT * FROM wanted LIMIT 0"  # noqa: S608
        database.execute(create)
        database.unregister("wanted")

    def require_columns(self, database: DuckDBPyConnection, table: str, schema: pa.Schema) -> None:
        """Raise `SchemaDiffers` if the table has other columns."""
        present, expected = self._compared(database, table, schema)
        require_columns(self.path, present, expected, table, _free_columns(database, table))

    def foreign_columns(self, database: DuckDBPyConnection, table: str, schema: pa.Schema) -> list[str]:
        """Return the columns of a table that `schema` does not contain."""
        return [name for name in _described(database, quoted(table)) if name not in schema.names]

    def require_types(self, database: DuckDBPyConnection, table: str, schema: pa.Schema) -> None:
        """Require that each column has the type in `schema` or a wider one: DuckDB rounds without an error.

        Columns that `schema` lacks are not checked; another job has added them.

        Raises:
            SchemaDiffers: a column is missing or has another type.
        """
        present, expected = self._compared(database, table, schema)
        found = {
            name: kind if _widens(kind, present[name]) else present[name]
            for name, kind in expected.items()
            if name in present
        }
        require_columns(self.path, found, expected, table)

    def missing_columns(self, database: DuckDBPyConnection, table: str, schema: pa.Schema) -> list[ColumnChange]:
        """Return the changes that give a table the columns of `schema`.

        Raises:
            SchemaDiffers: the changes are impossible.
        """
        present, expected = self._compared(database, table, schema)
        present = without_free(present, expected, _free_columns(database, table))
        return changes(f"{self.path}, table {table}", present, expected, _widens, WIDENINGS)

    def add_columns(self, database: DuckDBPyConnection, table: str, schema: pa.Schema) -> None:
        """Apply the changes of `missing_columns` in the caller's transaction; existing rows have null in new columns.

        Raises:
            SchemaDiffers: the changes are impossible.
        """
        for change in self.missing_columns(database, table, schema):
            step = "ADD COLUMN {} {}" if change.is_new else "ALTER COLUMN {} SET DATA TYPE {}"
            # The type is DuckDB's own text, with the names in it quoted.
            database.execute(f"ALTER TABLE {quoted(table)} " + step.format(quoted(change.column), change.type))

    def _compared(
        self, database: DuckDBPyConnection, table: str, schema: pa.Schema
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the table's column types and the job's column types, each by column name."""
        database.register("wanted", schema.empty_table())
        expected = _described(database, "wanted")
        database.unregister("wanted")
        return _described(database, quoted(table)), expected


def _widens(before: str, after: str) -> bool:
    return is_larger(before, after, INTEGERS) or (before, after) == ("FLOAT", "DOUBLE")


def has_table(database: DuckDBPyConnection, table: str) -> bool:
    """Return whether the table exists."""
    return bool(database.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = ?", [table]).fetchall())


def is_filled(database: DuckDBPyConnection, table: str) -> bool:
    """Return whether the table exists and has a row."""
    if not has_table(database, table):
        return False
    return bool(database.execute(f"SELECT 1 FROM {quoted(table)} LIMIT 1").fetchall())  # noqa: S608


def _described(database: DuckDBPyConnection, relation: str) -> dict[str, str]:
    found = database.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()  # noqa: S608
    return {str(column): str(data_type) for column, data_type, *_ in found}


def _free_columns(database: DuckDBPyConnection, table: str) -> set[str]:
    """Return the columns that may be null, or have a default or an expression."""
    found = database.execute(
        "SELECT column_name FROM duckdb_columns() WHERE table_name = ? AND schema_name = current_schema() "
        "AND database_name = current_database() AND (is_nullable OR column_default IS NOT NULL)",
        [table],
    )
    return {str(column) for (column,) in found.fetchall()}


def same_key(database: DuckDBPyConnection, view: str, key: Sequence[str]) -> str:
    """Return an SQL condition for equal keys in `target` and in a view; null equals null.

    Texts are compared by their bytes, because the collation of a table's column may make different texts equal.

    Args:
        database: connection.
        view: name of the view, which is also its alias in the statement.
        key: names of the key columns.
    """
    types = _described(database, view)
    forms = {name: "encode({}.{})" if types[name] == "VARCHAR" else "{}.{}" for name in key}
    return " AND ".join(
        f"{form.format('target', quoted(name))} IS NOT DISTINCT FROM {form.format(view, quoted(name))}"
        for name, form in forms.items()
    )


def quoted(name: str) -> str:
    """Quote a name for DuckDB's SQL, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'
