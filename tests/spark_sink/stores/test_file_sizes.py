"""A commit of few records writes few files, however many Kafka partitions they come from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_ratchet.spark_sink.job.job import run_batch
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline, sql_transform
from kafka_ratchet.spark_sink.stores import optimistic
from kafka_ratchet.spark_sink.stores.open_store import make_store
from tests.spark_sink.sites import LOCAL


def files_of(folder: Path) -> list[Path]:
    return list(folder.rglob("part-job.*.parquet"))


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
