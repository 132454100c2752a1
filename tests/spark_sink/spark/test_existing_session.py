"""A Spark that somebody else has started, such as a notebook's, is used and left as it was."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from threading import Event
from typing import cast

import pytest
from pyspark.sql import SparkSession

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.job.job import run_batch
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.structured import WITHOUT_RECORDS, OutputMode, run_structured
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline, sql_transform
from kafka_ratchet.spark_sink.spark.session import ROW_SETTINGS, existing_session, spark_session
from tests.spark_sink.sites import delta_store


def test_its_settings_are_those_of_the_rows_for_the_time_of_the_job_only(
    broker: str, spark: SparkSession, new_topic: Callable[..., str], write: Callable[..., None], table: str,
    rows: Callable[..., list[tuple[object, ...]]],
) -> None:  # fmt: skip
    topic = new_topic(partitions=1)
    write(topic, [b'{"n": 1}', b'{"n": "x", "m": 2}'])
    theirs = {"spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.json.enablePartialResults": "true"}
    try:
        for key, value in theirs.items():
            spark.conf.set(key, value)
        planner = TopicPlanner(broker, topic, {})
        job = Job(broker, topic, "job", RowPipeline("n long, m long"))
        store = delta_store(table, "job", topic, planner.topic_id())
        assert run_batch(job, planner, store, lambda: existing_session(spark)).rows == 2
        assert {key: spark.conf.get(key) for key in theirs} == theirs
    finally:
        for key, value in ROW_SETTINGS.items():
            spark.conf.set(key, value)
    assert rows("n", "m", "_kafka_value") == [(1, None, None), (None, None, b'{"n": "x", "m": 2}')]  # all or nothing
    assert spark.range(1).count() == 1  # it still runs


def test_the_active_one_is_taken_in_place_of_another_and_goes_on(spark: SparkSession) -> None:
    key = "spark.sql.session.timeZone"
    try:
        spark.conf.set(key, "Asia/Tokyo")
        with spark_session("another", ["/no/such.jar"], "local[2]") as found:
            assert found.sparkContext is spark.sparkContext
            assert found.conf.get(key) == "UTC"
        assert spark.conf.get(key) == "Asia/Tokyo"
    finally:
        spark.conf.set(key, "UTC")
    assert spark.range(1).count() == 1


def test_a_query_that_does_not_start_leaves_its_setting(
    broker: str, spark: SparkSession, new_topic: Callable[..., str], table: str
) -> None:
    planner = TopicPlanner(broker, topic := new_topic(partitions=1), {})
    store = delta_store(table, "job", topic, planner.topic_id())
    job = Job(broker, topic, "job", RowPipeline("n long"))
    before = spark.conf.get(WITHOUT_RECORDS)
    with pytest.raises(Exception, match="mode"):
        run_structured(
            job, planner, store, lambda: nullcontext(spark), 0, Event(), output_mode=cast("OutputMode", "no mode")
        )
    assert spark.conf.get(WITHOUT_RECORDS) == before == "true"


def test_sql_leaves_the_views_of_the_session(spark: SparkSession) -> None:
    rows = spark.range(5).toDF("n")
    query = sql_transform("SELECT n + 1 AS n FROM records WHERE n > 2")
    assert [row.n for row in query(rows).collect()] == [4, 5]
    assert not spark.catalog.tableExists("records")
    spark.range(2).toDF("theirs").createTempView("records")
    try:
        made = query(rows)
        assert [row.theirs for row in spark.table("records").collect()] == [0, 1]
        with pytest.raises(OptionRefused, match="Write a query of the view records"):
            sql_transform("SELECT missing FROM records")(rows)
        assert [row.theirs for row in spark.table("records").collect()] == [0, 1]
        assert [row.n for row in made.collect()] == [4, 5]
    finally:
        spark.catalog.dropTempView("records")
