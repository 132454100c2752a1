"""Requests of one transactional id, against a cluster that records them."""

from __future__ import annotations

from typing import Any, cast

from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.transactions.requests import TransactionRequests


class Recording:
    """A cluster of one node that answers no request."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def coordinator(self, _kind: int, _key: str) -> int:
        return 1

    async def send(self, _node: int, request: Any, _connection: object) -> None:
        self.sent.append(request)


async def test_nothing_is_given_up_before_a_transaction_has_begun() -> None:
    there = Recording()
    requests = TransactionRequests(cast("Cluster", there), "id", "group", "here", "asking")
    await requests.give_up(30_000)
    assert there.sent == []
    assert not requests.spent
