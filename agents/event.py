"""One event as an agent sees it, where it asks for more than values."""

from __future__ import annotations

from typing import Any, NamedTuple

from kafka_ratchet.transport.batch.record_batch import Header


class Event(NamedTuple):
    """A record of the input.

    key: bytes; None where it is null
    value: decoded by the stream's value_type
    headers: as in the record
    timestamp: ms since the epoch
    partition, offset: where it is in the input
    """

    key: bytes | None
    value: Any
    headers: tuple[Header, ...]
    timestamp: int
    partition: int
    offset: int
