"""The one place that talks Kafka transactions (KIP-98): one transactional id per input partition.

Legal steps, in this order; each raises `Aborted` or `Fenced` when it does not go through:

    initialise ─▶ begin ─▶ produce* ─▶ commit ─▶ begin ...
        ▲           └────────┴───────────┘
        └── after any failure: whatever was open is settled, and the epoch rises

Nothing is retried inside a transaction except its end: the transaction as a whole is the unit that is tried again.
That costs a re-read of at most one commit interval when a leader moves, and saves every question about order and
repetition of single requests. Only the outcome of the end can be unknown; it is asked for until there is an answer,
and if there is none, `initialise` makes the broker settle it and the changelog tells.

The group's generation (KIP-447) is not sent: with one transactional id per input partition, initialising it on
take-over fences the previous owner completely (docs/decisions/0003-lanes.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final, NamedTuple

import structlog
from aiokafka import errors as kafka
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from errors import Aborted, Fenced, RecordRefused, RecordTooLarge, TransactionError
from transport._cluster import GROUP, TRANSACTION, Cluster, InvalidRecord, Retry, raise_for
from transport._crash import crash_point
from transport._encoding import EncodedBatch
from transport._produce import BatchRequest
from transport._settlement import ORPHANED, Orphaned, Place, Unsettled, describe, find_unsettled, left_open

log = structlog.get_logger(__name__)

FENCED: Final = (
    kafka.InvalidProducerEpoch,  # also what a transaction gets that the coordinator has timed out (version 0 requests)
    kafka.ProducerFenced,
    kafka.InvalidProducerIdMapping,
    kafka.InvalidTxnState,
)
TOO_LARGE: Final = (kafka.MessageSizeTooLargeError, kafka.RecordListTooLargeError)
REFUSED: Final = (
    InvalidRecord,
    kafka.InvalidTimestampError,
    kafka.InvalidTopicError,
    kafka.PolicyViolationError,
    kafka.TopicAuthorizationFailedError,
    kafka.UnsupportedForMessageFormatError,
)
"""What is wrong with the record or the topic, and stays so however often it is tried."""
REFUSED_ID: Final = (kafka.ProducerFenced, kafka.TransactionalIdAuthorizationFailed, kafka.InvalidTransactionTimeout)
END_FOR_S: Final = 60.0
"""How long the end of a transaction is asked for before its outcome is left to the next `initialise`."""


OFFSET_METADATA: Final = "ratchet 1"
"""Left with every offset that is committed together with changelog entries. A person who moves the group's offset with
Kafka's tools leaves none: so a position that the changelog must know of differs from one that was set on purpose."""
MARKERS_S: Final = 0.005
"""A few times of what the markers of a transaction take while all is well."""
IN_FLIGHT: Final = 5
"""Batches under way at once. Bounds memory when the broker is slow; more do not make it faster."""


class State(StrEnum):
    """Where a transactional producer stands."""

    NEW = "new"
    READY = "ready"
    OPEN = "open"
    FAILED = "failed"


class Appended(NamedTuple):
    """Where a batch is in its partition.

    offset: of its first record; at_ms: when the broker has appended it, in a topic with LogAppendTime, else -1
    """

    offset: int
    at_ms: int


