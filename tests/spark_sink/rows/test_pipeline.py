"""Results that are more than rows: the user's own step, rejects, and what a store of restricted values cannot hold."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_ratchet.spark_sink.errors import OptionRefused, SparkFailed
from kafka_ratchet.spark_sink.job.job import run_batch
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.run_state import RunSummary
from kafka_ratchet.spark_sink.rows.avro.avro import avro_values
from kafka_ratchet.spark_sink.rows.columns import record_schema
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline, function_transform, sql_transform
from kafka_ratchet.spark_sink.rows.windows import read_windows
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from tests.spark_sink.sites import LOCAL, Site

AVRO = avro_values('{"type": "record", "name": "r", "fields": [{"name": "who", "type": "string"}]}')

HOURS = read_windows("1 hour", None, "_kafka_timestamp")

Ingest = Callable[..., RunSummary]


def test_values_that_a_store_cannot_hold_are_kept_whole(
    site: Site, ingest: Ingest, new_topic: Callable[..., str], write: Callable[..., None]
) -> None:
    restricted_values = site.make().restricted_values
    far = b"+123456" if restricted_values else b"9999"  # the other stores hold such years, but Python cannot read them
    values = [
        b'{"who":"plain","at":"2024-01-01T00:00:00Z"}',
        b'{"who":"nul \\u0000"}',
        b'{"who":"no nul \\\\u0000"}',
        b'{"who":"far","in":{"at":["2024-01-01T00:00:00Z",null,"%s-01-01T00:00:00Z"]}}' % far,
        b'{"who":"r\xc3\xa9sum\xc3\xa9 \\ud83d\\ude00 \\ud800"}',
        b"\x00\xff no json",
    ]
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        write(topic, values, partition)
        write(topic, [b'{"who":"aborted"}'], partition, commit=False)
    outcome = ingest(
        topic,
        RowPipeline("who string, at timestamp, `in` struct<at: array<timestamp>>, m map<string, date>"),
        max_records=5,
    )
    assert outcome.offsets == {0: 9, 1: 9}
    rows = sorted(site.rows(), key=lambda row: (row["_kafka_partition"], row["_kafka_offset"]))
    assert [(row["_kafka_partition"], row["_kafka_offset"]) for row in rows] == [
        (p, n) for p in (0, 1) for n in range(6)
    ]
    for row in rows:
        value = values[row["_kafka_offset"]]
        whole = row["_kafka_offset"] in ({1, 3, 5} if restricted_values else {5})
        assert row["_kafka_value"] == (value if whole else None)
        assert row["who"] == (None if whole else json.loads(value)["who"].replace("\ud800", "?"))


def test_rejects_and_totals_of_a_real_topic(
    site: Site, ingest: Ingest, new_topic: Callable[..., str], write: Callable[..., None]
) -> None:
    if not site.rejects:
        with pytest.raises(OptionRefused, match="without rejects"):
            site.make(rejects=record_schema())
        return
    topic = new_topic(partitions=2)
    pipeline = RowPipeline(
        "who string, amount decimal(9,2)",
        WriteMode("totals", ("who",), ("cents",)),
        rejects=True,
        transform=sql_transform("SELECT upper(who) AS who, CAST(amount * 100 AS bigint) AS cents FROM records"),
    )
    expected = 0
    for n in range(2):
        write(topic, [b'{"who":"a","amount":0.1}', b'{"who":"A","amount":0.2}', b"broken %d" % n], n % 2)
        write(topic, [b'{"who":"a","amount":1}'], n % 2, commit=False)
        expected += 30
        ingest(topic, pipeline, max_records=2)
        [total] = site.rows()
        assert (total["who"], total["_records"], int(total["cents"])) == ("A", 2 * (n + 1), expected)
    rejected = sorted(site.rows(rejects=True), key=lambda row: row["_kafka_value"])
    assert [(row["_kafka_partition"], row["_kafka_value"]) for row in rejected] == [(0, b"broken 0"), (1, b"broken 1")]


@pytest.mark.parametrize(
    ("pipeline", "sentence"),
    [
        (lambda: RowPipeline(rejects=True), "no value can be rejected"),
        (lambda: RowPipeline("who string", WriteMode("upsert", ("who",))), "cannot keep values that do not parse"),
        (lambda: RowPipeline(None, WriteMode("upsert")), "needs a key"),
        (lambda: RowPipeline(None, WriteMode("append", ("who",))), "has no key"),
        (lambda: RowPipeline(None, WriteMode("upsert", ("who",), ("n",))), "has no sums"),
        (lambda: RowPipeline(None, WriteMode("totals", ("who",), ("who",))), "a column twice"),
        (lambda: RowPipeline(None, WriteMode("totals", ("_records",))), "is the count"),
        (lambda: RowPipeline(None, WriteMode("upsert", ("who",), mins=("n",))), "has no mins. Choose kind totals"),
        (lambda: RowPipeline(None, WriteMode("append", (), windows=HOURS)), "has no windows. Choose kind totals"),
        (lambda: RowPipeline(None, WriteMode("totals", ("who",), maxes=("n", "n"))), "maxes: a column is named twice"),
        (lambda: RowPipeline(None, WriteMode("totals", ("N_min",), mins=("n",))), "the name 'n_min'"),
        (lambda: RowPipeline(None, WriteMode("totals", ("_Window",), windows=HOURS)), "is the window's beginning"),
        (
            lambda: RowPipeline("infer", WriteMode("totals", ("who",)), rejects=True),
            "cannot be combined with sql, transform or totals",
        ),
        (
            lambda: RowPipeline("infer", transform=sql_transform("SELECT 1")),
            "cannot be combined with sql, transform or totals",
        ),
        (lambda: RowPipeline("infer", WriteMode("upsert", ("who",))), "cannot keep values that do not parse"),
        (lambda: RowPipeline("who string", avro=AVRO), "Remove columns"),
        (lambda: RowPipeline(None, WriteMode("upsert", ("who",)), avro=AVRO), "cannot keep values that do not parse"),
        (lambda: RowPipeline(transform=function_transform("nonsense")), "Write module:function"),
        (lambda: RowPipeline(transform=function_transform("no_such_module:f")), "No module named 'no_such_module'"),
        (lambda: RowPipeline(transform=function_transform("json:no_such")), "has no function no_such"),
    ],
)
def test_contradicting_row_pipelines_are_refused(pipeline: Callable[[], RowPipeline], sentence: str) -> None:
    with pytest.raises(OptionRefused, match=sentence):
        pipeline()


@pytest.mark.parametrize(
    ("write_mode", "sql", "sentence"),
    [
        (WriteMode("totals", ("who",)), None, "needs column 'who'"),
        (
            WriteMode("upsert", ("_kafka_key",)),
            "SELECT _kafka_key FROM records",
            "'_kafka_partition' \\(to find the last row",
        ),
        (
            WriteMode("totals", ("_kafka_key",), ("x",)),
            "SELECT _kafka_key, 0.5D AS x FROM records",
            "cannot be added up exactly",
        ),
        (
            WriteMode("totals", ("_kafka_key",), ("x",)),
            "SELECT _kafka_key, CAST(1 AS decimal(38,1)) AS x FROM records",
            "28 digits",
        ),
        (
            WriteMode("totals", ("_kafka_key",), mins=("x",)),
            "SELECT _kafka_key, true AS x FROM records",
            "has no least",
        ),
        (WriteMode("totals", ("_kafka_key",), maxes=("_kafka_key",)), None, "has no least"),
        (
            WriteMode("totals", ("_kafka_key",), averages=("x",)),
            "SELECT _kafka_key, 0.5D AS x FROM records",
            "cannot be added",
        ),
        (WriteMode("totals", windows=HOURS), "SELECT 1 AS at FROM records", "'_kafka_timestamp' \\(the event time"),
        (
            WriteMode("totals", windows=HOURS),
            "SELECT 1 AS _kafka_timestamp FROM records",
            "of type int is not an event time",
        ),
        (WriteMode("upsert", ("x",)), "SELECT *, array(1) AS x FROM records", "cannot be a key"),
        (WriteMode(), "SELECT nonsense FROM records", "sql: .*nonsense"),
        (WriteMode(), "SELEKT 1", "sql: .*Write a query of the view records"),
    ],
)
def test_write_modes_that_the_rows_do_not_have_are_refused(
    spark: SparkSession, write_mode: WriteMode, sql: str | None, sentence: str
) -> None:
    pipeline = RowPipeline(None, write_mode, transform=sql_transform(sql) if sql else None)
    with pytest.raises(OptionRefused, match=sentence):
        pipeline.schema(spark)


USERS_OWN = """
from pyspark.sql import functions as F

