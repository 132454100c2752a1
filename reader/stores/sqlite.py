"""Store in a SQLite file on this machine."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kafka_ratchet.errors import DatabaseUnavailable, SettingsError

_AWAY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


OURS: Final = "/* ratchet-reader */"
"""Marker that distinguishes the reader's own statements from the program's.

The authorizer sees each statement when it is compiled, and Python keeps compiled statements by their text. So the
program's COMMIT must differ from the reader's, or Python would reuse the reader's compiled statement.
"""


class Sqlite:
    """SQLite file, created if missing; its folder must exist.

    Several processes may share it: SQLite lets one transaction write at a time, and the others wait.

    Args:
        path: path of the file.
        wait_s: how long a statement waits for another process' transaction, in seconds.
    """

    placeholder = "?"

    def __init__(self, path: str | Path, *, wait_s: float = 30.0) -> None:
        self._path, self._wait_s = Path(path), wait_s
        self.where = f"SQLite file {self._path}"

    def connect(self, owner: str) -> SqliteDatabase:
        """Connect once; see `Store.connect`."""
        del owner  # no session of another process can be ended here
        if not self._path.parent.is_dir():
            raise SettingsError(
                f"{self.where}: the folder {self._path.parent} does not exist. Make it, or correct the path"
            )
        try:
            connection = sqlite3.connect(
                self._path, timeout=self._wait_s, isolation_level=None, check_same_thread=False
            )
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.DatabaseError as error:
            if self.is_away(error):
                raise DatabaseUnavailable(f"{self.where}: {error}. End the process that has the file open") from error
            raise SettingsError(f"{self.where}: {error}. Check the path and the file's rights") from error
        return SqliteDatabase(connection)

    def is_away(self, error: Exception) -> bool:
        """Return True for an error of the file or a lock; see `Store.is_away`."""
        # The low byte is the primary code: https://www.sqlite.org/rescode.html
        return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _AWAY


class SqliteDatabase:
    """Connection to a SQLite file. SQLite's authorizer refuses the program's own `connection.commit()`.

    Args:
        connection: connection in autocommit mode (`isolation_level=None`).
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._ours = False  # whether a statement that begins or ends a transaction is the reader's own
        connection.set_authorizer(self._authorize)

    def _authorize(self, action: int, *_: Any) -> int:
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION and not self._ours else sqlite3.SQLITE_OK

    def _run(self, statement: str) -> None:
        self._ours = True
        try:
            self.connection.execute(statement)
        finally:
            self._ours = False

    def create(self, table: str, statement: str) -> None:
        """Create a table if it is missing; see `Database.create`."""
        self.connection.execute(statement)

    def begin(self) -> None:
        """Begin a transaction; see `Database.begin`."""
        self._run(f"BEGIN IMMEDIATE {OURS}")  # a deferred one may find at its first write that another was quicker

    def is_in_transaction(self) -> bool:
        """Return True if the transaction is still open; see `Database.is_in_transaction`."""
        return self.connection.in_transaction

    def has_ended(self) -> bool:
        """Return True if the transaction has ended; see `Database.has_ended`.

        SQLite itself rolls back after `OR ROLLBACK`, `RAISE(ROLLBACK)` or a full disk.
        """
        return not self.connection.in_transaction

    def commit(self) -> None:
        """Commit the transaction; see `Database.commit`."""
        self._run(f"COMMIT {OURS}")

    def rollback(self) -> None:
        """Roll the transaction back; see `Database.rollback`."""
        with suppress(sqlite3.Error):
            if self.connection.in_transaction:
                self._run(f"ROLLBACK {OURS}")

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Execute a statement; see `Database.execute`."""
        return self.connection.execute(statement, parameters)

    def ask(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of one of the reader's own statements; see `Database.ask`."""
        cursor = self.connection.cursor()
        cursor.row_factory = None
        return cursor.execute(statement, parameters).fetchall()

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each sequence of parameters; see `Database.executemany`."""
        self.connection.executemany(statement, parameters)

    def run_deferred(self) -> None:
        """Do nothing, because SQLite has no deferred triggers; see `Database.run_deferred`."""

    def rules_of(self, table: str) -> list[str]:
        """Return the triggers of a table; see `Database.rules_of`."""
        query = (
            "SELECT 'trigger ' || name FROM (SELECT * FROM sqlite_master UNION ALL SELECT * FROM sqlite_temp_master) "
            "WHERE type = 'trigger' AND lower(tbl_name) = ? ORDER BY name"
        )
        return [name for (name,) in self.ask(query, (table,))]

    def end_sessions(self, owners: Sequence[str]) -> None:
        """Do nothing, because SQLite has no sessions; statements wait for the lock instead."""

    def close(self) -> None:
        """Close the connection; see `Database.close`."""
        self.connection.close()
