"""Rounds of checks that everything in an input has been copied, on a real Kafka."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Producer

from kafka_ratchet.transport import arrivals as module
from kafka_ratchet.transport.arrivals import Arrivals
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.topic_id import id_text
from kafka_ratchet.transport.transactions.requests import offset_metadata
from tests.transport.kafka_side import commit_by_hand, commit_with_metadata, create_topic


async def test_a_round_is_proven_by_offsets_of_lanes_alone(
    broker: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_EVERY_S", 0.0)
    topic, group = create_topic(broker, "arrivals"), f"arrivals-{uuid.uuid4().hex[:8]}"
    arrivals = Arrivals(cluster, topic, group)

    async def is_proven() -> bool:
        await arrivals.ask()
        return arrivals.proven > 0

    producer = Producer({"bootstrap.servers": broker, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"record")
    producer.commit_transaction(60)
    for _ in range(5):
        assert not await is_proven()  # nothing is committed
    commit_by_hand(broker, group, topic, 2)
    for _ in range(5):
        assert not await is_proven()  # another client's offset
    topic_id = (await cluster.topics([topic]))[topic].id
    await commit_with_metadata(broker, group, topic, 2, offset_metadata("A" * 22, 0))
    for _ in range(5):
        assert not await is_proven()  # of an earlier topic of that name
    await commit_with_metadata(broker, group, topic, 0, offset_metadata(id_text(topic_id), 0))
    for _ in range(5):
        assert not await is_proven()  # the record is unread
    assert arrivals.begun == 1
    # Only the marker of the transaction is left, and lanes do not commit markers.
    await commit_with_metadata(broker, group, topic, 1, offset_metadata(id_text(topic_id), 0))
    for _ in range(100):
        if await is_proven():
            break
    assert 0 < arrivals.proven <= arrivals.begun


async def test_an_empty_input_has_nothing_on_its_way(broker: str, cluster: Cluster) -> None:
    arrivals = Arrivals(cluster, create_topic(broker, "arrivals"), "arrivals-none")
    await arrivals.ask()
    assert (arrivals.begun, arrivals.proven) == (1, 1)
    await arrivals.ask()  # within a second
    assert (arrivals.begun, arrivals.proven) == (1, 1)


async def test_without_a_topic_no_round_is_proven(cluster: Cluster) -> None:
    arrivals = Arrivals(cluster, f"arrivals-{uuid.uuid4().hex}", "arrivals-none")
    await arrivals.ask()
    assert arrivals.proven == 0
