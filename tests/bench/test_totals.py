"""Errors that the bench finds in totals, and agents that really run."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import Message, Producer

from bench.compare import compare
from bench.kafka import create
from bench.load import PARTITIONS, VALUE_BYTES, Load
from bench.subjects import deduplicating
from bench.totals import EVERY, LAST, Totals, amount_of, fill
from kafka_ratchet.errors import BenchFailed
from tests.bench.test_load import everything

Row = tuple[int, int, int]
"""partition, user, total"""


@pytest.fixture(scope="module")
def orders(broker: str) -> tuple[list[Message], Totals]:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    truth = fill(broker, topic, Load(records=3_000, keys=100))
    return everything(broker, topic), truth


def totals_of(messages: list[Message]) -> list[Row]:
    sums, rows = dict[int, int](), []
    for message in messages:
        order = json.loads(message.value())
        user = int(order["user"][5:])
        sums[user] = sums.get(user, 0) + order["amount"]
        rows.append((message.partition(), user, sums[user]))
    return rows


def test_each_record_is_an_order_that_comes_once(orders: tuple[list[Message], Totals]) -> None:
    messages, truth = orders
    assert sum(truth.orders) == len(messages) == 3_000
    assert {len(message.value()) for message in messages} == {VALUE_BYTES}
    found = dict[int, list[int]]()
    for message in messages:
        order = json.loads(message.value())
        assert message.key() == order["user"].encode()
        found.setdefault(int(order["user"][5:]), []).append(order["amount"])
    assert [len(found.get(user, [])) for user in range(100)] == truth.orders
    assert all(its == [amount_of(user, number + 1) for number in range(len(its))] for user, its in found.items())


def last_only(rows: list[Row]) -> list[Row]:
    return list({user: (partition, user, total) for partition, user, total in rows}.values())


@pytest.mark.parametrize(
    ("change", "every", "last"),
    [
        (lambda rows: rows, True, True),
        (last_only, False, True),
        (lambda rows: rows[:-1], False, False),
        (lambda rows: [*rows, rows[-1]], False, False),
        (lambda rows: [(number, user, total + 1) for number, user, total in rows], False, False),
        (lambda rows: [], False, False),
    ],
)
def test_only_right_totals_are_right(
    broker: str,
    orders: tuple[list[Message], Totals],
    change: Callable[[list[Row]], list[Row]],
    every: bool,
    last: bool,
) -> None:
    messages, truth = orders
    topic = f"totals-{uuid.uuid4().hex[:8]}"
    create(broker, topic, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
    for number, user, total in change(totals_of(messages)):
        value = json.dumps({"user": f"user-{user}", "total": total})
        producer.produce(topic, value, f"user-{user}", partition=number)
    assert producer.flush(60) == 0
    assert (EVERY(broker, topic, truth), LAST(broker, topic, truth)) == (every, last)


def test_subjects_that_do_different_things_are_not_compared() -> None:
    with pytest.raises(BenchFailed, match=r"different tasks cannot be compared \(agent: totals, loop: deduplicate"):
        compare(["agent", "loop"], Load(), 100, 1, print)
    with pytest.raises(BenchFailed, match=r"no subject agent that deduplicates by sequence\. There are: ratchet, "):
        deduplicating("agent")


@pytest.mark.long
def test_agents_run_to_the_end_and_are_right() -> None:
    compared = compare(["agent", "agent-batches"], Load(records=20_000, keys=100), 100, 1, lambda run: None)
    assert [run.verified for runs in compared.runs.values() for run in runs] == [True, True]
