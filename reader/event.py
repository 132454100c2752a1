"""Record of a topic, as the reader passes it to the user's program."""

from __future__ import annotations

from typing import Final, NamedTuple

NO_TIMESTAMP: Final = -1
"""Timestamp of a record without one; other negative ones are times before 1970."""


class Event(NamedTuple):
    """Committed record of the topic."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    """Headers in the record's order; a name may occur several times. Ratchet's own begin with `ratchet-`."""
    timestamp: int
    """Timestamp of the record, in ms since 1970; -1 if it has none."""
    partition: int
    offset: int
