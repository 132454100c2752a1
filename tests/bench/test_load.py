"""The bench's count notices whatever may be wrong with an output, or "verified" would mean nothing."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from bench.load import PARTITIONS, SEQUENCE, SEQUENCE_AT, VALUE_BYTES, ExpectedOutput, Load, fill, is_right


def everything(bootstrap: str, topic: str) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reads", "enable.auto.commit": False})
    found: list[Message] = []
    for number in range(PARTITIONS):
        place = TopicPartition(topic, number, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=30)
        consumer.assign([place])
        while end and consumer.position([place])[0].offset < end:
            found += consumer.consume(1_000, 0.2)
    consumer.close()
    return found


def deduplicated(messages: list[Message]) -> list[Message]:
    """Deduplicate by the rule, in its plainest form."""
    last: dict[bytes, int] = {}
    kept = []
    for message in messages:
        sequence = SEQUENCE.unpack(dict(message.headers())["ratchet-sequence"])[0]
        if sequence > last.get(message.key(), -1):
            last[message.key()] = sequence
            kept.append(message)
    return kept


def written(bootstrap: str, messages: list[Message]) -> str:
    topic = f"output-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    ends = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(PARTITIONS)}
    deadline = time.monotonic() + 30
    while any(asked.exception(30) for asked in admin.list_offsets(ends).values()):
        assert time.monotonic() < deadline, f"{topic} has no leaders"  # they take a moment to know that they are
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for message in messages:
        producer.produce(topic, message.value(), message.key(), partition=message.partition())
    assert producer.flush(60) == 0
    return topic


def filled(broker: str, duplicates: Any) -> tuple[list[Message], ExpectedOutput, Load]:
    load = Load(records=10_000, keys=100, compression="lz4", duplicates=duplicates)
    topic = f"input-{uuid.uuid4().hex[:8]}"
    truth = fill(broker, topic, load)
    return everything(broker, topic), truth, load


@pytest.mark.parametrize("duplicates", ["spread", "resent"])
def test_the_input_is_what_it_says(broker: str, duplicates: str) -> None:
    messages, truth, load = filled(broker, duplicates)
    assert len(messages) == load.records
    kept = deduplicated(messages)
    assert len(kept) == truth.fresh
    assert 0.79 < truth.fresh / load.records < 0.81
    for message in messages:
        headers = dict(message.headers())
        assert len(message.value()) == VALUE_BYTES
        assert int(message.value()[SEQUENCE_AT]) == SEQUENCE.unpack(headers["ratchet-sequence"])[0]
        assert headers["ratchet-producer"] == message.key()
    # By partition, with the other sequence, the same records are fresh.
    for number in range(PARTITIONS):
        highest, fresh = -1, []
        for message in (one for one in messages if one.partition() == number):
            order = SEQUENCE.unpack(dict(message.headers())["bench-order"])[0]
            if order > highest:
                highest = order
                fresh.append(message.offset())
        assert fresh == [one.offset() for one in kept if one.partition() == number]


def swap(messages: list[Message]) -> list[Message]:
    first = messages[0]
    at = next(i for i, one in enumerate(messages) if one.key() == first.key() and i)
    return [messages[at], *messages[1:at], first, *messages[at + 1 :]]


@pytest.fixture(scope="module")
def spread(broker: str) -> tuple[list[Message], ExpectedOutput, Load]:
    return filled(broker, "spread")


@pytest.mark.parametrize(
    ("change", "right"),
    [
        (lambda messages: messages, True),
        (lambda messages: messages[1:], False),
        (lambda messages: messages[:-1], False),
        (lambda messages: [*messages, messages[-1]], False),
        (swap, False),
        (lambda messages: [], False),
    ],
)
def test_only_the_right_output_is_right(
    broker: str,
    spread: tuple[list[Message], ExpectedOutput, Load],
    change: Callable[[list[Message]], list[Message]],
    right: bool,
) -> None:
    messages, truth, _ = spread
    assert is_right(broker, written(broker, change(deduplicated(messages))), truth) is right


def test_more_keys_than_random_choice_would_reach(broker: str) -> None:
    topic = f"input-{uuid.uuid4().hex[:8]}"
    truth = fill(broker, topic, Load(records=1_000, keys=800))
    assert truth.last == [1] * 800
    users = [int(message.key()[5:]) for message in deduplicated(everything(broker, topic))]
    assert sorted(users) == list(range(800))
    assert users != sorted(users)
