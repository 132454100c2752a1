"""Transactions that Kafka calls complete although a partition never got the marker.

When a transaction ends while one of its partitions has no leader, Kafka 4.3 takes the partition for deleted, skips its
marker and reports success (tests/transport/transactions/test_outcome.py). In that partition, these records and all
later ones are invisible to committed readers. The producer id's next marker there also ends the old records. A worker
that reads the changelog in between does not see its own commit, and judges the same input once more. Its next commit
then makes both commits visible. So a lane that takes over first asks for such transactions
(docs/decisions/0006-settlement.md).

Taking over makes the coordinator forget how the last transaction ended. So a lane records that outcome before it takes
over. For each open partition it commits an offset, with the outcome as metadata, in a group with the name of the
transactional id (docs/decisions/0016-a-note-before-taking-over.md).

A recorded outcome can be wrong: a replaced coordinator answers from memory, and a suspended owner records its
answer late. So the coordinator's answer takes precedence, unless the epochs show a later take-over. A recorded outcome
counts only if the id's epoch is still close to the recorded epoch (docs/decisions/0079-the-coordinators-word.md).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Collection, Hashable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import structlog
from aiokafka import errors as kafka
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.transaction import EndTxnRequest

from kafka_ratchet.errors import Aborted, TransactionError
from kafka_ratchet.transport.client.cluster import GONE_AFTER_S, GROUP, TRANSACTION, Cluster
from kafka_ratchet.transport.client.describe import DescribeProducersRequest, DescribeTransactionsRequest
from kafka_ratchet.transport.client.errors import explained, raise_for
from kafka_ratchet.transport.client.retry import Retry

log = structlog.get_logger(__name__)

T = TypeVar("T")

ID_NOT_FOUND: Final = 105
"""TRANSACTIONAL_ID_NOT_FOUND: the id was never used, or was unused for transactional.id.expiration.ms."""
EMPTY: Final = "Empty"
"""State of an id without a transaction since its take-over."""
COMPLETE: Final = {"CompleteCommit": True, "CompleteAbort": False}
OFFSETS: Final = "__consumer_offsets"
NO_TRANSACTION: Final = -1
MARKERS_S: Final = 0.005
"""Seconds of the first pause while Kafka writes markers: a few times as long as Kafka usually needs."""
COMPLETE_WITHIN_S: Final = 5.0
"""Seconds within which an owner, after its take-over of the id, may begin to complete a left-open transaction.

After that time the owner starts again.
"""
OWNER_S: Final = 2 * COMPLETE_WITHIN_S
"""Seconds without a change after which another owner counts as dead.

By then that owner may no longer begin to complete a transaction (`COMPLETE_WITHIN_S`), and its requests have arrived.
"""
ORPHANED_FOR_S: Final = 60.0
"""Seconds to wait for a recorded outcome before the lane halts, and an operator has to decide."""
ORPHANED: Final = (
    "Kafka has left a transaction open, and the id was taken over without a recorded outcome: its intended end is "
    "unknown. See docs/reference/halted.md"
)
OUTCOME: Final = "ratchet: {end} by producer {producer_id}, epoch {epoch}, seen at epoch {seen}"
RECORDED: Final = re.compile(r"ratchet: (commit|abort) by producer (\d+), epoch (\d+), seen at epoch (\d+)")
ENDS: Final = {True: "commit", False: "abort"}
WORD_WITHIN: Final = 1
"""Highest difference between the id's epoch and the epoch of open records.

Up to this difference, the last end in the coordinator's answer counts as the end of these records. An end raises the
epoch by one or not at all; a take-over and a further end raise it by two.
"""
RECORD_WITHIN: Final = 1
"""Highest difference between the id's epoch and the epoch in a recorded outcome.

With a greater difference, the outcome does not count. A take-over raises the id's epoch by one. Each owner records the
outcome again before it takes the id over.
"""
TIMED_OUT: Final = 1
"""Addition to `RECORD_WITHIN` if the coordinator may have aborted the completing transaction after its timeout."""

LEADERS_WITHIN_S: Final = 10.0
"""Seconds that a new transaction waits for leaders; a change of leaders takes less.

