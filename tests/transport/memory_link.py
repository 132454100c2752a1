"""A worker's connection to Kafka in memory, in the place of `Cluster`: requests get lost on it, or come late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import asynccontextmanager
from copy import copy
from enum import Enum
from types import SimpleNamespace
from typing import Any

from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.transaction import InitProducerIdRequest

from kafka_ratchet.errors import LogTruncated, PositionLost, TopicReplaced
from kafka_ratchet.transport.client.cluster import EARLIEST, TRANSACTION, CommittedPosition, FetchedPartition
from kafka_ratchet.transport.client.describe import DescribeTransactionsRequest
from kafka_ratchet.transport.client.fetch_session import PositionToWatch
from kafka_ratchet.transport.client.topic_id import READ_COMMITTED, READ_UNCOMMITTED, TopicState
from kafka_ratchet.transport.client.watch import WatchedPosition
from tests.transport.memory_kafka import MemoryKafka
from tests.transport.memory_log import BATCHES_PER_FETCH

COMES_LATE = (
    "AddPartitionsToTxnRequest",
    "AddOffsetsToTxnRequest",
    "BatchRequest",
    "TxnOffsetCommitRequest",
    "EndTxnRequest",
    "RaisingEndRequest",
    "GiveUpRequest",
    "InitProducerIdRequest",
)
"""Requests with an effect: the lateness of one without is invisible."""


class PowerOff(BaseException):
    """The worker's process is gone: nothing that it does from here on happens."""


class Fate(Enum):
    """Fate of a request that gets no answer."""

    LOST = "it never arrives"
    UNANSWERED = "it is carried out, and its answer is lost"
    LATE = "it arrives later"
    TWICE = "it is carried out, its answer is lost, and it comes once more"
    MOVED = "its coordinator is replaced before it comes, and refuses it"
    HANDED_OVER = "its coordinator is replaced when it has written it, and refuses it; the next one carries it out"


SILENT = (Fate.LOST, Fate.UNANSWERED, Fate.LATE, Fate.TWICE)


class MemoryPlace(WatchedPosition):
    """Looked at now and then, and left out where the worker has lost its way to Kafka: then it is called."""

    def __init__(self, link: Link, topic: str, spot: PositionToWatch) -> None:
        self._link, self._topic = link, topic
        super().__init__(spot, SimpleNamespace(answered_at=0.0))  # type: ignore[arg-type]
        self.looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while not self.is_called:
            await asyncio.sleep(0.05)
            await self._link._led(self._topic, self.spot.partition)
            self.is_covered = True
            self.high_watermark = self._link.kafka.logs[self._topic, self.spot.partition].end
            if self._link.has_something(self._topic, self.spot):
                self.call()


