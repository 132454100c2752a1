"""Columns that are read off the values: once, whatever the values are, and the table's own from then on."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from kafka_ratchet.spark_sink.errors import KafkaUnavailable, OptionRefused
from kafka_ratchet.spark_sink.job.job import run_batch, run_stream
from kafka_ratchet.spark_sink.job.plan import OffsetRange, TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.run_state import RunSummary
from kafka_ratchet.spark_sink.rows.columns import record_schema, result_schema
from kafka_ratchet.spark_sink.rows.infer import MAX_COLUMNS, sampled
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.stores.open_store import make_store
from tests.spark_sink.sites import LOCAL, Site, params

Write = Callable[..., None]

HOSTILE = {
    "_kafka_Partition": "one of Ratchet's own",
    "a b": "may not have any of",
    "WHO": "name differs in case only",
    "bell\a": "cannot be seen",
    "": "1 to 63 bytes",
    "x" * 64: "1 to 63 bytes",
    "\ud800": "no Unicode text",
    "back\u202espace": "cannot be seen",
}


def test_columns_are_inferred_once_and_stored_with_the_table(
    site: Site,
    ingest: Callable[..., RunSummary],
    new_topic: Callable[..., str],
    write: Write,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = {
        "who": "a",
        "n": 1,
        "x": 1,
        "ok": True,
        "in": {"a": [1, None]},
        "long": 10**30,
        "far": 2**60,
        "mix": 1,
        "none": None,
        'qu"o`te': "q",
    }
    topic = new_topic(partitions=2)
    write(topic, [b"no json", b"[1]", b"{" * 5000, b'{"long":' + b"9" * 5000 + b"}"], 1)
    write(topic, [json.dumps(first | dict.fromkeys(HOSTILE, 1)).encode(), b'{"who":"b","x":0.5,"far":0.5,"mix":"m"}'])
    write(topic, [b'{"aborted":1}'], commit=False)
    pipeline = RowPipeline("infer")
    assert ingest(topic, pipeline).rows == 6
    rows = sorted(site.rows(), key=lambda row: (row["_kafka_partition"], row["_kafka_offset"]))
    # What most objects have comes first.
    assert list(rows[0])[:10] == ["far", "long", "mix", "who", "x", "in", "n", "none", "ok", 'qu"o`te']
    assert list(rows[0])[10:] == record_schema().names
    found = {name: rows[0][name] for name in first}
    assert found == first | {"in": '{"a":[1,null]}', "long": str(10**30), "far": str(2**60), "mix": "1"}
    assert [type(rows[0][name]) for name in ("n", "x", "ok")] == [int, float, bool]
    assert (rows[1]["far"], rows[1]["mix"], rows[1]["n"], rows[0]["_kafka_value"]) == ("0.5", "m", None, None)
    assert all(row["_kafka_value"] and row["who"] is None for row in rows[2:])
    for name, reason in HOSTILE.items():
        assert any(ascii(name[:63]) in line and reason in line for line in caplog.messages), name

    late = [b'{"who":"c","later":1}', b'{"who":"d","n":1.5}']
    write(topic, late)
    assert ingest(topic, pipeline).rows == 2
    rows = sorted((row for row in site.rows() if row["_kafka_partition"] == 0), key=lambda row: row["_kafka_offset"])[
        2:
    ]
    assert "later" not in rows[0]
    assert [(row["who"], row["_kafka_value"]) for row in rows] == [("c", None), (None, late[1])]


class Scripted(TopicPlanner):
    """Does the next step of a script whenever the job is about to look at the topic."""

    def __init__(self, broker: str, topic: str, steps: list[Callable[[], None]]) -> None:
        super().__init__(broker, topic, {})
        self._steps = iter(steps)

    def offset_range(self) -> OffsetRange:
        next(self._steps)()
        return super().offset_range()


def test_a_stream_waits_for_a_value_to_read_columns_off(
    broker: str, spark: SparkSession, new_topic: Callable[..., str], write: Write, tmp_path: Path
) -> None:
    topic, stop, site = new_topic(partitions=1), Event(), LOCAL["duckdb"](tmp_path)

    def be_away() -> None:
        raise KafkaUnavailable("the broker is being restarted")

    steps = [
        lambda: write(topic, [b'{"aborted":1}'], commit=False),
        be_away,
        lambda: write(topic, [b'{"n":1}']),
        lambda: None,
        stop.set,
    ]
    job = Job(broker, topic, "job", RowPipeline("infer"))
    outcome = run_stream(
        job, Scripted(broker, topic, steps), site.make(topic=topic), lambda: nullcontext(spark), 0, stop
    )
    assert (outcome.rows, outcome.offsets) == (1, {0: 4})
    assert [row["n"] for row in site.rows()] == [1]


def test_where_there_is_nothing_to_read_columns_off(
    broker: str, spark: SparkSession, new_topic: Callable[..., str], write: Write, tmp_path: Path
) -> None:
    topic, site = new_topic(partitions=1), LOCAL["delta"](tmp_path)

    def run() -> RunSummary:
        job = Job(broker, topic, "job", RowPipeline("infer"))
        return run_batch(job, TopicPlanner(broker, topic, {}), site.make(topic=topic), lambda: nullcontext(spark))

    write(topic, [b'{"aborted":1}'], commit=False)
    write(topic, [None])
    assert run() == RunSummary(0, 0, {})
    write(topic, [b"no json", b"{}", b'{"a b":1}', b'{"n":NaN'])
    with pytest.raises(OptionRefused, match=f"none of the 4 sampled values of topic {topic} is a JSON object"):
        run()
    assert not list(tmp_path.iterdir())  # a refusal makes no table
    site.make(topic=topic).open(result_schema(None))
    with pytest.raises(OptionRefused, match="keeps values as bytes"):
        run()


def test_a_stranger_cannot_make_a_table_too_wide(spark: SparkSession) -> None:
    values = [
        json.dumps({"common": 1, "nul\0": 1, **{f"n{n}-{each}": 1 for each in range(100)}}).encode() for n in range(200)
    ]
    found = sampled(spark.createDataFrame([(value,) for value in values], "value binary").coalesce(1))
    assert len(found.columns.fields) == MAX_COLUMNS
    assert found.columns.fields[0].name == "common"
    assert found.values == 200
    assert isinstance(found.columns, StructType)
    assert len(found.left_out) == 10_000 - MAX_COLUMNS
    assert "cannot be seen" in found.left_out[ascii("nul\0")]


@pytest.mark.matrix
@pytest.mark.parametrize("site", params("delta", "iceberg"), indirect=True)
def test_new_fields_become_columns_at_the_start_of_a_run_where_that_is_asked_for(
    site: Site,
    broker: str,
    spark: SparkSession,
    new_topic: Callable[..., str],
    write: Write,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = new_topic()
    pipeline = RowPipeline("infer", takes_up=True)

    def run(wanted: RowPipeline = pipeline) -> int:
        planner = TopicPlanner(broker, topic, {})
        store = make_store(site.location, "job", topic, planner.topic_id(), wanted, evolve=wanted.takes_up)
        return run_batch(Job(broker, topic, "job", wanted), planner, store, lambda: nullcontext(spark)).rows

    write(topic, [b'{"who":"a","n":1}'])
    assert run() == 1
    write(topic, [b'{"who":"b","n":"now a text","more":2,"WHO":1,"_kafka_offset":7}', b'{"who":"c","more":"text"}'])
    assert run() == 2
    rows = sorted(site.rows(), key=lambda row: row["_kafka_offset"])
    assert [(row["who"], row["n"], row["more"]) for row in rows] == [
        ("a", 1, None),
        (None, None, None),
        ("c", None, "text"),
    ]
    assert rows[1]["_kafka_value"].startswith(b'{"who":"b"')  # n keeps its type, and what does not fit is kept whole
    assert "WHO" not in rows[0]
    write(topic, [b'{"who":"d","later":1.5}'])
    assert run(RowPipeline("infer")) == 1  # without the setting, the table's columns are all there are
    write(topic, [b'{"who":"e","later":1.5,"more":null}', b"[]"])
    assert run() == 2
    rows = sorted(site.rows(), key=lambda row: row["_kafka_offset"])
    assert [(row["who"], row["later"]) for row in rows[3:]] == [("d", None), ("e", 1.5), (None, None)]
    write(topic, [b'{"WHO":"f"}'])
    assert run() == 1
    assert "WHO" not in site.rows()[0]
    assert any("'WHO'" in line and "the table has 'who'" in line for line in caplog.messages)
    assert run() == 0
