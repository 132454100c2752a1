"""Where a record with a key stands in the input of a stream."""

from __future__ import annotations

from kafka_ratchet.app.partitioner import Partitioner
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.kafka_topics import partition_counts
from kafka_ratchet.errors import TopicMissing
from kafka_ratchet.producers import admin_client


def partition_of_key(settings: Settings, bootstrap: str, stream: str, key: bytes, partitioner: Partitioner) -> int:
    """The partition to which a producer sends a record with this key.

    Raises:
        TopicMissing: there is no input.
        BrokerUnavailable: Kafka did not answer.
    """
    topic = settings.streams[stream].input
    found = partition_counts(admin_client({"bootstrap.servers": bootstrap, **settings.kafka}), [topic])
    if topic not in found:
        raise TopicMissing(f"stream {stream}: there is no topic {topic}")
    return partitioner.place(key, found[topic])
