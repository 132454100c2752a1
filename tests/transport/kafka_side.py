"""Kafka as other clients see it: topics made and records written and read with confluent-kafka."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import NamedTuple

import aiokafka
from aiokafka.structs import OffsetAndMetadata
from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from kafka_ratchet.producers import create_topic as make_topic

LIMIT_S = 60.0
"""Far above what anything here takes; a test that gets there has failed."""


class Read(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


def create_topic(bootstrap: str, name: str, **config: object) -> str:
    """A topic of one partition and an unused name that begins so."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = f"{name}-{uuid.uuid4().hex[:8]}"
    settings = {key.replace("_", "."): str(value) for key, value in config.items()}
    make_topic(admin, topic, partitions=1, config=settings, timeout_s=60, say=print)
    return topic


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    """Delete records as retention does: the topic begins at offset from now on."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partition = TopicPartition(topic, 0, offset)
    assert admin.delete_records([partition])[partition].result(30).low_watermark == offset


def read_topic(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[Read]:
    """All records of partition 0, as a committed reader sees them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.list_topics(topic, timeout=60)  # one that has met no broker reads half a second later
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[Read] = []
    try:
        while True:
            message = consumer.poll(LIMIT_S)
            assert message is not None, f"{topic} does not come to its end"
            if (error := message.error()) is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                return found
            headers = tuple(message.headers() or ())
            found.append(Read(message.key(), message.value(), headers, message.timestamp()[1]))
    finally:
        consumer.close()


def has_open_transaction(bootstrap: str, topics: list[str]) -> bool:
    """Return True if an open transaction holds back committed readers of partition 0 of one of these."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    ask = {TopicPartition(topic, 0): OffsetSpec.latest() for topic in topics}
    committed, all_ = (
        {where.topic: future.result().offset for where, future in admin.list_offsets(ask, isolation_level=of).items()}
        for of in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    )
    return committed != all_


def values(rows: list[Read]) -> list[bytes | None]:
    return [row.value for row in rows]


async def until(true: Callable[[], object], what: str = "what is waited for") -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come about"
        await asyncio.sleep(0.01)


def commit_by_hand(bootstrap: str, group: str, topic: str, offset: int, partition: int = 0) -> None:
    """Move a group's offset as a person does with Kafka's own tools, which leave no metadata."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
    finally:
        consumer.close()


async def commit_with_metadata(bootstrap: str, group: str, topic: str, offset: int, metadata: str) -> None:
    """Not by confluent-kafka 2.16, which puts a NUL behind the metadata."""
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        place = aiokafka.TopicPartition(topic, 0)
        consumer.assign([place])
        await consumer.commit({place: OffsetAndMetadata(offset, metadata)})
    finally:
        await consumer.stop()
