"""`ratchet sink`: settings in, the job as a child, its exit code out."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from confluent_kafka import Producer
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from typer.testing import CliRunner

from kafka_ratchet.app.cli.sink import sink
from kafka_ratchet.app.settings import load
from kafka_ratchet.errors import SetupError


@pytest.fixture
def ratchet() -> typer.Typer:
    return sink


@pytest.fixture
def settings_file(broker: str, new_topic: Callable[..., str], table: str, tmp_path: Path) -> Path:
    path = tmp_path / "settings of --name=x.toml"
    path.write_text(
        f"""
        bootstrap = {json.dumps(broker)}
        [kafka]
        "client.id" = "a b=c"
        "socket.keepalive.enable" = true
        [streams.events]
        input = "in"
        output = "{new_topic()}"
        dead_letters = "dead"
        [sink]
        path = {json.dumps(table, ensure_ascii=False)}
        columns = "who string, n long"
        """,
        "utf-8",
    )
    return path


def test_the_stream_of_the_settings_is_read(
    ratchet: typer.Typer, settings_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = CliRunner().invoke(ratchet, ["--config", str(settings_file), "--json"])
    assert done.exit_code == 0, done.output
    said = capfd.readouterr()
    assert json.loads(said.out.splitlines()[-1])["offsets"] == {}
    assert "is up to date: 0 rows added" in said.err


def test_the_exit_code_is_the_jobs(
    ratchet: typer.Typer, settings_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings_file.write_text(settings_file.read_text("utf-8").replace('output = "', 'output = "x-'), "utf-8")
    done = CliRunner().invoke(ratchet, ["--config", str(settings_file)])
    assert done.exit_code == 2
    assert "refused: topic x-" in capfd.readouterr().err


def test_what_values_are_is_told_to_the_job(
    ratchet: typer.Typer, settings_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    more = '\nformat = "avro"\navro_schema = "nowhere.avsc"\navro_id = 7\n'
    settings_file.write_text(settings_file.read_text("utf-8").replace("columns = ", "# ") + more, "utf-8")
    assert CliRunner().invoke(ratchet, ["--config", str(settings_file)]).exit_code == 2
    assert "refused: avro schema 'nowhere.avsc': the file cannot be read" in capfd.readouterr().err


def test_status_says_what_is_left_to_read_and_takes_nothing_over(
    ratchet: typer.Typer, settings_file: Path, write: Callable[..., None], table: str
) -> None:
    topic = tomllib.loads(settings_file.read_text("utf-8"))["streams"]["events"]["output"]
    write(topic, [b"x"] * 9, 1)
    for _ in range(2):
        asked = CliRunner().invoke(ratchet, ["status", "--config", str(settings_file), "--json"])
        assert asked.exit_code == 0, asked.output
        told = json.loads(asked.output.splitlines()[-1])
        assert (told["store"], told["topic"], told["generation"], told["lag"]) == ("delta", topic, 0, 10)
        oldest_s = told["partitions"]["1"].pop("lag_s")
        assert 0 < oldest_s == told["lag_s"] < 600
        assert told["partitions"]["1"] == {"offset": None, "end": 10, "lag": 10}
        assert told["partitions"]["0"] == {"offset": None, "end": 0, "lag": 0, "lag_s": 0.0}
    shown = CliRunner().invoke(ratchet, ["status", "--config", str(settings_file)])
    assert "10 offsets left to read" in " ".join(shown.output.split())
    assert re.search(r"missing in the table is \d+\.\d s old", " ".join(shown.output.split()))
    assert not Path(table).exists()


def test_status_names_the_open_transaction_that_rows_wait_for(
    ratchet: typer.Typer,
    settings_file: Path,
    write: Callable[..., None],
    broker: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kafka_ratchet.app.status.open_transactions.STALLED_AFTER_S", 0.0)
    topic = tomllib.loads(settings_file.read_text("utf-8"))["streams"]["events"]["output"]
    foreign = Producer(
        {"bootstrap.servers": broker, "transactional.id": f"foreign-{topic}", "transaction.timeout.ms": 600_000}
    )
    foreign.init_transactions(30)
    foreign.begin_transaction()
    foreign.produce(topic, b"x", partition=1)
    assert foreign.flush(30) == 0
    config = ["--config", str(settings_file)]
    asked = CliRunner().invoke(ratchet, ["status", *config, "--json"])
    assert asked.exit_code == 0, asked.output
    told = json.loads(asked.output.splitlines()[-1])
    partition = told["partitions"]["1"]
    assert 0 < partition.pop("lag_s") < 600
    assert (partition, told["lag"]) == ({"offset": None, "end": 1, "stable_end": 0, "blocked": 1, "lag": 1}, 1)
    assert [each["transactions"][0]["transactional_id"] for each in told["open_transactions"]] == [f"foreign-{topic}"]
    shown = " ".join(CliRunner().invoke(ratchet, ["status", *config]).output.split())
    assert f"1 offsets, from 0 on, wait for an open transaction (transactional id 'foreign-{topic}'" in shown
    foreign.abort_transaction(30)


def test_status_of_several_sinks_is_a_list_and_one_that_cannot_be_asked_hides_no_other(
    ratchet: typer.Typer, settings_file: Path, tmp_path: Path
) -> None:
    more = f"""
        [sinks.second]
        store = "duckdb"
        path = {json.dumps(str(tmp_path / "second.duckdb"))}
        [sinks.third]
        path = {json.dumps(str(settings_file))}
        name = "old-name"
        """
    settings_file.write_text(settings_file.read_text("utf-8") + more, "utf-8")
    config = ["--config", str(settings_file)]
    asked = CliRunner().invoke(ratchet, ["status", *config, "--json"])
    assert asked.exit_code == 2
    first, second, third = json.loads(asked.stdout.splitlines()[-1])
    assert [(each["sink"], each["job"], each["store"]) for each in (first, second, third)] == [
        ("results", "results", "delta"),
        ("second", "second", "duckdb"),
        ("third", "old-name", "delta"),
    ]
    assert (second["generation"], second["lag"]) == (0, 0)
    assert "is a file, not the folder of a Delta table" in third["error"]
    shown = " ".join(CliRunner().invoke(ratchet, ["status", *config]).output.split())
    assert "sink second, job second, topic " in shown
    one = CliRunner().invoke(ratchet, ["status", "second", *config, "--json"])
    assert (one.exit_code, json.loads(one.output.splitlines()[-1])["job"]) == (0, "second")


def test_vacuum_needs_a_table_and_neither_kafka_nor_spark(
    ratchet: typer.Typer, settings_file: Path, table: str
) -> None:
    settings_file.write_text(settings_file.read_text("utf-8").replace("bootstrap = ", "bootstrap = '127.0.0.1:1' # "))
    nothing = CliRunner().invoke(ratchet, ["vacuum", "--config", str(settings_file)])
    assert isinstance(nothing.exception, SetupError)
    assert "there is no result table" in str(nothing.exception)
    DeltaTable.create(table, schema=Schema([Field("who", PrimitiveType("string"))]))
    done = CliRunner().invoke(ratchet, ["vacuum", "--config", str(settings_file), "--dry-run", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told == {"store": "delta", "table": table, "dry_run": True, "count": 0, "bytes": 0, "names": []}


def test_a_password_is_never_printed(ratchet: typer.Typer, settings_file: Path) -> None:
    more = '\nstore = "postgres"\nurl = "postgresql://someone:s3cret@127.0.0.1:1/x"\npassword = "s3cret"\n'
    settings_file.write_text(settings_file.read_text("utf-8") + more, "utf-8")
    asked = CliRunner().invoke(ratchet, ["status", "--config", str(settings_file)])
    assert asked.exit_code != 0
    assert isinstance(asked.exception, SetupError)
    assert "results in 127.0.0.1/x: " in str(asked.exception)
    assert "s3cret" not in str(asked.exception) + asked.output + repr(load(settings_file))
