"""Causes of missing acknowledgements of a topic, found by requests to Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ClusterMetadata, PartitionMetadata, TopicMetadata

from kafka_ratchet.errors import RatchetError
from kafka_ratchet.producers.client import NOT_ALLOWED, explained
from kafka_ratchet.producers.topics import admin_client, min_in_sync

ASK_S: Final = 1.0
"""Seconds to wait for one request; the next check repeats it."""
NAMED: Final = 5
"""Maximum number of partitions that a sentence names."""
NO_ANSWER: Final = "no-answer"
UNEXPLAINED: Final = "unexplained"


class Standstill(NamedTuple):
    """Cause of missing acknowledgements, as docs/reference/stalls.md names it, and a sentence about it."""

    cause: str
    text: str


def silence_sentence(topic: str, name: str, waiting: int, found: Standstill) -> str:
    """Return the sentence about records that wait for an acknowledgement.

    Args:
        topic: name of the topic
        name: name of the producer
        waiting: number of its waiting records
        found: cause of the standstill
    """
    return (
        f"Kafka acknowledges nothing of topic {topic!r}; {waiting} records of producer {name!r} wait and are sent as "
        f"soon as it does ({found.cause}): {found.text}"
    )


class MetadataClient(Protocol):
    """Client of librdkafka that can request a topic's metadata."""

    def list_topics(self, topic: str, timeout: float) -> ClusterMetadata:
        """Return the metadata of a topic."""


def standstill_of(
    client: MetadataClient,
    options: Mapping[str, str | int | bool],
    topic: str,
    *,
    throttle_s: float = 0.0,
    last_error: str = "",
) -> Standstill:
    """Find out why Kafka acknowledges no record of a topic, which takes a few seconds.

    Args:
        client: client to request the topic's metadata with.
        options: options of librdkafka for another client, which requests min.insync.replicas.
        topic: name of the topic.
        throttle_s: seconds of the last delay by a quota; 0: no recent delay.
        last_error: last error of the client's connections; empty: none.
    """
    try:
        found = client.list_topics(topic, timeout=ASK_S).topics.get(topic)
    except KafkaException as failure:
        return Standstill(NO_ANSWER, f"Kafka does not answer: {last_error or failure.args[0].str()}")
    if found is None or found.error is not None:
        return _of_topic(topic, None if found is None else found.error)
    if away := [number for number, each in sorted(found.partitions.items()) if each.leader < 0]:
        return Standstill(
            "no-leader", f"{topic}, {_partitions(away)}: no leader. Start a broker with a replica in sync"
        )
    if (lacking := _lacking(found, options)) is not None:
        return lacking
    if throttle_s:
        return Standstill("quota", f"the quota of this client is used up: Kafka delays it by {throttle_s:.1f} s")
    if last_error:
        return Standstill(NO_ANSWER, f"a broker does not answer: {last_error}")
    return Standstill(
        UNEXPLAINED, f"Kafka answers, and all partitions of {topic} have a leader: read the log of the brokers"
    )


def _of_topic(topic: str, error: KafkaError | None) -> Standstill:
    if error is not None and error.code() in NOT_ALLOWED:
        return Standstill("unauthorized", f"{topic}: {explained(error)}")
    if error is None or error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID):
        return Standstill(
            "topic-missing",
            f"there is no topic {topic}. If it was deleted, restore it or create it again; otherwise check the name "
            "and the address of Kafka",
        )
    return Standstill("refused", f"{topic}: {explained(error)}")


def _lacking(found: TopicMetadata, options: Mapping[str, str | int | bool]) -> Standstill | None:
    """Return the cause if partitions have too few in-sync replicas; None: all have enough."""
    reduced: dict[int, PartitionMetadata] = {
        number: each for number, each in found.partitions.items() if len(each.isrs) < len(each.replicas)
    }
    if not reduced:
        return None
    try:
        least = min_in_sync(admin_client(options), found.topic, timeout_s=ASK_S)
    except (RatchetError, KafkaException):
        return None
    lacking = [number for number, each in sorted(reduced.items()) if len(each.isrs) < least]
    if not lacking:
        return None
    return Standstill(
        "replicas",
        f"{found.topic}, {_partitions(lacking)}: {len(reduced[lacking[0]].isrs)} replicas in sync, and "
        f"min.insync.replicas is {least}. Start the brokers of the missing replicas",
    )


def _partitions(numbers: list[int]) -> str:
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return f"partition{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:NAMED]))}{more}"
