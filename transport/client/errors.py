"""Kafka's error codes as exceptions, and our errors for replaced topics and truncated logs."""

from __future__ import annotations

from typing import Final

from aiokafka import errors as kafka

from kafka_ratchet.errors import LogTruncated, TopicReplaced

PRODUCER_FENCED: Final = 90


class InvalidRecord(kafka.BrokerResponseError):  # type: ignore[misc]  # aiokafka has no types
    """Error for a record that the topic refuses, such as one without a key in a compacted topic.

    aiokafka 0.14 lacks it.
    """

    errno = 87
    message = "INVALID_RECORD"


class Throttled(kafka.KafkaError):  # type: ignore[misc]
    """Error for a used-up quota: Kafka's answer has no data, only the time to wait."""


UNAUTHORIZED: Final = (
    kafka.ClusterAuthorizationFailedError,
    kafka.GroupAuthorizationFailedError,
    kafka.TopicAuthorizationFailedError,
    kafka.TransactionalIdAuthorizationFailed,
)


def explained(reason: object) -> str:
    """Return a reason as text; an authorization error also names the guide page about rights."""
    more = ". Give this user the rights of docs/guide/rights.md" if isinstance(reason, UNAUTHORIZED) else ""
    return f"{reason!r}{more}"


def replaced(topic: str, before: str, now: str) -> TopicReplaced:
    """Return the error for a topic replaced by another one of its name. before, now: topic ids as text."""
    return TopicReplaced(
        f"{topic}: the name belonged to topic id {before}, and belongs to topic id {now} now: the topic was deleted "
        "and created again, or this is another cluster. Offsets and last sequences belong to the "
        "old topic; continuing with them would lose or double records. `ratchet resume` goes on with the new topic; "
        "see docs/reference/halted.md"
    )


def truncated(topic: str, partition: int, position: int, last_epoch: int, instead: str) -> LogTruncated:
    """Return the error for a partition that lost records which were already read.

    Args:
        topic: name of the topic
        partition: number of the partition
        position: end of the records already read.
        last_epoch: leader epoch of the last batch before `position`.
        instead: phrase that describes the log's present content
    """
    return LogTruncated(
        f"{topic}, partition {partition}: the log was read up to offset {position} in leader epoch {last_epoch}, but "
        f"in the present log {instead}: the log lost its end (unclean leader election?). Records that were read may "
        "be lost, and other records may have their offsets. `ratchet resume` says how to go on; see "
        "docs/reference/halted.md"
    )


def raise_for(code: int, where: str = "") -> None:
    """Raise aiokafka's exception for a Kafka error code; 0 raises nothing. where: topic and partition, for the text."""
    if code == PRODUCER_FENCED:
        raise kafka.ProducerFenced  # aiokafka 0.14 does not know the number
    if code == InvalidRecord.errno:
        raise InvalidRecord(where)
    if code:
        raise kafka.for_code(code)(where or f"error code {code}")
