"""Reading a topic for a survey: committed record batches, as a lane fetches them; no group is joined."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np

from kafka_ratchet.app.survey.counting import Counts, Found
from kafka_ratchet.app.survey.looking import SAMPLE_MOST, Sample
from kafka_ratchet.app.survey.places import Candidate
from kafka_ratchet.errors import BrokerUnavailable, SettingsError, TopicMissing
from kafka_ratchet.transport.batch.kernels import COLUMNS
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.client.cluster import EARLIEST, LATEST, Cluster
from kafka_ratchet.transport.client.partition_reader import Fetching, PartitionReader, Place

FETCH_BYTES: Final = 4 << 20
FETCH_WAIT_MS: Final = 500
SAMPLE_BYTES: Final = 1 << 20
SAMPLE_PARTITIONS_MOST: Final = 16
SAMPLE_PLACES: Final = 3
"""Beginning, middle and end of a partition: what its records look like may have changed."""
SAMPLE_FETCHES_MOST: Final = 4
"""Most fetches of the sample from each place: values may be large."""
CONNECTION: Final = "survey"

Item = TypeVar("Item")

SIDE_BY_SIDE: Final = 2
"""Partitions read at a time: while one is waited for, the other one is taken apart."""


@dataclass(slots=True)
class Range:
    """Range to read of a partition: offsets from `begin` to before `end`. first: Kafka's first one."""

    partition: int
    first: int
    begin: int
    end: int

    @property
    def is_whole(self) -> bool:
        """Return True if no present record is left out before it."""
        return self.begin <= self.first


@dataclass(slots=True)
class Wanted:
    """Part of the topic to read.

    identities: further identities to count
    partitions: None: all; limit: the last so many records, by offsets; since_ms: from this time on
    """

    partitions: tuple[int, ...] | None = None
    limit: int | None = None
    since_ms: int | None = None
    identities: tuple[Candidate, ...] = ()


@dataclass(slots=True)
class Topic:
    """Surveyed topic.

    log_append_time: True if the broker stamps its records; None: unknown before the first read
    deleted: records that retention deleted during the survey
    """

    cluster: Cluster
    name: str
    id: bytes
    partitions: int
    timeout_s: float
    batch_most: int
    """bytes that one record batch may unpack to"""
    ranges: list[Range] = field(default_factory=list)
    log_append_time: bool | None = None
    deleted: int = 0

    async def choose(self, wanted: Wanted) -> None:
        """Set the ranges.

        Raises:
            SettingsError: there is no such partition.
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
        asked = self.cluster.offset(self.name, partition, which, connection)
        return await answered(asked, f"{self.name} partition {partition}", self.timeout_s)

    @property
    def offsets(self) -> int:
        """Return the number of offsets to read."""
        return sum(each.end - each.begin for each in self.ranges)

    def end(self, partition: int) -> int:
        """Return the offset after the last one to read of a partition."""
        return next(each.end for each in self.ranges if each.partition == partition)

    async def sample(self) -> tuple[Sample, RecordBatch | None]:
        """Records from several places of several partitions, and one batch of them."""
        sample = Sample()
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
        """Yield all records of the ranges; those of a partition in order."""
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
        """Read all records of one range, in order. connection: no other caller uses it at the same time."""
        reader = self._reader(each, each.begin, FETCH_BYTES, connection)
        while reader.position < each.end:
            yield await self._next_batch(reader, each)

    def _reader(self, each: Range, position: int, most: int, connection: str) -> PartitionReader:
        place = Place(self.name, each.partition, self.id)
        fetching = Fetching(connection, most, FETCH_WAIT_MS, self.batch_most, in_thread=True)
        return PartitionReader(self.cluster, place, position, fetching)

    async def _next_batch(self, reader: PartitionReader, each: Range) -> RecordBatch:
        """Return the records at the reader's position, up to the range's end; there may be none."""
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


async def answered(asked: Coroutine[Any, Any, Item], where: str, timeout_s: float) -> Item:
    """Return Kafka's answer within a time limit, for a request without one.

    Raises:
        BrokerUnavailable: it took longer than that.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await asked
    except TimeoutError:
        raise BrokerUnavailable(
            f"{where}: Kafka gave nothing within {timeout_s:g} s. Check that it runs, and that this user may read the "
            "topic (docs/guide/rights.md)"
        ) from None


def _none(topic: str, each: Range, start: int) -> RecordBatch:
    columns = np.empty((COLUMNS, 0), np.int64)
    return RecordBatch(topic, each.partition, start, each.end, np.frombuffer(b"", np.uint8), columns)


def _before(batch: RecordBatch, end: int) -> RecordBatch:
    """Return the batch without the records that came after the survey had begun."""
    return batch if batch.next <= end else batch.only(batch.offsets < end)


def _limit(ranges: list[Range], limit: int) -> None:
    """Leave the last records, as even a share of each partition as they have."""
    left = limit
    by_size = sorted(ranges, key=lambda each: each.end - each.begin)
    for index, each in enumerate(by_size):
        share = min(each.end - each.begin, left // (len(by_size) - index))
        each.begin = each.end - share
        left -= share


async def open_topic(cluster: Cluster, name: str, timeout_s: float, batch_most: int) -> Topic:
    """Return a topic that exists; it is not created by asking.

    Raises:
        TopicMissing: there is none.
        BrokerUnavailable: no answer.
    """
    found = (await answered(cluster.topics([name]), f"topic {name}", timeout_s)).get(name)
    if found is None:
        raise TopicMissing(f"topic {name!r} does not exist, or this user may not see it")
    return Topic(cluster, name, found.id, found.partitions, timeout_s, batch_most)


async def ahead(source: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
    """Yield the same items, and make the next one during the work on the present one."""
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
    """Count all records of the topic's ranges: a batch is fetched, one taken apart and one counted side by side.

    Args:
        topic: with its ranges
        counts: filled
        moved: called with the offsets and the records that a batch brought
    """

    async def taken_apart() -> AsyncGenerator[tuple[RecordBatch, Found], None]:
        async with aclosing(topic.batches()) as batches:
            async for batch in batches:
                yield batch, await asyncio.to_thread(Found, batch, counts.reader)

    async with aclosing(ahead(taken_apart())) as ready:
        async for batch, found in ready:
            await asyncio.to_thread(counts.add, found)
            moved(min(batch.next, topic.end(batch.partition)) - batch.start, batch.count)