After that time, the lane starts again. During its start the lane can wait as long as needed, find out which topic is
missing, and be stopped.
"""

TopicPartition = tuple[str, int]
"""Topic name and partition number."""


class LastTransaction(NamedTuple):
    """Coordinator's state of a transactional id's last transaction.

    started_ms: milliseconds since the epoch; 0 or -1 before the first transaction
    state: Kafka's word, as in DescribeTransactions
    """

    started_ms: int
    state: str
    producer_id: int
    epoch: int
    members: frozenset[TopicPartition] = frozenset()
    """Partitions in the transaction, without those of the group's offsets."""


class OpenAt(NamedTuple):
    """Open transaction in a partition: its epoch, and the offset of its first record."""

    epoch: int
    start: int


class HangingTransaction(NamedTuple):
    """Ended transaction, still open in some partitions because its end marker is missing there."""

    producer_id: int
    committed: bool
    open: dict[TopicPartition, OpenAt]
    taken_over_at: int = -1
    """Epoch of the transactional id when this hanging transaction was found."""

    def explains(self, producer_id: int, stuck: Mapping[TopicPartition, OpenAt]) -> bool:
        """Return True if the open records `stuck` of a producer id belong to this transaction."""
        return producer_id == self.producer_id and stuck.items() <= self.open.items()


class RecordedEnd(NamedTuple):
    """Outcome of open records, as recorded in Kafka. seen: epoch of the transactional id at that time."""

    committed: bool
    seen: int


class OutcomeForgotten(kafka.KafkaError):  # type: ignore[misc]
    """Error for open records of a transaction with an outcome that the coordinator has forgotten.

    Another owner has taken the id over. That owner is about to end the records, or died before.

    last: the coordinator's state; hanging: the transaction with its intended end, if an outcome is recorded
    """

    def __init__(self, text: str, last: LastTransaction, hanging: HangingTransaction | None) -> None:
        super().__init__(text)
        self.last, self.hanging = last, hanging


async def find_hanging_transaction(
    cluster: Cluster,
    transactional_id: str,
    partitions: Collection[TopicPartition],
    connection: Hashable,
    remembered: HangingTransaction | None = None,
) -> HangingTransaction | None:
    """Return an id's ended transaction with missing markers; None if the id has left no such transaction.

    Waits for the leaders of all partitions. The next owner of the id erases the outcome of the id's last transaction,
    so the caller has to be able to complete that transaction at once.

    Args:
        cluster: connected client of the Kafka cluster.
        transactional_id: id of the transaction.
        partitions: all partitions that the id writes to.
        connection: connection of the requests.
        remembered: hanging transaction that this process found before it took over the id. Its outcome counts if
            coordinator and recorded outcomes show none, for example because this user may not record outcomes.

    Raises:
        TransactionError: this user lacks the right, or Kafka is too old for the request.
        OutcomeForgotten: records are open, and the coordinator no longer knows their intended end.
        aiokafka.errors.KafkaError: a coordinator does not answer, or is about to end a transaction.
    """
    while (known := await last_transaction(cluster, transactional_id, connection)) is not None:
        left = await left_open(cluster, known.producer_id, partitions, connection)
        is_over = known.state in COMPLETE
        # The coordinator will end the records of an open transaction itself, and nothing older.
        stuck = {where: there for where, there in left.items() if is_over or there.epoch < known.epoch}
        recorded = await recorded_ends(cluster, transactional_id, known.producer_id, stuck, connection) if stuck else []
        require_current(cluster, transactional_id, known, left, recorded)
        # During the wait for leaders a live owner may have ended its transaction.
        if await last_transaction(cluster, transactional_id, connection) == known:
            break
    else:
        return None
    if not stuck:
        return None
    committed = known_end(known, stuck, recorded)
    if committed is None and remembered is not None and remembered.explains(known.producer_id, stuck):
        committed = known_end(known, stuck, [RecordedEnd(remembered.committed, remembered.taken_over_at)])
    hanging = None if committed is None else HangingTransaction(known.producer_id, committed, stuck, known.epoch)
    if hanging is None or not is_over:
        places = ", ".join(f"{topic}/{partition}" for topic, partition in stuck)
        raise OutcomeForgotten(
            f"transactional id {transactional_id}: records are open in {places}, and the transaction's state is "
            f"{known.state}",
            known,
            hanging,
        )
    return hanging


