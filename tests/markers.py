"""Markers of transactions: Kafka answers a commit before they are written."""

from __future__ import annotations

import time

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from kafka_ratchet.producers import PASSING


def wait_for_marker(broker: str, topic: str, partition: int, end: int, *, behind_another: bool) -> None:
    """Wait until a transaction's marker is in the partition; only then can its records be read.

    Kafka answers a commit before that.

    Args:
        end: where the partition ends with the marker.
        behind_another: another transaction is open before this one, so that this one's end cannot be read yet.
    """
    deadline = time.monotonic() + 90
    while True:
        stable, last = partition_ends(broker, topic, partition)
        if last == end and (behind_another or stable == last):
            return
        assert time.monotonic() < deadline, f"the transaction in {topic}/{partition} does not end: {stable}, {last}"
        time.sleep(0.02)


def partition_ends(broker: str, topic: str, partition: int) -> tuple[int, int]:
    """Return a partition's last stable offset and its last offset."""
    admin, spec = AdminClient({"bootstrap.servers": broker}), {TopicPartition(topic, partition): OffsetSpec.latest()}
    deadline = time.monotonic() + 60
    while True:
        try:
            stable, last = (
                admin.list_offsets(spec, isolation_level=level)[TopicPartition(topic, partition)].result(60).offset
                for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            )
            return stable, last
        except KafkaException as error:
            # A new partition's leader takes a moment to know that it is.
            is_passing = error.args[0].code() in {*PASSING, KafkaError.NOT_LEADER_FOR_PARTITION}
            if not is_passing or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
