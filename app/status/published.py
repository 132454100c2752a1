"""How far the producers have come by their own account: the topic in which they keep it, read from outside."""

from __future__ import annotations

import json
import time
from typing import NamedTuple

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.kafka_topics import partition_counts
from kafka_ratchet.errors import BrokerUnavailable, SourceError
from kafka_ratchet.producers import END_OF_PARTITION, PASSING, PROGRESS_TOPIC, Progress, explained

log = structlog.get_logger(__name__)


class Acknowledged(NamedTuple):
    """Everything up to a sequence is acknowledged by Kafka (-1: nothing yet), and how many records that was."""

    sequence: int
    records: int


def read_published(settings: Settings, bootstrap: str) -> dict[str, dict[bytes, Acknowledged]]:
    """Every name's own account, by topic and name. What is no producer's progress is left out.

    In memory it takes some 300 bytes for each name.

    Raises:
        BrokerUnavailable: Kafka did not answer.
    """
    options = {"bootstrap.servers": bootstrap, "log_level": 2, **settings.kafka}
    if not partition_counts(AdminClient(options), [PROGRESS_TOPIC]):
        return {}
    consumer = Consumer(
        {
            **options,
            "group.id": "ratchet-producers-reader",  # required by the client; no group is joined, nothing committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # As producers read it themselves (docs/decisions/0008): an open transaction of one name hides nobody else.
            "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": 10,
        }
    )
    found: dict[str, dict[bytes, Acknowledged]] = {}
    heard_at = time.monotonic()
    try:
        # A client that is asked to read before it has met a broker tries again half a second later.
        consumer.list_topics(PROGRESS_TOPIC, timeout=settings.kafka_timeout_s)
        consumer.assign([TopicPartition(PROGRESS_TOPIC, 0, OFFSET_BEGINNING)])
        while True:
            for message in consumer.consume(10_000, 0.2):
                error = message.error()
                if error is None:
                    heard_at = time.monotonic()
                    _take(found, message.key(), message.value(), message.offset() or 0)
                elif error.code() == END_OF_PARTITION:
                    return found
                elif error.code() not in PASSING:
                    raise KafkaException(error)
            if time.monotonic() - heard_at > settings.kafka_timeout_s:
                raise BrokerUnavailable(f"{PROGRESS_TOPIC}: Kafka sent nothing for {settings.kafka_timeout_s:g} s")
    except KafkaException as failure:
        raise BrokerUnavailable(f"{PROGRESS_TOPIC} cannot be read: {explained(failure.args[0])}") from failure
    finally:
        consumer.close()


def _take(found: dict[str, dict[bytes, Acknowledged]], key: bytes | None, value: bytes | None, offset: int) -> None:
    where = f"{PROGRESS_TOPIC} partition 0 offset {offset}"
    try:
        topic, name = json.loads(key or b"")
        if not isinstance(topic, str) or not isinstance(name, str):
            raise TypeError("topic and name must be text")
        names = found.setdefault(topic, {})
        if value is None:
            names.pop(name.encode(), None)
        else:
            progress = Progress.decode(value, where)
            names[name.encode()] = Acknowledged(progress.sequence, progress.records)
    except (SourceError, ValueError, TypeError, RecursionError) as error:
        log.debug("not a producer's progress; left out", where=where, reason=repr(error)[:200])
