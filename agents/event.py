"""One event as an agent sees it, where it asks for more than values."""

from __future__ import annotations

from typing import Any

import msgspec

from kafka_ratchet.transport.batch.record_batch import Header, unpack_headers


class Event(msgspec.Struct, eq=False, frozen=True):
    """A record of the input. It cannot be changed: yielded, it goes on byte for byte, and a change would be left out.

    Attributes:
        key: bytes; None where it is null
        value: decoded by the stream's value_type
        timestamp: ms since the epoch
        partition, offset: where it is in the input
        producer: whose sequence it is, where the stream is judged by producer; else None
        sequence: by which it was judged; None where the stream is not judged
        packed_headers: as they stand in the record, with their number before them
    """

    # A Struct, because one is made for each record: that takes a third of the time of a class of one's own.
    key: bytes | None
    value: Any
    packed_headers: bytes
    timestamp: int
    partition: int
    offset: int
    producer: str | None = None
    sequence: int | None = None

    @property
    def headers(self) -> tuple[Header, ...]:
        """As in the record, in their order; a name may come more than once."""
        return tuple(unpack_headers(self.packed_headers))

    def __repr__(self) -> str:
        return f"<Event {self.partition}:{self.offset} key={self.key!r} value={self.value!r}>"
