"""Open transactions of other writers, named as far as Kafka shows them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import errors as kafka

from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.describe import DescribeProducersRequest, ListTransactionsRequest
from kafka_ratchet.transport.transactions.open_transactions import OpenTransaction, find_open, named
from kafka_ratchet.transport.transactions.outcome import NO_TRANSACTION

DENIED = kafka.TransactionalIdAuthorizationFailed.errno
SHOP = OpenTransaction("in", 0, 7, 3, 40, 60_000)


class Kafka:
    """Two brokers; the leader of partition 0 has two producers, one of them with an open transaction."""

    def __init__(self, described: tuple[Any, ...], *, listed: int = 0, producers: int = 0) -> None:
        self.described, self.listed, self.producers = described, listed, producers
        nodes = [SimpleNamespace(nodeId=node) for node in (1, 2)]
        self.client = SimpleNamespace(cluster=SimpleNamespace(brokers=lambda: nodes))

    async def leader(self, topic: str, partition: int) -> int:
        return 1

    @asynccontextmanager
    async def asking_coordinator(self, kind: int, name: str) -> AsyncIterator[int]:
        yield 2

    async def send(self, node: int, request: Any, connection: object) -> Any:
        if isinstance(request, DescribeProducersRequest):
            idle: tuple[Any, ...] = (6, 1, 9, 50_000, -1, NO_TRANSACTION, {})
            return SimpleNamespace(topics=[("in", [(0, self.producers, "", [idle, (7, 3, 9, 60_000, -1, 40, {})])])])
        if isinstance(request, ListTransactionsRequest):
            return SimpleNamespace(error_code=self.listed, transactions=[("shop", 7, "Ongoing")] if node == 2 else [])
        return SimpleNamespace(transactions=[self.described])


@pytest.mark.parametrize(
    ("described", "listed", "found"),
    [
        ((0, "shop", "Ongoing", 60_000, 30_000, 7, 3, []), 0, SHOP._replace(transactional_id="shop", since_ms=30_000)),
        ((0, "shop", "Empty", 60_000, -1, 7, 3, []), 0, SHOP),
        ((0, "shop", "Ongoing", 60_000, 30_000, 8, 3, []), 0, SHOP),
        ((DENIED, "shop", "", 0, 30_000, 7, 0, []), 0, SHOP),
        ((0, "shop", "Ongoing", 60_000, 30_000, 7, 3, []), DENIED, SHOP),
    ],
)
async def test_an_open_transaction_has_the_id_that_its_coordinator_shows(
    described: tuple[Any, ...], listed: int, found: OpenTransaction
) -> None:
    cluster = cast(Cluster, Kafka(described, listed=listed))
    assert await find_open(cluster, [("in", 0)], "here") == [found]


async def test_producers_that_may_not_be_described_are_an_error() -> None:
    denied = kafka.TopicAuthorizationFailedError.errno
    with pytest.raises(kafka.TopicAuthorizationFailedError, match="in, partition 0"):
        await find_open(cast(Cluster, Kafka((), producers=denied)), [("in", 0)], "here")


def test_the_first_open_transaction_is_named() -> None:
    assert named([]) == ""
    later = SHOP._replace(start=50, producer_id=9)
    with_id = SHOP._replace(transactional_id="shop", since_ms=0)
    assert named([later, with_id]) == (
        " (transactional id 'shop', producer id 7, open since 1970-01-01T00:00:00Z, and 1 more)"
    )
    assert named([later]).startswith(" (producer id 9, its last record of 1970-01-01T00:01:00Z (no coordinator shows")
    assert f"record of {10**18} ms" in named([SHOP._replace(last_ms=10**18)])
