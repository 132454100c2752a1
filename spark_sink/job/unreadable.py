"""Records with timestamps that Spark's Kafka source cannot read: librdkafka reads them in the driver.

The source converts every timestamp to microseconds. If the number does not fit into 64 bits, the source ends with an
error, at the same offset in every attempt. One timestamp that a producer wrote in nanoseconds is enough. No option of
the source helps, and no choice of columns. So once Spark has failed, the driver looks for ranges with such records, and
Spark reads around these ranges.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from kafka_ratchet.spark_sink.errors import KafkaUnavailable, SparkFailed
from kafka_ratchet.spark_sink.job.first_unread import END_OF_PARTITION, NO_SUCH_OFFSET
from kafka_ratchet.spark_sink.rows.timestamps import MOST_MS, is_representable
from kafka_ratchet.spark_sink.spark.errors import ranges, spark_errors

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("spark_sink")

Result = TypeVar("Result")

READ_S: Final = 60.0
"""Seconds without any record after which Kafka counts as unreachable."""

JOIN_OFFSETS: Final = 100
"""Maximum readable offsets between two unreadable records of one range. Each range costs a commit."""

RANGE_RECORDS: Final = 20_000
RANGE_BYTES: Final = 32 * 1024 * 1024
"""Maximum bytes of one range: the driver holds its records, and passes them to Spark."""

OVERFLOWS: Final = ("long overflow", "overflows when converting")
"""Texts of the errors for a timestamp that Spark cannot represent: before Spark 4.2, and since."""

AT_A_TIME: Final = 1_000
LOOK_S: Final = 0.2


class TimestampsUnreadable(SparkFailed):
    """Error for timestamps that Spark cannot read; the offset ranges of these records are now known."""


@dataclass
class UnreadableRanges:
    """Offset ranges with records that Spark cannot read, by partition, ascending.

    Each range ends with such a record.
    """

    known: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def within(self, partition: int, start: int, end: int) -> list[tuple[int, int]]:
        """Return the unreadable ranges within the offsets from `start` up to `end`, cut at both."""
        found = self.known.get(partition, ())
        return [(max(start, first), min(end, last)) for first, last in found if first < end and last > start]

    def add(self, partition: int, found: list[tuple[int, int]]) -> None:
        """Add unreadable ranges of a partition, except ranges that begin inside a known one."""
        known = self.known.get(partition, [])
        new = [each for each in found if not any(first <= each[0] < last for first, last in known)]
        self.known[partition] = sorted([*known, *new])


class Source(Protocol):
    """Part of a job that this module needs to read the topic; see `Job`."""

    @property
    def bootstrap(self) -> str:
        """Return the address of Kafka."""

    @property
    def topic(self) -> str:
        """Return the name of the topic."""

    @property
    def client_options(self) -> Mapping[str, Any]:
        """Return the Kafka options, in librdkafka's names."""

    @property
    def unreadable(self) -> UnreadableRanges:
        """Return the known unreadable ranges, which this module extends."""

    @property
    def reads_headers(self) -> bool:
        """Return True if record headers must be read."""


def pieces(
    unreadable: UnreadableRanges, start: Mapping[int, int], end: Mapping[int, int]
) -> Iterator[tuple[dict[int, int], dict[int, int]]]:
    """Split a slice into pieces for Spark and pieces for librdkafka in the driver."""
    if not any(unreadable.within(p, start[p], end[p]) for p in end):
        yield dict(start), dict(end)
        return
    at = dict(start)
    for partition in sorted(end):
        for first, last, _ in _segments(unreadable, partition, start[partition], end[partition]):
            until = {**at, partition: last}
            yield {**at, partition: first}, until
            at = until