def require_current(
    cluster: Cluster,
    transactional_id: str,
    last: LastTransaction,
    left: Mapping[TopicPartition, OpenAt],
    recorded: Collection[RecordedEnd],
) -> None:
    """Raise an error if open records or recorded outcomes are newer than the coordinator's answer.

    The coordinator is then looked up again at the next request.

    A replaced coordinator that is cut off from the cluster still answers from memory. Recording its answer would
    replace the true outcome, recorded by an owner that has asked the present coordinator.

    Args:
        cluster: connected client of the Kafka cluster
        transactional_id: id of the transaction
        last: the coordinator's answer
        left: open records of the same producer id
        recorded: outcomes recorded for them

    Raises:
        aiokafka.errors.NotCoordinatorForGroupError: open records, or a recorded outcome, have a later epoch.
    """
    newest = max((*(there.epoch for there in left.values()), *(each.seen for each in recorded)), default=-1)
    if newest > last.epoch:
        cluster.forget_coordinator(TRANSACTION, transactional_id)
        raise kafka.NotCoordinatorForGroupError(
            f"{transactional_id}: open records, or the outcome recorded for them, show epoch {newest}, but this "
            f"coordinator knows only epoch {last.epoch}: another broker is coordinator now. "
            "The next attempt asks that one"
        )


def known_end(
    last: LastTransaction, stuck: Mapping[TopicPartition, OpenAt], recorded: Collection[RecordedEnd]
) -> bool | None:
    """Return True if the transaction of open records was committed, False if aborted; None: unknown.

    Args:
        last: the coordinator's state of the id
        stuck: open records of its producer id that no marker will end
        recorded: outcomes recorded for them
    """
    is_over = last.state in COMPLETE
    if is_over and all(0 <= last.epoch - there.epoch <= WORD_WITHIN for there in stuck.values()):
        return COMPLETE[last.state]
    within = RECORD_WITHIN + (TIMED_OUT if is_over else 0)
    ends = {each.committed for each in recorded}
    if len(ends) == 1 and all(0 <= last.epoch - each.seen <= within for each in recorded):
        return ends.pop()
    return None


async def last_end(
    cluster: Cluster,
    transactional_id: str,
    partitions: Collection[TopicPartition],
    connection: Hashable,
    remembered: HangingTransaction | None = None,
) -> HangingTransaction | None:
    """Return an id's ended transaction with missing markers, like `find_hanging_transaction`, with retries.

    Another owner may have taken the id over without ending the transaction. This call waits OWNER_S for that owner,
    then ends the transaction by the recorded outcome.

    Raises:
        TransactionError: this user lacks the right, Kafka is too old for the request, or the intended end is unknown.
    """
    retry = Retry("ask for the last transaction", id=transactional_id)
    retry.pause_s = MARKERS_S
    clock = asyncio.get_running_loop().time
    seen: LastTransaction | None = None
    since = 0.0
    while True:
        try:
            return await find_hanging_transaction(cluster, transactional_id, partitions, connection, remembered)
        except kafka.TransactionalIdAuthorizationFailed as error:
            raise may_not_ask(transactional_id, error) from None
        except OutcomeForgotten as orphaned:
            if orphaned.last != seen:
                seen, since = orphaned.last, clock()
                log.info(
                    "records are open that another owner may be about to end", id=transactional_id, reason=str(orphaned)
                )
            if orphaned.hanging is None:
                if clock() - since > ORPHANED_FOR_S:
                    raise TransactionError(f"{orphaned}. {ORPHANED}") from None
            elif orphaned.last.state != EMPTY and not _completes(orphaned.last, orphaned.hanging):
                # Its owner has other partitions than we have. Taking over aborts it, as it does with any other.
                return orphaned.hanging
            elif clock() - since > OWNER_S:
                if orphaned.last.state == EMPTY:
                    return orphaned.hanging
                await _end_for_another(cluster, transactional_id, orphaned.last, orphaned.hanging, connection)
            await retry.wait(orphaned)
        except kafka.KafkaError as error:
            await retry.wait(error)


