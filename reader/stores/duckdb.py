"""Store in a DuckDB file, which one process at a time can have open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_ratchet.errors import DatabaseUnavailable, SettingsError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
"""Settings of a connection: DuckDB downloads and loads no extension."""


class Duckdb:
    """DuckDB file, created if missing; its folder must exist.

    Only one process can open a DuckDB file: while a reader runs, no other process can even read it.

    Args:
        path: path of the file.
    """

    placeholder = "?"

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self.where = f"DuckDB file {self._path}"

    def connect(self, owner: str) -> DuckdbDatabase:
        """Connect once; see `Store.connect`."""
        import duckdb

        del owner  # the process holding the file keeps all others out
        if not self._path.parent.is_dir():
            raise SettingsError(
                f"{self.where}: the folder {self._path.parent} does not exist. Make it, or correct the path"
            )
        try:
            return DuckdbDatabase(duckdb.connect(str(self._path), config=CONFIG))
        except duckdb.IOException as error:
            raise DatabaseUnavailable(
                f"{self.where} cannot be opened: {error}. End the process that has it open, or correct the path or the "
                "file's rights"
            ) from error
        except duckdb.Error as error:
            raise SettingsError(f"{self.where}: {error}. Check the path and the file's rights") from error

    def is_away(self, error: Exception) -> bool:
        """Return True for an error of the file or connection; see `Store.is_away`."""
        import duckdb

        return isinstance(error, duckdb.IOException | duckdb.ConnectionException)


class DuckdbDatabase:
    """Connection to a DuckDB file; implements `Database`.

    Args:
        connection: connection of the driver.
    """

    def __init__(self, connection: DuckDBPyConnection) -> None:
        self.connection = connection
        self._began = -1

    def create(self, table: str, statement: str) -> None:
        """Create a table if it is missing; see `Database.create`."""
        self.connection.execute(statement)

    def begin(self) -> None:
        """Begin a transaction; see `Database.begin`."""
        self.connection.begin()
        self._began = self._number()

    def _number(self) -> int:
        """Return DuckDB's number of the open transaction; without one, a number that no other call returns."""
        [(number,)] = self.connection.execute("SELECT txid_current()").fetchall()
        return int(number)

    def is_in_transaction(self) -> bool:
        """Return True if the transaction is still open; see `Database.is_in_transaction`."""
        return self._number() == self._began

    def has_ended(self) -> bool:
        """Return False, because DuckDB cannot check this without a request; see `Database.has_ended`."""
        return False

    def commit(self) -> None:
        """Commit the transaction; see `Database.commit`."""
        self.connection.commit()

    def rollback(self) -> None:
        """Roll the transaction back; see `Database.rollback`."""
        import duckdb

        with suppress(duckdb.Error):
            self.connection.rollback()

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> DuckDBPyConnection:
        """Execute a statement; see `Database.execute`."""
        return self.connection.execute(statement, list(parameters))

    def ask(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of one of the reader's own statements; see `Database.ask`."""
        return self.connection.execute(statement, list(parameters)).fetchall()

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each sequence of parameters; see `Database.executemany`."""
        if rows := [list(row) for row in parameters]:
            self.connection.executemany(statement, rows)

    def run_deferred(self) -> None:
        """Do nothing, because DuckDB has no triggers; see `Database.run_deferred`."""

    def rules_of(self, table: str) -> list[str]:
        """Return an empty list, because DuckDB has no triggers or rules; see `Database.rules_of`."""
        del table
        return []

    def end_sessions(self, owners: Sequence[str]) -> None:
        """Do nothing, because no other process can have the file open."""

    def close(self) -> None:
        """Close the connection; see `Database.close`."""
        self.connection.close()
