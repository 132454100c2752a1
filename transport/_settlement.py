"""Transactions that Kafka calls complete although one of their partitions never got the marker.

When a transaction ends while one of its partitions has no leader, Kafka 4.3 takes the partition for deleted, skips its
marker and reports success (tests/transport/test_settlement.py). The records stay open there: invisible to committed
readers, and everything behind them too, until the producer id's next marker ends them together with what that one is
meant for. A worker that reads the changelog meanwhile does not see what it has committed, judges the same input once
more, and its next commit makes both visible. So whoever takes over asks first (docs/decisions/0006-settlement.md).

aiokafka 0.14 lacks the two requests (KIP-664), and has no types.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Any, Final, NamedTuple

from aiokafka import errors as kafka
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

from errors import TransactionError
from transport._cluster import TRANSACTION, Cluster, Retry, raise_for

TEXT: Final = CompactString("utf-8")
TAGS: Final = ("tags", TaggedFields)
ID_NOT_FOUND: Final = 105
"""TRANSACTIONAL_ID_NOT_FOUND: nobody has used it yet, or not for transactional.id.expiration.ms."""
COMPLETE: Final = {"CompleteCommit": True, "CompleteAbort": False}
NO_TRANSACTION: Final = -1
ORPHANED: Final = (
    "Kafka has left a transaction open, and its owner died before it could end it: nobody knows how it was meant to "
    "end. See docs/reference/halted.md"
)

Place = tuple[str, int]
"""topic, partition"""


class DescribeTransactionsResponse_v0(Response):  # type: ignore[misc]
    API_KEY = 65
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "transactions",
            CompactArray(
                ("error_code", Int16),
                ("transactional_id", TEXT),
                ("state", TEXT),
                ("timeout_ms", Int32),
                ("start_time_ms", Int64),
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                ("topics", CompactArray(("topic", TEXT), ("partitions", CompactArray(Int32)), TAGS)),
                TAGS,
            ),
        ),
        TAGS,
    )


class DescribeTransactionsRequest_v0(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 65
    API_VERSION = 0
    RESPONSE_TYPE = DescribeTransactionsResponse_v0
    SCHEMA = Schema(("transactional_ids", CompactArray(TEXT)), TAGS)


class DescribeTransactionsRequest(Request[DescribeTransactionsRequest_v0]):  # type: ignore[misc]
    """What a coordinator knows of a transactional id (KIP-664)."""

    API_KEY = 65

    def __init__(self, transactional_id: str) -> None:
        self._transactional_id = transactional_id

    def build(self, request_struct_class: type[DescribeTransactionsRequest_v0]) -> DescribeTransactionsRequest_v0:
        return request_struct_class([self._transactional_id], {})


class DescribeProducersResponse_v0(Response):  # type: ignore[misc]
    API_KEY = 61
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("name", TEXT),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("error_message", TEXT),
                        (
                            "producers",
                            CompactArray(
                                ("producer_id", Int64),
                                ("producer_epoch", Int32),
                                ("last_sequence", Int32),
                                ("last_timestamp", Int64),
                                ("coordinator_epoch", Int32),
                                ("transaction_start", Int64),
                                TAGS,
                            ),
                        ),
                        TAGS,
                    ),
                ),
                TAGS,
            ),
        ),
        TAGS,
    )


class DescribeProducersRequest_v0(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 61
    API_VERSION = 0
    RESPONSE_TYPE = DescribeProducersResponse_v0
    SCHEMA = Schema(
        ("topics", CompactArray(("name", TEXT), ("partitions", CompactArray(Int32)), TAGS)),
        TAGS,
    )


class DescribeProducersRequest(Request[DescribeProducersRequest_v0]):  # type: ignore[misc]
    """Which producers the leader of partitions knows, and where their open transactions begin (KIP-664)."""

    API_KEY = 61

    def __init__(self, places: list[Place]) -> None:
        self._places = places

    def build(self, request_struct_class: type[DescribeProducersRequest_v0]) -> DescribeProducersRequest_v0:
        return request_struct_class([(topic, [partition], {}) for topic, partition in self._places], {})


class Orphaned(kafka.KafkaError):  # type: ignore[misc]
    """Records are open that no transaction of their id will end: an owner is about to do it, or died on the way."""


class Unsettled(NamedTuple):
    """A transaction that is over, and the partitions that do not know it."""

    producer_id: int
    committed: bool
    open: list[Place]


async def find_unsettled(
    cluster: Cluster, transactional_id: str, partitions: Collection[Place], connection: Hashable
) -> Unsettled | None:
    """What the last transaction of an id has left open; None where it left nothing, or has no end yet.

    Waits for the leaders of all partitions: the next owner of the id wipes out how its last transaction ended, so it
    must be able to act on the answer at once.

    Raises:
        TransactionError: this user may not ask, or Kafka is too old to be asked.
        Orphaned: records are open, and the coordinator does not know any more how they were to end.
        aiokafka.errors.KafkaError: the coordinator does not answer, or is about to end a transaction.
    """
    while (known := await _last_transaction(cluster, transactional_id, connection)) is not None:
        left = await left_open(cluster, known.producer_id, partitions, connection)
        # The leaders may have kept us waiting while an owner that is alive has ended its transaction.
        if await _last_transaction(cluster, transactional_id, connection) == known:
            break
    else:
        return None
    _, state, producer_id, epoch = known
    if state in COMPLETE:
        return Unsettled(producer_id, COMPLETE[state], list(left)) if left else None
    # What an open transaction has written itself is the coordinator's business; what is older is not.
    if orphans := [place for place, epoch_there in left.items() if epoch_there < epoch]:
        raise Orphaned(f"{transactional_id}: open in {orphans}, and its state is {state}")
    return None


class _LastTransaction(NamedTuple):
    started_ms: int
    state: str
    producer_id: int
    epoch: int


async def _last_transaction(cluster: Cluster, transactional_id: str, connection: Hashable) -> _LastTransaction | None:
    """What the coordinator knows of an id; None where it knows nothing."""
    try:
        node = await cluster.coordinator(TRANSACTION, transactional_id)
        response = await cluster.send(node, DescribeTransactionsRequest(transactional_id), connection)
    except kafka.IncompatibleBrokerVersion as error:
        raise TransactionError(f"{transactional_id}: Kafka 3.0 or newer is needed: {error}") from None
    code, _, state, _, started_ms, producer_id, epoch, *_ = response.transactions[0]
    if code == ID_NOT_FOUND:
        return None
    raise_for(code, transactional_id)
    if state.startswith("Prepare"):
        raise kafka.ConcurrentTransactions  # the markers are being written
    return _LastTransaction(started_ms, state, producer_id, epoch)


async def left_open(
    cluster: Cluster, producer_id: int, partitions: Iterable[Place], connection: Hashable
) -> dict[Place, int]:
    """Where a producer has an open transaction, and with which epoch. Tries until all leaders have answered.

    Raises:
        TransactionError: this user may not ask.
    """
    places = list(partitions)
    retry = Retry("ask for open transactions", partitions=[f"{topic}-{partition}" for topic, partition in places])
    while True:
        try:
            by_leader: dict[int, list[Place]] = {}
            for place in places:
                by_leader.setdefault(await cluster.leader(*place), []).append(place)
            left: dict[Place, int] = {}
            for leader, led in by_leader.items():
                response = await cluster.send(leader, DescribeProducersRequest(led), connection)
                for topic, answers, *_ in response.topics:
                    for partition, code, _, producers, *_ in answers:
                        raise_for(code, f"{topic}, partition {partition}")
                        for one, epoch, _, _, _, transaction_start, *_ in producers:
                            if one == producer_id and transaction_start != NO_TRANSACTION:
                                left[topic, partition] = epoch
            return left
        except kafka.TopicAuthorizationFailedError as error:
            raise TransactionError(
                f"{error}: this user may not ask for open transactions. Give it the right to read the topics that it "
                "writes to"
            ) from None
        except kafka.KafkaError as error:
            cluster.refresh()
            await retry.wait(error)


def describe(unsettled: Unsettled) -> dict[str, Any]:
    """For a line in the log."""
    places = [f"{topic}-{partition}" for topic, partition in unsettled.open]
    return {"producer_id": unsettled.producer_id, "ended": "commit" if unsettled.committed else "abort", "open": places}
