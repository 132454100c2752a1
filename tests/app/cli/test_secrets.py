"""No value below sink and kafka is ever written: canaries in all of them, every kind of error, and all output read."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_ratchet.app.cli import run
from kafka_ratchet.app.local.ports import free_port
from kafka_ratchet.app.log_setup import configure
from kafka_ratchet.app.settings import Settings, SinkSettings, load
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.producers import Producer
from kafka_ratchet.spark_sink.job.access import Access
from kafka_ratchet.spark_sink.secrets import hidden, keep

ROOT = Path(__file__).parents[3]
CANARY = "canary-7f3a%9b/c"
WORD = "canary7f3a9b"
"""Secret for places where a slash or a per cent sign would be another mistake."""

STREAM = """
[streams.orders]
input = "in"
output = "out"
dead_letters = "dead"
identity = "key"
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def is_silent(text: str) -> bool:
    return not any(each in text for each in ("canary", CANARY, WORD))


def refused_text(**values: Any) -> str | None:
    try:
        load(**values)
    except SettingsError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", sorted(SinkSettings.model_fields))
def test_a_setting_of_the_sink_is_refused_without_its_value(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0
    for value in (CANARY, [CANARY], {"x": CANARY}, [[CANARY]], {"x": [CANARY]}):
        texts = [refused_text(sink={name: value})]
        Path("ratchet.toml").write_text(f"[sink]\n{name} = {_toml(value)}\n")
        texts.append(refused_text())
        Path("ratchet.toml").unlink()
        given = value if isinstance(value, str) else json.dumps(value)
        monkeypatch.setenv(f"RATCHET_SINK__{name.upper()}", given)
        texts.append(refused_text())
        monkeypatch.setenv("RATCHET_SINK", json.dumps({name: value}))
        texts.append(refused_text())
        monkeypatch.delenv("RATCHET_SINK")
        monkeypatch.delenv(f"RATCHET_SINK__{name.upper()}")
        for text in filter(None, texts):
            refused += 1
            assert is_silent(text), text
            assert f"sink.{name}" in text or "RATCHET_SINK" in text
    assert refused


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + "}"
    return json.dumps(value)


def test_whole_sections_and_addresses_with_a_password_are_refused_without_their_text() -> None:
    for values in (
        {"sink": CANARY},
        {"kafka": CANARY},
        {"kafka": [CANARY]},
        {"kafka": {"sasl.password": [CANARY]}},
        {"kafka": {"a": {"b": None, "c": CANARY}}},
        {"bootstrap": f"user:{CANARY}@host:9092"},
    ):
        text = refused_text(**values)
        assert text is not None
        assert is_silent(text), text


def test_settings_show_none_of_them_when_they_are_printed() -> None:
    sink: dict[str, Any] = {name: CANARY for name in ("url", "password", "path", "sql", "columns")}
    sink |= {"storage_options": {"K": CANARY}, "catalog": {"uri": CANARY}}
    settings = load(kafka={"sasl.password": CANARY, "client.id": WORD}, sink=sink)
    for text in (repr(settings), str(settings), repr(settings.sink), str(settings.sink), f"{settings!r:.10000}"):
        assert is_silent(text), text
    with pytest.raises(ValueError, match="kafka") as refused:
        Settings(kafka={"sasl.password": [CANARY]}, sink={"url": [CANARY]})  # type: ignore[arg-type, dict-item]
    assert is_silent(str(refused.value))


OPTIONS = [
    {"security.protocol": WORD},
    {"sasl.mechanism": WORD, "security.protocol": "SASL_PLAINTEXT"},
    {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.config": WORD, "security.protocol": "SASL_PLAINTEXT"},
    {"no.such.option": WORD},
    {"socket.timeout.ms": WORD},
    {"ssl.ca.location": f"/{WORD}", "security.protocol": "SSL"},
    {"ssl.key.pem": WORD, "security.protocol": "SSL"},
    {"ssl.key.location": f"/{WORD}", "ssl.key.password": WORD, "security.protocol": "SSL"},
    {"sasl.username": WORD, "sasl.password": WORD, "sasl.mechanism": "PLAIN", "security.protocol": "SASL_PLAINTEXT"},
]
COMMANDS = [
    ["tables"],
    ["policy", "get"],
    ["producers"],
    ["verify"],
    ["sink", "status"],
    ["worker"],
    ["publish", "lines.txt", "--producer", "p"],
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda each: "+".join(each))
def test_client_options_end_in_a_sentence_without_their_values(
    options: dict[str, str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown options and OAUTHBEARER, with every command that makes a client."""
    monkeypatch.setattr("kafka_ratchet.app.local.connectivity.REFUSED_FOR_S", 0.2)
    pairs = "".join(f'"{name}" = {json.dumps(value)}\n' for name, value in options.items())
    Path("ratchet.toml").write_text(
        f'bootstrap = "127.0.0.1:{free_port()}"\nkafka_timeout_s = 0.3\n{STREAM}[kafka]\n{pairs}'
    )
    Path("lines.txt").write_text("one\n")
    for command in COMMANDS:
        assert run(command) == 2, command
        out, err = capfd.readouterr()
        assert is_silent(out + err), (command, out, err)
        assert "Traceback" not in err
        # A client that an earlier test has left behind may write a line of its own in between.
        said = [line for line in err.splitlines() if not line.startswith("%")]
        assert said, command
        assert said[0].startswith("ratchet: ") or "Kafka at" in err, (command, err)


def test_the_producer_as_a_library_names_the_option_and_not_its_value() -> None:
    with pytest.raises(SettingsError, match=r"kafka\.security\.protocol") as refused:
        Producer("t", "p", options={"bootstrap.servers": "127.0.0.1:1", "security.protocol": WORD}, timeout_s=1)
    assert is_silent(str(refused.value))


@pytest.mark.parametrize("dsn", [WORD, f"password={WORD} {WORD}", f"password = '{WORD}' {WORD}", f"host={WORD}"])
def test_the_connection_string_of_a_reader_is_read_and_not_written(
    dsn: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """libpq quotes the word that it cannot parse, and a word may be the password."""
    monkeypatch.setenv("RATCHET_READER_DSN", dsn)
    assert run(["reader", "status", "--store", "postgres"]) == 2
    out, err = capfd.readouterr()
    assert ("the connection string is invalid" in err) or ("bootstrap is missing" in err)
    assert is_silent(out + err), err


STORES = [
    {"store": "postgres", "url": f"postgresql://u:{WORD}@127.0.0.1:1/db"},
    {"store": "postgres", "url": f"postgresql://u:{WORD}@[bad"},
    {"store": "postgres", "url": f"{WORD}"},
    {"store": "postgres", "url": "postgresql://u@127.0.0.1:1/db", "password": WORD},
    {"store": "postgres", "url": f"postgresql://u@127.0.0.1:1/db?options={WORD}&nonsense={WORD}"},
    {"store": "iceberg", "catalog": {"type": WORD}},
    {"store": "iceberg", "catalog": {"type": "sql", "uri": f"postgresql+psycopg://u:{WORD}@127.0.0.1:1/db"}},
    {"store": "iceberg", "catalog": {"type": "sql", "uri": WORD, "warehouse": "w"}},
    {"store": "delta", "path": "s3://b/f", "storage_options": {"nonsense": WORD}},
]


@pytest.mark.parametrize("sink", STORES, ids=lambda each: f"{each['store']}-{list(each)[1]}")
def test_stores_that_cannot_be_reached_are_named_without_their_secrets(
    sink: dict[str, Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(f"{name} = {_toml(value)}\n" for name, value in sink.items())
    Path("ratchet.toml").write_text(f"{STREAM}[sink]\n{lines}")
    assert run(["sink", "vacuum", "--dry-run"]) in {0, 2}
    out, err = capfd.readouterr()
    assert is_silent(out + err), (out, err)
    assert "Traceback" not in err

    # The job itself is another process, which gets them through its environment.
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("RATCHET_")},
        "PYTHONPATH": str(ROOT),
        "SPARK_SINK_URL": sink.get("url", ""),
        "SPARK_SINK_PASSWORD": sink.get("password", ""),
        "SPARK_SINK_STORAGE_OPTIONS": json.dumps(sink.get("storage_options", {})),
        "SPARK_SINK_CATALOG": json.dumps(sink.get("catalog", {})),
        "SPARK_SINK_KAFKA_OPTIONS": json.dumps({"security.protocol": WORD}),
    }
    arguments = ["--bootstrap=127.0.0.1:1", "--topic=t", f"--store={sink['store']}", f"--path={sink.get('path', 'x')}"]
    job = subprocess.run(
        [sys.executable, "-m", "kafka_ratchet.spark_sink", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert job.returncode == 2, job.stderr
    assert is_silent(job.stdout + job.stderr), job.stderr
    assert "Traceback" not in job.stderr


def test_what_a_library_quotes_is_hidden_in_log_lines_and_tracebacks(capfd: pytest.CaptureFixture[str]) -> None:
    load(sink={"url": f"postgresql://u:{WORD}@h/db"}, kafka={"sasl.password": CANARY})
    configure("info")
    try:
        raise RuntimeError(f"cannot log in with {CANARY!r} at postgresql://u:{WORD}@h/db")
    except RuntimeError:
        logging.getLogger("library").exception("failed with %s", CANARY)
    told = capfd.readouterr().err
    assert "RuntimeError: cannot log in with '***' at ***" in told
    assert is_silent(told)

    code = (
        "import threading; from kafka_ratchet.spark_sink.secrets import *; keep(['canary-long']); "
        "hide_in_tracebacks()\ndef fail(): raise RuntimeError('canary-long')\n"
        "thread = threading.Thread(target=fail); thread.start(); thread.join(); fail()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.count("RuntimeError: ***") == 2


def test_options_of_sparks_client_are_hidden_as_those_of_the_drivers() -> None:
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{CANARY}";'
    Access(spark_kafka={"sasl.jaas.config": login, "sasl.mechanism": "SCRAM-SHA-512"}).hide()
    assert hidden(f"cannot log in: {login}, SCRAM-SHA-512") == "cannot log in: ***, SCRAM-SHA-512"


def test_short_values_do_not_make_every_text_unreadable() -> None:
    keep(["a", "true", None, "delta"])
    assert hidden("a true delta") == "a true delta"
