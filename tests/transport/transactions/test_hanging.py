"""Hanging transactions, ended as a person decides."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from kafka_ratchet.transport.client.cluster import LATEST, Cluster
from kafka_ratchet.transport.transactions.hanging import end_hanging, find_hanging
from tests.transport.kafka_side import has_open_transaction, read_topic, until


@pytest.mark.parametrize("commit", [True, False])
async def test_a_transaction_of_another_producer_id_is_ended_by_markers(
    cluster: Cluster, broker: str, new_topic: Callable[..., str], commit: bool
) -> None:
    topic = new_topic(1)
    await cluster.offset(topic, 0, LATEST, "here")
    producer = Producer({"bootstrap.servers": broker, "transactional.id": f"stranger-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"left open")
    assert producer.flush(30) == 0
    assert await find_hanging(cluster, [(topic, 0)], 60_000, "here") == []  # it is alive
    (hanging,) = await find_hanging(cluster, [(topic, 0)], 60_000, "here", lambda: time.time() + 180)
    assert (hanging.topic, hanging.partition, hanging.start) == (topic, 0, 0)
    await end_hanging(cluster, f"nobody-{topic}", [hanging], "here", commit=commit)
    await until(lambda: not has_open_transaction(broker, [topic]), "the marker")
    assert [row.value for row in read_topic(broker, topic)] == [b"left open"] * commit
