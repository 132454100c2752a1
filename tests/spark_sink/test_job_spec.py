"""One document says what a job does, whoever says it: settings, a command line, or the document itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from kafka_ratchet.app.cli.sink import sink
from kafka_ratchet.app.settings import Settings, SinkSettings, StreamSettings
from kafka_ratchet.app.status.result_view import ResultsView
from kafka_ratchet.app.status.results import access_of, spec_of
from kafka_ratchet.app.verify.results import ResultTable
from kafka_ratchet.errors import SetupError
from kafka_ratchet.spark_sink.cli import EXIT_REFUSED, main
from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.job.access import Access
from kafka_ratchet.spark_sink.job.spec import JobSpec
from kafka_ratchet.spark_sink.options import job_spec, option_parser
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline

BOOTSTRAP, TOPIC = "127.0.0.1:1", "out"


def settings(**kept: Any) -> Settings:
    stream = StreamSettings(input="in", output=TOPIC, dead_letters="dead")
    return Settings(bootstrap=BOOTSTRAP, streams={"events": stream}, sink=SinkSettings(**kept))


def options(**kept: Any) -> list[str]:
    words = [f"--bootstrap={BOOTSTRAP}", f"--topic={TOPIC}", "--other-topic=in", "--name=results"]
    words += ["--path=ratchet-results"]
    for name, value in kept.items():
        option = f"--{name.replace('_', '-')}".replace("--sums", "--sum")
        values = value if isinstance(value, tuple) else [value]
        words += [option if each is True else f"{option}={each}" for each in values]
    return words


SAME: list[dict[str, Any]] = [
    {},
    {"format": "json", "columns": "who string, amount long", "rejects": True, "kind": "totals",
     "key": ("who", "_kafka_key"), "sums": ("amount",), "store": "duckdb", "table": 'a "b"; --=c'},
    {"avro_schema": '{"type": "record"}', "avro_id": 7, "keep_value": True, "sql": "SELECT 'é=--job' FROM records"},
    {"columns": "who string", "evolve": "add", "store": "postgres"},
    {"transform": "app.rules:sequence", "metrics_port": 0, "metrics_host": "::1", "metrics_file": "f of x.prom",
     "format": "bytes"},
]  # fmt: skip


@pytest.mark.parametrize("kept", SAME)
def test_settings_and_options_give_the_same_spec_and_json_keeps_it(kept: dict[str, Any]) -> None:
    of_settings = spec_of(settings(**kept), TOPIC, BOOTSTRAP)
    assert job_spec(options(**kept)) == of_settings
    assert job_spec(["--job", of_settings.as_json()]) == of_settings
    assert job_spec([f"--job={of_settings.as_json()}"]) == of_settings


def test_what_a_run_is_told_beside_the_settings_is_in_it_too() -> None:
    told = spec_of(settings(), TOPIC, BOOTSTRAP, mode="stream", interval_s=2.5, max_records=9)
    assert job_spec(options(interval=2.5, mode="stream", max_records=9)) == told
    more = job_spec(
        [
            *options(second_job=True),
            "--kafka-option=a=b=c",
            "--spark-kafka-option=x=",
            "--scratch=x y",
            "--jars=a,b",
            "--json",
        ]
    )
    assert (more.kafka_options, more.spark_kafka_options) == ({"a": "b=c"}, {"x": ""})
    assert (more.scratch, more.jars, more.print_json, more.second_job) == ("x y", ("a", "b"), True, True)
    assert spec_of(settings(), TOPIC, BOOTSTRAP, second_job=True).job(RowPipeline(), Access()).second_job
    assert JobSpec.from_json(more.as_json()) == more


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"format": "json"}, "format json needs columns"),
    ({"format": "avro"}, "format avro needs a schema"),
    ({"format": "bytes", "columns": "n int"}, "format bytes takes no columns"),
    ({"avro_id": 7}, "needs the Avro schema as well"),
    ({"format": "protobuf"}, "format protobuf needs a schema registry"),
    ({"schema_record": "shop.Order"}, "need a schema registry"),
    ({"sql": "SELECT 1", "transform": "m:f"}, "sql and transform are both given"),
]


@pytest.mark.parametrize(("kept", "sentence"), CONTRADICTIONS)
async def test_what_contradicts_itself_is_refused_by_job_command_page_and_verify(
    kept: dict[str, Any], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options(**kept)) == EXIT_REFUSED
    said = capsys.readouterr().err
    assert said.startswith("refused: ")
    assert sentence in said
    whole = {**json.loads(job_spec(options()).as_json()), **kept}
    with pytest.raises(OptionRefused, match=sentence):
        job_spec(["--job", json.dumps(whole)])
    page = await ResultsView(BOOTSTRAP, settings(**kept)).latest()
    assert page is not None
    assert sentence in (page.error or "")
    with pytest.raises(SetupError, match=sentence):
        ResultTable(settings(**kept), TOPIC, BOOTSTRAP, lambda: pytest.fail("Spark was started"))
    file = tmp_path / "settings.toml"
    lines = [f"{name} = {json.dumps(value)}" for name, value in kept.items()]
    file.write_text(
        f'bootstrap = "{BOOTSTRAP}"\n[streams.events]\ninput = "in"\noutput = "out"\ndead_letters = "dead"\n[sink]\n'
        + "\n".join(lines),
        "utf-8",
    )
    done = CliRunner().invoke(sink, ["--config", str(file)])
    assert done.exit_code == EXIT_REFUSED
    assert done.output.startswith("refused: ")
    assert sentence in done.output


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("[]", "--job is not a JSON object"),
        ("{", "--job is not a JSON object"),
        ('{"bootstrap": "b", "topic": "t"}', "--job: the key name is missing"),
        ('{"bootstrap": "b", "topic": "t", "name": "n", "shop": 1}', "'shop' is unknown"),
        ('{"bootstrap": "b", "topic": "t", "name": 1}', "name: expected str, not int"),
        ('{"bootstrap": "b", "topic": "t", "name": "n", "key": "who"}', r"key: expected tuple\[str, ...\], not str"),
        ('{"bootstrap": "b", "topic": "t", "name": "n", "rejects": 1}', "rejects: expected bool, not int"),
        ('{"bootstrap": "b", "topic": "t", "name": "n", "max_records": true}', "max_records: expected int, not bool"),
        (
            '{"bootstrap": "b", "topic": "t", "name": "n", "max_records": 0}',
            "max_records 0 is out of range: write a number from 1",
        ),
        ('{"bootstrap": "b", "topic": "t", "name": "n", "interval_s": NaN}', "interval_s nan is out of range"),
        (
            '{"bootstrap": "b", "topic": "t", "name": "n", "store": "shelf"}',
            "store 'shelf' is unknown; write one of delta, postgres",
        ),
        (
            '{"bootstrap": "b", "topic": "t", "name": "n", "mode": "fast"}',
            "mode 'fast' is unknown; write one of batch, stream",
        ),
    ],
)
def test_a_document_that_cannot_be_right_is_refused(document: str, sentence: str) -> None:
    with pytest.raises(OptionRefused, match=sentence):
        job_spec(["--job", document])


def test_the_document_stands_alone() -> None:
    with pytest.raises(OptionRefused, match="replaces all other options"):
        job_spec(["--job", "{}", "--rejects"])


def test_secrets_are_in_the_environment_and_not_in_the_document() -> None:
    secret = "s3cret-of-the-test"  # noqa: S105
    told = settings(
        store="postgres",
        url=SecretStr(f"postgresql://u:{secret}@h/d"),
        password=SecretStr(secret),
        storage_options={"aws_secret_access_key": SecretStr(secret)},
        catalog={"uri": SecretStr(secret)},
    ).model_copy(update={"kafka": {"sasl.password": secret, "socket.keepalive.enable": True}})
    spec, access = spec_of(told, TOPIC, BOOTSTRAP), access_of(told)
    assert secret not in spec.as_json() + repr(spec) + repr(access) + repr(spec.location(access))
    assert Access.from_environment(access.as_environment()) == access
    assert access.kafka["socket.keepalive.enable"] == "true"
    assert str(spec.location(access)) == "results"


@pytest.mark.parametrize(
    ("kept", "sentence"),
    [
        ({}, "a format: avro, protobuf or json"),
        ({"format": "bytes"}, "a format: avro, protobuf or json"),
        ({"format": "avro", "avro_id": 7}, "Remove avro_id"),
        ({"format": "json", "columns": "infer"}, "registry that gives the columns"),
        ({"format": "json", "avro_schema": "{}"}, "takes its columns from the Avro schema"),
    ],
)
def test_what_contradicts_a_schema_registry(kept: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionRefused, match=sentence):
        JobSpec(BOOTSTRAP, TOPIC, "job", schema_registry=True, **kept)
    with pytest.raises(OptionRefused, match=sentence):
        spec_of(settings(schema_registry="http://127.0.0.1:1", **kept), TOPIC, BOOTSTRAP)


def test_a_schema_registry_of_the_settings_is_the_jobs_and_its_subject_that_of_the_producers() -> None:
    kept = settings(
        schema_registry="http://me:password-1@127.0.0.1:1",
        schema_registry_options={"basic.auth.user.info": "me:password-2"},
        format="protobuf",
        rejects=True,
    )
    spec = spec_of(kept, TOPIC, BOOTSTRAP, mode="structured")
    assert JobSpec.from_json(spec.as_json()) == spec
    assert "password" not in spec.as_json()
    given = Access.from_environment(access_of(kept).as_environment())
    assert given.registry == {"url": "http://me:password-1@127.0.0.1:1", "basic.auth.user.info": "me:password-2"}
    pipeline = spec.pipeline(given)
    assert pipeline.infers
    assert pipeline.registry is not None
    assert pipeline.registry.subject == "in-value"
    with pytest.raises(OptionRefused, match="from_input does not read values of a schema registry"):
        JobSpec(BOOTSTRAP, TOPIC, "job", schema_registry=True, format="avro", from_input=True)
    with pytest.raises(OptionRefused, match="Choose mode stream"):
        spec_of(
            settings(schema_registry="http://x", format="avro", sql="SELECT 1"), TOPIC, BOOTSTRAP, mode="structured"
        )
    assert option_parser().parse_args(["--bootstrap=b", "--topic=t", "--name=n", "--schema-registry"]).schema_registry
