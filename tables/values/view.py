"""Read-only view of a table, for agents of another stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from kafka_ratchet.errors import RatchetError, StateError, TableError
from kafka_ratchet.tables.values.codec import Codec
from kafka_ratchet.tables.values.committed import CommittedTable
from kafka_ratchet.tables.values.partition import AT_WORK
from kafka_ratchet.tables.values.table_partition import ABSENT

Elsewhere = Callable[[str, int], CommittedTable]
"""Function that returns a table's partition to an agent of another stream.

Its arguments are the changelog of the agent's stream, and the number of the agent's partition.

Raises:
    RatchetError: the partition is not available now.
"""


class ViewedTable(Protocol):
    """Table that a view reads."""

    name: str
    default: Callable[[], Any] | None
    codec: Codec
    elsewhere: Elsewhere | None


def close_views(table: ViewedTable) -> str:
    """Make all look-ups in views of a table fail from now on, because a replay lacks the table's former state.

    Returns:
        error text of these look-ups.
    """
    problem = f"the view of table {table.name} cannot be read here: another stream's transactions change the table"

    def closed(changelog: str, number: int) -> CommittedTable:
        raise StateError(problem)

    table.elsewhere = closed
    return problem


class TableView:
    """Committed contents of another stream's table, in the partition with the same number.

    Its interface is `[]`, `get` and `in`. It shows the partition's last commit in this worker, and is not part of the
    current transaction.
    """

    def __init__(self, table: ViewedTable) -> None:
        """Store the table; see `Table.view`."""
        self.table = table

    def _value(self, key: Any) -> Any:
        reader, elsewhere = AT_WORK.get(), self.table.elsewhere
        if reader is None or elsewhere is None:
            raise TableError(
                f"the view of table {self.table.name}: only an agent may read it, while it processes an event; or a "
                "timer of a stream"
            )
        kept = self.table.codec.check_key(key)
        try:
            return elsewhere(*reader.place).value(kept)
        except TableError:
            raise
        except RatchetError as error:
            reader.fail(error)
            raise

    def __getitem__(self, key: Any) -> Any:
        value = self._value(key)
        if value is not ABSENT:
            return value
        if self.table.default is None:
            raise KeyError(key)
        return self.table.default()

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or `default` if the table lacks the key."""
        value = self._value(key)
        return default if value is ABSENT else value

    def __contains__(self, key: object) -> bool:
        return self._value(key) is not ABSENT

    def __iter__(self) -> NoReturn:
        raise TableError(f"the view of table {self.table.name} cannot be listed. Look up one key at a time")

    def _read_only(self, *args: Any) -> NoReturn:
        raise TableError(
            f"the view of table {self.table.name} is read-only. Write to the table in an agent of its own stream"
        )

    __setitem__ = __delitem__ = _read_only

    def __repr__(self) -> str:
        return f"<view of table {self.table.name}>"
