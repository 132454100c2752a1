"""A commit of few records writes few files, however many Kafka partitions they come from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kafka_ratchet.spark_sink.job.access import Access
from kafka_ratchet.spark_sink.job.job import run_batch
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job, records
from kafka_ratchet.spark_sink.job.spec import JobSpec
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline, sql_transform
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores import optimistic
from kafka_ratchet.spark_sink.stores.open_store import make_store
from tests.spark_sink.sites import LOCAL, param


def files_of(folder: Path) -> list[Path]:
    return list(folder.rglob("part-job.*.parquet"))


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_files_are_few_and_become_more_with_the_bytes(
    kind: str,
    broker: str,
    new_topic: Callable[..., str],
    write: Callable[..., None],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic(partitions=4)
    planner, site = TopicPlanner(broker, topic, {}), LOCAL[kind](tmp_path)

    def run(pipeline: RowPipeline, name: str = "job") -> int:
        before = len(files_of(tmp_path))
        for partition in range(4):
            write(topic, [b'{"n":1}'] * 3, partition)
        store = make_store(site.location, name, topic, planner.topic_id(), pipeline)
        job = Job(broker, topic, name, pipeline)
        assert run_batch(job, planner, store, lambda: nullcontext(spark)).rows == 12
        return len(files_of(tmp_path)) - before

    assert run(RowPipeline("n int")) == 1
    assert run(RowPipeline("n int", transform=sql_transform("SELECT * FROM records"))) == 4
    monkeypatch.setattr(optimistic, "FILE_BYTES", 8 * 1024)  # 16 offsets with markers, of 1,024 bytes each
    assert run(RowPipeline("n int")) == 2
    monkeypatch.undo()
    monkeypatch.setattr(optimistic, "TASK_OFFSETS", 6)
    assert run(RowPipeline("n int")) == 3
    assert len(site.rows()) == 48


@pytest.mark.parametrize(
    ("kind", "upserts"),
    [("delta", False), *(param(*each, by_default=False) for each in [("delta", True), ("iceberg", False)])],
)
def test_tasks_share_a_kafka_partition_that_holds_much(
    kind: str,
    upserts: bool,
    broker: str,
    new_topic: Callable[..., str],
    write: Callable[..., None],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic(partitions=2)
    mode = WriteMode("upsert", ("n",)) if upserts else WriteMode()
    planner, site = TopicPlanner(broker, topic, {}), LOCAL[kind](tmp_path)
    pipeline = RowPipeline("n int", mode, rejects=upserts)
    monkeypatch.setattr(optimistic, "TASK_OFFSETS", 6)

    def run(*, splits: bool) -> tuple[int, int]:
        """Return the numbers of tasks that have read, and of new files."""
        before = len(files_of(tmp_path))
        write(topic, [b'{"n":%d}' % n for n in range(30)])
        end = planner.offset_range().end
        start = {0: end[0] - 31, 1: end[1]}
        job = Job(broker, topic, "job", pipeline, splits=splits)
        tasks = records(spark, job, start, end).rdd.getNumPartitions()
        store = make_store(site.location, "job", topic, planner.topic_id(), pipeline)
        assert run_batch(job, planner, store, lambda: nullcontext(spark)).rows == 30
        return tasks, len(files_of(tmp_path)) - before

    assert run(splits=False)[0] == 2  # one reads nothing
    tasks, files = run(splits=True)
    assert tasks == 6
    if not upserts:
        assert files == 6
    found = sorted((row["n"], row["_kafka_offset"]) for row in site.rows())
    assert found == [(n, offset) for n in range(30) for offset in ([31 + n] if upserts else [n, 31 + n])]


def test_a_step_or_a_store_that_needs_a_partition_in_one_task_gets_it() -> None:
    def splits(**given: Any) -> bool:
        spec = JobSpec(bootstrap="b", topic="t", name="job", **given)
        return spec.job(spec.pipeline(), Access()).splits

    assert splits(store="delta", path="p", columns="n int")
    assert splits(store="iceberg", path="p", columns="n int")
    assert not splits(store="delta", path="p", columns="n int", sql="SELECT * FROM records")
    assert not splits(store="duckdb", path="p", columns="n int")
