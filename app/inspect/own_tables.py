"""Tables of a program: columns and sentences for `ratchet tables NAME` and the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from kafka_ratchet.app.inspect.columns import Column
from kafka_ratchet.app.inspect.lookup import silent_partitions
from kafka_ratchet.app.status.own_tables import TableEntry, TablePage, TableValue, window_text
from kafka_ratchet.app.status.producers import shown

COMMITTED: Final = "committed values"


class TableRow(NamedTuple):
    """Value of a key in one partition."""

    entry: TableEntry
    found: TableValue


def rows_of(page: TablePage) -> Iterator[TableRow]:
    """Yield the values of each key of a page, in the keys' order."""
    return (TableRow(entry, found) for entry in page.entries for found in entry.values)


def as_text(value: Any) -> str:
    """Return a key or value as JSON, with unprintable characters escaped."""
    return shown(msgspec.json.encode(value))


def _value(row: TableRow) -> str:
    """Return the value as JSON; of a long value, the beginning."""
    return as_text(row.found.value) if row.found.excerpt is None else shown(row.found.excerpt.encode())


def _size(row: TableRow) -> str:
    return "" if row.found.excerpt is None else f"… {row.found.bytes:,} bytes"


def _window(row: TableRow) -> str:
    return window_text(row.entry.window)


KEY: Final = Column[TableRow]("key", "Key", "name", lambda row: as_text(row.entry.key), is_row_heading=True)
KEY_IN_WINDOW: Final = Column[TableRow]("key", KEY.heading, "name", KEY.value, _window, is_row_heading=True)
WINDOW: Final = Column[TableRow]("window", "Window, UTC", "text", _window)
PARTITION: Final = Column[TableRow]("partition", "Partition", value=lambda row: row.found.partition)
VALUE: Final = Column[TableRow]("value", "Value", "name", _value, _size)

PAGE_COLUMNS: Final = (KEY_IN_WINDOW, PARTITION, VALUE)


def terminal_columns(page: TablePage) -> list[Column[TableRow]]:
    """Return the columns for the terminal, with the windows if the table has them."""
    window = [WINDOW] if any(entry.window is not None for entry in page.entries) else []
    return [KEY, *window, PARTITION, VALUE]


def silent_notice(page: TablePage) -> str:
    """Return the sentence about partitions without an answer from a worker; "" if there are none."""
    if not page.not_asked:
        return ""
    return f"{silent_partitions(page.not_asked)}: what is in them is not in this answer"


def no_entries(page: TablePage, *, has_key: bool, has_after: bool) -> str:
    """Return the sentence to show when a page has no keys.

    has_key: the query names a key; has_after: the query lists the keys after a given key
    """
    what = "this key" if has_key else "a key after that one" if has_after else "any key"
    return f"None of the {len(page.partitions)} partitions that answered has {what}."
