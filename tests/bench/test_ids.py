"""Errors that the bench finds in an output of ids."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import Message, Producer

from bench.ids import ID_BYTES, NUMBER_AT, Ids, fill, id_of, is_right
from bench.kafka import create
from bench.load import PARTITIONS, VALUE_BYTES, Load
from tests.bench.test_load import everything

Row = tuple[bytes, bytes]
"""key, value"""


@pytest.fixture(scope="module")
def events(broker: str) -> tuple[list[Message], Ids]:
    topic = f"ids-{uuid.uuid4().hex[:8]}"
    truth = fill(broker, topic, Load(records=3_000))
    return everything(broker, topic), truth


def fresh_of(messages: list[Message]) -> list[Row]:
    return list({message.key(): (message.key(), message.value()) for message in messages}.values())


def test_a_fifth_of_the_records_have_an_id_that_was_there_before(events: tuple[list[Message], Ids]) -> None:
    messages, truth = events
    assert (len(messages), truth.fresh, len(fresh_of(messages))) == (3_000, 2_400, 2_400)
    assert {(len(message.key()), len(message.value())) for message in messages} == {(ID_BYTES, VALUE_BYTES)}
    assert all(message.key() == id_of(int(message.value()[NUMBER_AT])) for message in messages)
    places: dict[bytes, set[int]] = {}
    for message in messages:
        places.setdefault(message.key(), set()).add(message.partition())
    assert {len(each) for each in places.values()} == {1}


@pytest.mark.parametrize(
    ("change", "right"),
    [
        (lambda rows: rows, True),
        (lambda rows: rows[::-1], True),
        (lambda rows: rows[1:], False),
        (lambda rows: [*rows, rows[7]], False),
        (lambda rows: [(rows[1][0], rows[0][1]), *rows[1:]], False),
        (lambda rows: [], False),
    ],
)
def test_only_each_event_once_is_right(
    broker: str, events: tuple[list[Message], Ids], change: Callable[[list[Row]], list[Row]], right: bool
) -> None:
    messages, truth = events
    topic = f"ids-out-{uuid.uuid4().hex[:8]}"
    create(broker, topic, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": broker})
    for key, value in change(fresh_of(messages)):
        producer.produce(topic, value, key)
    assert producer.flush(30) == 0
    assert is_right(broker, topic, truth) is right
