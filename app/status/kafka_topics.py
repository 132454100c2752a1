"""What Kafka says of topics."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kafka_ratchet.errors import BrokerUnavailable

ADMIN_TIMEOUT_S: Final = 30.0
"""How long an answer of Kafka about topics may take."""


def partition_counts(admin: AdminClient, topics: list[str]) -> dict[str, int]:
    """Partitions of those of the topics that exist.

    Raises:
        BrokerUnavailable: no answer.
    """
    try:
        known = admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics
    except KafkaException as error:
        raise BrokerUnavailable(f"Kafka did not list its topics: {error.args[0].str()}") from None
    return {topic: len(known[topic].partitions) for topic in topics if topic in known and known[topic].partitions}
