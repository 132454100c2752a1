"""Reader of a topic's committed record batches for a survey, without a consumer group."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
import structlog
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from kafka_ratchet.app.survey.counting import BatchHashes, Counts
from kafka_ratchet.app.survey.looking import SAMPLE_MOST, TopicSample
from kafka_ratchet.app.survey.places import Candidate
from kafka_ratchet.errors import SettingsError, TopicMissing
from kafka_ratchet.spark_sink.log_lines import announced
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.kernels import COLUMNS
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.client.cluster import EARLIEST, LATEST, Cluster
from kafka_ratchet.transport.client.partition_reader import (
    FetchOptions,
    PartitionAddress,
    PartitionReader,
    answered,
)

FETCH_BYTES: Final = 4 << 20
FETCH_WAIT_MS: Final = 500
SAMPLE_BYTES: Final = 1 << 20
SAMPLE_PARTITIONS_MOST: Final = 16
SAMPLE_PLACES: Final = 3
"""Number of places in a partition to sample, evenly spread.

The form of the records may have changed between them.
"""
SAMPLE_FETCHES_MOST: Final = 4
"""Maximum number of fetches at each place, as values may be large."""
CONNECTION: Final = "survey"
COMPILING: Final = "compiling the parsing of record batches, once on each machine and after each update"

log = structlog.get_logger(__name__)

Item = TypeVar("Item")

SIDE_BY_SIDE: Final = 2
"""Number of partitions read at a time, so that one is fetched while another is counted."""


@dataclass(slots=True)
class Range:
    """Offsets of a partition to read, from `begin` to before `end`. first: first offset that Kafka still has."""

    partition: int
    first: int
    begin: int
    end: int

    @property
    def is_whole(self) -> bool:
        """Return True if the range begins at the partition's first present record."""
        return self.begin <= self.first


@dataclass(slots=True)
class ReadRange:
    """Part of the topic to read.

    partitions: numbers; None: all. limit: number of last offsets to read, over all partitions; None: all.
    since_ms: first time to read, in ms since the epoch; None: all. identities: further candidates to count.
    """

    partitions: tuple[int, ...] | None = None
    limit: int | None = None
    since_ms: int | None = None
    identities: tuple[Candidate, ...] = ()


