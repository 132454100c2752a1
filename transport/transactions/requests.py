"""Requests of a transaction (KIP-98), each from one transactional id; states.py has their legal order.

aiokafka has no types.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from aiokafka import errors as kafka
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from kafka_ratchet.transport.client.cluster import GROUP, TRANSACTION, Cluster
from kafka_ratchet.transport.client.errors import raise_for
from kafka_ratchet.transport.client.produce import BatchRequest
from kafka_ratchet.transport.client.retry import Retry
from kafka_ratchet.transport.transactions.version_2 import GiveUpRequest, RaisingEndRequest, ends_raise_epochs

FENCED: Final = (
    # also the answer for a transaction that the coordinator has timed out (version 0 requests)
    kafka.InvalidProducerEpoch,
    kafka.ProducerFenced,
    kafka.InvalidProducerIdMapping,
    kafka.InvalidTxnState,
)
LAST_EPOCH: Final = (1 << 15) - 2
"""Last epoch that this producer uses. With the next end of a transaction, Kafka would change the producer id.

Then no owner could end records of the old producer id that Kafka has left open. So at this epoch, the owner checks for
such records and initialises the id.
"""
SETTLED_WITHIN_S: Final = 10.0
"""Seconds of retries to add partitions while Kafka still writes the last transaction's markers.

Usually the markers take far less. After that time, the lane starts again; during its start the lane can wait as long as
needed and be stopped.
"""
END_FOR_S: Final = 60.0
"""Seconds of retries to end a transaction. After that, the next `initialise` finds out the transaction's outcome."""
OFFSET_METADATA: Final = "ratchet 1 {topic} {epoch}"
"""Metadata of every offset committed together with changelog entries.

The metadata contains the id of the offset's topic, and the leader epoch of the batch before the offset. Kafka's tools
write no such metadata. So an offset that an operator has set can be distinguished from a lane's, which the changelog
must contain.
"""
UNKNOWN_EPOCH: Final = -2
"""Epoch in the metadata of an offset after processed records or an operator's command, if no leader epoch is known.

`NO_EPOCH` in the metadata thus shows that nothing was processed before the offset.
"""
OURS: Final = re.compile(r"ratchet 1 (?P<topic>[\w-]{22}) (?P<epoch>-?\d+)")
NEWER: Final = re.compile(r"ratchet (?P<format>(?!1\b)\d+)\b.*")
"""Pattern for the metadata of a newer version of Ratchet. A match shows that no operator has set the offset."""


def offset_metadata(topic_id: str, epoch: int) -> str:
    """Return the metadata of a committed offset.

    topic_id: as text; epoch: leader epoch of the batch before the offset.
    """
    return OFFSET_METADATA.format(topic=topic_id, epoch=epoch)


def is_ours(metadata: str) -> bool:
    """Return True if the metadata shows an offset committed in a lane's transaction."""
    return OURS.fullmatch(metadata) is not None


def topic_in(metadata: str) -> str | None:
    """Return the topic id that the metadata of a committed offset names; None without one."""
    found = OURS.fullmatch(metadata)
    return found["topic"] if found else None


class AppendedBatch(NamedTuple):
    """Offset and append time of a batch in its partition.

    offset: offset of its first record; at_ms: the broker's append time in a topic with LogAppendTime, else -1
    """

    offset: int
    at_ms: int


