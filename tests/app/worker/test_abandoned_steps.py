"""Events that wait for a step which the program does not have any more."""

from __future__ import annotations

import asyncio
import time
import uuid
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition as Place
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.worker.steps import refuse_abandoned
from kafka_ratchet.errors import BrokerUnavailable, SettingsError, TransportError
from kafka_ratchet.producers import create_topic
from kafka_ratchet.transport.transactions.requests import offset_metadata
from tests.app.written_stream import commit_as_lane
from tests.topic_log.test_second_client import ODD_NAMES, produce


def look(broker: str, settings: Settings) -> None:
    """Look as a worker's start does, and ask a coordinator that is only loading again."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return refuse_abandoned(broker, settings)
        except BrokerUnavailable:
            assert time.monotonic() < deadline


def test_it_is_refused_until_they_are_read_or_deleted(broker: str) -> None:
    app = f"shop-{uuid.uuid4().hex[:8]}"
    topic = f"{app}-repartition.old"
    create_topic(AdminClient({"bootstrap.servers": broker}), topic, partitions=2, timeout_s=60, say=print)
    settings = Settings(app=app)
    look(broker, settings)

    producer = Producer({"bootstrap.servers": broker, "transactional.id": app})
    producer.init_transactions()
    for committed in (True, False):
        producer.begin_transaction()
        producer.produce(topic, b"event", partition=1)
        producer.commit_transaction() if committed else producer.abort_transaction()

    with pytest.raises(SettingsError, match=r"repartition\.old, partition 1: events from offset 0 on wait .* 'old'"):
        look(broker, settings)

    # Behind the record stand the ends of two transactions, which nobody commits.
    reader = Consumer({"bootstrap.servers": broker, "group.id": app})
    reader.commit(offsets=[TopicPartition(topic, 1, 1)], asynchronous=False)
    with pytest.raises(SettingsError, match="events from offset 0 on wait"):
        look(broker, settings)  # another client has committed that
    reader.close()
    commit_as_lane(broker, app, {Place(topic, 1): (1, offset_metadata("A" * 22, -1))})
    look(broker, settings)


def test_events_with_unreadable_header_names_are_refused_as_events(broker: str) -> None:
    app = f"shop-{uuid.uuid4().hex[:8]}"
    topic = f"{app}-repartition.old"
    create_topic(AdminClient({"bootstrap.servers": broker}), topic, partitions=1, timeout_s=60, say=print)
    asyncio.run(produce(broker, topic, 0, [ODD_NAMES]))
    with pytest.raises(SettingsError, match="events from offset 0 on wait"):
        look(broker, Settings(app=app))


def with_open_transaction(broker: str) -> tuple[str, str, Producer]:
    """Write an event for a removed step in an open transaction; return the application, topic and producer."""
    app = f"shop-{uuid.uuid4().hex[:8]}"
    topic = f"{app}-repartition.old"
    create_topic(AdminClient({"bootstrap.servers": broker}), topic, partitions=1, timeout_s=60, say=print)
    producer = Producer({"bootstrap.servers": broker, "transactional.id": app})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"event")
    producer.flush(60)
    return app, topic, producer


def test_events_of_a_transaction_that_is_ending_are_waited_for(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app, _, producer = with_open_transaction(broker)
    steps = iter([producer.commit_transaction])
    pause = SimpleNamespace(monotonic=time.monotonic, sleep=lambda s: next(steps, lambda: time.sleep(s))())
    monkeypatch.setattr("kafka_ratchet.app.worker.steps.time", pause, raising=False)
    with pytest.raises(SettingsError, match="events from offset 0 on wait"):
        look(broker, Settings(app=app))


def test_a_transaction_that_stays_open_is_named(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app, topic, producer = with_open_transaction(broker)
    monkeypatch.setattr("kafka_ratchet.app.worker.steps.DEAD_TRANSACTION_S", -1.0)
    named = rf"repartition\.old, partition 0: .*open at offset 0 .*{app}"
    with pytest.raises(TransportError, match=named) as refused:
        look(broker, Settings(app=app, transaction_timeout_ms=1_000, commit_interval_ms=100))
    remedy = str(refused.value)
    assert "start the program that has the stream, whose lanes end the transaction" in remedy
    assert f"`ratchet resume --stream PARENT --open-transaction commit --topic {topic}`" in remedy
    assert "delete the topic if its events may be lost" in remedy
    producer.abort_transaction()
