"""The job's command line: what it takes, and how it says what went wrong."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kafka_ratchet.spark_sink
from kafka_ratchet.spark_sink.cli import EXIT_FENCED, EXIT_OK, EXIT_REFUSED, main
from kafka_ratchet.spark_sink.errors import Fenced, TablePutBack
from kafka_ratchet.spark_sink.job.access import CLIENT_VARIABLE
from kafka_ratchet.spark_sink.job.run_state import RunSummary


@pytest.fixture
def arguments(broker: str, new_topic: Callable[..., str], table: str) -> list[str]:
    return [f"--bootstrap={broker}", f"--topic={new_topic()}", f"--path={table}", "--name=job"]


def test_an_empty_run_is_done(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--json"]) == EXIT_OK
    assert capsys.readouterr().out.startswith('{"rows": 0, "commits": 0, "offsets": {}')


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--name=Über"], "job name 'Über'"),
        (["--path=gs://bucket/t"], "write s3://bucket/folder"),
        (["--kafka-option=no-value"], "--kafka-option no-value: write the option as name=value"),
        (["--kafka-option=sasl.oauthbearer.config=x"], "sasl.oauthbearer.config"),
        (["--kafka-option=nonsense=1"], 'No such configuration property: "nonsense"'),
        (["--topic=nowhere"], "topic nowhere does not exist"),
        (["--format=json"], "format json needs columns"),
        (["--format=avro"], "format avro needs a schema"),
        (["--format=bytes", "--columns=n int"], "format bytes takes no columns"),
        (["--format=avro", "--columns=n int", "--avro-schema={}"], "format avro takes no columns"),
        (["--format=json", "--columns=infer", "--avro-schema={}"], "format json takes no Avro schema"),
        (["--avro-id=7"], "needs the Avro schema as well"),
        (["--avro-schema=nowhere.avsc"], "the file cannot be read"),
        (["--transform=nowhere:f"], "No module named 'nowhere'"),
    ],
)
def test_refusals(arguments: list[str], more: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, *more]) == EXIT_REFUSED
    said = capsys.readouterr().err
    assert said.startswith("refused: ")
    assert sentence in said


def test_options_with_secrets_come_from_the_environment(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CLIENT_VARIABLE, '{"client.id": "from-the-variable", "socket.keepalive.enable": true}')
    assert main(arguments) == EXIT_OK
    monkeypatch.setenv(CLIENT_VARIABLE, '{"sasl.password": pa55w0rd}')
    assert main(arguments) == EXIT_REFUSED
    assert "pa55w0rd" not in capsys.readouterr().err


def test_fenced_has_an_exit_code_of_its_own(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fenced(*_: object) -> RunSummary:
        raise Fenced("generation 2 has taken over from 1")

    monkeypatch.setattr("kafka_ratchet.spark_sink.cli.run_batch", fenced)
    assert main(arguments) == EXIT_FENCED
    assert capsys.readouterr().err == "fenced: generation 2 has taken over from 1\n"


def test_a_table_that_was_put_back_has_the_exit_code_after_which_a_unit_starts_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def put_back(_: object) -> None:
        raise TablePutBack("the table was put back to an earlier state")

    monkeypatch.setattr("kafka_ratchet.spark_sink.cli._run", put_back)
    assert main(["--bootstrap=b:1", "--topic=t", "--path=p", "--name=job"]) == EXIT_REFUSED
    assert capsys.readouterr().err == "refused: the table was put back to an earlier state\n"


def test_the_package_imports_nothing_of_the_other_packages() -> None:
    allowed = {*sys.stdlib_module_names, "pyspark", "pyarrow", "confluent_kafka", "rich"}
    allowed |= {"deltalake", "psycopg", "pymysql", "duckdb", "pyiceberg", "sqlalchemy"}  # each in its own store
    allowed |= {"google", "httpx2", "jsonschema", "referencing"}  # with a schema registry
    allowed |= {"numpy", "py4j"}  # come with the extra spark
    allowed |= {"prometheus_client"}  # where metrics are asked for
    for module in Path(kafka_ratchet.spark_sink.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            ours = {name for name in names if name.split(".")[0] == "kafka_ratchet"}
            assert {".".join(name.split(".")[:2]) for name in ours} <= {
                "kafka_ratchet.spark_sink",
                "kafka_ratchet.rule",
            }, module
            assert {name.split(".")[0] for name in {*names} - ours} <= allowed, module


@pytest.mark.parametrize(
    ("more", "is_written"),
    [
        (["--mode=batch"], True),
        (["--mode=stream"], False),
        (["--mode=structured"], False),
        (["--mode=replay", "--start=earliest", "--until=stored"], False),
    ],
)
def test_only_a_batch_run_writes_its_metrics_to_a_file(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], is_written: bool
) -> None:
    """The file of a stream that was stopped once would tell of a run that ended long ago, for ever."""
    for mode in ("batch", "stream", "replay", "structured"):
        monkeypatch.setattr(f"kafka_ratchet.spark_sink.cli.run_{mode}", lambda *_, **__: RunSummary(0, 0, {}))
    monkeypatch.setattr("kafka_ratchet.spark_sink.cli.signal.signal", lambda *_: None)
    file = tmp_path / "sink.prom"
    assert main([*arguments, *more, f"--metrics-file={file}"]) == EXIT_OK
    assert file.exists() == is_written