class TransactionRequests:
    """Requests for one transactional id.

    Each method raises `aiokafka.errors.KafkaError` if Kafka refused the request or did not answer it.
    """

    def __init__(
        self, cluster: Cluster, transactional_id: str, group: str, connection: Hashable, asking: Hashable
    ) -> None:
        """Prepare the requests without sending any.

        Args:
            cluster: connected client of the Kafka cluster.
            transactional_id: transactional id of the requests.
            group: group of the committed offsets.
            connection: connection for a transaction's requests, which keep their order.
            asking: connection for taking the id over.
        """
        self.cluster, self.transactional_id, self.group = cluster, transactional_id, group
        self.connection, self.asking = connection, asking
        self.producer_id, self.epoch = -1, -1
        self.ends_raise_epoch = False
        """True if every end gives the producer a new epoch (KIP-890, part 2), as of the last `initialise`."""
        self.in_doubt = False
        """True if a request since the last `initialise` got no clear answer, so that Kafka may still execute it."""
        self.has_begun = False
        """True from the request to begin a transaction of this owner until its confirmed end."""
        self.is_ending = False
        """True from the request to end this owner's transaction until its confirmed end."""

    async def ends_raise_epochs(self) -> bool:
        """Return True if the cluster raises the epoch at the end of each transaction. Call it before `initialise`."""
        async with self.cluster.asking_coordinator(TRANSACTION, self.transactional_id) as node:
            return await ends_raise_epochs(self.cluster, node, self.asking)

    async def initialise(self, timeout_ms: int, *, ends_raise: bool) -> None:
        """Take the id over: Kafka fences the former owner and aborts its open transaction.

        Args:
            timeout_ms: time after which the coordinator aborts an open transaction.
            ends_raise: the answer of `ends_raise_epochs`.
        """
        request = InitProducerIdRequest(self.transactional_id, timeout_ms)
        async with self.cluster.asking_coordinator(TRANSACTION, self.transactional_id) as node:
            response = await self.cluster.send(node, request, self.asking)
            raise_for(response.error_code)
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        self.ends_raise_epoch, self.in_doubt, self.has_begun, self.is_ending = ends_raise, False, False, False

    def resume(self, producer_id: int, epoch: int) -> None:
        """Continue with this producer id and epoch, for one transaction only.

        The end of that transaction does not raise the epoch, so the id is `spent` from now on.
        """
        self.producer_id, self.epoch = producer_id, epoch
        self.ends_raise_epoch, self.in_doubt = False, True

    @property
    def spent(self) -> bool:
        """Return True if the id must be initialised before another transaction."""
        return self.in_doubt or self.epoch >= LAST_EPOCH

    async def join(
        self, partitions: list[tuple[str, int]], *, with_offsets: bool, within_s: float | None = None
    ) -> None:
        """Add partitions to the transaction; the first call begins the transaction.

        Args:
            partitions: (topic, partition) of each.
            with_offsets: True to add the group's offsets as well.
            within_s: seconds in which to repeat each request until the last transaction's markers are written; None:
                SETTLED_WITHIN_S.
        """
        within_s = SETTLED_WITHIN_S if within_s is None else within_s
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        identity = (self.transactional_id, self.producer_id, self.epoch)
        self.has_begun = True
        request = AddPartitionsToTxnRequest(*identity, list(topics.items()))
        await self._until_settled(request, _partition_codes, within_s)
        if with_offsets:
            request = AddOffsetsToTxnRequest(*identity, self.group)
            await self._until_settled(request, lambda response: [response.error_code], within_s)

    async def _until_settled(self, request: Any, codes: Any, within_s: float) -> None:
        """Send a request, and repeat it while the coordinator refuses it.

        The coordinator refuses the request until the markers of the last transaction are written. An error is raised
        after `within_s` seconds.
        """
        retry = Retry("join transaction", id=self.transactional_id)
        while True:
            try:
                response = await self._ask_coordinator(request)
                for code in codes(response):
                    raise_for(code)
                return
            except kafka.ConcurrentTransactions as error:
                if retry.seconds > within_s:
                    raise
                retry.pause_s = min(retry.pause_s, 0.02)
                await retry.wait(error)
            except (
                kafka.GroupLoadInProgressError,
                kafka.NotCoordinatorForGroupError,
                kafka.GroupCoordinatorNotAvailableError,
            ):
                self.cluster.forget_coordinator(TRANSACTION, self.transactional_id)
                raise

    async def produce(self, leader: int, topic: str, partition: int, data: memoryview) -> AppendedBatch:
        """Send a sealed batch to a partition's leader."""
        _trying = Retry("produce", topic=topic, partition=partition)  # for stall detection; it is not tried twice
        request = BatchRequest(self.transactional_id, self.cluster.request_timeout_ms, topic, partition, data)
        response = await self.cluster.send(leader, request, self.connection)
        _, code, offset, at_ms, *_ = response.topics[0][1][0]
        raise_for(code, f"{topic}, partition {partition}")
        return AppendedBatch(offset, at_ms)

    async def send_offset(self, topic: str, partition: int, offset: int, metadata: str) -> None:
        """Add the next input offset to the transaction's commit.

        metadata: text stored with the offset, made by `offset_metadata`
        """
        request = TxnOffsetCommitRequest(
            self.transactional_id,
            self.group,
            self.producer_id,
            self.epoch,
            [(topic, [(partition, offset, metadata)])],
        )
        _trying = Retry("commit the offset", group=self.group)  # for stall detection; it is not tried twice
        async with self.cluster.asking_coordinator(GROUP, self.group) as node:
            response = await self.cluster.send(node, request, self.connection)
            for code in _partition_codes(response):
                raise_for(code)

    async def end(self, *, commit: bool) -> None:
        """Commit or abort the transaction; retries for END_FOR_S.

        No other request is repeated after an unknown outcome, because only this one is safe to repeat. Still, a late
        copy would end any later transaction of the same epoch, and the answer to a retry may concern an earlier
        transaction. So a retry sets `in_doubt`.
        """
        retry = Retry("end transaction", id=self.transactional_id)
        while True:
            try:
                return await self.end_once(commit=commit)
            except (*FENCED, kafka.TransactionalIdAuthorizationFailed):
                raise
            except kafka.KafkaError as error:
                self.in_doubt = True
                self.cluster.forget_coordinator(TRANSACTION, self.transactional_id)
                if retry.seconds > END_FOR_S:
                    raise
                await retry.wait(error)

    async def end_once(self, *, commit: bool) -> None:
        """Commit or abort, with one request."""
        self.is_ending = True
        make = RaisingEndRequest if self.ends_raise_epoch else EndTxnRequest
        response = await self._ask_coordinator(make(self.transactional_id, self.producer_id, self.epoch, commit))
        raise_for(response.error_code)
        self.has_begun = self.is_ending = False
        if self.ends_raise_epoch:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch

    async def give_up(self, timeout_ms: int) -> None:
        """Abort the open transaction so that partitions refuse its late requests.

        Send nothing if no transaction has begun, or if its end was requested already. In the second case, the
        transaction may be committed: the coordinator might then record it as aborted, or forget its end.
        """
        if not self.has_begun or self.is_ending:
            return None
        if self.ends_raise_epoch:
            return await self.end_once(commit=False)
        request = GiveUpRequest(self.transactional_id, timeout_ms, self.producer_id, self.epoch)
        with suppress(kafka.ConcurrentTransactions):  # it is being aborted
            raise_for((await self._ask_coordinator(request)).error_code)

    async def _ask_coordinator(self, request: Any) -> Any:
        node = await self.cluster.coordinator(TRANSACTION, self.transactional_id)
        try:
            return await self.cluster.send(node, request, self.connection)
        except kafka.KafkaError:
            self.in_doubt = True
            raise


def _partition_codes(response: Any) -> list[int]:
    return [code for _, partitions in response.errors for _, code in partitions]
