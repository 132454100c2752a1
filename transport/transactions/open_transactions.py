"""Open transactions in partitions with foreign writers, which hold back committed readers (KIP-664)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from aiokafka import errors as kafka

from kafka_ratchet.transport.client.cluster import TRANSACTION, Cluster
from kafka_ratchet.transport.client.describe import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka_ratchet.transport.client.errors import raise_for
from kafka_ratchet.transport.transactions.outcome import NO_TRANSACTION


class OpenTransaction(NamedTuple):
    """Open transaction in a partition.

    start: offset of its first record.
    last_ms: timestamp of its last record, ms since the epoch.
    transactional_id: id of the producer; None if no coordinator shows the transaction to this user.
    since_ms: start of the transaction, ms since the epoch; None like `transactional_id`.
    """

    topic: str
    partition: int
    producer_id: int
    epoch: int
    start: int
    last_ms: int
    transactional_id: str | None = None
    since_ms: int | None = None

    def __str__(self) -> str:
        if self.transactional_id is not None and self.since_ms is not None:
            return f"transactional id {self.transactional_id!r}, producer id {self.producer_id}, open since " + _moment(
                self.since_ms
            )
        return (
            f"producer id {self.producer_id}, its last record of {_moment(self.last_ms)} (no coordinator shows its "
            "transactional id to this user: the transaction hangs, or this user may not describe it)"
        )


def _moment(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):  # a producer may set any number
        return f"{ms} ms"


def named(found: Iterable[OpenTransaction]) -> str:
    """Return a phrase that names open transactions, for the end of a sentence; "" without any."""
    each = sorted(found, key=lambda one: one.start)
    more = f", and {len(each) - 1} more" if len(each) > 1 else ""
    return f" ({each[0]}{more})" if each else ""


async def find_open(
    cluster: Cluster, places: Collection[tuple[str, int]], connection: Hashable
) -> list[OpenTransaction]:
    """Return the open transactions in the partitions `places`, with the transactional ids that Kafka shows.

    Sends each request once, without retries.

    Args:
        cluster: connected client of the Kafka cluster
        places: (topic, partition) of each partition to search
        connection: connection of the requests

    Raises:
        aiokafka.errors.KafkaError: Kafka does not answer, or refuses to describe the producers.
    """
    by_leader: dict[int, list[tuple[str, int]]] = {}
    for topic, partition in places:
        by_leader.setdefault(await cluster.leader(topic, partition), []).append((topic, partition))
    found: list[OpenTransaction] = []
    for leader, there in by_leader.items():
        response = await cluster.send(leader, DescribeProducersRequest(there), connection)
        for topic, partitions, *_ in response.topics:
            for partition, code, _, producers, *_ in partitions:
                raise_for(code, f"{topic}, partition {partition}")
                found += [
                    OpenTransaction(topic, partition, producer_id, epoch, start, last_ms)
                    for producer_id, epoch, _, last_ms, _, start, *_ in producers
                    if start != NO_TRANSACTION
                ]
    if not found:
        return []
    try:
        described = await _described(cluster, sorted({one.producer_id for one in found}), connection)
    except kafka.KafkaError:  # of a transactional id that this user may not see, the producer id is all there is
        described = {}
    return [
        one._replace(transactional_id=described[one.producer_id][0], since_ms=described[one.producer_id][1])
        if one.producer_id in described
        else one
        for one in found
    ]


async def _described(cluster: Cluster, producer_ids: list[int], connection: Hashable) -> dict[int, tuple[str, int]]:
    """Return transactional id and start of the ongoing transaction of each producer id."""
    names: set[str] = set()
    for broker in cluster.client.cluster.brokers():
        response = await cluster.send(broker.nodeId, ListTransactionsRequest(producer_ids), connection)
        raise_for(response.error_code, "transactions")
        names |= {name for name, *_ in response.transactions}
    described = {}
    for name in sorted(names):
        async with cluster.asking_coordinator(TRANSACTION, name) as node:
            response = await cluster.send(node, DescribeTransactionsRequest(name), connection)
        code, _, _, _, since_ms, producer_id, *_ = response.transactions[0]
        if not code and since_ms > 0:
            described[int(producer_id)] = name, int(since_ms)
    return described