def may_not_ask(transactional_id: str, error: kafka.KafkaError) -> TransactionError:
    """Return the error for a user who may not use a transactional id."""
    return TransactionError(
        f"{transactional_id}: this user may not ask how its last transaction ended: {explained(error)}"
    )


def _completes(last: LastTransaction, hanging: HangingTransaction) -> bool:
    """Return True if the end of the open transaction also completes the hanging one.

    The open transaction must have partitions, and each of them must be one where the hanging transaction is open.
    """
    return bool(last.members) and last.members <= hanging.open.keys()


async def _end_for_another(
    cluster: Cluster, transactional_id: str, last: LastTransaction, hanging: HangingTransaction, connection: Hashable
) -> None:
    """End the empty transaction that a killed owner began, to complete a hanging one.

    A take-over would abort the empty transaction, and so the records of the hanging one. Log an error of the request;
    the caller looks again.
    """
    log.warning("ending the transaction that another owner began to complete", id=transactional_id, **describe(hanging))
    request = EndTxnRequest(transactional_id, last.producer_id, last.epoch, hanging.committed)
    try:
        async with cluster.asking_coordinator(TRANSACTION, transactional_id) as node:
            raise_for((await cluster.send(node, request, connection)).error_code)
    except kafka.KafkaError as error:  # the next look shows if it ended
        log.warning("the transaction of another owner is not ended yet", id=transactional_id, reason=repr(error))


async def record_outcome(
    cluster: Cluster, transactional_id: str, hanging: HangingTransaction, connection: Hashable
) -> None:
    """Record in Kafka how a transaction must end, before a take-over erases the coordinator's state.

    Raises:
        aiokafka.errors.KafkaError: the group's coordinator does not answer, or refuses.
    """
    topics = [
        (topic, [(partition, there.start, _metadata(hanging, there))])
        for (topic, partition), there in hanging.open.items()
    ]
    request = OffsetCommitRequest(
        transactional_id,
        OffsetCommitRequest.DEFAULT_GENERATION_ID,  # no member: this group has no subscribers
        "",
        OffsetCommitRequest.DEFAULT_RETENTION_TIME,
        topics,
    )
    await _ask_group(cluster, transactional_id, request, connection)


async def recorded_ends(
    cluster: Cluster,
    transactional_id: str,
    producer_id: int,
    stuck: Mapping[TopicPartition, OpenAt],
    connection: Hashable,
) -> list[RecordedEnd]:
    """Return the recorded outcomes of all open records in `stuck`; [] if one of them has no recorded outcome."""
    request = OffsetFetchRequest(transactional_id, [(topic, [partition]) for topic, partition in stuck])
    try:
        response = await _ask_group(cluster, transactional_id, request, connection)
    except kafka.GroupAuthorizationFailedError:
        return []  # without the right none was recorded either; `_record` has logged that
    recorded = {
        (topic, partition): (offset, metadata)
        for topic, partitions in response.topics
        for partition, offset, metadata, _ in partitions
    }
    ends = []
    for where, there in stuck.items():
        offset, metadata = recorded.get(where, (-1, ""))
        found = RECORDED.fullmatch(metadata)
        # Producer id, epoch and offset are this transaction's alone: an older record does not pass for one about it.
        if found is None or (offset, int(found[2]), int(found[3])) != (there.start, producer_id, there.epoch):
            return []
        ends.append(RecordedEnd(found[1] == ENDS[True], int(found[4])))
    return ends


def _metadata(hanging: HangingTransaction, there: OpenAt) -> str:
    end, seen = ENDS[hanging.committed], hanging.taken_over_at
    return OUTCOME.format(end=end, producer_id=hanging.producer_id, epoch=there.epoch, seen=seen)


