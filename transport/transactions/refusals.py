"""What Kafka refuses of a transaction, as errors of ours."""

from __future__ import annotations

from typing import Final

from aiokafka import errors as kafka

from kafka_ratchet.errors import Aborted, Fenced, RatchetError, RecordRefused, RecordTooLarge
from kafka_ratchet.transport.client.errors import InvalidRecord, explained
from kafka_ratchet.transport.transactions.requests import FENCED

TOO_LARGE: Final = (kafka.MessageSizeTooLargeError, kafka.RecordListTooLargeError)
REFUSED: Final = (
    InvalidRecord,
    kafka.InvalidTimestampError,
    kafka.InvalidTopicError,
    kafka.PolicyViolationError,
    kafka.TopicAuthorizationFailedError,
    kafka.UnsupportedForMessageFormatError,
)
"""What is wrong with the record or the topic, and stays so however often it is tried."""


def as_ours(error: kafka.KafkaError, transactional_id: str, timeout_ms: int) -> RatchetError:
    """The error for what has ended a transaction. timeout_ms: after which the coordinator would have aborted it."""
    if isinstance(error, FENCED):
        return Fenced(
            f"{transactional_id}: fenced ({error!r}): another worker owns the partition now, or the "
            f"transaction was open for more than {timeout_ms} ms"
        )
    if isinstance(error, TOO_LARGE):
        return RecordTooLarge(f"{transactional_id}: {error!r}. Raise max.message.bytes of the topic written to")
    if isinstance(error, REFUSED):
        return RecordRefused(
            f"{transactional_id}: Kafka refuses what is written: {error!r}. Look at that topic's "
            "cleanup.policy (a compacted topic takes no record without a key), message.timestamp.after.max.ms and "
            "message.timestamp.before.max.ms, and at this user's right to write"
        )
    return Aborted(f"{transactional_id}: {explained(error)}")
