import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kafka_ratchet.app.cli import run
from kafka_ratchet.producers import create_topic
from kafka_ratchet.reader import Reader, Sqlite


def test_status_and_resume_of_a_reader(
    broker: str,
    new_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic, file = new_topic(2), tmp_path / "bill.db"
    monkeypatch.setenv("RATCHET_BOOTSTRAP", broker)
    monkeypatch.chdir(tmp_path)
    store = ["--store", "sqlite", "--path", str(file)]
    sqlite3.connect(file).close()
    file.touch()
    assert run(["reader", "status", *store]) == 2
    assert "no reader has used this database" in capsys.readouterr().err
    assert run(["reader", "status", "--store", "sqlite"]) == 2
    assert "needs --path" in capsys.readouterr().err

    with Reader(topic, store=Sqlite(file), name="billing", options={"bootstrap.servers": broker}) as reader:
        assert list(reader.transactions(until_end=True)) == []
        assert run(["reader", "status", *store, "--json"]) == 0
        first = json.loads(capsys.readouterr().out)["positions"][0]
        assert first.pop("owner")
        assert first == {
            "reader": "billing", "topic": topic, "partition": 0, "next": 0, "end": 0, "lag": 0, "generation": 1,
            "committed_ms": None, "topic_replaced": False,
        }  # fmt: skip

    admin = AdminClient({"bootstrap.servers": broker})
    admin.delete_topics([topic])[topic].result()
    create_topic(admin, topic, partitions=1, timeout_s=60, say=print)
    assert run(["reader", "status", *store]) == 1
    assert "another topic" in capsys.readouterr().out
    for name, of in (("biling", topic), ("billing", f"{topic}s")):
        for more in ([], ["--execute"]):
            assert run(["reader", "resume", name, "--topic", of, *store, "--from", "earliest", *more]) == 2
            said = capsys.readouterr().err
            assert f"no reader {name!r} of topic {of!r} has a position there" in said
            assert f"It has the readers: billing of {topic}." in said
    decide = ["reader", "resume", "billing", "--topic", topic, *store, "--from"]
    for wrong in ("here", "0:0,1:0", "0:0,0:0", "0:5", ""):
        assert run([*decide, wrong]) == 2
        assert "--from" in capsys.readouterr().err
    assert run([*decide, "0:0"]) == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert run(["reader", "status", *store]) == 1
    assert run([*decide, "earliest", "--execute"]) == 0
    capsys.readouterr()
    assert run(["reader", "status", *store, "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["positions"]
    assert (row["next"], row["generation"], row["owner"]) == (0, 2, None)


@pytest.mark.matrix
def test_status_names_the_open_transaction_that_a_reader_waits_for(
    broker: str,
    new_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("kafka_ratchet.app.status.open_transactions.STALLED_AFTER_S", 0.0)
    topic, file = new_topic(1), tmp_path / "bill.db"
    monkeypatch.setenv("RATCHET_BOOTSTRAP", broker)
    monkeypatch.chdir(tmp_path)
    store = ["--store", "sqlite", "--path", str(file)]
    with Reader(topic, store=Sqlite(file), name="billing", options={"bootstrap.servers": broker}) as reader:
        assert list(reader.transactions(until_end=True)) == []
    foreign = Producer(
        {"bootstrap.servers": broker, "transactional.id": f"foreign-{topic}", "transaction.timeout.ms": 600_000}
    )
    foreign.init_transactions(30)
    foreign.begin_transaction()
    foreign.produce(topic, b"x")
    assert foreign.flush(30) == 0
    assert run(["reader", "status", *store, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    [row] = told["positions"]
    assert (row["next"], row["stable_end"], row["end"], row["lag"], row["blocked"]) == (0, 0, 1, 1, 1)
    [waits] = told["open_transactions"]
    assert waits["transactions"][0]["transactional_id"] == f"foreign-{topic}"
    assert run(["reader", "status", *store]) == 0
    assert row["stalled"]["cause"] == "open-transaction"
    shown = "".join(capsys.readouterr().out.split("\n"))
    assert f"1 offsets, from 0 on, wait for an open transaction (transactional id 'foreign-{topic}'" in shown
    foreign.abort_transaction(30)

    def status() -> dict[str, Any]:
        assert run(["reader", "status", *store, "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)["positions"][0]
        return found

    old = Producer({"bootstrap.servers": broker})
    old.produce(topic, b"old", timestamp=int(time.time() * 1000) - 60_000)
    assert old.flush(30) == 0
    deadline = time.monotonic() + 60
    while (row := status()).get("stalled", {}).get("cause") != "no-reader":  # the marker takes a moment
        assert time.monotonic() < deadline, row
    assert "no process reads under this name" in row["stalled"]["text"]