class MemoryWatch:
    """Stand-in for `kafka_ratchet.transport.client.watch.Watch`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def place(self, topic: str, spot: PositionToWatch) -> WatchedPosition | None:
        if (topic, spot.partition) in self._link.kafka.without_leader:
            return None
        return MemoryPlace(self._link, topic, spot)

    def leave(self, place: MemoryPlace) -> None:
        place.looking.cancel()


class Link:
    """A worker's connection, in the place of `kafka_ratchet.transport.client.cluster.Cluster`."""

    request_timeout_ms = 1_000

    def __init__(self, kafka: MemoryKafka) -> None:
        self.kafka = kafka
        self.dead = False
        self.awake = asyncio.Event()
        self.awake.set()
        self.fetched_takes_s = 0.0
        """Seconds until a fetch is answered; records appended in that time are not in the answer."""
        self.lose: tuple[int, Fate] | None = None
        """(requests until then, what becomes of that one)"""
        self.coordinates: int | None = None
        """The node that it takes for the coordinator of transactions."""
        self.misled = 0
        """Remaining answers that name the replaced coordinator, as long as that one does not know."""

    async def _alive(self) -> None:
        await asyncio.sleep(0)
        if not self.dead:
            await self.awake.wait()
        if self.dead:
            raise PowerOff

    async def send(self, node: int, request: Any, connection: Hashable) -> Any:
        """Nothing comes between the last look at a transaction and taking its id over.

        An owner that is alive and ends a transaction in that millisecond takes the knowledge of its end with it
        (docs/decisions/0016-a-note-before-taking-over.md, what remains), and the partition halts.
        """
        if self.dead:
            raise PowerOff
        if not isinstance(request, InitProducerIdRequest):
            await self._alive()
        fate: Fate | None = None
        if self.lose is not None:
            left, fate = self.lose
            self.lose = (left - 1, fate) if left else None
            fate = None if left else fate
        if fate in (Fate.LATE, Fate.TWICE) and type(request).__name__ in COMES_LATE:
            self.kafka.late.append((node, copy(request)))
        if (
            fate in (Fate.MOVED, Fate.HANDED_OVER)
            and isinstance(request, InitProducerIdRequest)
            and node != self.kafka.coordinator
            and self.kafka.left_open()
        ):
            # A replaced coordinator would be the present one again: the partition halts, as
            # test_model_finds_outcome.py shows.
            fate = Fate.LOST
        if fate is Fate.MOVED:
            self.kafka.move_coordinator()
        answer = None
        if fate is Fate.HANDED_OVER:
            answer = self.kafka.hand_over(request, node)
        elif fate not in (Fate.LOST, Fate.LATE):
            answer = self.kafka.carry_out(request, node)
        if not isinstance(request, DescribeTransactionsRequest):
            await self._alive()
        if fate in SILENT or answer is None:
            raise KafkaConnectionError("lost on the way")
        return answer

    async def leader(self, topic: str, partition: int) -> int:
        return 1

    async def coordinator(self, kind: int, key: str) -> int:
        if kind != TRANSACTION:
            return 1
        if self.coordinates is None:
            self.coordinates = self.kafka.coordinator
            if self.misled and self.kafka.replaced is not None:
                self.misled -= 1
                self.coordinates = 3 - self.coordinates
        return self.coordinates

    @asynccontextmanager
    async def asking_coordinator(self, kind: int, key: str) -> AsyncIterator[int]:
        try:
            yield await self.coordinator(kind, key)
        except KafkaError:
            self.forget_coordinator(kind, key)
            raise

    def forget_coordinator(self, kind: int, key: str) -> None:
        if kind == TRANSACTION:
            self.coordinates = None

    def refresh(self) -> None:
        pass

    async def _led(self, topic: str, partition: int) -> None:
        await self._alive()
        while (topic, partition) in self.kafka.without_leader:
            await asyncio.sleep(0.05)
            await self._alive()

    def watch(self, name: str) -> MemoryWatch:
        return MemoryWatch(self)

    async def offset(
        self, topic: str, partition: int, which: int, connection: Hashable, *, isolation: int = READ_COMMITTED
    ) -> int:
        await self._led(topic, partition)
        log = self.kafka.logs[topic, partition]
        if which == EARLIEST:
            return log.start
        return log.end if isolation == READ_UNCOMMITTED else log.stable_end

    async def committed(self, group: str, topic: str, partition: int, connection: Hashable) -> CommittedPosition | None:
        await self._alive()
        return self.kafka.offsets.get((group, topic, partition))

    async def topics(self, names: Iterable[str]) -> dict[str, TopicState]:
        await self._alive()
        return {name: TopicState(self.kafka.topic_id(name), 1) for name in names if (name, 0) in self.kafka.logs}

    async def found(self, names: Iterable[str], besides: Iterable[str] = ()) -> dict[str, TopicState]:
        await self._alive()
        there = [name for name in besides if (name, 0) in self.kafka.logs]
        for name in names:
            _ = self.kafka.logs[name, 0]  # there it is
        return {name: TopicState(self.kafka.topic_id(name), 1) for name in (*names, *there)}

    def has_something(self, topic: str, spot: PositionToWatch) -> bool:
        """Return True if a broker's answer to the watch would name the partition."""
        log = self.kafka.logs[topic, spot.partition]
        return (
            spot.topic_id != self.kafka.topic_id(topic)
            or log.diverges(spot.position, spot.last_epoch)
            or not log.start <= spot.position <= log.end
            or log.stable_end > spot.position
        )

    async def fetch(
        self,
        topic: str,
        partition: int,
        position: int,
        connection: Hashable,
        *,
        max_bytes: int,
        max_wait_ms: int,
        topic_id: bytes,
        last_epoch: int = -1,
    ) -> FetchedPartition:
        await self._led(topic, partition)
        fetched = self._fetched(topic, partition, position, topic_id, last_epoch, max_bytes)
        if not fetched.data:
            await asyncio.sleep(max_wait_ms / 1000)
            await self._led(topic, partition)
            fetched = self._fetched(topic, partition, position, topic_id, last_epoch, max_bytes)
        if self.fetched_takes_s:
            await asyncio.sleep(self.fetched_takes_s)
            await self._alive()
        return fetched

    def _fetched(
        self, topic: str, partition: int, position: int, topic_id: bytes, last_epoch: int, max_bytes: int
    ) -> FetchedPartition:
        if topic_id != self.kafka.topic_id(topic):
            raise TopicReplaced(f"{topic}: was replaced")
        log = self.kafka.logs[topic, partition]
        if log.diverges(position, last_epoch):
            error = LogTruncated(f"{topic}: lost its end")
            error.is_certain = True
            raise error
        if not log.start <= position <= log.end:
            raise PositionLost(f"{topic}: offset {position} is outside {log.start} to {log.end}")
        return log.fetch(position, 1 if max_bytes == 1 else BATCHES_PER_FETCH)
