"""Topics with committed records, and a database to copy them into."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from faults.postgres import PostgresServer, run_postgres
from kafka_ratchet.reader import Reader
from tests.markers import partition_ends, wait_for_marker

Fill = Callable[..., None]


@pytest.fixture
def fill(broker: str) -> Fill:
    """fill(topic, count, first=0, partitions=2, commit=True) puts records there in one Kafka transaction; the value is
    the record's number, and number modulo partitions its partition."""

    def put(topic: str, count: int, *, first: int = 0, partitions: int = 2, commit: bool = True) -> None:
        producer = Producer({"bootstrap.servers": broker, "transactional.id": uuid.uuid4().hex, "log_level": 0})
        producer.init_transactions(30)
        before = [partition_ends(broker, topic, partition) for partition in range(partitions)]
        producer.begin_transaction()
        for number in range(first, first + count):
            producer.produce(topic, b"%d" % number, b"k%d" % (number % 7), number % partitions, headers=[("n", b"1")])
        producer.flush(30)
        if commit:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
        for partition, (stable, last) in enumerate(before):
            written = len([number for number in range(first, first + count) if number % partitions == partition])
            if written:
                wait_for_marker(broker, topic, partition, last + written + 1, behind_another=stable < last)

    return put


@pytest.fixture
def bill(tmp_path: Path) -> Path:
    """A SQLite file with a table `bill` of key and value."""
    path = tmp_path / "bill.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE bill (key, value)")
    return path


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with run_postgres() as server:
        yield server


def rows(path: Path) -> list[int]:
    """The values of `bill`, sorted."""
    with sqlite3.connect(path) as database:
        return sorted(int(value) for (value,) in database.execute("SELECT value FROM bill"))


def copy(reader: Reader, placeholder: str = "?", **options: Any) -> int:
    """Copy the topic into `bill`; how many records."""
    count = 0
    for transaction in reader.transactions(until_end=True, **options):
        statement = "INSERT INTO bill VALUES (?, ?)".replace("?", placeholder)
        transaction.executemany(statement, [(event.key, event.value) for event in transaction.events])
        count += len(transaction.events)
    return count
