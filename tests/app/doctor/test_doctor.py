"""`ratchet doctor`: what it says of a place that is fine, of one that is not, and that it changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kafka_ratchet.app.cli import run
from kafka_ratchet.app.doctor.findings import Mark
from kafka_ratchet.app.doctor.run import diagnose
from tests.spark_sink.schema_registries import OurRegistry

STREAM = '[streams.events]\ninput = "{0}"\noutput = "{1}"\ndead_letters = "{2}"\n'


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def told(capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(capfd.readouterr().out)
    return answer


def test_settings_that_are_not_valid(capfd: pytest.CaptureFixture[str]) -> None:
    Path("ratchet.toml").write_text('colour = "red"\n')
    assert run(["doctor", "--json"]) == 2
    answer = told(capfd)
    assert answer["checks"][0]["mark"] == "error"
    assert answer["checks"][0]["sentence"].startswith("colour: there is no such setting")
    assert {each["mark"] for each in answer["checks"][1:]} == {"not checked"}
    assert answer.keys() == {"version", "exit_code", "counts", "checks"}


def test_a_kafka_that_does_not_answer_and_where_settings_come_from(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_ratchet.app.local.connectivity.REFUSED_FOR_S", 0.2)
    monkeypatch.setenv("RATCHET_APP", "shop")
    Path("ratchet.toml").write_text('bootstrap = "127.0.0.1:1"\n' + STREAM.format("i", "o", "d"))
    assert run(["doctor"]) == 2
    said = capfd.readouterr().out
    assert "app: variable RATCHET_APP" in said
    assert "streams.events.input: file ratchet.toml" in said
    assert "Kafka at 127.0.0.1:1 does not answer" in said
    assert "not checked: Kafka does not answer" in said
    assert "GiB are free" in said
    assert not Path("ratchet-state").exists()


def test_a_schema_registry_that_answers_and_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_ratchet.app.local.connectivity.REFUSED_FOR_S", 0.2)
    registry = OurRegistry()
    sink = f"[sink]\nformat = 'avro'\nschema_registry = '{registry.url}'\n"
    sink += "schema_registry_options = {'max.retries' = '0'}\n"
    Path("ratchet.toml").write_text('bootstrap = "127.0.0.1:1"\n' + STREAM.format("i", "o", "d") + sink)
    assert f"sink results: the schema registry at {registry.url} answers" in sinks_of_doctor()
    registry.stop()
    assert f"sink results: schema registry {registry.url} does not answer (ConnectError: " in sinks_of_doctor()


def sinks_of_doctor() -> str:
    return "\n".join(each.sentence for each in diagnose() if each.check == "sinks")


def test_topics_that_fit_and_topics_that_do_not(
    broker: str, new_topic: Callable[..., str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    topics = [new_topic(2), new_topic(2), new_topic(2)]
    head = f'app = "{topics[0]}"\nbootstrap = "{broker}"\n'
    Path("ratchet.toml").write_text(head + STREAM.format(*topics))
    admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
    before = set(admin.list_topics(timeout=30).topics)
    assert run(["doctor", "--json"]) == 0
    answer = told(capfd)
    assert answer["counts"]["error"] == 0
    assert "stream events: 3 of its topics exist, each with 2 partitions" in [
        each["sentence"] for each in answer["checks"]
    ]

    wrong = [new_topic(1), topics[1], f"{topics[2]}-missing"]
    more = "create_topics = false\ntransaction_timeout_ms = 900000\n"
    Path("ratchet.toml").write_text(head + more + STREAM.format(*wrong))
    findings = diagnose()
    errors = " ".join(each.sentence for each in findings if each.mark is Mark.ERROR)
    assert "partition counts differ" in errors
    assert f"there are no topics {wrong[2]}; create_topics is false" in errors
    assert run(["doctor", "--json"]) == 1
    assert before | {wrong[0]} == set(admin.list_topics(timeout=30).topics)
    assert not (tmp_path / "ratchet-state").exists()


def test_what_is_written_is_kept_as_long_as_the_input(broker: str, new_topic: Callable[..., str]) -> None:
    day, old, stamped = 24 * 3600 * 1000, {"retention_ms": 3600_000}, {"message_timestamp_type": "LogAppendTime"}
    topics = [new_topic(2, retention_ms=day), new_topic(2, **old), new_topic(2, **old, **stamped)]
    Path("ratchet.toml").write_text(f'app = "{topics[0]}"\nbootstrap = "{broker}"\n' + STREAM.format(*topics))
    (said,) = [each for each in diagnose() if "retention" in each.sentence]
    assert said.mark is Mark.WARNING
    assert said.sentence.startswith(f"{topics[1]}: its retention.ms is 3600000, and that of the stream's input {day}")
    assert f"Set retention.ms={day} on the topic" in said.sentence
