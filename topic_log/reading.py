"""Reader of committed records: several partitions at a time, each from an offset to its end.

Every command, page and check that reads a topic with librdkafka uses this module. A caller that needs an exact end
requests the end first (`clients.offset_ranges`). For a client of committed records, this is the last stable offset;
for other clients, the high watermark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from itertools import islice
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from kafka_ratchet.errors import BrokerUnavailable, PositionLost, TransportError
from kafka_ratchet.producers import END_OF_PARTITION, PASSING, explained, headers_of
from kafka_ratchet.topic_log.clients import OffsetRange, Options

OUT_OF_RANGE: Final = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001
"""Error code for an offset outside the partition, because `auto.offset.reset` is "error"."""
AT_A_TIME: Final = 10_000
"""Maximum number of messages that one call of librdkafka returns."""
CONSUME_S: Final = 0.005
"""Maximum seconds to wait for `AT_A_TIME` messages. Each partition causes this wait once, at its end."""
STUCK_S: Final = 3.0
"""Seconds without records after which the worker's client (`second_client`) tries to read the next batch."""
UNREADABLE: Final = {
    KafkaError._BAD_COMPRESSION,  # noqa: SLF001 - librdkafka has no public name
    KafkaError._BAD_MSG,  # noqa: SLF001
    KafkaError._NOT_IMPLEMENTED,  # noqa: SLF001
}
"""Error codes of librdkafka for a batch that other clients may be able to read."""
SECOND_MAY: Final = UNREADABLE | {OUT_OF_RANGE}
"""Error codes after which the worker's client (`second_client`) may read the batch.

OUT_OF_RANGE is one of them, because librdkafka may fetch beyond the end after it has refused a batch.
"""

SecondRead = Callable[[str, int, int], tuple[list[Message], int] | None]
"""Function that reads the batch at a topic, partition and offset.

The function returns the batch's records and the offset after the batch; None: there is no batch.
"""

Progress = Callable[[int, int], None]
"""Function called with the number of offsets read so far, and the number of all."""


def records(
    client: Consumer,
    topic: str,
    partition: int = 0,
    begin: int = OFFSET_BEGINNING,
    *,
    timeout_s: float,
    end: int | None = None,
    second: SecondRead | None = None,
) -> Iterator[Message]:
    """Read one partition from an offset to its end; see `records_between`.

    Args:
        client: see `records_between`.
        topic: see `records_between`.
        partition: number of the partition.
        begin: first offset to read.
        timeout_s: see `records_between`.
        end: offset after the last record to read; None: the end of the partition that Kafka reports during the read.
        second: see `records_between`.
    """
    yield from _Reading(client, topic, {partition: begin}, {partition: end}, timeout_s, second).records()


def records_between(
    client: Consumer,
    topic: str,
    spans: Mapping[int, OffsetRange],
    *,
    timeout_s: float,
    second: SecondRead | None = None,
    progress: Progress | None = None,
) -> Iterator[Message]:
    """Read several partitions at a time.

    The records of each partition come in order, mixed with those of other partitions.

    Memory is limited by the client's own queue and one call's messages. A new leader may report a lower end until its
    followers have caught up. So the caller gives the ends, and each partition is read up to there.

    Args:
        client: consumer from `clients.consumer`; it must read nothing else at the same time.
        topic: name of the topic.
        spans: offsets to read, by partition.
        timeout_s: maximum seconds without a message from Kafka.
        second: reader of a batch that librdkafka does not read to its end; see `second_read`.
        progress: function called after each call of the client that returned messages.

    Raises:
        BrokerUnavailable: Kafka sent nothing for `timeout_s`.
        PositionLost: records were deleted before they were read.
        TransportError: Kafka refuses the records.
    """
    held = {number: span for number, span in spans.items() if span.first < span.end}
    begins = {number: span.first for number, span in held.items()}
    ends = {number: span.end for number, span in held.items()}
    reading = _Reading(client, topic, begins, ends, timeout_s, second)
    if progress is None:
        yield from reading.records()
        return
    total = sum(ends.values()) - sum(begins.values())
    yield from reading.records(lambda: progress(reading.reached - sum(begins.values()), total))


def in_batches(messages: Iterable[Message], most: int) -> Iterator[tuple[Message, ...]]:
    """Yield messages in tuples of at most `most`."""
    given = iter(messages)
    while batch := tuple(islice(given, most)):
        yield batch


def readable_headers(message: Message) -> list[tuple[str, bytes | None]]:
    """Return a record's headers, which a read without a second client may fail to decode.

    Raises:
        TransportError: a header name is not UTF-8. Read no headers of this message again.
    """
    headers = headers_of(message)
    if headers is None:
        raise TransportError(
            f"{message.topic()}, partition {message.partition()}: the record at offset {message.offset()} has a "
            "header name that is not UTF-8, which Kafka's client for Python cannot read. Give the header another "
            "name where the records are sent; commands read those already sent with the worker's packages: "
            "pip install 'kafka-ratchet[worker]'"
        )
    return headers


