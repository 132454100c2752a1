"""Events that wait for a step which the program does not have any more."""

from __future__ import annotations

import time
import uuid

import pytest
from aiokafka import TopicPartition as Place
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.worker.steps import refuse_abandoned
from kafka_ratchet.errors import BrokerUnavailable, SettingsError
from kafka_ratchet.producers import create_topic
from kafka_ratchet.transport.transactions.requests import offset_metadata
from tests.app.written_stream import commit_as_lane


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