@dataclass(slots=True)
class Topic:
    """Surveyed topic.

    log_append_time: True if all timestamps are the broker's; None: unknown before the first read
    deleted: number of offsets that retention deleted before they were read
    """

    cluster: Cluster
    name: str
    id: bytes
    partitions: int
    timeout_s: float
    batch_most: int
    """Maximum number of bytes of one record batch after decompression."""
    ranges: list[Range] = field(default_factory=list)
    log_append_time: bool | None = None
    deleted: int = 0

    async def choose(self, wanted: ReadRange) -> None:
        """Choose the offset range to read of each partition.

        Raises:
            SettingsError: a requested partition does not exist.
            BrokerUnavailable: Kafka does not answer in time.
        """
        numbers = range(self.partitions) if wanted.partitions is None else wanted.partitions
        for number in numbers:
            if number >= self.partitions:
                raise SettingsError(f"--partitions {number}: {self.name} has partitions 0 to {self.partitions - 1}")
            first, end = [await self._offset(number, which, CONNECTION) for which in (EARLIEST, LATEST)]
            begin = first
            if wanted.since_ms is not None:
                found = await self._offset(number, wanted.since_ms, CONNECTION)
                begin = min(end, max(first, found)) if found >= 0 else end
            self.ranges.append(Range(number, first, begin, max(begin, end)))
        if wanted.limit is not None:
            _limit(self.ranges, wanted.limit)

    async def _offset(self, partition: int, which: int, connection: str) -> int:
        request = self.cluster.offset(self.name, partition, which, connection)
        return await answered(request, f"{self.name} partition {partition}", self.timeout_s)

    @property
    def offsets(self) -> int:
        """Return the number of offsets to read, over all partitions."""
        return sum(each.end - each.begin for each in self.ranges)

    def end(self, partition: int) -> int:
        """Return the offset after the last one to read in a partition."""
        return next(each.end for each in self.ranges if each.partition == partition)

    async def sample(self) -> tuple[TopicSample, RecordBatch | None]:
        """Read a sample from several places of several partitions; return sample and first batch, if any."""
        sample = TopicSample()
        first: RecordBatch | None = None
        held = [each for each in self.ranges if each.end > each.begin]
        step = max(1, len(held) // SAMPLE_PARTITIONS_MOST)
        chosen = held[::step][:SAMPLE_PARTITIONS_MOST]
        share = max(1, SAMPLE_MOST // max(1, len(chosen) * SAMPLE_PLACES))
        for each in chosen:
            size, reached = each.end - each.begin, each.begin
            for place in range(SAMPLE_PLACES):
                position = max(reached, each.begin + size * place // SAMPLE_PLACES)
                taken = 0
                for _ in range(SAMPLE_FETCHES_MOST):
                    if taken >= share or position >= each.end:
                        break
                    reader = self._reader(each, position, SAMPLE_BYTES, CONNECTION)
                    batch = await self._next_batch(reader, each)
                    added = sample.add(batch, share - taken)
                    taken += added
                    position = batch.next
                    if added:
                        reached = int(batch.offsets[added - 1]) + 1
                        first = first or batch
        return sample, first

    async def batches(self) -> AsyncGenerator[RecordBatch, None]:
        """Yield all record batches of the ranges. Those of a partition come in order."""
        waiting = deque(each for each in self.ranges if each.end > each.begin)
        idle = [f"{CONNECTION}-{number}" for number in range(SIDE_BY_SIDE)]
        reading: deque[tuple[str, AsyncGenerator[RecordBatch, None]]] = deque()
        try:
            while waiting or reading:
                while waiting and idle:
                    reading.append((idle[-1], ahead(self.records_of(waiting.popleft(), idle.pop()))))
                connection, reader = reading[0]
                batch = await anext(reader, None)
                reading.popleft()
                if batch is None:
                    idle.append(connection)
                else:
                    reading.append((connection, reader))
                    yield batch
        finally:
            for _, reader in reading:
                await reader.aclose()

    async def records_of(self, each: Range, connection: str) -> AsyncGenerator[RecordBatch, None]:
        """Yield all record batches of one range, in order.

        connection: name of a connection that no other caller uses at the same time
        """
        reader = self._reader(each, each.begin, FETCH_BYTES, connection)
        while reader.position < each.end:
            yield await self._next_batch(reader, each)

    def _reader(self, each: Range, position: int, most: int, connection: str) -> PartitionReader:
        place = PartitionAddress(self.name, each.partition, self.id)
        fetching = FetchOptions(connection, most, FETCH_WAIT_MS, self.batch_most, in_thread=True)
        return PartitionReader(self.cluster, place, position, fetching)

    async def _next_batch(self, reader: PartitionReader, each: Range) -> RecordBatch:
        """Return the next batch of a range, without records after the range's end; it may be empty."""
        where = f"{self.name} partition {each.partition}, offset {reader.position}"
        return await answered(self._read(reader, each), where, self.timeout_s)

    async def _read(self, reader: PartitionReader, each: Range) -> RecordBatch:
        start, deleted = reader.position, reader.deleted
        while True:
            batch = await reader.read(each.end)
            self.deleted += reader.deleted - deleted
            deleted = reader.deleted
            if reader.log_append_time is not None:
                self.log_append_time = reader.log_append_time and self.log_append_time is not False
            if batch is None:
                return _none(self.name, each, start)
            if batch.next > batch.start:
                batch.start = start
                return _before(batch, each.end)


def _none(topic: str, each: Range, start: int) -> RecordBatch:
    columns = np.empty((COLUMNS, 0), np.int64)
    return RecordBatch(topic, each.partition, start, each.end, np.frombuffer(b"", np.uint8), columns)


def _before(batch: RecordBatch, end: int) -> RecordBatch:
    """Return a batch without the records from offset `end` on."""
    return batch if batch.next <= end else batch.only(batch.offsets < end)


def _limit(ranges: list[Range], limit: int) -> None:
    """Shorten the ranges to the last `limit` offsets in all, in equal shares if possible."""
    left = limit
    by_size = sorted(ranges, key=lambda each: each.end - each.begin)
    for index, each in enumerate(by_size):
        share = min(each.end - each.begin, left // (len(by_size) - index))
        each.begin = each.end - share
        left -= share


async def open_topic(cluster: Cluster, name: str, timeout_s: float, batch_most: int) -> Topic:
    """Look up a topic, without making Kafka create it.

    Raises:
        TopicMissing: the topic does not exist.
        BrokerUnavailable: Kafka does not answer in time.
    """
    # Not within a request's time limit: the error would be about Kafka.
    await asyncio.to_thread(compile_parsing)
    found = (await answered(cluster.topics([name]), f"topic {name}", timeout_s)).get(name)
    if found is None:
        raise TopicMissing(
            f"topic {name!r} does not exist, or this user may not see it. Check the name and the user's rights"
        )
    return Topic(cluster, name, found.id, found.partitions, timeout_s, batch_most)


def compile_parsing() -> None:
    """Compile the parsing of record batches, or load it from Numba's cache; log slow compilation."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 10)  # magic byte 2, no compression, no producer
    builder.append(0, 0, b"key", b"value", [("header", b"value")])
    with announced(COMPILING, log.info):
        read_chunk("compile", 0, 0, bytes(builder.build()), [])


async def ahead(source: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
    """Yield a generator's items, each produced while the caller uses the preceding one."""
    making = asyncio.create_task(_next(source))
    try:
        while (item := await making) is not None:
            making = asyncio.create_task(_next(source))
            yield item
    finally:
        making.cancel()
        with suppress(asyncio.CancelledError):
            await making
        await source.aclose()


async def _next(source: AsyncGenerator[Item, None]) -> Item | None:
    return await anext(source, None)


async def count_all(topic: Topic, counts: Counts, moved: Callable[[int, int], None]) -> None:
    """Count all records in the topic's ranges.

    At the same time, one batch is fetched, one is read and one is counted.

    Args:
        topic: topic with its ranges set
        counts: counts to fill
        moved: function called after each batch, with the number of its offsets and of its records
    """

    async def taken_apart() -> AsyncGenerator[tuple[RecordBatch, BatchHashes], None]:
        async with aclosing(topic.batches()) as batches:
            async for batch in batches:
                yield batch, await asyncio.to_thread(BatchHashes, batch, counts.reader)

    async with aclosing(ahead(taken_apart())) as ready:
        async for batch, found in ready:
            await asyncio.to_thread(counts.add, found)
            moved(min(batch.next, topic.end(batch.partition)) - batch.start, batch.count)
