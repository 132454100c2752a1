"""Consumer of one topic: its assigned partitions, and their committed records from a position on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.cimpl import KafkaError as Codes

from kafka_ratchet.errors import BatchUnread, PositionLost, ReaderError, TopicMissing
from kafka_ratchet.producers import (
    END_OF_PARTITION,
    PASSING,
    explained,
    headers_of,
    options_refused,
)
from kafka_ratchet.reader.event import Event
from kafka_ratchet.reader.positions import NO_EPOCH, Position
from kafka_ratchet.reader.stuck import INTERVAL_MS, StuckPartitions
from kafka_ratchet.reader.topic import Options

log = structlog.get_logger(__name__)

OWN_OPTIONS: Final[dict[str, str | int | bool]] = {
    "isolation.level": "read_committed",  # records of aborted transactions stay invisible
    "enable.auto.commit": False,  # positions are stored in the database only
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",  # an offset that the topic no longer has is an error, and nothing is left out
    "enable.partition.eof": True,  # markers take offsets too; the partition's end gives the position after them
    "partition.assignment.strategy": "range,roundrobin",  # eager: all partitions are taken over again
    "statistics.interval.ms": INTERVAL_MS,
}

DEFAULTS: Final[dict[str, str | int | bool]] = {
    "log_level": 0,  # the reader logs its own messages
    "topic.metadata.refresh.interval.ms": 30_000,  # so the group notices new partitions of the topic
}

_LOST: Final = frozenset({Codes._AUTO_OFFSET_RESET, Codes.OFFSET_OUT_OF_RANGE, Codes._LOG_TRUNCATION})  # noqa: SLF001
HELD_S: Final = 10.0
"""Seconds to wait for Kafka's answer about the offsets that a partition holds."""
_FILL_S: Final = 0.02
"""Seconds that a transaction waits for more records once it has one."""


@dataclass(slots=True)
class FetchedRecords:
    """Fetched records in the order of offsets, with the next position of each partition."""

    events: list[Event] = field(default_factory=list)
    positions: dict[int, Position] = field(default_factory=dict)


