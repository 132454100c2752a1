"""Transactional producer (KIP-98) of an input partition, with a transactional id of its own.

The calls, in this order; each raises `Aborted` or `Fenced` when it fails (states.py has the states):

    initialise ─▶ begin ─▶ produce* ─▶ commit ─▶ begin ...
        ▲           └────────┴───────────┘
        └── after any failure: whatever was open is ended, and the epoch rises

The transaction as a whole is the unit of a retry. This rules out repeated and reordered single requests, and costs a
second reading of at most one commit interval when a leader moves. Two requests are exceptions. Adding partitions is
repeated while Kafka still writes the last transaction's markers. The request to end is repeated until Kafka answers, at
most for `END_FOR_S`. If the end took more than one request, or Kafka did not answer, the outcome is unknown. Then
`initialise` makes the coordinator end the transaction, and the changelog shows the outcome.

The group's generation (KIP-447) is not sent: with one transactional id per input partition, initialising it on
take-over fences the previous owner completely (docs/decisions/0003-lanes.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable, Iterable
from typing import Any, Final

import structlog
from aiokafka import errors as kafka

from kafka_ratchet.errors import Aborted, Fenced, RatchetError, RecordRefused, RecordTooLarge, TransactionError
from kafka_ratchet.transport.batch.encoding import EncodedBatch
from kafka_ratchet.transport.client.cluster import TRANSACTION, Cluster
from kafka_ratchet.transport.client.errors import InvalidRecord, explained
from kafka_ratchet.transport.client.retry import Retry
from kafka_ratchet.transport.transactions.crash_points import crash_point
from kafka_ratchet.transport.transactions.outcome import (
    COMPLETE_WITHIN_S,
    HangingTransaction,
    TopicPartition,
    describe,
    last_end,
    last_transaction,
    left_open,
    may_not_ask,
    record_outcome,
    soon,
)
from kafka_ratchet.transport.transactions.requests import (
    END_FOR_S,
    FENCED,
    LAST_EPOCH,
    AppendedBatch,
    TransactionRequests,
)
from kafka_ratchet.transport.transactions.states import State, transition

TOO_LARGE: Final = (kafka.MessageSizeTooLargeError, kafka.RecordListTooLargeError)
REFUSED: Final = (
    InvalidRecord,
    kafka.InvalidTimestampError,
    kafka.InvalidTopicError,
    kafka.PolicyViolationError,
    kafka.TopicAuthorizationFailedError,
    kafka.UnsupportedForMessageFormatError,
)
"""Kafka's errors about a record or topic, which the same request would get again."""


def as_ours(error: kafka.KafkaError, transactional_id: str, timeout_ms: int) -> RatchetError:
    """Convert an error of Kafka that ended a transaction into Ratchet's error.

    timeout_ms: timeout of the transaction, for the message.
    """
    if isinstance(error, FENCED):
        return Fenced(
            f"{transactional_id}: fenced ({error!r}): another worker owns the partition now, or the "
            f"transaction was open for more than {timeout_ms} ms"
        )
    if isinstance(error, TOO_LARGE):
        return RecordTooLarge(f"{transactional_id}: {error!r}. Raise max.message.bytes of that topic")
    if isinstance(error, REFUSED):
        return RecordRefused(
            f"{transactional_id}: Kafka refuses the records: {error!r}. Check that topic's cleanup.policy (a "
            "compacted topic takes no record without a key), message.timestamp.after.max.ms and "
            "message.timestamp.before.max.ms, and this user's right to write"
        )
    return Aborted(f"{transactional_id}: {explained(error)}")


log = structlog.get_logger(__name__)

REFUSED_ID: Final = (kafka.ProducerFenced, kafka.TransactionalIdAuthorizationFailed, kafka.InvalidTransactionTimeout)
HANGS: Final = "Kafka has not ended the last transaction in all its partitions; the partition starts again and ends it"
IN_FLIGHT: Final = 5
"""Maximum number of batches in flight: sent and not yet acknowledged.

The limit bounds memory when the broker is slow; more batches in flight would not make it faster.
"""