def _segments(unreadable: UnreadableRanges, partition: int, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """Split a range of one partition into (begin, end, True if the driver reads it)."""
    at = start
    for first, last in unreadable.within(partition, start, end):
        if at < first:
            yield at, first, False
        yield first, last, True
        at = last
    if at < end:
        yield at, end, False


def read_around(
    spark: SparkSession,
    job: Source,
    start: Mapping[int, int],
    end: Mapping[int, int],
    load: Callable[[Mapping[int, int], Mapping[int, int]], DataFrame],
) -> DataFrame:
    """Read a range by Spark, and its unreadable parts by librdkafka in the driver.

    Args:
        spark: a running Spark.
        job: Kafka and the topic.
        start: first offset of each partition.
        end: offset after the last offset of each partition.
        load: function that reads a range by Spark.
    """
    clean = [p for p in end if not job.unreadable.within(p, start[p], end[p])]
    if len(clean) == len(end):
        return load(start, end)
    frames = [load({p: start[p] for p in clean}, {p: end[p] for p in clean})] if _moves(clean, start, end) else []
    for partition in sorted(end.keys() - set(clean)):
        for first, last, in_driver in _segments(job.unreadable, partition, start[partition], end[partition]):
            if in_driver:
                frames.append(_in_driver(spark, job, partition, first, last))
            else:
                frames.append(load({partition: first}, {partition: last}))
    whole = frames[0]
    for each in frames[1:]:
        whole = whole.unionByName(each)
    return whole


def _moves(partitions: list[int], start: Mapping[int, int], end: Mapping[int, int]) -> bool:
    return any(start[p] < end[p] for p in partitions)


def _in_driver(spark: SparkSession, job: Source, partition: int, start: int, end: int) -> DataFrame:
    """Read a range by librdkafka into a frame of one partition.

    The frame has the columns of Spark's Kafka source.
    """
    from pyspark.sql import functions as F

    rows = []
    with closing(_consumer(job)) as consumer:
        for message in _messages(consumer, job, partition, start, end):
            kind, timestamp = message.timestamp()
            at_us = timestamp * 1000 if is_representable(timestamp) else None
            headers = [(name, value) for name, value in message.headers() or ()] or None
            row = (message.key(), message.value(), job.topic, partition, message.offset(), at_us, kind - 1, headers)
            rows.append(row)
    columns = (
        "key binary, value binary, topic string, partition int, offset long, timestamp long, timestampType int, "
        "headers array<struct<key string, value binary>>"
    )
    frame = spark.createDataFrame(rows, columns).coalesce(1)
    frame = frame.withColumn("timestamp", F.timestamp_micros("timestamp"))
    return frame if job.reads_headers else frame.drop("headers")


@contextmanager
def unreadable_named(job: Source, start: Mapping[int, int], end: Mapping[int, int]) -> Iterator[None]:
    """Convert Spark's error in the block into `TimestampsUnreadable`, after finding the unreadable records.

    Raises:
        TimestampsUnreadable: records are unreadable for Spark; the next attempt reads them by librdkafka.
    """
    try:
        yield
    except spark_errors() as error:
        if not find_unreadable(job, start, end, error):
            raise
        raise TimestampsUnreadable(
            f"topic {job.topic}: Spark cannot read the timestamps of some records of offsets {ranges(start, end)}. "
            "The driver now reads these records by librdkafka"
        ) from error


@contextmanager
def timestamps_named(job: Source | None, start: Mapping[int, int], end: Mapping[int, int]) -> Iterator[None]:
    """Convert the error of a loop's commit in the block into `TimestampsUnreadable`, if timestamps caused it.

    Raises:
        TimestampsUnreadable: records are unreadable for Spark; the next loop reads them by librdkafka.
    """
    try:
        yield
    except SparkFailed as error:
        cause = error.__cause__
        if job is None or cause is None or not find_unreadable(job, start, end, cause):
            raise
        raise TimestampsUnreadable(
            f"topic {job.topic}: Spark cannot read the timestamps of some records of offsets {ranges(start, end)}. "
            "Nothing of this batch was added. Start a new loop of `batches` with this sink, which reads these records "
            "by librdkafka"
        ) from cause


@contextmanager
def overflow_explained(topic: str, start: Mapping[int, int], end: Mapping[int, int]) -> Iterator[None]:
    """Add the likely cause, a record's timestamp, and the remedy to an overflow error in the block.

    Raises:
        SparkFailed: Spark could not compute the rows.
    """
    try:
        yield
    except SparkFailed as error:
        if not any(each in str(error.__cause__) for each in OVERFLOWS):
            raise
        raise SparkFailed(
            f"topic {topic}: Spark could not compute the rows of offsets {ranges(start, end)}, because a value "
            "overflowed. If a record's timestamp is too large for Spark, as nanoseconds are, no query of Structured "
            "Streaming can read the record. Commit these offsets by a loop over sink.batches, then start the query "
            "again: the query leaves out records that the table has"
        ) from error.__cause__


def read_again(job: Source, start: Mapping[int, int], end: Mapping[int, int], read: Callable[[], Result]) -> Result:
    """Call `read`, and call it once more if Spark could not read timestamps."""
    try:
        with unreadable_named(job, start, end):
            return read()
    except TimestampsUnreadable:
        return read()


def find_unreadable(job: Source, start: Mapping[int, int], end: Mapping[int, int], error: BaseException) -> bool:
    """Find the records that Spark cannot read, if Spark's error is an overflow.

    Returns:
        True if one of the found records was not yet known to be unreadable.

    Raises:
        KafkaUnavailable: Kafka does not send the records.
    """
    return "overflow" in str(error).lower() and look_for_unreadable(job, start, end)


def look_for_unreadable(job: Source, start: Mapping[int, int], end: Mapping[int, int]) -> bool:
    """Find the records of a range that Spark cannot read, by reading the range with librdkafka.

    Returns:
        True if one of these records was not known yet.

    Raises:
        KafkaUnavailable: Kafka does not send the records.
    """
    found = False
    with closing(_consumer(job)) as consumer:
        for partition in sorted(end):
            segments = list(_segments(job.unreadable, partition, start[partition], end[partition]))
            for first, last, in_driver in segments:
                if not in_driver:
                    more = _unreadable_ranges(consumer, job, partition, first, last)
                    job.unreadable.add(partition, more)
                    found = found or bool(more)
    return found


def _unreadable_ranges(consumer: Consumer, job: Source, partition: int, start: int, end: int) -> list[tuple[int, int]]:
    """Return the ranges of unreadable records in a range of offsets, and log them."""
    found: list[tuple[int, int]] = []
    count = size = 0
    first: tuple[int, int] | None = None
    for message in _messages(consumer, job, partition, start, end):
        offset, timestamp = message.offset(), message.timestamp()[1]
        size += len(message.value() or b"") + len(message.key() or b"")
        if -MOST_MS <= timestamp <= MOST_MS:
            continue
        first, count = first or (offset, timestamp), count + 1
        begin, last = found[-1] if found else (offset, offset)
        if found and offset - last <= JOIN_OFFSETS and offset - begin < RANGE_RECORDS and size < RANGE_BYTES:
            found[-1] = begin, offset + 1
        else:
            found.append((offset, offset + 1))
            size = 0
    if first is not None:
        log.warning(
            "%s/%d: %d records from offset %d on have timestamps that no table holds (the first: %d ms since 1970). "
            "Their rows have no _kafka_timestamp",
            job.topic,
            partition,
            count,
            *first,
        )
    return found


def _messages(consumer: Consumer, job: Source, partition: int, start: int, end: int) -> Iterator[Message]:
    """Read the committed records of a range.

    Raises:
        KafkaUnavailable: Kafka does not send the records.
    """
    from confluent_kafka import TopicPartition

    if start >= end:
        return
    consumer.assign([TopicPartition(job.topic, partition, start)])
    heard = time.monotonic()
    while True:
        for message in consumer.consume(AT_A_TIME, LOOK_S):
            error, offset = message.error(), message.offset()
            if error is not None and error.code() == NO_SUCH_OFFSET:
                raise KafkaUnavailable(
                    f"{job.topic}/{partition}: retention has removed records while offsets {start} to {end - 1} were "
                    "read. Run the job again"
                )
            if error is not None and error.code() != END_OF_PARTITION:
                continue  # librdkafka tries again
            heard = time.monotonic()
            if offset >= end:
                return
            if error is None:
                yield message
                if offset == end - 1:
                    return
        if time.monotonic() - heard > READ_S:
            raise KafkaUnavailable(
                f"{job.topic}/{partition}: Kafka at {job.bootstrap} sent no records of offsets {start} to {end - 1} "
                f"for {READ_S:g} s. Check that Kafka runs, then run the job again"
            )


def _consumer(job: Source) -> Consumer:
    from confluent_kafka import Consumer

    options: dict[str, Any] = {
        "bootstrap.servers": job.bootstrap,
        "log_level": 0,
        **job.client_options,
        "group.id": "ratchet-sink-apart",  # never joined
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
    }
    return Consumer(options)