class Source:
    """Kafka consumer of one topic.

    Args:
        topic: name of the topic.
        options: options of the client.
        reader: the reader's name.
        group: Kafka's consumer group that shares the partitions; None: this process reads all.
        on_revoked: function called when Kafka revokes partitions, before another process gets them.

    Raises:
        SettingsError: librdkafka does not accept the options.
    """

    def __init__(
        self,
        topic: str,
        options: Options,
        reader: str,
        group: str | None,
        on_revoked: Callable[[], None],
    ) -> None:
        self._topic, self._on_revoked = topic, on_revoked
        self._stuck = StuckPartitions(topic)
        chosen: dict[str, Any] = {**DEFAULTS, **options, **OWN_OPTIONS, "stats_cb": self._stuck.take}
        chosen["group.id"] = group or f"ratchet-reader-{reader}"
        try:
            self._consumer = Consumer(chosen)
        except (KafkaException, ValueError, TypeError) as error:
            raise options_refused(error, options) from None
        self._next: dict[int, int] = {}
        self._unreadable: dict[int, int] = {}
        """Offset of the first record with unreadable headers, by partition; later records are discarded."""
        self._assigned: list[int] | None = None
        """Newly assigned partitions of Kafka's group, until `followed` is called; None: no new assignment."""
        if group is None:
            # A client without a broker connection at its assignment reads half a second later. The reader's next
            # request raises this call's error too, with its reason.
            with suppress(KafkaException):
                self._consumer.list_topics(topic, timeout=5)
        else:
            self._join()

    # -- the group

    def _join(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)

    def join_again(self) -> None:
        """Leave the group and join it again, so that Kafka assigns partitions once more."""
        self._consumer.unsubscribe()
        self._join()

    def _assign(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        consumer.assign([])  # `read_from` assigns them at the database's positions, after the present call
        self._assigned = sorted(each.partition for each in partitions)

    def _revoke(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        consumer.unassign()
        self._assigned, self._next = [], {}
        self._on_revoked()

    def _has_new_assignment(self) -> bool:
        return self._assigned is not None

    def new_assignment(self) -> list[int] | None:
        """Return newly assigned partitions until `followed` is called; None without a new assignment."""
        return self._assigned

    def followed(self) -> None:
        """Mark the new assignment as taken over; `read_from` was called for it."""
        self._assigned = None

    # -- records

    @property
    def next_offsets(self) -> dict[int, int]:
        """Return the offset of each partition's next record; empty until `read_from` is called."""
        return dict(self._next)

    def read_from(self, positions: Mapping[int, Position]) -> None:
        """Read exactly these partitions, starting at these positions."""
        self._next, self._unreadable = {}, {}  # until the client surely reads from the new positions
        self._consumer.assign(
            [
                TopicPartition(self._topic, partition, position.next)
                if position.epoch == NO_EPOCH
                else TopicPartition(self._topic, partition, position.next, leader_epoch=position.epoch)
                for partition, position in positions.items()
            ]
        )
        self._next = {partition: position.next for partition, position in positions.items()}

    def fetch(self, most: int, wait_s: float) -> FetchedRecords:
        """Return the next records.

        Args:
            most: highest number of records to return.
            wait_s: longest wait for the first, in seconds.

        Raises:
            PositionLost: the topic no longer holds a position, or its log was replaced.
            TopicMissing: the topic was deleted.
            BatchUnread: librdkafka does not read a batch to its end, or reads an older topic of the same name. Or the
                next record has a header name outside UTF-8.
            ReaderError: Kafka refuses the request.
        """
        # The client gives its records once. Until they are read there is no position, so a caller that goes
        # on after an error, Ctrl-C among them, calls `read_from` first.
        following, self._next = self._next, {}
        first = self._consumer.poll(wait_s)
        if self._has_new_assignment():
            return FetchedRecords()  # the partitions are taken over again, and read from the database's positions
        self._refuse_stuck(following)
        self._refuse_unreadable()
        if first is None:
            self._next = following
            return FetchedRecords()
        messages = [first, *(self._consumer.consume(most - 1, _FILL_S) if most > 1 else ())]
        if self._has_new_assignment():
            return FetchedRecords()
        fetched = self._read(messages, following)
        self._next = following
        return fetched

    def _refuse_stuck(self, following: Mapping[int, int]) -> None:
        """Raise `BatchUnread` if librdkafka repeatedly requests the same batch."""
        stuck = self._stuck.at(following)
        if stuck is not None:
            partition, place = stuck
            raise self._unread(partition, place.offset, place.end)

    def _refuse_unreadable(self) -> None:
        """Raise `BatchUnread` if the next record of a partition has headers that cannot be read."""
        for partition, offset in self._unreadable.items():
            raise BatchUnread(
                f"topic {self._topic!r} partition {partition}: the record at offset {offset} has a header name that is "
                "not UTF-8, which Kafka's client for Python cannot read. No record was skipped. Enter this record by "
                "hand, then go on after it with `ratchet reader resume`; have its producer correct the header's name"
            )

    def _unread(self, partition: int, offset: int, end: int) -> BatchUnread:
        """Return the error for a batch that librdkafka does not read to its end."""
        return BatchUnread(
            f"topic {self._topic!r} partition {partition}: offsets {offset} to {end - 1} have committed records, "
            f"and librdkafka requests offset {offset} again and again without returning a record. It does not read "
            "the batch there to its end; an example is a gzip batch of several members. No record was skipped: the "
            "database's position is this offset. Enter the rest of the batch by hand, or copy the topic by a client "
            "that reads the batch (`ratchet worker` does); `ratchet reader resume` goes on after it"
        )

    def _require_lost(self, partition: int | None, position: int | None) -> None:
        """Raise `BatchUnread` if Kafka still holds a position that librdkafka calls out of range.

        Within a partly read batch, librdkafka may request an offset beyond the partition's end.
        """
        if partition is None or position is None:
            return
        with suppress(KafkaException):
            begin, end = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=HELD_S)
            if 0 <= begin <= position < end:
                raise self._unread(partition, position, end)

    def _read(self, messages: Sequence[Message], following: dict[int, int]) -> FetchedRecords:
        """Convert messages to events, and update `following`, the next offset of each partition."""
        fetched = FetchedRecords()
        last: dict[int, Message | None] = {}
        """Record before the new position, by partition; None: a transaction's marker is there."""
        append = fetched.events.append
        for message in messages:
            error = message.error()
            if message.partition() in self._unreadable:
                continue  # also the end of a partition: its offset is after the record
            if error is not None:
                if error.code() != END_OF_PARTITION:
                    self._handle_error(message, error, following)
                elif message.offset() > following.get(message.partition(), 2**63):
                    # The last record of a partition may be a marker of a transaction, which is never delivered. Its
                    # leader epoch may be a later one than the last record's.
                    following[message.partition()] = message.offset()
                    last[message.partition()] = None
                continue
            partition, offset = message.partition(), message.offset()
            if offset < following.get(partition, 2**63):
                continue  # fetched before the last `read_from`
            headers = headers_of(message)
            if headers is None:
                self._unreadable[partition] = offset  # raised by the next call, after the records before it
                continue
            following[partition] = offset + 1
            last[partition] = message
            append(Event(message.key(), message.value(), headers, message.timestamp()[1], partition, offset))
        for partition, record in last.items():
            epoch = None if record is None else record.leader_epoch()
            fetched.positions[partition] = Position(following[partition], NO_EPOCH if epoch is None else epoch)
        return fetched

    def _handle_error(self, message: Message, error: KafkaError, following: dict[int, int]) -> None:
        """Raise a message's error if reading cannot continue after it; log any other error."""
        code, partition = error.code(), message.partition()
        where = f"topic {self._topic!r} partition {partition}"
        if code in _LOST:
            if code != Codes._LOG_TRUNCATION:  # noqa: SLF001
                self._require_lost(partition, following.get(partition) if partition is not None else None)
            raise PositionLost(
                f"{where}: offset {following.get(partition)} no longer holds its record ({error.str()}): retention "
                "deleted the records, or the log lost its end. No record was skipped. Compare the reader's position "
                "with the offsets that the topic still has, and choose where to continue: `ratchet reader resume`"
            )
        if code in {Codes.UNKNOWN_TOPIC_OR_PART, Codes._UNKNOWN_TOPIC, Codes._UNKNOWN_PARTITION}:  # noqa: SLF001
            raise TopicMissing(f"{where} does not exist any more. Check if the topic was deleted")
        if code == Codes._MAX_POLL_EXCEEDED:  # noqa: SLF001
            log.warning(
                "Kafka has removed this reader from its consumer group; the reader joins again", topic=self._topic
            )
            return
        if not (error.retriable() or code in PASSING):
            raise ReaderError(f"{where} cannot be read: {explained(error)}")
        log.warning("Kafka does not answer", topic=self._topic, partition=partition, why=error.str())

    def close(self) -> None:
        """Leave the group, and close the connections."""
        self._consumer.close()