class TransactionalProducer:
    """Transactional producer of one input partition.

    Its methods must not run concurrently; several produced batches may be in flight.
    """

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        group: str,
        timeout_ms: int,
        partitions: Iterable[TopicPartition],
        asking: Hashable = None,
    ) -> None:
        """Prepare the producer without sending anything.

        Args:
            cluster: connected client of the Kafka cluster.
            transactional_id: transactional id, one per input partition.
            group: group of the committed offsets.
            timeout_ms: time after which the coordinator aborts an open transaction.
            partitions: all partitions that this id writes to; searched for an earlier owner's open transaction.
            asking: connection for taking the id over; None: the connection of the transactions.
        """
        self.cluster, self.transactional_id, self.timeout_ms = cluster, transactional_id, timeout_ms
        self.partitions = list(partitions)
        self.state = State.NEW
        self.begun = 0
        """Number of transactions begun so far."""
        self._connection = ("transaction", transactional_id)
        self._asking = self._connection if asking is None else asking
        self._requests = TransactionRequests(cluster, transactional_id, group, self._connection, self._asking)
        self._sequences: dict[tuple[str, int], int] = {}
        self._members: set[TopicPartition] = set()
        self._owed: HangingTransaction | None = None
        """Hanging transaction that this producer has to end, with the end that Kafka forgets at the take-over."""
        self._written: set[TopicPartition] = set()
        """Partitions that the last transaction wrote records to."""
        self.formers: list[TransactionalProducer] = []
        """Producers of former owners' ids, which the next `commit` initialises; see `transport/former.py`."""
        self._joining: asyncio.Task[None] | None = None
        self._sent: list[asyncio.Task[AppendedBatch]] = []

    def of(self, transactional_id: str, partitions: Iterable[TopicPartition]) -> TransactionalProducer:
        """Return a producer of another id, for the partitions of this one and further ones."""
        places = dict.fromkeys((*self.partitions, *partitions))
        return TransactionalProducer(
            self.cluster, transactional_id, self._requests.group, self.timeout_ms, places, self._asking
        )

    async def initialise(self) -> None:
        """Fence the former owner of this id and end its open transaction.

        Retries until the coordinator answers.

        Raises:
            TransactionError: the coordinator refuses this id.
            Fenced: another owner has taken the id over in between.
        """
        await self._drop()
        self._to(State.INITIALISING)
        work = asyncio.ensure_future(self._initialise())
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            if self._owed is not None:
                await asyncio.wait({work}, timeout=END_FOR_S)  # otherwise a successor has to wait for its end
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            raise
        finally:
            if self.state is not State.READY:
                self._to(State.FAILED)

    async def _initialise(self) -> None:
        while True:
            taken_over = await self._take_over()
            if self._owed is not None:
                self._to(State.COMPLETING)
                await self._guard(self._complete(self._owed, taken_over))
                self._to(State.INITIALISING)
            if not self._requests.spent:
                break
        self._to(State.READY)

    async def _take_over(self) -> float:
        """Fence the former owner. Return the time of the request, by the event loop's clock in seconds.

        Before the request, `_owed` is set to the hanging transaction, because the take-over makes Kafka forget its
        outcome.
        """
        retry = Retry("initialise transactional id", id=self.transactional_id)
        recorded: HangingTransaction | None = None
        while True:
            # Asked first: nothing may come between the look at the last transaction and taking its id over. An owner
            # that takes it over in that moment may use up its last epoch, and then we would get another producer id.
            try:
                ends_raise = await self._requests.ends_raise_epochs()
                node = await self.cluster.coordinator(TRANSACTION, self.transactional_id)
            except kafka.TransactionalIdAuthorizationFailed as error:
                raise may_not_ask(self.transactional_id, error) from None
            except kafka.KafkaError as error:
                await retry.wait(error)
                continue
            self._owed = await self._hanging()
            if self._owed is not None and self._owed != recorded:
                # One attempt only: before the next, the coordinator is asked again.
                try:
                    await self._record(self._owed)
                except kafka.KafkaError as error:
                    await retry.wait(error)
                    continue
                recorded = self._owed
                crash_point("noted")
                continue  # a live owner may have begun a transaction since
            requested_at = asyncio.get_running_loop().time()
            if self._owed is not None and self._owed.taken_over_at >= LAST_EPOCH:
                # Taking over would give another producer id, which could not end it. There is no owner to
                # fence: under this epoch no owner begins anything.
                self._requests.resume(self._owed.producer_id, self._owed.taken_over_at)
                break
            try:
                await self._requests.initialise(self.timeout_ms, ends_raise=ends_raise)
                if await self._is_known(node):
                    break
                # The answer came from a replaced coordinator.
                await retry.wait(kafka.NotCoordinatorForGroupError())
            except REFUSED_ID as error:
                raise TransactionError(
                    f"{self.transactional_id}: the coordinator refuses this transactional id: {error!r}. "
                    "Check the ACLs of the transactional id and the broker's transaction.max.timeout.ms"
                ) from None
            except kafka.KafkaError as error:
                # ConcurrentTransactions: the previous owner's transaction is still being ended.
                await retry.wait(error)
        self._sequences.clear()
        self._written.clear()
        return requested_at

    async def _hanging(self) -> HangingTransaction | None:
        return await last_end(self.cluster, self.transactional_id, self.partitions, self._asking, self._owed)

    def _follows(self, hanging: HangingTransaction) -> bool:
        """Return True if no other owner has taken the id over since the last transaction was read."""
        if hanging.producer_id != self._requests.producer_id:
            return True
        return self._requests.epoch == hanging.taken_over_at + 1

    async def _is_known(self, node: int) -> bool:
        """Return True if the coordinator's answer about the last transaction was current at the take-over.

        node: broker with that coordinator.
        """
        if self._owed is None:
            # Nothing can be open after the take-over, unless a replaced coordinator had answered from memory.
            return not await left_open(self.cluster, self._requests.producer_id, self.partitions, self._asking)
        return self._follows(self._owed) or node == await self.cluster.coordinator(TRANSACTION, self.transactional_id)

    async def _record(self, hanging: HangingTransaction) -> None:
        """Record in Kafka how a hanging transaction ends, because taking the id over makes the coordinator forget it.

        Raises:
            aiokafka.errors.KafkaError: the group's coordinator does not answer.
        """
        try:
            await record_outcome(self.cluster, self.transactional_id, hanging, self._asking)
        except kafka.GroupAuthorizationFailedError:
            log.warning(
                "this user may not commit offsets for a group named as its transactional id: if the "
                "worker dies in the next moment, an operator has to decide how the transaction ends",
                id=self.transactional_id,
                **describe(hanging),
            )

    async def _complete(self, hanging: HangingTransaction, taken_over: float) -> None:
        """End a hanging transaction in all partitions, by an empty transaction of the same producer id.

        The empty transaction's markers also end the open records. taken_over: result of `_take_over`.
        """
        log.warning("completing a transaction that Kafka left open", id=self.transactional_id, **describe(hanging))
        if hanging.producer_id != self._requests.producer_id:
            raise TransactionError(
                f"{self.transactional_id}: a transaction of producer id {hanging.producer_id} was left open in "
                f"{list(hanging.open)}, and Kafka has since given the id another producer id. Its intended "
                f"end is {'commit' if hanging.committed else 'abort'}. `ratchet resume --open-transaction "
                f"{'commit' if hanging.committed else 'abort'}` shows the transaction; with --partition, --reason and "
                "--execute it ends the transaction, which needs the right to alter the cluster; see "
                "docs/reference/halted.md"
            )
        # Its epoch stays, and when this is done the id is initialised once more.
        self._requests.resume(self._requests.producer_id, self._requests.epoch)
        retry = Retry("complete a transaction that Kafka left open", id=self.transactional_id)
        while True:
            if asyncio.get_running_loop().time() - taken_over > COMPLETE_WITHIN_S:
                # A successor may count this owner as dead (`OWNER_S`), and would abort a transaction begun now.
                raise Aborted(
                    f"{self.transactional_id}: could not complete the hanging transaction within "
                    f"{COMPLETE_WITHIN_S:.0f} s; the partition tries again"
                )
            crash_point("owing")
            try:
                await self._requests.join(list(hanging.open), with_offsets=True, within_s=0.0)
                crash_point("completing")
                return await self._requests.end(commit=hanging.committed)
            except FENCED:
                raise
            except kafka.KafkaError as error:
                await retry.wait(error)

    async def still_owns(self) -> None:
        """Check that no other owner has initialised the id; not to be called while a transaction ends.

        Raises:
            Fenced: another owner has taken over.
            Aborted: the coordinator does not answer.
        """
        last = await self._guard(last_transaction(self.cluster, self.transactional_id, self._connection))
        if last is None or (last.producer_id, last.epoch) != (self._requests.producer_id, self._requests.epoch):
            self._to(State.FAILED)
            raise Fenced(f"{self.transactional_id}: fenced: another worker has taken the partition over")

    def begin(self, partitions: list[tuple[str, int]]) -> None:
        """Open a transaction over the given partitions and the group's offsets, without waiting for the broker."""
        self._expect(State.READY)
        self._to(State.OPEN)
        self.begun += 1
        self._members = set(partitions)
        self._joining = asyncio.create_task(self._open(partitions))

    async def add(self, partitions: Collection[TopicPartition]) -> None:
        """Add partitions to the open transaction, before their first batch; partitions added earlier stay."""
        self._expect(State.OPEN)
        if more := sorted(set(partitions) - self._members):
            await self._joined()
            await self._guard(self._requests.join(more, with_offsets=False))
            self._members.update(more)

    async def produce(self, topic: str, partition: int, batch: EncodedBatch) -> asyncio.Task[AppendedBatch]:
        """Send a batch, and return a task with the batch's offset and append time; `commit` waits for all batches."""
        self._expect(State.OPEN)
        await self._joined()
        while len(self._sent) >= IN_FLIGHT:
            await self._guard(asyncio.shield(self._sent[0]))
            del self._sent[0]
        base = self._sequences.get((topic, partition), 0)
        self._sequences[topic, partition] = (base + batch.count) & 0x7FFFFFFF
        data = batch.seal(self._requests.producer_id, self._requests.epoch, base)
        leader = await self._guard(self.cluster.leader(topic, partition))
        self._written.add((topic, partition))
        task = asyncio.create_task(self._requests.produce(leader, topic, partition, data))
        self._sent.append(task)
        # Batches of one partition have to leave in order: let this one reach its socket before the next is built.
        await asyncio.sleep(0)
        return task

    async def delivered(self) -> None:
        """Wait until every batch sent so far is acknowledged."""
        while self._sent:
            await self._guard(asyncio.shield(self._sent[0]))
            del self._sent[0]

    async def commit(self, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """Commit all produced batches together with the next input offset.

        Args:
            topic: input topic.
            partition: number of its partition.
            offset: next input offset to read.
            metadata: text stored with the offset.

        Raises:
            Aborted: nothing became visible, or the outcome is unknown until the next `initialise`.
            Fenced: another owner has taken over.
        """
        self._expect(State.OPEN)
        self._to(State.COMMITTING)
        await self._joined()
        # At the same time, to save a round trip. Both end before a failure of one is raised, so that neither is left
        # running.
        steps = self.delivered(), self._send_offset(topic, partition, offset, metadata)
        for outcome in await asyncio.gather(*steps, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        crash_point("offered")
        await self._fence_formers()
        # Kafka may have recorded the commit from here on: it is permanent, whether or not the answer arrives.
        await self._guard(self._requests.end(commit=True))
        if self._requests.in_doubt:
            # The answer may come from a replaced coordinator: where ends do not raise the epoch, it describes
            # the transaction before, and this one is about to be aborted.
            self._to(State.FAILED)
            raise Aborted(
                f"{self.transactional_id}: the end was requested more than once, so its outcome is unknown; the "
                "partition starts again, initialises the id and reads the outcome from the changelog"
            )
        if self._requests.ends_raise_epoch:
            self._sequences.clear()
        self._to(State.SPENT if self._requests.spent else State.READY)

    async def _fence_formers(self) -> None:
        """Fence former owners that started again after the first time. A later start waits for our transaction."""
        while self.formers:
            await self.formers.pop().initialise()

    async def _send_offset(self, topic: str, partition: int, offset: int, metadata: str) -> None:
        # The request is made here: a task that is cancelled before its first step would leave it unawaited.
        await self._guard(self._requests.send_offset(topic, partition, offset, metadata))

    async def abort(self) -> None:
        """Abort the open transaction if the coordinator can be reached; otherwise `initialise` will abort it."""
        was = self.state
        self._to(State.FAILED)
        await self._drop()
        if was in (State.OPEN, State.COMMITTING):
            try:
                await asyncio.wait_for(self._requests.give_up(self.timeout_ms), timeout=2.0)
            except (kafka.KafkaError, TimeoutError) as error:
                log.info("abort not delivered", id=self.transactional_id, reason=repr(error))

    def _expect(self, state: State) -> None:
        if self.state is not state:
            raise Aborted(
                f"{self.transactional_id}: the producer is in state {self.state} instead of {state}; the partition "
                "starts again"
            )

    def _to(self, state: State) -> None:
        self.state = transition(self.state, state)

    async def _drop(self) -> None:
        """Cancel the requests in flight. Their answers no longer matter, because `initialise` will raise the epoch."""
        tasks: list[asyncio.Task[Any]] = [*self._sent, *([self._joining] if self._joining else [])]
        self._sent, self._joining, self._members = [], None, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _guard(self, awaitable: Any) -> Any:
        """Await a request; convert Kafka's errors into ours, and mark the transaction as failed."""
        try:
            return await awaitable
        except kafka.KafkaError as error:
            self._to(State.FAILED)
            if type(ours := as_ours(error, self.transactional_id, self.timeout_ms)) is Aborted:
                self.cluster.refresh()
            raise ours from None

    async def check_ended(self) -> None:
        """Check, between transactions, that Kafka has ended the last transaction in all partitions.

        Raises:
            Aborted: a partition lacks the end marker, so that the commit is invisible there; `initialise` ends it.
        """
        if self.state is not State.READY or not self._written:
            return
        begun = self.begun
        try:
            is_hanging = await self._is_hanging(self._asking)
        except Aborted:
            return  # not all leaders answer; the next check asks again
        if self.state is State.READY and self.begun == begun:  # otherwise the next transaction has checked it
            if is_hanging:
                raise Aborted(f"{self.transactional_id}: {HANGS}")
            self._written.clear()

    async def _is_hanging(self, connection: Hashable) -> bool:
        """Return True if the last transaction is still open in some partition."""
        asked = left_open(self.cluster, self._requests.producer_id, self._written, connection)
        left = await soon(asked, self.transactional_id)
        return bool(left) and await soon(self._hanging(), self.transactional_id) is not None

    async def _joined(self) -> None:
        if self._joining is not None:  # kept when it has failed, so that each later step raises that error too
            await self._guard(self._joining)

    async def _open(self, partitions: list[TopicPartition]) -> None:
        # Otherwise our end marker would also end the open records of the previous transaction. The state
        # stays: the lane learns of this when it produces or commits.
        if await self._is_hanging(self._connection):
            raise Aborted(f"{self.transactional_id}: {HANGS}")
        self._written.clear()
        await self._requests.join(partitions, with_offsets=True)
