"""From a range of offsets to a commit: read it from Kafka, make rows of it, hand them to the store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.job.plan import Extent, slices
from kafka_ratchet.spark_sink.job.reading import Job, records
from kafka_ratchet.spark_sink.job.run_state import Figures
from kafka_ratchet.spark_sink.rows.undeclared import SAMPLE_OFFSETS, report_undeclared
from kafka_ratchet.spark_sink.spark.errors import spark_errors_named
from kafka_ratchet.spark_sink.spark.progress import Committed
from kafka_ratchet.spark_sink.stores.store import ResultStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Outcome:
    """What a run did."""

    commits: int
    rows: int
    offsets: dict[int, int]
    """Next offset to read of each partition, as the store now has it."""
    rejects: int = 0


def after(outcome: Outcome, committed: Committed) -> Outcome:
    """The outcome with one more commit."""
    return Outcome(
        outcome.commits + 1,
        outcome.rows + committed.rows,
        dict(committed.end),
        outcome.rejects + committed.rejects,
    )


def commit_slices(
    extent: Extent,
    start: dict[int, int],
    job: Job,
    store: ResultStore,
    spark: SparkSession,
    figures: Figures,
    first: int = 1,
) -> Iterator[Committed]:
    """Commit after commit from `start` to the end of `extent`, each of at most `job.max_records` offsets.

    Args:
        extent: what the topic holds.
        start: the store's offsets.
        job: what to read, and what to make of it.
        store: open.
        spark: a running Spark.
        figures: is told of each commit.
        first: number of the first commit, from 1 in each run; before number 1 the columns are compared with the values.

    Raises:
        SparkFailed: Spark could not read or compute the records.
        SinkError: see `ResultStore.commit`.
    """
    for number, (begin, until) in enumerate(slices(start, extent.end, job.max_records), first):
        with spark_errors_named(job.topic, begin, until):
            if number == 1:
                some = next(slices(begin, until, SAMPLE_OFFSETS))[1]
                figures.undeclared = report_undeclared(job.recipe, job.topic, records(spark, job, begin, some))
            committed = commit_records(number, job, store, records(spark, job, begin, until), begin, until)
        figures.add(committed)
        yield committed


def commit_records(
    number: int, job: Job, store: ResultStore, read: DataFrame, start: dict[int, int], end: dict[int, int]
) -> Committed:
    """One commit of what Spark's Kafka source has read from `start` up to `end`, by the job's recipe."""
    began = time.monotonic()
    with job.recipe.frames(read, narrow=store.narrow) as (rows, rejects):
        count = store.commit(rows, start, end, rejects)
        seconds = time.monotonic() - began
        rejected = 0 if rejects is None else rejects.count()  # they are still held for both tables
    return Committed(number, count, start, end, seconds, rejected)
