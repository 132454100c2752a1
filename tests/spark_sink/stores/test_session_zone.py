"""Moments in a session with another time zone than UTC, as one's own Spark job may have it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_ratchet.spark_sink.rows.partition_by import partition_fields
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.mysql.tasks import literals
from kafka_ratchet.spark_sink.stores.open_store import make_store
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import DeltaSite, Site

ZONE = "spark.sql.session.timeZone"
COLUMNS = "n int, at timestamp, inner struct<at: timestamp>, _kafka_partition int, _kafka_offset long"
MOMENTS = [
    datetime.datetime.fromisoformat(text)
    for text in (
        "1582-10-04T23:59:59+00:00",
        "1883-11-18T12:00:00.000001+00:00",  # before that day New York was behind by 4 h 56 min 2 s
        "1969-12-31T23:59:59.999999+00:00",
        "2026-03-08T02:30:00+00:00",  # as a time of day of New York it does not exist
        "2026-11-01T05:30:00+00:00",  # 01:30 there ...
        "2026-11-01T06:30:00.5+00:00",  # ... and once more
        "9999-12-31T00:00:00+00:00",
    )
]
ROWS = [(n, at, (at,), 0, n) for n, at in enumerate([*MOMENTS, None])]


@pytest.fixture(autouse=True)
def new_york(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get(ZONE)
    spark.conf.set(ZONE, "America/New_York")
    yield
    spark.conf.set(ZONE, str(before))


@pytest.mark.parametrize("kind", ["append", "upsert"])
def test_a_moment_stays_the_same(spark: SparkSession, site: Site, kind: str) -> None:
    if kind not in site.kinds:
        pytest.skip("this store has no such results")
    schema = struct_of(COLUMNS)
    store = site.make(write_mode=WriteMode("upsert", ("n",)) if kind == "upsert" else WriteMode())
    store.open(schema)
    store.commit(spark.createDataFrame(ROWS, schema).coalesce(1), {0: 0}, {0: len(ROWS)})
    store.close()
    found = {row["n"]: row["at"] and row["at"].astimezone(datetime.UTC) for row in site.rows()}
    assert found == dict(enumerate([*MOMENTS, None]))


def test_days_of_partitions_are_in_utc(spark: SparkSession, tmp_path: Path) -> None:
    site = DeltaSite(tmp_path)
    store = make_store(
        site.location, "job", "events", 0, RowPipeline("n int"), partition_by=partition_fields(["day(at)"])
    )
    schema = struct_of(COLUMNS)
    store.open(schema)
    store.commit(spark.createDataFrame(ROWS, schema).coalesce(1), {0: 0}, {0: len(ROWS)})
    store.close()
    found = {row["n"]: row["at_day"] for row in site.rows()}
    assert found == dict(enumerate([*(at.date() for at in MOMENTS), None]))


def test_mysql_has_times_of_day_in_utc(spark: SparkSession) -> None:
    rows = literals(spark.createDataFrame(ROWS, COLUMNS).select("n", "at")).collect()
    said = [row["row"].partition(",")[2].strip("'") for row in rows]
    found = [None if text == "NULL" else datetime.datetime.fromisoformat(text) for text in said]
    assert found == [*(at.replace(tzinfo=None) for at in MOMENTS), None]