def lengths(rows):
    return rows.selectExpr('length(_kafka_value) AS n')

def wrong(rows):
    return 1

def raises(rows):
    return rows.where(1 / 0)

def unknown(rows):
    return rows.select('no_such_column')

@F.udf('int')
def decoded(value):
    return int(value.decode())

def late(rows):
    return rows.select(decoded('_kafka_value').alias('n'))
"""


def test_a_function_of_the_users_makes_the_rows_and_its_mistakes_are_sentences(
    broker: str,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_topic: Callable[..., str],
    write: Callable[..., None],
) -> None:
    (tmp_path / "users_own.py").write_text(USERS_OWN)
    (tmp_path / "users_broken.py").write_text("def f(:\n")
    (tmp_path / "users_raising.py").write_text("raise KeyError('at import')\n")
    monkeypatch.syspath_prepend(tmp_path)
    topic = new_topic(partitions=1)
    write(topic, [b"1", b"2"])
    try:
        assert RowPipeline(transform=function_transform("users_own:lengths")).schema(spark).names == ["n"]
        for function, sentence in [
            ("wrong", "'users_own:wrong' returned int, not a DataFrame"),
            ("raises", r"'users_own:raises' raised ZeroDivisionError: .*, in users_own.py line 11\. Correct"),
            ("unknown", r"'users_own:unknown' raised AnalysisException: .*no_such_column.*, in users_own.py line 14"),
        ]:
            with pytest.raises(OptionRefused, match=sentence):
                RowPipeline(transform=function_transform(f"users_own:{function}")).schema(spark)
        for module, sentence in [
            ("users_broken", "importing users_broken failed .SyntaxError: "),
            ("users_raising", "importing users_raising failed .KeyError: 'at import'"),
        ]:
            with pytest.raises(OptionRefused, match=sentence):
                function_transform(f"{module}:f")

        site = LOCAL["delta"](tmp_path)
        job = Job(broker, topic, "job", RowPipeline(transform=function_transform("users_own:late")))
        run_batch(job, TopicPlanner(broker, topic, {}), site.make(topic=topic), lambda: nullcontext(spark))
        write(topic, [b"three"])
        failing = [
            (job.pipeline, r"offsets 0: 3-5 \(ValueError: invalid literal for int.*'three'\)\. Earlier commits stay"),
            (
                RowPipeline(
                    transform=sql_transform("SELECT int(raise_error(decode(_kafka_value, 'utf-8'))) AS n FROM records")
                ),
                "three",
            ),
        ]
        for pipeline, sentence in failing:
            again = replace(job, pipeline=pipeline)
            with pytest.raises(SparkFailed, match=sentence):
                run_batch(again, TopicPlanner(broker, topic, {}), site.make(topic=topic), lambda: nullcontext(spark))
        assert sorted(row["n"] for row in site.rows()) == [1, 2]
    finally:
        for module in ("users_own", "users_broken", "users_raising"):
            sys.modules.pop(module, None)
