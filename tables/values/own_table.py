"""The table without a name is Ratchet's own: how each table is written, the stream time and what windows there are."""

from __future__ import annotations

from typing import Final

from kafka_ratchet.tables.values.table_partition import ABSENT, PREFIX, TablePartition

OWN: Final = PREFIX + b"\0"
"""What the keys of Ratchet's own table begin with."""
TIME: Final = "time"
"""Its key of the stream time."""
NO_TIME: Final = -(1 << 63)
"""Stream time, in ms, before the first event; earlier than any window."""
NO_TIMESTAMP: Final = -1
"""Timestamp of an event without one, in Kafka."""


def windows_key(table: str) -> str:
    """In Ratchet's own table, the key of what windows a table's entries have."""
    return f"windows {table}"


def form_key(table: str) -> str:
    """In Ratchet's own table, the key of how a table's keys and values are written."""
    return f"form {table}"


def late_key(table: str) -> str:
    """In Ratchet's own table, the key of how many writes to a table were left out."""
    return f"late {table}"


def late_writes(own: TablePartition, table: str) -> int:
    """What Ratchet's own table says of them."""
    found = own.get(late_key(table))
    return 0 if found is ABSENT else int(found)


def stream_time(own: TablePartition) -> int:
    """What Ratchet's own table says of the time."""
    found = own.get(TIME)
    return NO_TIME if found is ABSENT else int(found)
