"""A batch that librdkafka does not read to its end ends a reader by name."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from kafka_ratchet.errors import BatchUnread, PositionLost, ReaderError
from kafka_ratchet.reader import Reader, Sqlite, Transaction
from kafka_ratchet.reader.source import Source
from kafka_ratchet.reader.stuck import INTERVAL_MS, REQUESTS, STANDSTILL_S, StuckPartitions
from kafka_ratchet.transport.batch.decompression import GZIP
from tests.topic_log.test_second_client import ODD_NAMES, PLAIN, compressed, gzip_members, produce


def statistics(second: float, requests: int, **changed: object) -> str:
    partition = {"leader": 1, "fetch_state": "active", "fetchq_cnt": 0, "next_offset": 50, "ls_offset": 100}
    return json.dumps(
        {
            "ts": second * 1e6,
            "brokers": {"b": {"nodeid": 1, "req": {"Fetch": requests}}},
            "topics": {"t": {"partitions": {"0": partition | changed}}},
        }
    )


def exhaust(transactions: Iterator[Transaction]) -> None:
    for transaction in transactions:
        transaction.execute("SELECT 1")


def test_requests_without_a_record_are_a_stuck_batch() -> None:
    stuck = StuckPartitions("t")
    stuck.take(statistics(0, 1))
    stuck.take(statistics(STANDSTILL_S - 1, 1 + REQUESTS))
    assert stuck.at({0: 50}) is None
    stuck.take(statistics(STANDSTILL_S, 1 + REQUESTS))
    found = stuck.at({0: 50})
    assert found is not None
    assert (found[0], found[1].offset) == (0, 50)
    assert stuck.at({0: 49}) is None
    assert stuck.at({1: 50}) is None
    stuck.take(statistics(STANDSTILL_S + 1, 2 + REQUESTS, next_offset=51))
    assert stuck.at({0: 50}) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"ls_offset": 50},  # an open transaction, or the end
        {"fetchq_cnt": 3},  # the program takes its time
        {"fetch_state": "stopped"},
        {"leader": -1},
    ],
)
def test_what_waits_for_another_cause_is_not_stuck(changed: dict[str, object]) -> None:
    stuck = StuckPartitions("t")
    for number in range(20):
        stuck.take(statistics(number * STANDSTILL_S, 1 + number * REQUESTS, **changed))
    assert stuck.at({0: 50}) is None


def test_an_answer_that_takes_long_is_not_stuck() -> None:
    stuck = StuckPartitions("t")
    for number in range(20):
        stuck.take(statistics(number * STANDSTILL_S, 1))
    assert stuck.at({0: 50}) is None
    assert INTERVAL_MS / 1000 < STANDSTILL_S


@pytest.mark.matrix
def test_a_gzip_batch_of_two_members_ends_a_reader_by_name(
    broker: str, new_topic: Callable[..., str], bill: Path
) -> None:
    topic = new_topic(1)
    asyncio.run(produce(broker, topic, 0, [PLAIN, compressed(GZIP, gzip_members), PLAIN]))
    place = f"topic {topic!r} partition 0: offsets 1"
    with Reader(topic, store=Sqlite(bill), name="billing", options={"bootstrap.servers": broker}) as reader:
        transactions = reader.transactions()
        with pytest.raises(ReaderError, match=re.escape(place)):
            exhaust(transactions)


def test_a_header_name_that_is_not_utf8_ends_a_reader_by_name(
    broker: str, new_topic: Callable[..., str], bill: Path
) -> None:
    topic = new_topic(1)
    asyncio.run(produce(broker, topic, 0, [PLAIN, ODD_NAMES]))
    place = f"topic {topic!r} partition 0: the record at offset 100 has a header name that is not UTF-8"
    with Reader(topic, store=Sqlite(bill), name="billing", options={"bootstrap.servers": broker}) as reader:
        transactions = reader.transactions()
        with pytest.raises(BatchUnread, match=re.escape(place)):
            exhaust(transactions)
    with sqlite3.connect(bill) as database:
        assert database.execute("SELECT next_offset FROM ratchet_reader_positions").fetchall() == [(100,)]


@pytest.mark.parametrize(
    ("held", "error"), [((0, 300), ReaderError), ((200, 300), PositionLost), ((0, 151), PositionLost)]
)
def test_an_offset_out_of_range_is_lost_only_where_kafka_has_not_got_it(
    broker: str, new_topic: Callable[..., str], held: tuple[int, int], error: type[Exception]
) -> None:
    """librdkafka may ask beyond the end after a batch that it gives only in part."""
    topic = new_topic(1)
    source = Source(topic, {"bootstrap.servers": broker}, "billing", None, lambda: None)
    message: Any = SimpleNamespace(partition=lambda: 0)
    refused: Any = SimpleNamespace(code=lambda: KafkaError.OFFSET_OUT_OF_RANGE, str=lambda: "out of range")
    real = source._consumer
    try:
        source._consumer = cast(Any, SimpleNamespace(get_watermark_offsets=lambda *_, **__: held))
        with pytest.raises(error):
            source._handle_error(message, refused, {0: 151})
    finally:
        real.close()
