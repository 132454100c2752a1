"""Progress of an internal stream that copies an input to the partitions of the identities (`repartition_by`).

A lane of the stream that judges the copies is at its own input's end even while records wait in the first input: a
partition there may be halted. Before it forgets an inactive identity, it asks here until when all of them are copied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from typing import Final

from aiokafka import errors as kafka

from kafka_ratchet.errors import RatchetError
from kafka_ratchet.transport.client.cluster import EARLIEST, LATEST, Cluster
from kafka_ratchet.transport.client.partition_reader import FetchOptions, PartitionAddress, PartitionReader
from kafka_ratchet.transport.client.topic_id import READ_UNCOMMITTED, id_text
from kafka_ratchet.transport.transactions.requests import topic_in

ASK_EVERY_S: Final = 1.0
"""Shortest time between two checks: a few small requests for all lanes of a stream."""
ANSWER_S: Final = 1.0
"""Longest time of a check; one lane waits for it before its commit. Without an answer, no identity is forgotten."""
FETCH_BYTES: Final = 1 << 16
FETCHES_MOST: Final = 4


class Arrivals:
    """Rounds of checks that everything in an input has been copied.

    A round notes the ends of all partitions once, and is proven when the group has committed all of them. So it says
    that each record appended before the round began is in the topic of the copies.

    Args:
        cluster: connected client of the Kafka cluster
        topic: input that producers publish to
        group: group of the workers
    """

    def __init__(self, cluster: Cluster, topic: str, group: str) -> None:
        self._cluster, self._topic, self._group = cluster, topic, group
        self.begun = 0
        """Number of rounds begun."""
        self.proven = 0
        """Number of the newest proven round."""
        self._id = b""
        self._waiting: dict[int, int] | None = None
        """End of each partition that the group has not reached in this round; None: no round is open."""
        self._before: dict[int, int] = {}
        """Committed offsets at the last check."""
        self._unread: dict[int, int] = {}
        """Committed offset by partition with a record at or after it."""
        self._connection: Hashable = ("arrivals", topic)
        self._is_asked, self._again_at = False, 0.0

    async def ask(self) -> None:
        """Check the open round, or begin one; return at once if a check was made within a second.

        It raises nothing and takes at most `ANSWER_S`. After a failure the round stays open.
        """
        loop = asyncio.get_running_loop()
        if self._is_asked or loop.time() < self._again_at:
            return
        self._is_asked = True
        try:
            async with asyncio.timeout(ANSWER_S):
                if self._waiting is not None:
                    await self._check()
                if self._waiting is None:
                    await self._begin()
                    await self._check()
        except (TimeoutError, RatchetError, kafka.KafkaError):
            pass  # the next check asks again
        finally:
            self._is_asked, self._again_at = False, loop.time() + ASK_EVERY_S

    async def _begin(self) -> None:
        self.begun += 1
        found = (await self._cluster.topics([self._topic])).get(self._topic)
        if found is None:
            return
        numbers = range(found.partitions)
        ends = await self._ends(numbers)
        firsts = await self._cluster.offsets(self._topic, numbers, EARLIEST, self._connection)
        if found.id != self._id:
            self._id, self._before, self._unread = found.id, {}, {}
        self._waiting = {number: end for number, end in ends.items() if end > firsts[number]}

    async def _ends(self, numbers: Iterable[int]) -> dict[int, int]:
        """Return the high watermarks: records after an open transaction's first wait as well."""
        return await self._cluster.offsets(self._topic, numbers, LATEST, self._connection, isolation=READ_UNCOMMITTED)

    async def _check(self) -> None:
        """Remove the partitions that the group has reached; after the last one the round is proven."""
        waiting = self._waiting
        if waiting is None:
            return
        found = (await self._cluster.topics([self._topic])).get(self._topic)
        if found is None or found.id != self._id or found.partitions < len(waiting):
            self._waiting = None  # the topic was replaced: its ends say nothing of the present one
            return
        committed = {
            number: position.offset
            for number, position in (
                await self._cluster.committed_positions(self._group, self._topic, waiting, self._connection)
            ).items()
            # An offset of another client does not tell which records were copied.
            if topic_in(position.metadata) == id_text(self._id)
        }
        before, self._before = self._before, {**self._before, **committed}
        for number, position in committed.items():
            if position >= waiting[number]:
                del waiting[number]
            elif before.get(number) == position and await self._is_read(number, position, waiting[number]):
                del waiting[number]
        if not waiting:
            self._waiting, self.proven = None, self.begun
            return
        ends = await self._ends(waiting)
        if any(ends[number] < end for number, end in waiting.items()):
            self._waiting = None  # Kafka has lost records: the group might never reach the old end

    async def _is_read(self, number: int, position: int, end: int) -> bool:
        """Return True if there are no records from a position to an end, but markers of transactions.

        Lanes commit nothing for these, so the offset of an idle partition stays before them.
        """
        if self._unread.get(number) == position:
            return False
        options = FetchOptions(self._connection, FETCH_BYTES, 0, timeout_s=ANSWER_S)
        reader = PartitionReader(
            self._cluster, PartitionAddress(self._topic, number, self._id), position, options, skips_deleted=False
        )
        for _ in range(FETCHES_MOST):
            try:
                batch = await reader.read(end)
            except RatchetError:  # its lane halts for the same reason
                return False
            if batch is None:
                return True
            if batch.count:
                self._unread[number] = position
                return False
        return reader.position >= end
