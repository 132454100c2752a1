"""Records that agents send to topics during a batch, and the record batches made of them.

A row is kept for each record, in the order of the calls. When the batch is at its end, each topic's rows get their
partitions, and the rows of a partition become record batches.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.agents.event import EVENT_ID, Event, id_in, ids_sent_again, own_id
from kafka_ratchet.agents.outputs import encode_json, output_value
from kafka_ratchet.agents.reading import NO_RECORD, Reading
from kafka_ratchet.errors import SendRefused
from kafka_ratchet.rule.extraction import identity_reader
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.rule.reasons import NONE, REASONS
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.encoding import varint
from kafka_ratchet.transport.batch.partitioner import choose_partitions
from kafka_ratchet.transport.batch.record_batch import RecordBatch, read_varint, unpack_headers
from kafka_ratchet.transport.batch.rows import Ints, Spans, encode_rows, spans
from kafka_ratchet.transport.delivery import Delivery, Output

Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]

BY_KEY: Final = -1
"""Value of a row's partition if the record's key chooses the partition."""
OF_EVENT: Final = -(2**63)
"""Value of a row's timestamp if the record takes the current event's timestamp."""
TIME_MOST: Final = 2**63 - 1
FIRST_OF_TWO: Final = 0x80
"""Flag in a byte of a varint: another byte follows."""

Row = tuple[str, int, bytes | None, bytes | None, bytes, int, int, bool]
"""Record to be sent: (topic, index of the current event in the batch, key, value, headers, partition, timestamp, True
if value and headers are the event's own bytes). A plain tuple, because one is made for each record."""


class Sends:
    """Records that an agent sends during one batch, in the order of the sends."""

    def __init__(self, agent: str, reading: Reading) -> None:
        """Start without records.

        Args:
            agent: name of the agent
            reading: reader with the current batch and record
        """
        self._agent, self._reading = agent, reading
        self._rows: list[Row] = []
        self._allowed: tuple[Delivery | None, str] = None, ""
        """Current delivery, and the last topic that an agent was found to be allowed to send to.

        Nearly every row has this topic, so the check is rarely repeated.
        """

    def __len__(self) -> int:
        return len(self._rows)

    def cut(self, length: int = 0) -> None:
        """Drop the records added after the first `length`."""
        del self._rows[length:]

    def send(
        self,
        topic: str,
        key: Any,
        value: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp: int | None,
    ) -> None:
        """Add a record to the current event's sends; see `Topic.send`.

        Raises:
            SendRefused: no event is current, or the stream's agents must not write to the topic.
            TypeError, ValueError: an argument is invalid.
        """
        delivery, event = self._current_record(topic)
        partition = _partition(delivery, topic, partition)
        if timestamp is None:
            timestamp = OF_EVENT
        elif type(timestamp) is not int or not OF_EVENT < timestamp <= TIME_MOST:
            raise ValueError(
                f"topic {topic}: timestamp {timestamp!r:.100} is invalid. Give milliseconds since the epoch, an int"
            )
        data = b"" if headers is None else _header_bytes(headers)
        row = topic, event, key_bytes(key), _value_bytes(value), data, partition, timestamp, False
        self._rows.append(row)

    def send_event(
        self, topic: str, key: Any, partition: int | None = None, header: tuple[str, bytes] | None = None
    ) -> None:
        """Send the current event with another key, otherwise unchanged; see `Topic.send_event`.

        Raises:
            SendRefused: as in `send`; or the caller is a timer, or an agent with `batches()`.
        """
        delivery, event = self._current_record(topic)
        if self._reading.is_timer or self._reading.index == NO_RECORD:
            raise SendRefused(
                f"topic {topic}: {self._agent} forwarded an event while it had none. A timer has no event, and an "
                "agent with `batches()` has no single one. Use `send`"
            )
        number = _partition(delivery, topic, partition)
        more = b"" if header is None else _header(*header)
        self._rows.append((topic, event, key_bytes(key), None, more, number, OF_EVENT, True))

    def _current_record(self, topic: str) -> tuple[Delivery, int]:
        """Return the current batch and the index of the record that a send to this topic belongs to.

        Raises:
            SendRefused: no event is current, or the agent must not write to the topic.
        """
        delivery, event = self._reading.delivery, self._reading.index
        if event == NO_RECORD and self._reading.batch is not None:
            event = self._reading.batch.newest
        if delivery is None or event == NO_RECORD or self._reading.away:
            beside = (
                ", or in a task that it has started. Send only in the agent's own task"
                if self._reading.away
                else ". Send after the agent has read an event"
            )
            raise SendRefused(f"topic {topic}: agent {self._agent} sent a record while it had no event{beside}")
        if self._allowed[0] is delivery and self._allowed[1] == topic:
            return delivery, event
        if topic == delivery.spec.topic:
            raise SendRefused(
                f"topic {topic}: agent {self._agent} reads this topic, so that it would get its own records "
                "forever. Send to another topic"
            )
        if topic not in delivery.spec.sends:
            raise SendRefused(
                f"topic {topic}: agent {self._agent} sends to it, but the app does not declare it. Declare it with the "
                "app's `topic`"
            )
        self._allowed = delivery, topic
        return delivery, event

    def flush(self, delivery: Delivery) -> None:
        """Encode the records and add them to the delivery.

        Raises:
            RecordTooLarge: a record does not fit its topic.
        """
        self._allowed = None, ""  # or it would hold the memory of a finished batch
        topics: dict[str, list[Row]] = {}
        for row in self._rows:
            topics.setdefault(row[0], []).append(row)
        for topic, rows in topics.items():
            _flush(delivery, topic, rows)


def _partition(delivery: Delivery, topic: str, partition: int | None) -> int:
    if partition is None:
        return BY_KEY
    count = delivery.spec.sends[topic].partitions
    if type(partition) is not int or not 0 <= partition < count:
        raise ValueError(f"topic {topic}: partition {partition!r:.100} does not exist; the topic has 0 to {count - 1}")
    return partition


def _flush(delivery: Delivery, topic: str, rows: list[Row]) -> None:
    batch, spec = delivery.batch, delivery.spec
    count, limit, _ = spec.sends[topic]
    _, events, keys, values, headers, partitions, timestamps, as_they_are = zip(*rows, strict=True)
    key_spans, at = spans(keys), np.array(events, np.int64)
    header_spans: Spans | None = None
    if not any(as_they_are):
        value_spans = spans(values)
        if any(headers):
            header_spans = spans(headers)
    elif all(as_they_are):
        named = map(_with_header, named_headers(delivery, events), headers)
        value_spans, header_spans = contents(batch, at)[0], spans(list(named))
    else:
        by_event = dict(zip(events, named_headers(delivery, events), strict=True))
        own = [
            (batch.value(event), _with_header(by_event[event], header)) if is_event else (value, header)
            for event, value, header, is_event in zip(events, values, headers, as_they_are, strict=True)
        ]
        value_spans, header_spans = spans([value for value, _ in own]), spans([header for _, header in own])
    times = np.array(timestamps, np.int64)
    times = np.where(times == OF_EVENT, batch.timestamps[at], times)
    numbers = np.array(partitions, np.int64)
    choose_partitions(key_spans, numbers, count, spec.partition % count)
    what = f"{topic}: sent between offsets {batch.start} and {batch.next - 1} of {batch.topic}-{batch.partition}"
    order = np.argsort(numbers, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
        its_keys, its_values = spans_at(key_spans, mine), spans_at(value_spans, mine)
        its_headers = None if header_spans is None else spans_at(header_spans, mine)
        for encoded in encode_rows(its_keys, its_values, times[mine], limit, what, delivery.compression, its_headers):
            delivery.outputs.append(Output(topic, int(numbers[mine[0]]), encoded))


def contents(batch: RecordBatch, at: Ints) -> tuple[Spans, Spans]:
    """Return the byte spans of the values and headers of the records at positions `at`. No bytes are copied."""
    columns = batch.columns
    starts = columns[records.HEADERS, at]
    values = batch.data, columns[records.VALUE, at], columns[records.VALUE_LENGTH, at]
    return values, (batch.data, starts, columns[records.BODY_END, at] - starts)


def named_headers(delivery: Delivery, indices: Sequence[int]) -> list[bytes]:
    """Return the headers of some records of a batch, with the id of each record's event.

    The id is the last header, unless the headers of an internal stream's record have a valid id already. Readers use
    the last header of that name, so an earlier id does no harm.
    """
    batch, spec = delivery.batch, delivery.spec
    is_internal = spec.event_header == EVENT_ID
    again, at = ids_sent_again(delivery), np.array(indices, np.int64)
    starts, ends = batch.columns[records.HEADERS, at].tolist(), batch.columns[records.BODY_END, at].tolist()
    data, name = batch.data.data, varint(len(EVENT_ID)) + EVENT_ID.encode()
    prefix = own_id(spec.input_id, batch.partition, 0)[:-1]
    found = []
    for index, start, end, offset in zip(indices, starts, ends, batch.offsets[at].tolist(), strict=True):
        own = bytes(data[start:end])
        event = again.get(index)
        if event is None and spec.event_header:
            event = id_in(unpack_headers(own), spec.event_header)
            if event is not None and is_internal:
                found.append(own)
                continue
        value = f"{prefix}{offset}".encode() if event is None else event.encode()
        count, after = (own[0] >> 1, 1) if own[0] < FIRST_OF_TWO else read_varint(own, 0)
        found.append(varint(count + 1) + own[after:] + name + varint(len(value)) + value)
    return found


def _with_header(named: bytes, more: bytes) -> bytes:
    """Return encoded headers with one more header at the end. more: header encoded by `_header`."""
    if not more:
        return named
    count, after = read_varint(named, 0)
    return varint(count + 1) + named[after:] + more


def spans_at(parts: Spans, mine: Ints) -> Spans:
    """Return the spans of some records. mine: their indexes."""
    data, starts, lengths = parts
    return data, starts[mine], lengths[mine]


def key_bytes(key: Any) -> bytes | None:
    """Return a key as bytes to send: bytes unchanged, text in UTF-8, None as null, other values as JSON."""
    if key is None or type(key) is bytes:
        return key
    return key.encode() if isinstance(key, str) else encode_json(key)


def _value_bytes(value: Any) -> bytes | None:
    if type(value) is Event:
        raise TypeError("an event cannot be sent. Send its value")
    return output_value(value)


def _header_bytes(headers: Headers) -> bytes:
    """Encode headers as in a record, count first.

    A header with an event's id is omitted, because a new record is another event even if its headers are copied.
    """
    given = headers.items() if isinstance(headers, Mapping) else headers
    pairs = [(name, value) for name, value in given if name != EVENT_ID]
    return varint(len(pairs)) + b"".join(_header(name, value) for name, value in pairs)


def _header(name: str, value: bytes | str | None) -> bytes:
    if not isinstance(name, str) or not isinstance(value, bytes | str | None):
        raise TypeError(f"header {name!r:.100}: {value!r:.100} is invalid. Give a name, and bytes, text or None")
    key, data = name.encode(), value.encode() if isinstance(value, str) else value
    return varint(len(key)) + key + (varint(-1) if data is None else varint(len(data)) + data)


def router(identity: Identity, topic: str) -> Callable[[Delivery, NDArray[np.bool_]], Awaitable[None]]:
    """Return the function that sends a batch's records to a topic, each to the partition of its identity.

    A record with an unreadable identity becomes a dead letter here. If it were sent, a user's function that fails only
    sometimes could read its identity later, in a wrong partition.

    Args:
        identity: identity that determines the partition
        topic: target topic, one of the lane's `sends`

    Raises:
        SettingsError: the user's function cannot be imported.
    """
    read = identity_reader(identity)

    async def send(delivery: Delivery, fresh: NDArray[np.bool_]) -> None:
        batch, sent = delivery.batch, delivery.spec.sends[topic]
        reasons = np.full(batch.count, NONE, np.uint8)
        found = read(batch, reasons)
        for index in np.flatnonzero(reasons != NONE).tolist():
            delivery.dead_letter(index, REASONS[reasons[index]])
        rows = np.flatnonzero(fresh & (reasons == NONE))
        numbers = np.full(len(rows), -1, np.int64)
        choose_partitions(spans_at((found.data, found.begins, found.lengths), rows), numbers, sent.partitions, 0)
        keys = batch.data, batch.columns[records.KEY], batch.columns[records.KEY_LENGTH]
        what = f"{topic}: sent between offsets {batch.start} and {batch.next - 1} of {batch.topic}-{batch.partition}"
        order = np.argsort(numbers, kind="stable")
        for mine in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1) if len(rows) else ():
            at = rows[mine]
            values, headers = contents(batch, at)
            times = batch.timestamps[at]
            for one in encode_rows(spans_at(keys, at), values, times, sent.limit, what, delivery.compression, headers):
                delivery.outputs.append(Output(topic, int(numbers[mine[0]]), one))

    return send
