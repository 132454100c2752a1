"""Bounded reader of one partition's committed record batches, with the worker's client.

Surveys, `ratchet verify`, dead letters, recounts and `group_log` use this reader. Lanes and changelogs have their own
fetches, because they follow a topic without an end and compare leader epochs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Hashable
from typing import Any, Final, NamedTuple, TypeVar

from kafka_ratchet.errors import BrokerUnavailable, PositionLost
from kafka_ratchet.transport.batch.chunk import BATCH_MOST, HEAD, LOG_APPEND_TIME, read_chunk
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.client.cluster import EARLIEST, Cluster, FetchedPartition

Item = TypeVar("Item")

EMPTY_MOST: Final = 40
"""Maximum number of empty answers in a row, after which a reader raises an error."""


async def answered(request: Coroutine[Any, Any, Item], where: str, timeout_s: float | None) -> Item:
    """Await a request that has no time limit of its own, for at most `timeout_s` seconds; None: without a limit.

    Raises:
        BrokerUnavailable: Kafka has not answered within the limit.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await request
    except TimeoutError:
        raise BrokerUnavailable(
            f"{where}: Kafka has sent nothing within {timeout_s:g} s. Check that it runs, and that this user may read "
            "the topic (docs/guide/rights.md)"
        ) from None


class PartitionAddress(NamedTuple):
    """One partition to read.

    id: topic id, 16 bytes
    """

    topic: str
    partition: int
    id: bytes


class FetchOptions(NamedTuple):
    """Options of each fetch of a `PartitionReader`.

    connection: connection of the requests.
    max_bytes: maximum size of an answer.
    wait_ms: milliseconds that the broker may hold back an empty answer.
    batch_most: bytes that one batch may unpack to.
    sequence_header, identity_header: headers to locate in every record; b"" for none.
    committed: False to read records of aborted transactions too.
    in_thread: True to unpack in a thread, so that the event loop is not blocked.
    timeout_s: maximum seconds to wait for an answer; None: no limit.
    """

    connection: Hashable
    max_bytes: int
    wait_ms: int
    batch_most: int = BATCH_MOST
    sequence_header: bytes = b""
    identity_header: bytes = b""
    committed: bool = True
    in_thread: bool = False
    timeout_s: float | None = None


class PartitionReader:
    """Reader of a partition's record batches, starting at a position.

    Args:
        cluster: connected client of the Kafka cluster.
        place: partition to read.
        position: first offset.
        fetching: options of each fetch.
        skips_deleted: True: if retention has deleted unread records, continue at the first remaining offset, and add
            the number of deleted offsets to `deleted`.
    """

    def __init__(
        self,
        cluster: Cluster,
        place: PartitionAddress,
        position: int,
        fetching: FetchOptions,
        *,
        skips_deleted: bool = True,
    ) -> None:
        self._cluster, self._place, self._fetching, self._skips_deleted = cluster, place, fetching, skips_deleted
        self.position = position
        """Next offset to read."""
        self.stable_end = -1
        """The partition's last stable offset, as of the last fetch."""
        self.deleted = 0
        """Number of offsets that retention deleted before they were read."""
        self.log_append_time: bool | None = None
        """True if all batches so far have the broker's timestamps (LogAppendTime); None before the first batch."""

    async def read(self, end: int) -> RecordBatch | None:
        """Fetch the next batch, and advance the position.

        Args:
            end: offset at which reading ends; records deleted after it are not counted.

        Returns:
            the batch, possibly without records and without progress; None once the position has reached `end`.

        Raises:
            PositionLost: the topic does not hold the position any more.
            TopicReplaced: the topic of that id does not exist any more.
            BrokerUnavailable: Kafka does not answer within the options' time.
            BatchTooLarge: see `read_chunk`.
            CorruptBatch: see `read_chunk`.
        """
        topic, partition, topic_id = self._place
        options = self._fetching
        while self.position < end:
            try:
                fetch = self._cluster.fetch(
                    topic,
                    partition,
                    self.position,
                    options.connection,
                    max_bytes=options.max_bytes,
                    max_wait_ms=options.wait_ms,
                    topic_id=topic_id,
                )
                where = f"{topic} partition {partition}, offset {self.position}"
                fetched = await answered(fetch, where, options.timeout_s)
            except PositionLost:
                if not await self._skip_deleted(end):
                    raise
                continue
            self.stable_end = fetched.stable_end
            if len(fetched.data) >= HEAD.size:
                attributes = HEAD.unpack_from(fetched.data)[5]
                self.log_append_time = bool(attributes & LOG_APPEND_TIME) and self.log_append_time is not False
            batch = await asyncio.to_thread(self._unpack, fetched) if options.in_thread else self._unpack(fetched)
            self.position = max(self.position, batch.next)
            return batch
        return None

    def _unpack(self, fetched: FetchedPartition) -> RecordBatch:
        options = self._fetching
        return read_chunk(
            self._place.topic,
            self._place.partition,
            self.position,
            fetched.data,
            fetched.aborted if options.committed else [],
            sequence_header=options.sequence_header,
            identity_header=options.identity_header,
            most=options.batch_most,
        )

    async def _skip_deleted(self, end: int) -> bool:
        """Move to the first remaining offset after a deletion by retention.

        Returns False if no record was deleted, or if deleted records must not be skipped.

        Raises:
            BrokerUnavailable: Kafka does not answer within the options' time.
        """
        topic, partition, _ = self._place
        request = self._cluster.offset(topic, partition, EARLIEST, self._fetching.connection)
        first = await answered(request, f"{topic} partition {partition}, first offset", self._fetching.timeout_s)
        if not self._skips_deleted or first <= self.position:
            return False
        self.deleted += min(first, end) - self.position
        self.position = first
        return True

    async def batches(self, end: int, *, stops_at_open: bool = False) -> AsyncGenerator[RecordBatch, None]:
        """Read all batches with records, up to an end offset.

        The last batch may also hold records after `end`.

        Args:
            end: last stable offset, or an offset before it.
            stops_at_open: True to stop also at an open transaction before the end.

        Raises:
            BrokerUnavailable: Kafka returns no records, although there are some before `end`.
            RatchetError: see `read`.
        """
        empty, start = 0, self.position
        while (batch := await self.read(end)) is not None:
            if self.position > start:
                empty, start = 0, self.position
                if batch.count:
                    yield batch
                continue
            if stops_at_open and self.stable_end <= self.position:
                return
            empty += 1
            if empty == EMPTY_MOST:
                topic, partition, _ = self._place
                raise BrokerUnavailable(
                    f"{topic}, partition {partition}: Kafka returned no records from offset {self.position} on, though "
                    f"it holds them up to {self.stable_end}. Run the command again"
                )
