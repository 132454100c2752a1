"""Hanging transactions that no worker can end alone, and their end by an operator.

A lane completes a transaction that Kafka left open, as long as its intended end is known
(docs/decisions/0006-settlement.md, 0016). If the end is unknown, or the id has got another producer id since, an
operator decides. For the present producer id, the operator's command records an outcome, and the lane ends the
transaction accordingly. For another producer id, the command writes the markers itself, as Kafka's
`kafka-transactions.sh abort` does (KIP-664), which needs the right to alter the cluster.

An operator cannot contradict a known end. If a coordinator or a recorded outcome still shows how the transaction ended,
only that end is accepted (docs/decisions/0079-the-coordinators-word.md).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Hashable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka import errors as kafka
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, Int16, Int32, Int64, Schema

from kafka_ratchet.errors import TransactionError
from kafka_ratchet.transport.client.cluster import TRANSACTION, Cluster
from kafka_ratchet.transport.client.describe import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka_ratchet.transport.client.errors import explained, raise_for
from kafka_ratchet.transport.client.retry import Retry
from kafka_ratchet.transport.client.topic_id import TAGS, TEXT
from kafka_ratchet.transport.transactions.outcome import (
    ENDS,
    ID_NOT_FOUND,
    NO_TRANSACTION,
    HangingTransaction,
    OpenAt,
    known_end,
    last_transaction,
    record_outcome,
    recorded_ends,
    require_current,
)

Item = TypeVar("Item")

HANGS_AFTER_S: Final = 60.0
"""Seconds beyond the transaction's own timeout before it counts as hanging.

Kafka looks for timed-out transactions every 10 s, and a lane completes a transaction left open in about the same time.
"""

ENDING_MOST_S: Final = 30.0
"""Seconds to wait while a coordinator ends a transaction.

End markers take milliseconds, and a change of leaders seconds. If a leader stays away, the coordinator waits forever.
"""

ENDED: Final = {"commit": "committed", "abort": "aborted"}

ONGOING: Final = "Ongoing"
"""State of an open transaction in a coordinator's answer; the coordinator aborts the transaction after its timeout."""


class Hanging(NamedTuple):
    """Open transaction in one partition, perhaps without a coordinator that ends it.

    start: offset of the first record.
    idle_s: seconds since the timestamp of the last record, by this machine's clock. The producer may have set the
        timestamp; idle_s is negative if the timestamp is in the future.
    ends: "commit" or "abort" if the transaction's end is known, else None.
    """

    topic: str
    partition: int
    producer_id: int
    epoch: int
    coordinator_epoch: int
    start: int
    idle_s: float
    ends: str | None = None

    @property
    def place(self) -> tuple[str, int, int, int, int]:
        """Return topic, partition, producer id, epoch and first offset, which identify the transaction."""
        return self.topic, self.partition, self.producer_id, self.epoch, self.start

    def is_old(self, timeout_ms: int) -> bool:
        """Return True if the last record is older than a timeout in ms plus HANGS_AFTER_S."""
        return self.idle_s > timeout_ms / 1000 + HANGS_AFTER_S

    def __str__(self) -> str:
        when = f"{abs(self.idle_s):.0f} s {'ago' if self.idle_s >= 0 else 'ahead'}"
        end = f". It was {ENDED[self.ends]}, and its marker is missing here" if self.ends else ""
        return (
            f"{self.topic}, partition {self.partition}: a transaction of producer id {self.producer_id}, epoch "
            f"{self.epoch}, is open from offset {self.start} on, and no coordinator shows it to this user as open (a "
            f"coordinator shows only those that this user may describe). Its last record has a time {when}{end}"
        )


class WriteTxnMarkersResponse_v1(Response):  # type: ignore[misc]
    API_KEY = 27
    API_VERSION = 1
    SCHEMA = Schema(
        (
            "markers",
            CompactArray(
                ("producer_id", Int64),
                (
                    "topics",
                    CompactArray(
                        ("topic", TEXT),
                        ("partitions", CompactArray(("partition", Int32), ("error_code", Int16), TAGS)),
                        TAGS,
                    ),
                ),
                TAGS,
            ),
        ),
        TAGS,
    )


