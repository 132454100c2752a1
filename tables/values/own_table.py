"""Ratchet's own table, which has no name: it stores the stream time, and facts about each of the program's tables."""

from __future__ import annotations

from typing import Final

from kafka_ratchet.tables.values.table_partition import ABSENT, PREFIX, TablePartition

OWN: Final = PREFIX + b"\0"
"""Prefix of the keys in Ratchet's own table."""
TIME: Final = "time"
"""Key of the stream time in Ratchet's own table."""
NO_TIME: Final = -(1 << 63)
"""Stream time in milliseconds before the first event; it is earlier than any window."""
NO_TIMESTAMP: Final = -1
"""Timestamp that Kafka gives an event without one."""


def windows_key(table: str) -> str:
    """Return the key of a table's windows in Ratchet's own table."""
    return f"windows {table}"


def form_key(table: str) -> str:
    """Return the key of a table's form in Ratchet's own table; see `Codec.form`."""
    return f"form {table}"


def shape_key(table: str) -> str:
    """Return the key of a table's shape in Ratchet's own table; see `Codec.shape`."""
    return f"shape {table}"


def begin_key(table: str) -> str:
    """Return the key of the input offset where a table began.

    A table that began with the input has no such entry.
    """
    return f"begin {table}"


def late_key(table: str) -> str:
    """Return the key of the number of dropped late writes to a table."""
    return f"late {table}"


def late_writes(own: TablePartition, table: str) -> int:
    """Return the number of dropped late writes to a table."""
    found = own.get(late_key(table))
    return 0 if found is ABSENT else int(found)


def stream_time(own: TablePartition) -> int:
    """Return the stream time in milliseconds; NO_TIME: there was no event."""
    found = own.get(TIME)
    return NO_TIME if found is ABSENT else int(found)
