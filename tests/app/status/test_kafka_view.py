"""Number of the page's requests to Kafka for the ends of topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from kafka_ratchet.app.local.connectivity import Reachability
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.status import kafka_view
from kafka_ratchet.app.status.kafka_view import InputPartition, KafkaView
from kafka_ratchet.errors import BrokerUnavailable
from kafka_ratchet.topic_log import clients
from kafka_ratchet.topic_log.clients import Consumers, partition_count

PARTITIONS = 64


def test_however_many_partitions_a_topic_is_asked_about_once(
    broker: str, new_topic: Callable[..., str], questions: list[tuple[str, int]]
) -> None:
    topic, changelog, missing = new_topic(PARTITIONS), new_topic(PARTITIONS), new_topic(1) + "-not-there"
    streams = {
        "events": StreamSettings(input=topic, output="out", dead_letters="dead"),
        "later": StreamSettings(input=missing, output="out-later", dead_letters="dead-later"),
    }
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(topic, b"x", partition=PARTITIONS - 1)
    producer.flush(60)
    kafka = Reachability(broker, {})
    assert kafka.look() is None
    assert kafka.partitions[topic] == PARTITIONS
    view = KafkaView(broker, Settings(app="counted", streams=streams))
    for _ in range(2):
        questions.clear()
        found = view.read({"events": changelog, "later": missing + "-changelog"}, kafka.partitions)
        assert (
            questions == [("offsets", PARTITIONS)] * 4
        )  # two ends of the input, the changelog's, and where the input begins
    assert found["later"] == []
    assert found["events"][0] == InputPartition(0, 0, 0, 0, 0)
    assert found["events"][-1] == InputPartition(PARTITIONS - 1, 0, 1, 0, 1)
    # A topic that is not listed is asked for by name; one that is not there is not made by asking.
    assert view.read({"events": changelog}, {})["events"] == found["events"]
    assert missing not in AdminClient({"bootstrap.servers": broker}).list_topics(timeout=30).topics


def test_a_client_that_fails_is_replaced(
    broker: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, opened, real = new_topic(2), 0, clients.open_consumer

    def open_consumer(options: Any, group: str, *, committed: bool) -> Consumer:
        nonlocal opened
        opened += 1
        return real(
            {**options, "bootstrap.servers": "127.0.0.1:1"} if opened in fails else options, group, committed=committed
        )

    monkeypatch.setattr(kafka_view, "open_consumer", open_consumer)
    monkeypatch.setattr(kafka_view, "TIMEOUT_S", 2.0)
    streams = {"events": StreamSettings(input=topic, output="out", dead_letters="dead")}
    fails = {1}
    view = KafkaView(broker, Settings(app="counted", streams=streams))
    assert [each.partition for each in view.read({}, {topic: 2})["events"]] == [0, 1]
    assert opened == 3  # one that fails, one for each end
    fails = {4, 5, 6, 7}
    view = KafkaView(broker, Settings(app="counted", streams=streams))
    with pytest.raises(BrokerUnavailable, match=f"Kafka at {broker} did not answer .*{topic}"):
        view.read({}, {topic: 2})


def test_a_topic_is_met_once_by_a_client_that_is_used_again(
    broker: str, new_topic: Callable[..., str], questions: list[tuple[str, int]]
) -> None:
    topic, other = new_topic(2), new_topic(1)
    with Consumers({"bootstrap.servers": broker}) as clients:
        for name in (topic, topic, other, topic):
            with clients.consumer("reads", topic=name):
                pass
        assert questions == [("topic", 0)] * 2
        with clients.consumer("reads") as asked:
            assert [partition_count(asked, each, 30) for each in (topic, other, other + "-not-there")] == [2, 1, 0]
    assert other + "-not-there" not in AdminClient({"bootstrap.servers": broker}).list_topics(timeout=30).topics