class WriteTxnMarkersRequest_v1(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 27
    API_VERSION = 1
    RESPONSE_TYPE = WriteTxnMarkersResponse_v1
    SCHEMA = Schema(
        (
            "markers",
            CompactArray(
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                ("commit", Boolean),
                ("topics", CompactArray(("topic", TEXT), ("partitions", CompactArray(Int32)), TAGS)),
                ("coordinator_epoch", Int32),
                TAGS,
            ),
        ),
        TAGS,
    )


class WriteTxnMarkersRequest(Request[WriteTxnMarkersRequest_v1]):  # type: ignore[misc]
    """Request to a partition's leader to end a transaction there, without its coordinator."""

    API_KEY = 27

    def __init__(self, hanging: Hanging, *, commit: bool) -> None:
        self._hanging, self._commit = hanging, commit

    def build(self, request_struct_class: type[WriteTxnMarkersRequest_v1]) -> WriteTxnMarkersRequest_v1:
        one = self._hanging
        topics: list[Any] = [(one.topic, [one.partition], {})]
        return request_struct_class([(one.producer_id, one.epoch, self._commit, topics, one.coordinator_epoch, {})], {})


async def find_hanging(
    cluster: Cluster,
    partitions: Collection[tuple[str, int]],
    timeout_ms: int,
    connection: Hashable,
    now: Callable[[], float] = time.time,
    *,
    own_id: str | None = None,
    shared: Collection[Hanging] = (),
) -> list[Hanging]:
    """Return open transactions past their timeout that no coordinator will end.

    Omit a transaction of any age if its coordinator has it open: its producer uses it, or the coordinator will end it.
    If this user may not see the transactional id, only the age decides. A transaction of the present producer id of
    `own_id` needs no minimum age: the coordinator of `own_id` decides, and the age of a record with a time in the
    future would mislead.

    Args:
        cluster: connected client of the Kafka cluster.
        partitions: (topic, partition) of each partition to search.
        timeout_ms: timeout of the lanes' transactions.
        connection: connection of the requests.
        now: function that returns the present time, in seconds since the epoch.
        own_id: transactional id of the partition's lane; None: none.
        shared: result of `open_in` for further partitions, which other ids write as well. Of these, only transactions
            of `own_id` count. A caller that searches for many ids calls `open_in` once.

    Raises:
        TransactionError: this user lacks the right, or a coordinator does not finish ending a transaction.
    """
    found = await open_in(cluster, partitions, connection, now)
    found += [one for one in shared if (one.topic, one.partition) not in partitions]
    own = None
    if found and own_id is not None:
        ask = partial(last_transaction, cluster, own_id, connection)
        last = await _retried(cluster, "ask for the last transaction", own_id, ask)
        own = None if last is None else last.producer_id
    found = [
        one
        for one in found
        if one.producer_id == own or (one.is_old(timeout_ms) and (one.topic, one.partition) in partitions)
    ]
    if not found:
        return []
    coordinated = await _coordinated(cluster, found, connection, own_id)
    # One in use may have ended before the request to its coordinator.
    there = dict.fromkeys((one.topic, one.partition) for one in found)
    still_open = {one.place for one in await open_in(cluster, there, connection, now)}
    return [one for one in found if one not in coordinated and one.place in still_open]


async def open_in(
    cluster: Cluster,
    partitions: Collection[tuple[str, int]],
    connection: Hashable,
    now: Callable[[], float] = time.time,
) -> list[Hanging]:
    """Return all open transactions in the given partitions. Retries until the leader of each partition answers.

    Raises:
        TransactionError: this user lacks the right.
    """
    found = []
    for topic, partition in partitions:
        retry = Retry("ask for open transactions", topic=topic, partition=partition)
        while True:
            try:
                leader = await cluster.leader(topic, partition)
                response = await cluster.send(leader, DescribeProducersRequest([(topic, partition)]), connection)
                _, ((_, code, _, producers, *_),), *_ = response.topics[0]
                raise_for(code, f"{topic}, partition {partition}")
                break
            except kafka.TopicAuthorizationFailedError as error:
                raise TransactionError(explained(error)) from None
            except kafka.KafkaError as error:
                cluster.refresh()
                await retry.wait(error)
        for producer_id, epoch, _, last_ms, coordinator_epoch, start, *_ in producers:
            if start != NO_TRANSACTION:
                idle_s = now() - last_ms / 1000
                found.append(Hanging(topic, partition, producer_id, epoch, coordinator_epoch, start, idle_s))
    return found


async def _retried(cluster: Cluster, what: str, transactional_id: str, ask: Callable[[], Awaitable[Item]]) -> Item:
    """Return the answer to a question about a transactional id, after retries.

    Raises:
        TransactionError: this user lacks the right, or the coordinator does not finish ending a transaction.
    """
    retry = Retry(what, id=transactional_id)
    while True:
        try:
            return await ask()
        except kafka.TransactionalIdAuthorizationFailed as error:
            raise TransactionError(explained(error)) from None
        except kafka.KafkaError as error:
            if isinstance(error, kafka.ConcurrentTransactions) and retry.seconds > ENDING_MOST_S:
                raise TransactionError(
                    f"{transactional_id}: its coordinator has been ending a transaction for {retry.seconds:.0f} s, and "
                    "has not written all end markers. Perhaps the leader of one of its partitions is away. Start the "
                    "brokers that are down, and run the command again"
                ) from None
            cluster.refresh()
            await retry.wait(error)


async def _coordinated(
    cluster: Cluster, found: Collection[Hanging], connection: Hashable, own_id: str | None
) -> set[Hanging]:
    """Return the transactions that a coordinator has open or is ending, as `kafka-transactions.sh` finds them."""
    retry = Retry("ask which transactions there are")
    while True:
        try:
            return await _ask_coordinators(cluster, found, connection, own_id)
        except kafka.TransactionalIdAuthorizationFailed as error:
            raise TransactionError(explained(error)) from None
        except kafka.IncompatibleBrokerVersion as error:
            raise TransactionError(
                f"listing transactions needs Kafka 3.0 or newer: {error}. Upgrade the brokers"
            ) from None
        except kafka.KafkaError as error:
            cluster.refresh()
            await retry.wait(error)


async def _names(cluster: Cluster, found: Collection[Hanging], connection: Hashable) -> set[str]:
    """Return the transactional ids of these transactions' producer ids, as far as this user may see the ids."""
    producer_ids = sorted({one.producer_id for one in found})
    names = set()
    for broker in cluster.client.cluster.brokers():
        response = await cluster.send(broker.nodeId, ListTransactionsRequest(producer_ids), connection)
        raise_for(response.error_code, "transactions")
        names |= {name for name, *_ in response.transactions}
    return names


async def _ask_coordinators(
    cluster: Cluster, found: Collection[Hanging], connection: Hashable, own_id: str | None
) -> set[Hanging]:
    names = await _names(cluster, found, connection) | ({own_id} if own_id is not None else set())
    coordinated = set()
    for name in names:
        async with cluster.asking_coordinator(TRANSACTION, name) as node:
            response = await cluster.send(node, DescribeTransactionsRequest(name), connection)
            code, _, state, _, _, producer_id, epoch, topics, *_ = response.transactions[0]
            if code == ID_NOT_FOUND:
                continue
            raise_for(code, name)
        # The end of a transaction raises the epoch before its markers are written.
        members = {(topic, number) for topic, numbers, *_ in topics for number in numbers}
        coordinated |= {
            one
            for one in found
            if one.producer_id == producer_id
            and (one.topic, one.partition) in members
            and ((state == ONGOING and one.epoch == epoch) or state.startswith("Prepare"))
        }
    return coordinated


async def with_known_ends(
    cluster: Cluster, transactional_id: str, hanging: Collection[Hanging], connection: Hashable
) -> list[Hanging]:
    """Return the hanging transactions, with `ends` set where the coordinator or a recorded outcome shows it.

    Args:
        cluster: connected client of the Kafka cluster.
        transactional_id: transactional id of the partition's lane.
        hanging: result of `find_hanging`.
        connection: connection of the requests.

    Raises:
        TransactionError: this user lacks the right, or a coordinator does not finish ending a transaction.
    """

    async def ends() -> list[str | None]:
        last = await last_transaction(cluster, transactional_id, connection)
        others = [one for one in hanging if last is None or one.producer_id != last.producer_id]
        names = await _names(cluster, others, connection) if others else set()
        return [await _known_end(cluster, transactional_id, names, one, connection) for one in hanging]

    found = await _retried(cluster, "ask how hanging transactions ended", transactional_id, ends)
    return [one._replace(ends=end) for one, end in zip(hanging, found, strict=True)]


async def _known_end(
    cluster: Cluster, transactional_id: str, names: Collection[str], one: Hanging, connection: Hashable
) -> str | None:
    """Return how a transaction ended, "commit" or "abort"; None if unknown.

    names: further transactional ids that may have made the transaction
    """
    stuck = {(one.topic, one.partition): OpenAt(one.epoch, one.start)}
    for name in (transactional_id, *sorted(names)):
        last = await last_transaction(cluster, name, connection)
        if last is not None and last.producer_id == one.producer_id:
            recorded = await recorded_ends(cluster, name, one.producer_id, stuck, connection)
            require_current(cluster, name, last, stuck, recorded)
            end = known_end(last, stuck, recorded)
            return None if end is None else ENDS[end]
    # The id has another producer id by now: its epochs cannot be compared.
    recorded = await recorded_ends(cluster, transactional_id, one.producer_id, stuck, connection)
    return ENDS[recorded[0].committed] if recorded else None


async def end_hanging(
    cluster: Cluster, transactional_id: str, hanging: Collection[Hanging], connection: Hashable, *, commit: bool
) -> None:
    """End hanging transactions as an operator has decided.

    Args:
        cluster: connected client of the Kafka cluster.
        transactional_id: transactional id of the partition's lane.
        hanging: result of `find_hanging`.
        connection: connection of the requests.
        commit: True to commit their records, False to abort.

    Raises:
        TransactionError: a transaction is known to have ended the other way, or Kafka refuses.
    """
    hanging = await with_known_ends(cluster, transactional_id, hanging, connection)
    if otherwise := [one for one in hanging if one.ends and one.ends != ENDS[commit]]:
        places, right = ", ".join(f"{one.topic}, partition {one.partition}" for one in otherwise), ENDS[not commit]
        raise TransactionError(
            f"{transactional_id}: this transaction was {ENDED[right]}, but its marker is missing in "
            f"{places}. --open-transaction {ENDS[commit]} would end it the other way there, so nothing was changed. "
            f"Start a worker, which completes the transaction, or give --open-transaction {right}"
        )
    last = await last_transaction(cluster, transactional_id, connection)
    ours = {
        (one.topic, one.partition): OpenAt(one.epoch, one.start)
        for one in hanging
        if last is not None and one.producer_id == last.producer_id
    }
    try:
        if last is not None and ours:
            await record_outcome(
                cluster, transactional_id, HangingTransaction(last.producer_id, commit, ours, last.epoch), connection
            )
        for one in hanging:
            if (one.topic, one.partition) not in ours:
                leader = await cluster.leader(one.topic, one.partition)
                response = await cluster.send(leader, WriteTxnMarkersRequest(one, commit=commit), connection)
                raise_for(response.markers[0][1][0][1][0][1], f"{one.topic}, partition {one.partition}")
    except kafka.KafkaError as error:
        raise TransactionError(
            f"{transactional_id}: the transaction cannot be ended: {explained(error)}. To end a transaction of another "
            "producer id, this user needs the right to alter the cluster"
        ) from None
