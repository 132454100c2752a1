"""`ratchet init`: settings by what is in a topic."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafka_ratchet.app.cli import run
from kafka_ratchet.app.settings import load


def test_settings_by_what_is_in_a_topic(
    broker: str,
    new_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    topic, producer = new_topic(2), Producer({"bootstrap.servers": broker, "log_level": 0})
    for number in [*range(2_000), *range(100)]:
        value = {"event_id": f"e{number}", "amount": number % 7}
        producer.produce(topic, json.dumps(value).encode(), b"k%d" % (number % 5), number % 2)
    assert producer.flush(30) == 0
    assert run(["init", topic, "--bootstrap", broker, "--app", "shop"]) == 0
    assert "ratchet.toml is written, by 2,100 records" in capsys.readouterr().out
    settings = load()
    (stream,) = settings.streams.values()
    assert (settings.app, settings.bootstrap, stream.input) == ("shop", broker, topic)
    assert str(stream.identity) == "field:event_id"
    assert run(["init", topic, "--bootstrap", broker]) == 2
    assert "already exists" in capsys.readouterr().err
    assert run(["init", "--bootstrap", broker, "--output", "other.toml"]) == 2
    assert "the topic is not named" in capsys.readouterr().err
    assert run(["init", "--output", "other.toml"]) == 2  # with the address of ratchet.toml
    assert "the topic is not named" in capsys.readouterr().err
    empty = new_topic(1)
    assert run(["init", empty, "--bootstrap", broker, "--output", "other.toml"]) == 2
    assert "too few" in capsys.readouterr().err
    assert not Path("other.toml").exists()
    Path("ratchet.toml").unlink()
    assert run(["init", topic, "--output", "other.toml"]) == 2
    assert "--bootstrap is missing" in capsys.readouterr().err
    monkeypatch.setenv("RATCHET_BOOTSTRAP", broker)
    assert run(["init", topic, "--output", "other.toml"]) == 0
    assert load(Path("other.toml")).bootstrap == broker
