"""Interfaces of a reader's database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol


class Rows(Protocol):
    """Rows of a statement: the driver's own cursor."""

    def fetchone(self) -> Any:
        """Return the next row; None: there is none."""

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""


class Database(Protocol):
    """An open connection, which is in a transaction only between `begin` and `commit` or `rollback`.

    Each method but `close` raises the driver's own errors; `Store.is_away` tells which of them are the connection's.
    """

    connection: Any
    """The driver's own."""

    def create(self, table: str, statement: str) -> None:
        """Make a table where it is missing; two processes may do so at once."""

    def begin(self) -> None:
        """Begin a transaction."""

    def is_in_transaction(self) -> bool:
        """Return True if the transaction of `begin` is open: a program may have ended it."""

    def has_ended(self) -> bool:
        """Return True if the transaction is known to have ended, without a request to the database."""

    def commit(self) -> None:
        """End it, with all of its changes."""

    def rollback(self) -> None:
        """End it without its changes; also where none is open. Raises nothing."""

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Rows:
        """Execute a statement with the driver's own placeholders."""

    def ask(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of the reader's own statement as tuples, whatever row type the program has set."""

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Execute it once per sequence of parameters."""

    def run_deferred(self) -> None:
        """Run the triggers now that would run at the commit; within a transaction."""

    def rules_of(self, table: str) -> list[str]:
        """Return triggers, rules and policies that may keep rows of a table from being stored as given."""

    def end_sessions(self, owners: Sequence[str]) -> None:
        """End what these have open in this database, so that a frozen one holds no locks; within a transaction.

        Where the database cannot do that, nothing happens, and its locks are waited for.
        """

    def close(self) -> None:
        """Close it; an open transaction is rolled back."""


class Store(Protocol):
    """Store of rows and offsets: a database that this process can connect to."""

    placeholder: str
    """Mark of a parameter in a statement: `?` or `%s`."""

    where: str
    """The database, as messages name it; without a password."""

    def connect(self, owner: str) -> Database:
        """Connect once.

        Args:
            owner: 32 hexadecimal digits, which tell this process from others.

        Raises:
            DatabaseUnavailable: it does not answer, or another process has it.
            SettingsError: there can be no such database.
        """

    def is_away(self, error: Exception) -> bool:
        """Return True if a driver's error comes from connection or lock, so that another try may help."""


FORBIDDEN = frozenset({"abort", "begin", "commit", "end", "rollback", "start"})
"""First words of statements that would end the reader's transaction."""


@lru_cache(256)
def ends_transaction(statement: str) -> bool:
    """Return True if a statement begins or ends a transaction. A rollback to a savepoint does not."""
    words = statement.lstrip(" \t\r\n;").split(None, 2)
    first = words[0].rstrip(";").casefold() if words else ""
    second = words[1].rstrip(";").casefold() if len(words) > 1 else ""
    return first in FORBIDDEN and not (first == "rollback" and second == "to")
