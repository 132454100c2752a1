"""From a range of offsets to a commit: read it from Kafka, make rows of it, hand them to the store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.job.plan import OffsetRange
from kafka_ratchet.spark_sink.job.reading import Job, records, slices
from kafka_ratchet.spark_sink.job.run_state import Commit, RunState
from kafka_ratchet.spark_sink.rows.undeclared import SAMPLE_OFFSETS, report_undeclared
from kafka_ratchet.spark_sink.spark.errors import spark_errors_named
from kafka_ratchet.spark_sink.stores.store import ResultStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def commit_slices(
    offset_range: OffsetRange, start: dict[int, int], job: Job, store: ResultStore, spark: SparkSession, run: RunState
) -> Iterator[None]:
    """Commit after commit from `start` to the end of `offset_range`, each of at most `job.max_records` offsets.

    Before the first commit of a run, the columns are compared with the values.

    Args:
        offset_range: what the topic holds.
        start: the store's offsets.
        job: what to read, and what to make of it.
        store: open.
        spark: a running Spark.
        run: is told of each commit, which is done when this yields.

    Raises:
        SparkFailed: Spark could not read or compute the records.
        SinkError: see `ResultStore.commit`.
    """
    for begin, until in slices(start, offset_range.end, job.max_records):
        with spark_errors_named(job.topic, begin, until):
            if run.commits == 0:
                some = next(slices(begin, until, SAMPLE_OFFSETS))[1]
                run.sampled(report_undeclared(job.pipeline, job.topic, records(spark, job, begin, some)))
            commit_records(records(spark, job, begin, until), begin, until, job, store, run)
        yield


def commit_records(
    read: DataFrame, start: dict[int, int], end: dict[int, int], job: Job, store: ResultStore, run: RunState
) -> None:
    """One commit of what Spark's Kafka source has read from `start` up to `end`, by the job's pipeline."""
    began = time.monotonic()
    with job.pipeline.frames(read, restricted_values=store.restricted_values) as (rows, rejects):
        count = store.commit(rows, start, end, rejects)
        seconds = time.monotonic() - began
        rejected = 0 if rejects is None else rejects.count()  # they are still cached
    run.committed(Commit(run.commits + 1, count, start, end, seconds, rejected))
