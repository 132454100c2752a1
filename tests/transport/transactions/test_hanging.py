"""Hanging transactions, ended as a person decides."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import ANY

import numpy as np
import pytest
from confluent_kafka import Producer

from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.errors import TransactionError
from kafka_ratchet.transport.batch.encoding import encode_entries
from kafka_ratchet.transport.batch.rows import encode_rows, spans
from kafka_ratchet.transport.client.cluster import LATEST, Cluster
from kafka_ratchet.transport.client.describe import DescribeProducersRequest
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.transactions import hanging as hanging_transactions
from kafka_ratchet.transport.transactions.hanging import end_hanging, find_hanging, open_in, with_known_ends
from kafka_ratchet.transport.transactions.producer import TransactionalProducer
from kafka_ratchet.transport.transactions.requests import TransactionRequests
from tests.transport.kafka_side import create_topic, has_open_transaction, read_topic, until


@pytest.fixture(scope="module")
def careless_broker() -> Iterator[EmbeddedBroker]:
    """Start a Kafka as before KIP-890: it takes records of transactions unknown to the coordinator."""
    with EmbeddedBroker(options={"transaction.partition.verification.enable": "false"}) as broker:
        yield broker


@pytest.mark.parametrize("commit", [True, False])
async def test_a_transaction_of_another_producer_id_is_ended_by_markers(
    careless_broker: EmbeddedBroker, commit: bool
) -> None:
    broker = careless_broker.bootstrap
    topic = create_topic(broker, "hanging")
    cluster = Cluster(client_options(broker, {}))
    await cluster.start(30)
    async with AsyncExitStack() as at_the_end:
        at_the_end.push_async_callback(cluster.close)
        await cluster.offset(topic, 0, LATEST, "here")
        await TransactionalProducer(cluster, f"stranger-{topic}", "group", 60_000, []).initialise()  # waits for Kafka
        stranger = TransactionRequests(cluster, f"stranger-{topic}", "group", "here", "here")
        await stranger.initialise(60_000, ends_raise=False)
        (batch,) = encode_entries([(b"key", b"left open")], 1_000_000)
        sealed = batch.seal(stranger.producer_id, stranger.epoch, 0)
        await stranger.produce(await cluster.leader(topic, 0), topic, 0, sealed)
        assert has_open_transaction(broker, [topic])

        assert await find_hanging(cluster, [(topic, 0)], 60_000, "here") == []  # it is alive
        (hanging,) = await find_hanging(cluster, [(topic, 0)], 60_000, "here", lambda: time.time() + 180)
        assert (hanging.topic, hanging.partition, hanging.start) == (topic, 0, 0)
        await end_hanging(cluster, f"nobody-{topic}", [hanging], "here", commit=commit)
        await until(lambda: not has_open_transaction(broker, [topic]), "the marker")
        assert [row.value for row in read_topic(broker, topic)] == [b"left open"] * commit


async def test_one_of_the_own_id_is_found_whatever_time_its_records_have(careless_broker: EmbeddedBroker) -> None:
    broker = careless_broker.bootstrap
    topic = create_topic(broker, "ahead")
    cluster = Cluster(client_options(broker, {}))
    await cluster.start(30)
    async with AsyncExitStack() as at_the_end:
        at_the_end.push_async_callback(cluster.close)
        await cluster.offset(topic, 0, LATEST, "here")
        own, other = f"own-{topic}", f"other-{topic}"
        for name in (own, other):
            await TransactionalProducer(cluster, name, "group", 60_000, []).initialise()  # waits for Kafka
        lane = TransactionRequests(cluster, own, "group", "here", "here")
        await lane.initialise(60_000, ends_raise=False)
        times = np.array([int((time.time() + 1_800) * 1000)], np.int64)  # Kafka takes an hour
        (batch,) = encode_rows(spans([b"key"]), spans([b"ahead"]), times, 1_000_000, "the test")
        sealed = batch.seal(lane.producer_id, lane.epoch, 0)
        await lane.produce(await cluster.leader(topic, 0), topic, 0, sealed)

        place = [(topic, 0)]
        assert await find_hanging(cluster, place, 60_000, "here") == []  # not old, and of any id
        (hanging,) = await find_hanging(cluster, place, 60_000, "here", own_id=own)
        assert hanging.start == 0
        assert re.search(r"has a time \d+ s ahead", str(hanging))
        # In a topic that other ids write as well, only the own id's count, however old.
        shared = await open_in(cluster, place, "here")
        assert await find_hanging(cluster, [], 60_000, "here", own_id=own, shared=shared) == [
            hanging._replace(idle_s=ANY)
        ]
        later = time.time() + 3 * 86_400
        shared = await open_in(cluster, place, "here", lambda: later)
        assert await find_hanging(cluster, [], 60_000, "here", lambda: later, own_id=other, shared=shared) == []


async def test_a_transaction_that_its_coordinator_has_open_hangs_nowhere(
    cluster: Cluster, broker: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    await cluster.offset(topic, 0, LATEST, "here")
    options = {"bootstrap.servers": broker, "transactional.id": f"alive-{topic}", "transaction.timeout.ms": 600_000}
    producer = Producer(options)
    producer.init_transactions(30)
    producer.begin_transaction()
    # What Kafka tells of a transaction's last record is the record's own time: that of an event of last week.
    producer.produce(topic, b"of last week", timestamp=int((time.time() - 7 * 86_400) * 1000))
    assert producer.flush(30) == 0
    assert await find_hanging(cluster, [(topic, 0)], 60_000, "here") == []
    # And a clock that is an hour ahead ends nothing either.
    assert await find_hanging(cluster, [(topic, 0)], 60_000, "here", lambda: time.time() + 3600) == []
    # Nor is it one for the command of its own lane, for which the age does not count.
    assert await find_hanging(cluster, [(topic, 0)], 60_000, "here", own_id=f"alive-{topic}") == []
    producer.commit_transaction(30)
    await until(lambda: not has_open_transaction(broker, [topic]), "the marker")
    assert [row.value for row in read_topic(broker, topic)] == [b"of last week"]


async def test_an_end_that_its_coordinator_does_not_finish_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ending:
        """A cluster with an open transaction of an id, whose coordinator cannot write one of its markers."""

        async def leader(self, *_: Any) -> int:
            return 1

        @asynccontextmanager
        async def asking_coordinator(self, *_: Any) -> AsyncIterator[int]:
            yield 1

        async def send(self, _node: int, request: Any, _connection: Any) -> Any:
            if isinstance(request, DescribeProducersRequest):
                return SimpleNamespace(topics=[("out", [(0, 0, "", [(7, 3, 9, 60_000, -1, 40, {})])])])
            return SimpleNamespace(transactions=[(0, "shop/in/0", "PrepareCommit", 60_000, 0, 7, 3, [])])

        def refresh(self) -> None:
            pass

    monkeypatch.setattr(hanging_transactions, "ENDING_MOST_S", 0.1)
    cluster = cast("Cluster", Ending())
    with pytest.raises(TransactionError, match=r"^shop/in/0: its coordinator has been ending .* Start the brokers"):
        await find_hanging(cluster, [("out", 0)], 60_000, "here", own_id="shop/in/0")
    with pytest.raises(TransactionError, match=r"^shop/in/0: its coordinator has been ending .* Start the brokers"):
        await with_known_ends(cluster, "shop/in/0", [], "here")
