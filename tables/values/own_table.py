"""The table without a name is Ratchet's own: how each table is written, the stream time and what windows there are."""

from __future__ import annotations

from typing import Final

from kafka_ratchet.tables.values.table_partition import ABSENT, PREFIX, TablePartition

OWN: Final = PREFIX + b"\0"
"""Prefix of the keys of Ratchet's own table."""
TIME: Final = "time"
"""Its key of the stream time."""
NO_TIME: Final = -(1 << 63)
"""Stream time, in ms, before the first event; earlier than any window."""
NO_TIMESTAMP: Final = -1
"""Timestamp of an event without one, in Kafka."""


def windows_key(table: str) -> str:
    """Return the key of a table's windows in Ratchet's own table."""
    return f"windows {table}"


def form_key(table: str) -> str:
    """Return the key of a table's form in Ratchet's own table."""
    return f"form {table}"


def begin_key(table: str) -> str:
    """Return the key of a table's beginning in Ratchet's own table: an input offset, where it is not the first."""
    return f"begin {table}"


def late_key(table: str) -> str:
    """Return the key of a table's dropped late writes in Ratchet's own table."""
    return f"late {table}"


def late_writes(own: TablePartition, table: str) -> int:
    """Return the number of dropped late writes in Ratchet's own table."""
    found = own.get(late_key(table))
    return 0 if found is ABSENT else int(found)


def stream_time(own: TablePartition) -> int:
    """Return the stream time in Ratchet's own table."""
    found = own.get(TIME)
    return NO_TIME if found is ABSENT else int(found)
