"""One event as an agent reads it, and the event's id, which stays the same in all topics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.tables.replays import letter_of
from kafka_ratchet.tables.values.own_table import NO_TIME, NO_TIMESTAMP
from kafka_ratchet.transport.batch.record_batch import Header, unpack_headers
from kafka_ratchet.transport.delivery import LETTER_EVENT, Delivery

EVENT_ID: Final = LETTER_EVENT
"""Name of the header with an event's id, in records of `group_by` and in re-sent dead letters."""
ID_MOST: Final = 1024
"""Maximum length in bytes of an id in a header; a longer id is ignored."""


class Event(msgspec.Struct, eq=False, frozen=True):
    """Immutable record of the input; an agent that yields it forwards its bytes unchanged.

    It is immutable because forwarding would ignore a change.

    Attributes:
        key: bytes; None for a null key.
        value: decoded by the stream's value_type.
        timestamp: ms since the epoch; -1 if the record has none.
        partition, offset: partition and offset of the record in the input.
        producer: name of the producer, if it is the stream's identity; else None.
        sequence: sequence of the record; None in a stream without deduplication.
        packed_headers: headers as encoded in the record, count first.
        topic: name of the input.
        topic_id: id of that topic, as Kafka's tools print it.
        id_header: header with the event's id; "" if the stream has no such header.
        known_id: id of a re-sent event; None for other events.
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
    topic: str = ""
    topic_id: str = ""
    id_header: str = ""
    known_id: str | None = None

    @property
    def headers(self) -> tuple[Header, ...]:
        """Return the headers in their order; a name may occur several times."""
        return tuple(unpack_headers(self.packed_headers))

    @property
    def id(self) -> str:
        """Return the event's id: TOPIC-ID/PARTITION/OFFSET of the first record with the event.

        It stays the same through `group_by` and when its dead letter is sent again. No two events share one.
        """
        if self.known_id is not None:
            return self.known_id
        named = id_in(self.headers, self.id_header) if self.id_header else None
        return own_id(self.topic_id, self.partition, self.offset) if named is None else named

    def __repr__(self) -> str:
        return f"<Event {self.partition}:{self.offset} key={self.key!r} value={self.value!r}>"


def own_id(topic_id: str, partition: int, offset: int) -> str:
    """Return the event id of a record without one in its headers. topic_id: in the base64 text of Kafka's tools."""
    return f"{topic_id}/{partition}/{offset}"


def id_in(headers: Iterable[tuple[str, bytes | None]], name: str) -> str | None:
    """Return the event id in the last header with this name.

    None if the header is missing, empty, not UTF-8 or too long.
    """
    found = [value for each, value in headers if each == name]
    if not found or not found[-1] or len(found[-1]) > ID_MOST:
        return None
    try:
        return found[-1].decode()
    except UnicodeDecodeError:
        return None


def ids_sent_again(delivery: Delivery) -> dict[int, str]:
    """Return the event ids of a batch's re-sent dead letters, by index of the record.

    The header with the id counts only if another header names a dead letter of this stream. A record copied from
    another stream's output may have an id too.
    """
    batch, letters = delivery.batch, delivery.spec.letters
    found: dict[int, str] = {}
    for index in batch.replays.tolist():
        headers = batch.headers(index)
        if letter_of(headers, letters) is not None and (named := id_in(headers, EVENT_ID)) is not None:
            found[index] = named
    return found


def event_ids(delivery: Delivery, indices: Iterable[int]) -> list[str]:
    """Return the event ids of some records of a batch. indices: their indexes."""
    batch, spec = delivery.batch, delivery.spec
    again, found = ids_sent_again(delivery), []
    for index in indices:
        named = again.get(index)
        if named is None and spec.event_header:
            named = id_in(batch.headers(index), spec.event_header)
        found.append(own_id(spec.input_id, batch.partition, int(batch.offsets[index])) if named is None else named)
    return found


def known_times(stamps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return timestamps, int64[records] in ms, with NO_TIME in place of NO_TIMESTAMP."""
    known: NDArray[np.int64] = np.where(stamps == NO_TIMESTAMP, NO_TIME, stamps)
    return known
