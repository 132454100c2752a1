"""DuckDB: a file that one process has open at a time."""

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
"""A file fetches no code from anywhere."""


class Duckdb:
    """A DuckDB file, which is made if missing; its folder is not.

    DuckDB gives a file to one process: while a reader runs, no other process can open it, not even to look.

    Args:
        path: the file.
    """

    placeholder = "?"

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self.where = f"DuckDB file {self._path}"

    def connect(self, owner: str) -> DuckdbDatabase:
        """See `Store.connect`."""
        import duckdb

        del owner  # the process holding the file keeps all others out
        if not self._path.parent.is_dir():
            raise SettingsError(f"{self.where}: there is no folder {self._path.parent}. Make it, or correct the path")
        try:
            return DuckdbDatabase(duckdb.connect(str(self._path), config=CONFIG))
        except duckdb.IOException as error:
            raise DatabaseUnavailable(
                f"{self.where} cannot be opened: {error}. End the process that holds it"
            ) from error
        except duckdb.Error as error:
            raise SettingsError(f"{self.where}: {error}. Check the path and the file's rights") from error

    def is_away(self, error: Exception) -> bool:
        """See `Store.is_away`."""
        import duckdb

        return isinstance(error, duckdb.IOException | duckdb.ConnectionException)


class DuckdbDatabase:
    """A connection.

    Args:
        connection: of the file.
    """

    def __init__(self, connection: DuckDBPyConnection) -> None:
        self.connection = connection
        self._began = -1

    def create(self, table: str, statement: str) -> None:
        """See `Database.create`."""
        self.connection.execute(statement)

    def begin(self) -> None:
        """See `Database.begin`."""
        self.connection.begin()
        self._began = self._number()

    def _number(self) -> int:
        """Return the number of the open transaction, or of this statement's own."""
        [(number,)] = self.connection.execute("SELECT txid_current()").fetchall()
        return int(number)

    def is_in_transaction(self) -> bool:
        """See `Database.is_in_transaction`."""
        return self._number() == self._began

    def has_ended(self) -> bool:
        """See `Database.has_ended`: DuckDB offers no such check."""
        return False

    def commit(self) -> None:
        """See `Database.commit`."""
        self.connection.commit()

    def rollback(self) -> None:
        """See `Database.rollback`."""
        import duckdb

        with suppress(duckdb.Error):
            self.connection.rollback()

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> DuckDBPyConnection:
        """See `Database.execute`."""
        return self.connection.execute(statement, list(parameters))

    def ask(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """See `Database.ask`."""
        return self.connection.execute(statement, list(parameters)).fetchall()

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> None:
        """See `Database.executemany`."""
        if rows := [list(row) for row in parameters]:
            self.connection.executemany(statement, rows)

    def run_deferred(self) -> None:
        """See `Database.run_deferred`: DuckDB has no triggers."""

    def rules_of(self, table: str) -> list[str]:
        """See `Database.rules_of`: DuckDB has none."""
        del table
        return []

    def end_sessions(self, owners: Sequence[str]) -> None:
        """Do nothing: no other process can have the file open."""

    def close(self) -> None:
        """See `Database.close`."""
        self.connection.close()
