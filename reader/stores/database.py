"""Interfaces of a reader's database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol


class Rows(Protocol):
    """Rows of a statement: the driver's own cursor."""

    def fetchone(self) -> Any:
        """Return the next row; None after the last row."""

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""


class Database(Protocol):
    """Interface of an open connection, which has a transaction only between `begin` and `commit` or `rollback`.

    All methods except `close` raise the driver's errors; `Store.is_away` recognises errors of the connection.
    """

    connection: Any
    """Connection object of the database's driver."""

    def create(self, table: str, statement: str) -> None:
        """Create a table if it is missing; two processes may call this at once."""

    def begin(self) -> None:
        """Begin a transaction."""

    def is_in_transaction(self) -> bool:
        """Return True if the transaction of `begin` is still open; the program may have ended it."""

    def has_ended(self) -> bool:
        """Return True if the driver knows that the transaction has ended; sends no request to the database."""

    def commit(self) -> None:
        """Commit the transaction."""

    def rollback(self) -> None:
        """Roll the transaction back; does nothing without one, and raises nothing."""

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Rows:
        """Execute a statement with the driver's own placeholders."""

    def ask(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of one of the reader's own statements, as tuples whatever row type the program has set."""

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each sequence of parameters."""

    def run_deferred(self) -> None:
        """Run the deferred triggers at once, instead of at the commit."""

    def rules_of(self, table: str) -> list[str]:
        """Return triggers, rules and policies that may keep rows of a table from being stored as given."""

    def end_sessions(self, owners: Sequence[str]) -> None:
        """End the database sessions of these owners, so that a suspended process holds no locks.

        Call it within a transaction. A database without sessions does nothing, and later statements wait for the locks.
        """

    def close(self) -> None:
        """Close the connection; an open transaction is rolled back."""


class Store(Protocol):
    """Interface of a database for rows and positions."""

    placeholder: str
    """Placeholder of a parameter in a statement: `?` or `%s`."""

    where: str
    """Name of the database for messages, without a password."""

    def connect(self, owner: str) -> Database:
        """Connect, without a second attempt.

        Args:
            owner: 32 hexadecimal digits, id of this process.

        Raises:
            DatabaseUnavailable: the database does not answer, or another process has it open.
            SettingsError: the path or the address is invalid.
        """

    def is_away(self, error: Exception) -> bool:
        """Return True if a driver's error comes from the connection or a lock, so that another attempt may help."""


FORBIDDEN = frozenset({"abort", "begin", "commit", "end", "rollback", "start"})
"""First words of statements that begin or end a transaction."""


@lru_cache(256)
def ends_transaction(statement: str) -> bool:
    """Return True if a statement begins or ends a transaction. A rollback to a savepoint does not."""
    words = statement.lstrip(" \t\r\n;").split(None, 2)
    first = words[0].rstrip(";").casefold() if words else ""
    second = words[1].rstrip(";").casefold() if len(words) > 1 else ""
    return first in FORBIDDEN and not (first == "rollback" and second == "to")