class TransactionalProducer:
    """The producer of one input partition.

    Not for concurrent use, except that produced batches are under way at once.
    """

    def __init__(
        self, cluster: Cluster, transactional_id: str, group: str, timeout_ms: int, partitions: Iterable[Place]
    ) -> None:
        """Nothing is sent yet.

        Args:
            cluster: connected.
            transactional_id: one per input partition.
            group: whose offsets are committed.
            timeout_ms: after which the coordinator aborts an open transaction.
            partitions: all that this id writes to; looked at for what an earlier owner has left open.
        """
        self.cluster, self.transactional_id, self.group, self.timeout_ms = cluster, transactional_id, group, timeout_ms
        self.partitions = list(partitions)
        self.state = State.NEW
        self._connection = ("transaction", transactional_id)
        self._producer_id, self._epoch = -1, -1
        self._sequences: dict[tuple[str, int], int] = {}
        self._members: set[Place] = set()
        self._owed: Unsettled | None = None
        """What is left open and to be ended by this producer: known to nobody else once the id is taken over."""
        self._written: set[Place] = set()
        """Where the last transaction has left records."""
        self._joining: asyncio.Task[None] | None = None
        self._sent: list[asyncio.Task[Appended]] = []

    async def initialise(self) -> None:
        """Fence whoever had this id before and settle its open transaction. Tries until the coordinator answers.

        Raises:
            TransactionError: the coordinator refuses this id.
            Fenced: another owner has taken over meanwhile.
        """
        await self._drop()
        work = asyncio.ensure_future(self._initialise())
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            if self._owed is not None:
                await asyncio.wait({work}, timeout=END_FOR_S)  # nobody else knows how it is to end
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            raise

    async def _initialise(self) -> None:
        request = InitProducerIdRequest(self.transactional_id, self.timeout_ms)
        retry = Retry("initialise transactional id", id=self.transactional_id)
        while True:
            # Before the id is taken over, which makes the coordinator forget how its last transaction ended. It may
            # have been, where only the answer was lost: then what was known before that counts.
            self._owed = await self._unsettled() or self._owed
            try:
                response = await self._ask_coordinator(request)
                raise_for(response.error_code)
                break
            except REFUSED_ID as error:
                raise TransactionError(
                    f"{self.transactional_id}: the coordinator refuses this transactional id: {error!r}. "
                    "Check the ACLs of the transactional id and the broker's transaction.max.timeout.ms"
                ) from None
            except kafka.KafkaError as error:
                # ConcurrentTransactions: the previous owner's transaction is still being settled.
                self.cluster.forget_coordinator(TRANSACTION, self.transactional_id)
                await retry.wait(error)
        self._producer_id, self._epoch = response.producer_id, response.producer_epoch
        self._sequences.clear()
        self._written.clear()
        while self._owed is not None:
            await self._guard(self._settle(self._owed))
            self._owed = None  # the coordinator knows now
            self._owed = await self._unsettled()
        self.state = State.READY

    async def _unsettled(self) -> Unsettled | None:
        retry = Retry("ask for the last transaction", id=self.transactional_id)
        retry.pause_s = MARKERS_S
        began = asyncio.get_running_loop().time()
        while True:
            try:
                return await find_unsettled(self.cluster, self.transactional_id, self.partitions, self._connection)
            except kafka.TransactionalIdAuthorizationFailed as error:
                raise TransactionError(
                    f"{self.transactional_id}: this user may not ask for it: {error!r}. Check the id's ACLs"
                ) from None
            except Orphaned as error:
                if self._owed is not None:
                    return None  # by ourselves: the answer to the last request was lost
                if asyncio.get_running_loop().time() - began > END_FOR_S:
                    raise TransactionError(f"{error}. {ORPHANED}") from None
                await retry.wait(error)
            except kafka.KafkaError as error:
                self.cluster.forget_coordinator(TRANSACTION, self.transactional_id)
                await retry.wait(error)

    async def _settle(self, unsettled: Unsettled) -> None:
        """End what an earlier owner's transaction has left open as that one ended, by an empty one that ends so."""
        log.warning("completing a transaction that Kafka left open", id=self.transactional_id, **describe(unsettled))
        if unsettled.producer_id != self._producer_id:
            raise TransactionError(
                f"{self.transactional_id}: a transaction of producer id {unsettled.producer_id} was left open in "
                f"{unsettled.open}, and Kafka has given out another one. End it with kafka-transactions.sh abort"
            )
        retry = Retry("complete a transaction that Kafka left open", id=self.transactional_id)
        while True:
            try:
                await self._join(unsettled.open, with_offsets=True)
                return await self._end(commit=unsettled.committed)
            except FENCED:
                raise
            except kafka.KafkaError as error:
                await retry.wait(error)

    def begin(self, partitions: list[tuple[str, int]]) -> None:
        """Open a transaction over these partitions and the group's offsets; does not wait for the broker."""
        self._expect(State.READY)
        self.state = State.OPEN
        self._members = set(partitions)
        self._joining = asyncio.create_task(self._open(partitions))

    async def add(self, topic: str, partition: int) -> None:
        """Take one more partition into the open transaction, before the first batch for it."""
        self._expect(State.OPEN)
        if (topic, partition) not in self._members:
            await self._joined()
            await self._guard(self._join([(topic, partition)], with_offsets=False))
            self._members.add((topic, partition))

    async def produce(self, topic: str, partition: int, batch: EncodedBatch) -> asyncio.Task[Appended]:
        """Send a batch; the task's result says where it is then. `commit` waits for all of them."""
        self._expect(State.OPEN)
        await self._joined()
        while len(self._sent) >= IN_FLIGHT:
            await self._guard(asyncio.shield(self._sent[0]))
            del self._sent[0]
        base = self._sequences.get((topic, partition), 0)
        self._sequences[topic, partition] = (base + batch.count) & 0x7FFFFFFF
        data = batch.seal(self._producer_id, self._epoch, base)
        leader = await self._guard(self.cluster.leader(topic, partition))
        self._written.add((topic, partition))
        task = asyncio.create_task(self._produce(leader, topic, partition, data))
        self._sent.append(task)
        # Batches of one partition have to leave in order: let this one reach its socket before the next is built.
        await asyncio.sleep(0)
        return task

    async def delivered(self) -> None:
        """Wait until every batch sent so far is acknowledged."""
        while self._sent:
            await self._guard(asyncio.shield(self._sent[0]))
            del self._sent[0]

    async def commit(self, topic: str, partition: int, offset: int) -> None:
        """Commit everything produced together with the consumed offset (the next one to read).

        Raises:
            Aborted: nothing became visible, or the outcome is unknown; `initialise` settles it.
            Fenced: another owner has taken over.
        """
        self._expect(State.OPEN)
        await self._joined()
        # Side by side, to save a round trip. Both are waited for before either's failure counts, so that nothing is
        # left running.
        steps = self.delivered(), self._guard(self._send_offset(topic, partition, offset))
        for outcome in await asyncio.gather(*steps, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        crash_point("offered")
        await self._guard(self._end(commit=True))
        self.state = State.READY

    async def abort(self) -> None:
        """Give up the open transaction, if the broker will hear of it; `initialise` does it otherwise."""
        was, self.state = self.state, State.FAILED
        await self._drop()
        if was is State.OPEN:
            try:
                await asyncio.wait_for(self._ask_coordinator(self._end_request(commit=False)), timeout=2.0)
            except (kafka.KafkaError, TimeoutError) as error:
                log.info("abort not delivered", id=self.transactional_id, reason=repr(error))

    def _expect(self, state: State) -> None:
        if self.state is not state:
            raise Aborted(f"{self.transactional_id}: is {self.state}, not {state}")

    async def _drop(self) -> None:
        """Forget what is under way. Its answers no longer matter: the epoch is about to rise."""
        tasks: list[asyncio.Task[Any]] = [*self._sent, *([self._joining] if self._joining else [])]
        self._sent, self._joining, self._members = [], None, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _guard(self, awaitable: Any) -> Any:
        """Turn what goes wrong into an error of ours, and remember that this transaction is over."""
        try:
            return await awaitable
        except FENCED as error:
            self.state = State.FAILED
            raise Fenced(
                f"{self.transactional_id}: fenced ({error!r}): another worker owns the partition now, or the "
                f"transaction was open for more than {self.timeout_ms} ms"
            ) from None
        except TOO_LARGE as error:
            self.state = State.FAILED
            raise RecordTooLarge(
                f"{self.transactional_id}: {error!r}. Raise max.message.bytes of the topic written to"
            ) from None
        except REFUSED as error:
            self.state = State.FAILED
            raise RecordRefused(
                f"{self.transactional_id}: Kafka refuses what is written: {error!r}. Look at that topic's "
                "cleanup.policy (a compacted topic takes no record without a key), message.timestamp.after.max.ms and "
                "message.timestamp.before.max.ms, and at this user's right to write"
            ) from None
        except kafka.KafkaError as error:
            self.state = State.FAILED
            self.cluster.refresh()
            raise Aborted(f"{self.transactional_id}: {error!r}") from None

    async def _joined(self) -> None:
        if self._joining is not None:
            joining, self._joining = self._joining, None
            await self._guard(joining)

    async def _open(self, partitions: list[Place]) -> None:
        # Or this one's end would be the end of both, whichever it is.
        if await left_open(self.cluster, self._producer_id, self._written, self._connection):
            unsettled = await self._unsettled()
            if unsettled is not None:
                self.state = State.FAILED
                raise Aborted(f"{self.transactional_id}: Kafka has not ended the last transaction everywhere")
        self._written.clear()
        await self._join(partitions, with_offsets=True)

    async def _join(self, partitions: list[tuple[str, int]], *, with_offsets: bool) -> None:
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        identity = (self.transactional_id, self._producer_id, self._epoch)
        await self._until_settled(AddPartitionsToTxnRequest(*identity, list(topics.items())), _partition_codes)
        if with_offsets:
            await self._until_settled(
                AddOffsetsToTxnRequest(*identity, self.group), lambda response: [response.error_code]
            )

    async def _until_settled(self, request: Any, codes: Any) -> None:
        """The coordinator refuses a new transaction while the markers of the last are still being written."""
        retry = Retry("join transaction", id=self.transactional_id)
        while True:
            try:
                response = await self._ask_coordinator(request)
                for code in codes(response):
                    raise_for(code)
                return
            except kafka.ConcurrentTransactions as error:
                retry.pause_s = min(retry.pause_s, 0.02)
                await retry.wait(error)
            except (
                kafka.GroupLoadInProgressError,
                kafka.NotCoordinatorForGroupError,
                kafka.GroupCoordinatorNotAvailableError,
            ):
                self.cluster.forget_coordinator(TRANSACTION, self.transactional_id)
                raise

    async def _produce(self, leader: int, topic: str, partition: int, data: memoryview) -> Appended:
        request = BatchRequest(self.transactional_id, self.cluster.request_timeout_ms, topic, partition, data)
        response = await self.cluster.send(leader, request, self._connection)
        _, code, offset, at_ms, *_ = response.topics[0][1][0]
        raise_for(code, f"{topic}, partition {partition}")
        return Appended(offset, at_ms)

    async def _send_offset(self, topic: str, partition: int, offset: int) -> None:
        request = TxnOffsetCommitRequest(
            self.transactional_id,
            self.group,
            self._producer_id,
            self._epoch,
            [(topic, [(partition, offset, OFFSET_METADATA)])],
        )
        try:
            node = await self.cluster.coordinator(GROUP, self.group)
            response = await self.cluster.send(node, request, self._connection)
            for code in _partition_codes(response):
                raise_for(code)
        except kafka.KafkaError:
            self.cluster.forget_coordinator(GROUP, self.group)
            raise

    async def _end(self, *, commit: bool) -> None:
        retry = Retry("end transaction", id=self.transactional_id)
        began = asyncio.get_running_loop().time()
        while True:
            try:
                raise_for((await self._ask_coordinator(self._end_request(commit=commit))).error_code)
                return
            except (*FENCED, kafka.TransactionalIdAuthorizationFailed):
                raise
            except kafka.KafkaError as error:
                self.cluster.forget_coordinator(TRANSACTION, self.transactional_id)
                if asyncio.get_running_loop().time() - began > END_FOR_S:
                    raise
                await retry.wait(error)

    def _end_request(self, *, commit: bool) -> EndTxnRequest:
        return EndTxnRequest(self.transactional_id, self._producer_id, self._epoch, commit)

    async def _ask_coordinator(self, request: Any) -> Any:
        node = await self.cluster.coordinator(TRANSACTION, self.transactional_id)
        return await self.cluster.send(node, request, self._connection)


def _partition_codes(response: Any) -> list[int]:
    return [code for _, partitions in response.errors for _, code in partitions]
