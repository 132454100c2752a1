"""The loop: ask the store how far it is, read on from there, commit rows and offsets together."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_sink import _columns
from spark_sink._plan import TopicPlanner, resume, slices
from spark_sink._progress import Committed, progress
from spark_sink._store import ResultStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_RECORDS = 1_000_000
"""Offsets per commit: seconds of work, so that a kill costs little, and far more than the cost of a commit itself."""


@dataclass(frozen=True)
class Job:
    """What to read, and what to make of it."""

    bootstrap: str
    topic: str
    name: str
    columns: str | None = None
    """Spark DDL of the fields of JSON values; None keeps values as bytes."""
    max_records: int = MAX_RECORDS
    """Offsets per commit, at most."""
    client_options: Mapping[str, str] = field(default_factory=dict)
    """Kafka options in librdkafka's names, for planning in the driver."""
    reader_options: Mapping[str, str] = field(default_factory=dict)
    """Kafka options in Java's names, for reading in the executors."""


@dataclass(frozen=True)
class Outcome:
    """What a run did."""

    commits: int
    rows: int
    offsets: dict[int, int]
    """Next offset to read of each partition, as the store now has it."""


def run_batch(
    job: Job, planner: TopicPlanner, store: ResultStore, session: Callable[[], AbstractContextManager[SparkSession]]
) -> Outcome:
    """Read on from the store's offsets to the topic's end as of now, then stop.

    Where there is nothing to read, Spark is not started and the store is left as it is.

    Args:
        job: what to read.
        planner: of the job's topic.
        store: where the rows go.
        session: starts Spark, and stops it at the end.

    Raises:
        SinkError: see `ResultStore`, `TopicPlanner` and `resume`.
    """
    # The store before the topic, here and below: a topic only grows, so that a job which commits in between cannot
    # make the stored offsets look as if they lay beyond the end.
    stored = store.offsets()
    extent = planner.extent()
    if resume(extent, stored) == extent.end:
        return Outcome(0, 0, stored)
    with session() as spark:
        stored = store.open(_columns.result_schema(job.columns))
        try:
            extent = planner.extent()
            return _commit_until(extent.end, resume(extent, stored), job, store, spark)
        finally:
            store.close()


def _commit_until(
    end: dict[int, int], start: dict[int, int], job: Job, store: ResultStore, spark: SparkSession
) -> Outcome:
    commits = rows = 0
    with progress(sum(end.values()) - sum(start.values())) as report:
        for begin, until in slices(start, end, job.max_records):
            began = time.monotonic()
            committed = store.commit(_columns.rows(records(spark, job, begin, until), job.columns), begin, until)
            commits, rows = commits + 1, rows + committed
            report(Committed(commits, committed, begin, until, time.monotonic() - began))
    return Outcome(commits, rows, end)


def records(spark: SparkSession, job: Job, start: Mapping[int, int], end: Mapping[int, int]) -> DataFrame:
    """Exactly the committed records from `start` up to, not including, `end`.

    `failOnDataLoss` stays at its default, true: false was measured to skip rows without a word.
    """
    # assign, not subscribe: Spark demands an offset for every partition it sees, and one may be added at any moment.
    reader = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", job.bootstrap)
        .option("assign", json.dumps({job.topic: sorted(start)}))
        .option("startingOffsets", json.dumps({job.topic: start}))
        .option("endingOffsets", json.dumps({job.topic: end}))
        .option("kafka.isolation.level", "read_committed")
    )
    for name, value in job.reader_options.items():
        reader = reader.option(f"kafka.{name}", value)
    return reader.load()
