"""Functions that create, fill and read the topics of a bench with confluent-kafka."""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ratchet.topic_log.clients import consumer, offset_ranges

CREATE_S: Final = 120.0
QUEUE_FULL_S: Final = 0.1
FETCH_BYTES: Final = 4 << 20


def create(bootstrap: str, *topics: str, partitions: int) -> None:
    """Create topics with one replica each."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for made in admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics]).values():
        made.result(CREATE_S)


def ends(bootstrap: str, topic: str, partitions: int) -> list[int]:
    """Return the end offset of each partition, in the order of the partitions."""
    with consumer({"bootstrap.servers": bootstrap}, "bench-ends") as asked:
        return [held.end for held in offset_ranges(asked, topic, partitions)]


def committed_reader(bootstrap: str, topic: str, begins: list[int], **more: Any) -> Consumer:
    """Return a consumer of committed records.

    Args:
        bootstrap: address of Kafka.
        topic: topic to read.
        begins: first offset to read, by partition.
        more: further client options by name, with `_` in place of `.`.
    """
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-reads",  # no group is joined, nothing committed
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
            **{name.replace("_", "."): value for name, value in more.items()},
        }
    )
    reader.assign([TopicPartition(topic, number, begin) for number, begin in enumerate(begins)])
    return reader


def produce(producer: Producer, topic: str, value: bytes | str, key: bytes, **more: Any) -> None:
    """Pass a record to the producer; wait first while the producer's queue is full."""
    while True:
        try:
            producer.produce(topic, value, key, **more)
            return
        except BufferError:
            producer.poll(QUEUE_FULL_S)