class _Reading:
    """Single pass over partitions of a topic, with the position in each partition."""

    def __init__(
        self,
        client: Consumer,
        topic: str,
        begins: Mapping[int, int],
        ends: Mapping[int, int | None],
        timeout_s: float,
        second: SecondRead | None,
    ) -> None:
        self._client, self._topic, self._timeout_s, self._second = client, topic, timeout_s, second
        self._positions, self._left = dict(begins), dict(ends)
        self._refused: dict[int, KafkaError] = {}
        """Errors of partitions that librdkafka refuses to read further, by partition.

        After the error, librdkafka may skip a batch or request an offset past the end. So its messages are discarded
        until the position is set again.
        """
        self._answered_at = self._tried_at = 0.0

    @property
    def reached(self) -> int:
        """Return the sum of all partitions' positions."""
        return sum(self._positions.values())

    def records(self, moved: Callable[[], None] | None = None) -> Iterator[Message]:
        """Read all partitions to their ends.

        Args:
            moved: function called after each call of the client that returned messages.
        """
        if not self._left:
            return
        self._assign()
        self._answered_at = self._tried_at = time.monotonic()
        while self._left:
            messages = self._client.consume(AT_A_TIME, CONSUME_S)
            for message in messages:
                if self._takes(message):
                    yield message
                    self._answered_at = time.monotonic()  # the caller's own work is no silence of Kafka
            yield from self._second_records()
            if moved is not None and messages:
                moved()
            if time.monotonic() - self._answered_at > self._timeout_s:
                raise BrokerUnavailable(
                    f"{self._topic}, partition {min(self._left)}: Kafka sent nothing for {self._timeout_s:g} s. "
                    "Check that it runs"
                )

    def _assign(self) -> None:
        self._client.assign([TopicPartition(self._topic, number, self._positions[number]) for number in self._left])

    def _takes(self, message: Message) -> bool:
        """Move the position to a message, and return whether the message is a record to yield."""
        number, error = message.partition(), message.error()
        if number in self._refused:
            return False
        if error is not None and error.code() != END_OF_PARTITION:
            self._note(number, error)
            return False
        if number is None or number not in self._left:
            return False
        offset, end = message.offset() or 0, self._left[number]
        if error is not None:
            if end is None or offset >= end:
                self._finish(number, offset)
            elif offset > self._positions[number]:
                self._positions[number] = offset  # markers of transactions, which are never given
            return False
        # Without a second client, a caller that reads no headers takes the record as it is: see `readable_headers`.
        if self._second is not None and (end is None or offset < end) and headers_of(message) is None:
            self._refuse(number, offset)
            return False
        return self._move(number, offset)

    def _refuse(self, number: int, offset: int) -> None:
        """Leave the batch of a record with unreadable headers to the second client."""
        self._positions[number] = offset
        self._refused[number] = KafkaError(KafkaError._BAD_MSG)  # noqa: SLF001 - librdkafka has no public name

    def _note(self, number: int | None, error: KafkaError) -> None:
        """Note an error after which the second client may read on; raise any other error."""
        second_may = self._second is not None and error.code() in SECOND_MAY
        if second_may and number in self._left and self._positions[number] >= 0:
            self._refused[number] = error
        elif error.code() not in PASSING:
            raise _unreadable(self._topic, number, error)

    def _move(self, number: int, offset: int) -> bool:
        """Move a position past a record, and return whether the record is before the end."""
        self._answered_at, end = time.monotonic(), self._left[number]
        self._positions[number] = offset + 1
        if end is not None and offset >= end - 1:
            self._finish(number, end)
        return end is None or offset < end

    def _finish(self, number: int, end: int) -> None:
        del self._left[number]  # not paused: it would still be when this client reads it again
        self._answered_at, self._positions[number] = time.monotonic(), end

    def _second_records(self) -> Iterator[Message]:
        """Yield records that the second client reads from batches where librdkafka is stuck."""
        if self._second is None:
            return
        refused, self._refused = self._refused, {}
        stuck = refused.keys() & self._left.keys()
        if not stuck and time.monotonic() - max(self._answered_at, self._tried_at) > STUCK_S:
            stuck = {number for number in self._left if self._positions[number] >= 0}
        for number in sorted(stuck):
            if number not in refused and time.monotonic() - self._answered_at > self._timeout_s:
                return  # the caller raises; each further partition may take this client's own time limit
            found = self._second(self._topic, number, self._positions[number])
            self._tried_at = time.monotonic()
            if found is not None:
                yield from self._found(number, *found)
            elif number in refused and refused[number].code() == OUT_OF_RANGE:
                raise _unreadable(self._topic, number, refused[number])
            # Where the batch has no record, librdkafka may be skipping aborted batches: a new assignment would
            # discard its progress.
            if self._left and (number in refused or (found is not None and found[0])):
                self._assign()

    def _found(self, number: int, messages: list[Message], following: int) -> Iterator[Message]:
        """Yield the records of the second client, and continue after their batch."""
        for each in messages:
            if number in self._left and self._move(number, each.offset() or 0):
                yield each
        self._answered_at = time.monotonic()
        if number in self._left:
            self._positions[number] = following
            if (end := self._left[number]) is not None and following >= end:
                self._finish(number, end)


def _unreadable(topic: str, partition: int | None, error: KafkaError) -> TransportError:
    """Convert an error of librdkafka, after which it stops reading a partition, into Ratchet's."""
    if error.code() == OUT_OF_RANGE:
        return PositionLost(
            f"{topic}, partition {partition}: records were deleted before they were read, by retention or by hand "
            f"({error.str()}). Run the command again"
        )
    return TransportError(f"{topic}, partition {partition}: cannot be read: {explained(error)}")


def second_read(options: Options, batch_most: int, *, committed: bool = True) -> SecondRead | None:
    """Return a function that reads single batches with the worker's client; None: that client is not installed.

    Args:
        options: client options, including `bootstrap.servers`.
        batch_most: maximum bytes of one batch after decompression.
        committed: whether to leave out records of aborted transactions.
    """
    if find_spec("aiokafka") is None or find_spec("numba") is None:
        return None
    from kafka_ratchet.topic_log.second_client import SecondClient

    return SecondClient(options, batch_most, committed=committed).read