async def _ask_group(cluster: Cluster, group: str, request: Any, connection: Hashable) -> Any:
    """Send a request to commit or fetch offsets, and raise its errors."""
    async with cluster.asking_coordinator(GROUP, group) as node:
        response = await cluster.send(node, request, connection)
        raise_for(getattr(response, "error_code", 0), group)
        for topic, partitions in response.topics:
            for partition, *_, code in partitions:
                raise_for(code, f"{group}: {topic}, partition {partition}")
    return response


async def last_transaction(cluster: Cluster, transactional_id: str, connection: Hashable) -> LastTransaction | None:
    """Return the coordinator's state of a transactional id; None without one.

    Raises:
        TransactionError: Kafka is older than 3.0 and lacks the request.
        aiokafka.errors.KafkaError: the coordinator does not answer, or is still writing markers.
    """
    try:
        async with cluster.asking_coordinator(TRANSACTION, transactional_id) as node:
            response = await cluster.send(node, DescribeTransactionsRequest(transactional_id), connection)
            code, _, state, _, started_ms, producer_id, epoch, topics, *_ = response.transactions[0]
            if code == ID_NOT_FOUND:
                return None
            raise_for(code, transactional_id)
    except kafka.IncompatibleBrokerVersion as error:
        raise TransactionError(
            f"{transactional_id}: describing transactions needs Kafka 3.0 or newer: {error}. Upgrade the brokers"
        ) from None
    if state.startswith("Prepare"):
        raise kafka.ConcurrentTransactions  # the markers are being written
    members = frozenset((topic, number) for topic, numbers, *_ in topics for number in numbers if topic != OFFSETS)
    return LastTransaction(started_ms, state, producer_id, epoch, members)


async def left_open(
    cluster: Cluster, producer_id: int, partitions: Iterable[TopicPartition], connection: Hashable
) -> dict[TopicPartition, OpenAt]:
    """Return the open transactions of a producer by partition. Retries until all leaders have answered.

    Raises:
        TransactionError: this user lacks the right.
        TopicReplaced: one of the topics was deleted.
    """
    unanswered = list(partitions)
    retry = Retry("ask for open transactions", partitions=[f"{topic}-{partition}" for topic, partition in unanswered])
    while True:
        try:
            by_leader: dict[int, list[TopicPartition]] = {}
            for where in unanswered:
                by_leader.setdefault(await cluster.leader(*where), []).append(where)
            left: dict[TopicPartition, OpenAt] = {}
            for leader, led in by_leader.items():
                response = await cluster.send(leader, DescribeProducersRequest(led), connection)
                for topic, answers, *_ in response.topics:
                    for partition, code, _, producers, *_ in answers:
                        raise_for(code, f"{topic}, partition {partition}")
                        for one, epoch, _, _, _, start, *_ in producers:
                            if one == producer_id and start != NO_TRANSACTION:
                                left[topic, partition] = OpenAt(epoch, start)
            return left
        except kafka.TopicAuthorizationFailedError as error:
            raise TransactionError(
                f"{error}: this user may not ask for open transactions. Grant this user the right to read each topic "
                "that the stream writes to"
            ) from None
        except kafka.KafkaError as error:
            cluster.refresh()
            if retry.seconds > GONE_AFTER_S:
                await cluster.found({topic for topic, _ in unanswered})  # a deleted topic never has a leader again
            await retry.wait(error)


async def soon(answer: Awaitable[T], transactional_id: str) -> T:
    """Wait a limited time for the leaders' answer, before a lane begins a transaction.

    Args:
        answer: the request.
        transactional_id: transactional id of the lane, for the error.

    Raises:
        Aborted: there was no answer within LEADERS_WITHIN_S.
    """
    try:
        async with asyncio.timeout(LEADERS_WITHIN_S):
            return await answer
    except TimeoutError:
        raise Aborted(
            f"{transactional_id}: the partition leaders have not answered within {LEADERS_WITHIN_S:.0f} s whether the "
            "last transaction has ended in all partitions; the partition tries again"
        ) from None


def describe(hanging: HangingTransaction) -> dict[str, Any]:
    """Return a hanging transaction as fields of a log line."""
    still_open = [f"{topic}-{partition}" for topic, partition in hanging.open]
    return {"producer_id": hanging.producer_id, "ended": ENDS[hanging.committed], "open": still_open}
