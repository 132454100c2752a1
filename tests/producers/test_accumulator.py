"""Reports of the client about records, in all orders."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, Message

from kafka_ratchet.errors import RecordTooLarge
from kafka_ratchet.producers.accumulator import Accumulator


def test_the_refused_record_is_named_although_those_behind_it_were_reported_first(
    broker: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1, max_message_bytes=1000)
    accumulator = Accumulator(topic, "me", {"bootstrap.servers": broker, "linger.ms": 0}, print)
    taken = list[Message]()
    accumulator.produce(topic, b"small", None, 0, lambda error, message: taken.append(message))
    accumulator.drain()
    accumulator.lost(KafkaError(KafkaError._PURGE_QUEUE), taken[0], "a record behind the refused one")

    def refused(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            accumulator.lost(error, message, "the refused one")

    accumulator.produce(
        topic,
        b"x" * 5000,
        None,
        0,
        refused,
    )
    with pytest.raises(RecordTooLarge, match=r"the refused one"):
        accumulator.drain()
    accumulator.stop()
