"""Reports of the client about records, in all orders."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, Message

from kafka_ratchet.errors import RecordTooLarge, TransportError
from kafka_ratchet.producers.accumulator import Accumulator

LOST = (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError.UNKNOWN_PRODUCER_ID)


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


@pytest.mark.parametrize("code", LOST)
@pytest.mark.parametrize("by_report", [True, False])
def test_lost_acknowledged_records_are_not_gone_on_after(
    broker: str, new_topic: Callable[..., str], code: int, by_report: bool
) -> None:
    topic = new_topic(1)
    accumulator = Accumulator(topic, "me", {"bootstrap.servers": broker, "linger.ms": 0}, print)
    taken = list[Message]()
    accumulator.produce(topic, b"v", None, 0, lambda error, message: taken.append(message))
    accumulator.drain()
    if by_report:
        accumulator.lost(KafkaError(code), taken[0], "sequence 1, partition 0")
    else:
        accumulator._client_failed(KafkaError(code, "sequence desynchronization", True))
        accumulator._closed.set()  # no report comes, and nothing waits for one
        accumulator._fail_after_stop(KafkaError(KafkaError._FATAL, "the client is in a fatal error"))
    assert isinstance(accumulator.failure, TransportError)
    said = str(accumulator.failure)
    assert "Kafka may have lost acknowledged records" in said
    assert "--from-start" in said
    assert "stay published" not in said
    accumulator.stop()
