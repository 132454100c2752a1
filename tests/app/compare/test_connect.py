"""Tables of a Kafka Connect worker: the comparison names all that is wrong in them, and nothing else."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, LiteralString
from urllib.parse import urlencode

import psycopg
import pytest
from confluent_kafka import Producer

from faults.postgres import PostgresServer, run_postgres
from kafka_ratchet.app.cli import run as run_command
from kafka_ratchet.verify import compare
from tests.app.compare.connect_worker import ConnectWorker, connect_worker

pytestmark = pytest.mark.matrix

EVENTS = 5000
WAIT_S = 120
COLUMNS = ("id", "city", "amount", "at")
OTHERS: Final = (
    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)
CHANGES: Final[tuple[LiteralString, ...]] = (
    "UPDATE orders SET city = city || ' ' WHERE id = %s",
    "UPDATE orders SET city = NULL WHERE id = %s",
    "UPDATE orders SET amount = amount + 0.01 WHERE id = %s",
    "UPDATE orders SET amount = -1 WHERE id = %s",
    "UPDATE orders SET at = at + interval '1 microsecond' WHERE id = %s",
)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with run_postgres() as server:
        yield server


@pytest.fixture
def topic(broker: str, new_topic: Callable[..., str]) -> str:
    name = new_topic(partitions=3)
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    for number in range(EVENTS):
        event = {
            "id": number,
            "city": f"Łódź {number % 7}",
            "amount": number / 4,
            "at": f"2026-01-02T03:{number % 60:02}:05+02:00",
        }
        producer.produce(name, json.dumps(event).encode(), str(number).encode())
    assert producer.flush(60) == 0
    return name


@pytest.fixture
def table(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection[Any]]:
    """A connection; its table `orders` has no primary key."""
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS orders")
        connection.execute("CREATE TABLE orders (id bigint, city text, amount numeric(12, 2), at timestamptz)")
        yield connection


def connector(topic: str, postgres: PostgresServer, connection: psycopg.Connection[Any]) -> dict[str, str]:
    info = connection.info
    login = urlencode({"user": info.user, "password": postgres.password})
    return {
        "name": f"sink-{topic}",
        "connector.class": "InsertSink",
        "tasks.max": "1",
        "topics": topic,
        "url": f"jdbc:postgresql://{info.host}:{info.port}/{info.dbname}?{login}",
        "statement": "INSERT INTO orders VALUES (?, ?, ?, ?::timestamptz)",
        "fields": ",".join(COLUMNS),
    }


def target(postgres: PostgresServer) -> str:
    return f"{postgres.url}{'&' if '?' in postgres.url else '?'}table=public.orders"


def wait_for(what: str, worker: ConnectWorker, fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not fact():
        assert worker.is_running, worker.log.read_text()[-5000:]
        assert time.monotonic() < deadline, f"{what}: {worker.log.read_text()[-5000:]}"
        time.sleep(0.01)


def number(connection: psycopg.Connection[Any], query: LiteralString) -> int:
    found = connection.execute(query).fetchone()
    assert found is not None
    return int(found[0])


def rows(connection: psycopg.Connection[Any]) -> int:
    return number(connection, "SELECT count(*) FROM orders")


def identities(connection: psycopg.Connection[Any]) -> int:
    return number(connection, "SELECT count(DISTINCT id) FROM orders")


def test_all_faults_of_a_connect_table_are_named(
    broker: str,
    topic: str,
    postgres: PostgresServer,
    table: psycopg.Connection[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with connect_worker(tmp_path, broker, connector(topic, postgres, table)) as worker:
        wait_for("all rows", worker, lambda: rows(table) >= EVENTS)
    command = ["verify", "--bootstrap", broker, "--from", f"kafka:{topic}", "--to", target(postgres)]
    command += ["--by", "field:id=id", "--compare", "city,amount,at", "--json"]
    assert run_command(command) == 0
    before = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (before["source_rows"], before["target_rows"], before["findings"]) == (EVENTS, EVENTS, [])

    chosen = random.Random(36).sample(range(EVENTS), 23)
    wrong = {"lost": chosen[:7], "doubled": chosen[7:18], "altered": chosen[18:]}
    table.execute("DELETE FROM orders WHERE id = ANY(%s)", [wrong["lost"]])
    table.execute("INSERT INTO orders SELECT * FROM orders WHERE id = ANY(%s)", [wrong["doubled"]])
    for identity, statement in zip(wrong["altered"], CHANGES, strict=True):
        table.execute(statement, [identity])

    assert run_command(command) == 1
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    named = {
        kind: sorted(int(each["identity"]) for each in result["findings"] if each["finding"] == kind) for kind in wrong
    }
    assert named == {kind: sorted(numbers) for kind, numbers in wrong.items()}
    assert [result[name] for name in ("lost", "doubled", "altered", "unexpected", "in_flight")] == [7, 11, 5, 0, 0]
    assert len(result["findings"]) == 23


def test_rows_that_a_killed_worker_wrote_twice_are_named(
    broker: str, topic: str, postgres: PostgresServer, table: psycopg.Connection[Any], tmp_path: Path
) -> None:
    settings = connector(topic, postgres, table)
    with connect_worker(tmp_path, broker, settings, flush_ms=600_000) as worker:
        wait_for("a first row", worker, lambda: rows(table) > 0)
        worker.kill()
    deadline = time.monotonic() + WAIT_S
    while number(table, OTHERS):  # a commit that has arrived is carried out
        assert time.monotonic() < deadline
        time.sleep(0.01)
    written = rows(table)
    with connect_worker(tmp_path, broker, settings) as worker:
        wait_for("all rows", worker, lambda: identities(table) == EVENTS and rows(table) >= EVENTS + written)
    result = compare(f"kafka:{topic}", target(postgres), "id", "city,amount,at", bootstrap=broker, sample=EVENTS)
    found = {each["identity"] for each in result.findings}
    twice = table.execute("SELECT id::text FROM orders GROUP BY id HAVING count(*) > 1").fetchall()
    assert found == {identity for (identity,) in twice}
    assert {each["finding"] for each in result.findings} == {"doubled"}
    assert (result.doubled, result.target_rows) == (written, EVENTS + written)
    assert (result.lost, result.altered, result.unexpected, result.in_flight) == (0, 0, 0, 0)
