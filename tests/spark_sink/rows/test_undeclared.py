"""Fields that the columns do not name: said with their names at the first commit, or the value is kept whole."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from pyspark.sql import SparkSession

from kafka_ratchet.spark_sink.job.job import run_batch
from kafka_ratchet.spark_sink.job.metrics import write_file
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.run_log import log_run
from kafka_ratchet.spark_sink.job.run_state import RunState, RunSummary
from kafka_ratchet.spark_sink.rows.avro.avro import avro_values
from kafka_ratchet.spark_sink.rows.columns import record_schema
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline, sql_transform
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from tests.spark_sink.sites import LOCAL, Site, params

Write = Callable[..., None]
Ingest = Callable[..., tuple[RunSummary, RunState]]

ONE_SITE = pytest.mark.parametrize("site", ["delta"], indirect=True)
KEYED = pytest.mark.parametrize(
    "site",
    [*params(*LOCAL, "postgres"), pytest.param("mysql", marks=pytest.mark.long)],
    indirect=True,
)


@pytest.fixture
def ingested(broker: str, spark: SparkSession, site: Site) -> Ingest:
    """ingested(topic, pipeline) runs the batch job into the site, and returns what it has counted as well."""

    def run(topic: str, pipeline: RowPipeline, max_records: int = 1_000_000) -> tuple[RunSummary, RunState]:
        planner, state = TopicPlanner(broker, topic, {}), RunState(log_run)
        store = site.make(
            "job", topic, planner.topic_id(), pipeline.write_mode, record_schema() if pipeline.rejects else None
        )
        job = Job(broker, topic, "job", pipeline, max_records)
        return run_batch(job, planner, store, lambda: nullcontext(spark), state), state

    return run


@ONE_SITE
def test_their_names_are_said_at_the_first_commit(
    ingested: Ingest, new_topic: Callable[..., str], write: Write, caplog: pytest.LogCaptureFixture, tmp_path_factory:
    pytest.TempPathFactory,
) -> None:  # fmt: skip
    topic = new_topic(partitions=2)
    value = {
        "who": "a",
        "Who": 1,
        "in": {"at": 1, "off": 2},
        "list": [{"x": 1, "y": 2}],
        "map": {"k": {"z": 1}},
        "n": {},
    }
    columns = "who string, `in` struct<at: int>, list array<struct<x: int>>, map map<string, struct<q: int>>, n string"
    write(topic, [json.dumps(value).encode(), b"no json", None, b'{"who":"b","\\u001b[31m":1, "Who": 2}'])
    write(topic, [b'{"other": %s}' % (b"9" * 5000)], 1)
    _, state = ingested(topic, RowPipeline(columns), max_records=3)
    names = ("Who", "\\x1b[31m", "in.off", "list[].y", "map[].z", "other")
    assert set(state.undeclared) <= set(names)
    assert state.undeclared
    [line] = [record for record in caplog.records if "do not name these fields" in record.message]
    assert line.levelno == logging.WARNING
    assert all(name in line.message for name in state.undeclared)
    caplog.clear()

    _, state = ingested(topic, RowPipeline(columns))  # nothing is new, and nothing is looked at
    assert (state.undeclared, caplog.records) == ((), [])
    write(topic, [json.dumps(value).encode(), b'{"who":"b","\\u001b[31m":1, "Who": 2}'])
    write(topic, [b'{"other": %s}' % (b"9" * 5000)], 1)
    _, state = ingested(topic, RowPipeline(columns))
    assert state.undeclared == names  # those of most objects first, then by name
    assert state.as_dict()["undeclared_fields"] == list(names)
    file = tmp_path_factory.mktemp("metrics") / "sink.prom"
    write_file(state, "job", topic, str(file))
    assert f'ratchet_sink_undeclared_fields{{sink="job",topic="{topic}"}} 6.0' in file.read_text()


@ONE_SITE
def test_where_every_field_has_a_place_nothing_is_said(
    ingested: Ingest, new_topic: Callable[..., str], write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [b'{"who":{"deep":[1]}}', b'{"more":1}'])
    assert ingested(topic, RowPipeline("who string, more int"))[1].undeclared == ()
    assert not [record for record in caplog.records if "do not name" in record.message]


def test_a_value_is_kept_whole_where_that_is_asked_for(
    site: Site, ingested: Ingest, new_topic: Callable[..., str], write: Write
) -> None:
    topic = new_topic(partitions=1)
    values = [b'{"who":"a","more":1}', b"no json", None, b"{}"]
    write(topic, values)
    _, state = ingested(topic, RowPipeline("who string", keep_value=True))
    assert state.undeclared == ()
    rows = sorted(site.rows(), key=lambda row: row["_kafka_offset"])
    assert [(row["who"], row["_kafka_value"]) for row in rows] == list(
        zip(["a", None, None, None], values, strict=True)
    )


@KEYED
def test_kept_values_go_with_rejects_and_keys(
    site: Site, ingested: Ingest, new_topic: Callable[..., str], write: Write
) -> None:
    topic = new_topic(partitions=1)
    values = [b'{"who":"a","more":1}', b"no json", b'{"who":"b"}', None]
    write(topic, values, keys=[b"k", b"k", b"l", b"l"])
    ingested(topic, RowPipeline("who string", WriteMode("upsert", ("_kafka_key",)), rejects=True, keep_value=True))
    assert [(row["who"], row["_kafka_value"]) for row in site.rows()] == [("a", values[0])]
    assert [row["_kafka_value"] for row in site.rows(rejects=True)] == [values[1]]


@ONE_SITE
def test_kept_values_of_avro_and_before_a_query(
    site: Site, ingested: Ingest, new_topic: Callable[..., str], write: Write
) -> None:
    topic = new_topic(partitions=1)
    avro = avro_values('{"type": "record", "name": "r", "fields": [{"name": "who", "type": "string"}]}')
    write(topic, [b"\x02a", b"no avro", None])
    query = sql_transform("SELECT who, _kafka_offset, _kafka_value FROM records")
    ingested(topic, RowPipeline(avro=avro, rejects=True, transform=query, keep_value=True))
    rows = sorted(site.rows(), key=lambda row: row["_kafka_offset"])
    assert [(row["who"], row["_kafka_offset"], row["_kafka_value"]) for row in rows] == [
        ("a", 0, b"\x02a"),
        (None, 2, None),
    ]
    assert [row["_kafka_value"] for row in site.rows(rejects=True)] == [b"no avro"]
