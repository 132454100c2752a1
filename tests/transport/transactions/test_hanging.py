"""Hanging transactions, ended as a person decides."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack

import pytest
from confluent_kafka import Producer

from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.transport.batch.encoding import encode_entries
from kafka_ratchet.transport.client.cluster import LATEST, Cluster
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.transactions.hanging import end_hanging, find_hanging
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
    producer.commit_transaction(30)
    await until(lambda: not has_open_transaction(broker, [topic]), "the marker")
    assert [row.value for row in read_topic(broker, topic)] == [b"of last week"]
