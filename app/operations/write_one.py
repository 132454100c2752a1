"""Writer of a single record to one of Ratchet's own topics; it waits for Kafka's acknowledgement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.errors import BrokerUnavailable
from kafka_ratchet.producers import explained
from kafka_ratchet.producers.client import SILENT

WRITE_FOR_S: Final = 30.0
"""Maximum seconds of attempts to write the record."""


def write_one(
    settings: Settings,
    bootstrap: str,
    topic: str,
    record: tuple[bytes, bytes | None],
    what: str,
    then: str,
    headers: Mapping[str, bytes] | None = None,
) -> int:
    """Write a record to partition 0 of one of Ratchet's topics; return its offset when Kafka has acknowledged it.

    Args:
        settings: settings with the client options.
        bootstrap: host:port[,host:port].
        topic: an existing topic.
        record: key and value.
        what: noun for the record in errors, such as "the policy".
        then: last sentence of the error text if Kafka does not accept the record; it names the remedy.
        headers: headers of the record.

    Raises:
        BrokerUnavailable: Kafka did not take the record. Its presence in the topic is unknown.
    """
    producer = Producer(
        {
            **settings.kafka,
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0,
            "message.timeout.ms": int(WRITE_FOR_S * 1000),
        },
        logger=SILENT,
    )
    outcome: list[tuple[KafkaError | None, int]] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        outcome.append((error, -1 if error else int(message.offset() or 0)))

    key, value = record
    try:
        producer.produce(topic, value, key, 0, on_delivery=delivered, headers=dict(headers or {}))
        producer.flush(WRITE_FOR_S + 5)
    except KafkaException as failure:
        raise BrokerUnavailable(f"{topic}: {what} was not written: {explained(failure.args[0])}") from failure
    error, offset = outcome[0] if outcome else (None, -1)
    if offset < 0:
        why = error.str() if error else f"no answer within {WRITE_FOR_S:g} s"
        raise BrokerUnavailable(f"{topic}: Kafka did not accept {what}: {why}. {then}")
    return offset
