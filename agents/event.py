"""One event as an agent sees it, where it asks for more than values."""

from __future__ import annotations

from typing import Any

from kafka_ratchet.transport.batch.record_batch import Header, unpack_headers


class Event:
    """A record of the input.

    Attributes:
        key: bytes; None where it is null
        value: decoded by the stream's value_type
        timestamp: ms since the epoch
        partition, offset: where it is in the input
        producer: whose sequence it is, where the stream is judged by producer; else None
        sequence: by which it was judged; None where the stream is not judged
    """

    __slots__ = ("_packed", "key", "offset", "partition", "producer", "sequence", "timestamp", "value")

    def __init__(
        self,
        key: bytes | None,
        value: Any,
        packed: bytes,
        timestamp: int,
        partition: int,
        offset: int,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> None:
        """packed: the headers as they stand in the record."""
        self.key, self.value, self._packed, self.timestamp = key, value, packed, timestamp
        self.partition, self.offset, self.producer, self.sequence = partition, offset, producer, sequence

    @property
    def headers(self) -> tuple[Header, ...]:
        """As in the record, in their order; a name may come more than once."""
        return tuple(unpack_headers(self._packed))

    def __repr__(self) -> str:
        return f"<Event {self.partition}:{self.offset} key={self.key!r} value={self.value!r}>"
