"""Commit of a range of offsets: its records are read from Kafka, become rows, and go to the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, cast

from kafka_ratchet.spark_sink.job.plan import OffsetRange
from kafka_ratchet.spark_sink.job.reading import Job, records, slices
from kafka_ratchet.spark_sink.job.run_state import Commit, RunState
from kafka_ratchet.spark_sink.job.unreadable import pieces, unreadable_named
from kafka_ratchet.spark_sink.log_lines import announced
from kafka_ratchet.spark_sink.rows.columns import NOT_PARSED_REASON, RECORD_COLUMNS, REJECT_REASON
from kafka_ratchet.spark_sink.rows.judging.judge import judged
from kafka_ratchet.spark_sink.rows.undeclared import SAMPLE_OFFSETS, report_undeclared
from kafka_ratchet.spark_sink.spark.errors import ranges, spark_errors_named
from kafka_ratchet.spark_sink.stores.judging_store import JudgingStore
from kafka_ratchet.spark_sink.stores.store import ResultStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("spark_sink")

LONG_COMMIT_S: Final = 10.0
"""Seconds until the log announces a running commit; usual commits take less."""


def commit_slices(
    offset_range: OffsetRange, start: dict[int, int], job: Job, store: ResultStore, spark: SparkSession, run: RunState
) -> Iterator[None]:
    """Commit from `start` to the end of `offset_range`, at most `job.max_records` offsets at a time.

    The generator yields after each commit. Before the first commit of a run, the log names fields without a column.

    Args:
        offset_range: offsets that the topic holds.
        start: next offset of each partition, from the store.
        job: topic and pipeline.
        store: the open store.
        spark: a running Spark.
        run: state of the run, which records each commit.

    Raises:
        TimestampsUnreadable: Spark could not read some timestamps; the next call reads around them.
        SparkFailed: Spark could not read or compute the records.
        SinkError: see `ResultStore.commit`.
    """
    for first, last in slices(start, offset_range.end, job.max_records):
        for begin, until in pieces(job.unreadable, first, last):
            with spark_errors_named(job.topic, begin, until), unreadable_named(job, begin, until):
                if run.commits == 0:
                    some = next(slices(begin, until, SAMPLE_OFFSETS))[1]
                    run.note_undeclared(report_undeclared(job.pipeline, job.topic, records(spark, job, begin, some)))
                commit_records(records(spark, job, begin, until), begin, until, job, store, run)
            yield


def commit_records(
    read: DataFrame, start: dict[int, int], end: dict[int, int], job: Job, store: ResultStore, run: RunState
) -> None:
    """Commit the records that Spark's Kafka source has read from `start` up to `end`."""
    began = time.monotonic()
    work = f"reading and committing offsets {ranges(start, end)}"
    with announced(work, log.info, LONG_COMMIT_S), _frames(read, job, store) as (rows, rejects, sequences):
        count = store.commit(rows, start, end, rejects, sequences)
        seconds = time.monotonic() - began
        rejected = 0 if rejects is None else rejects.count()  # they are still cached
    run.note_commit(Commit(run.commits + 1, count, start, end, seconds, rejected))


def replace_records(
    spark: SparkSession, job: Job, first: dict[int, int], last: dict[int, int], store: ResultStore
) -> tuple[int, int]:
    """Replace the table's rows of a range of offsets by newly computed rows.

    Args:
        spark: a running Spark.
        job: topic and pipeline.
        first: first offset of each partition.
        last: offset after the last offset of each partition.
        store: the open store.

    Returns:
        Number of new rows, number of new rejects.

    Raises:
        SinkError: see `ResultStore.replace`.
    """
    work = f"reading and replacing offsets {ranges(first, last)}"
    read = records(spark, job, first, last)
    with announced(work, log.info, LONG_COMMIT_S), _frames(read, job, store) as (rows, rejects, _):
        count = store.replace(rows, first, last, rejects)
        return count, 0 if rejects is None else rejects.count()


Frames = tuple["DataFrame", "DataFrame | None", "DataFrame | None"]


@contextmanager
def _frames(read: DataFrame, job: Job, store: ResultStore) -> Iterator[Frames]:
    """Yield rows, rejects and changed last sequences.

    Rejects are None if the job has no rejects table. Last sequences are None without deduplication.
    """
    from pyspark.sql import functions as F

    pipeline, restricted = job.pipeline, store.restricted_values
    rule = pipeline.write_mode.judged
    if rule is None:
        with pipeline.frames(read, restricted_values=restricted) as (rows, rejects):
            yield rows, rejects, None
        return
    with (
        judged(read, rule, cast("JudgingStore", store).known_sequences()) as found,
        pipeline.frames(found.fresh, restricted_values=restricted) as (rows, unparsed),
    ):
        rejects = found.rejected.toDF(*RECORD_COLUMNS, REJECT_REASON)
        if unparsed is not None:
            rejects = rejects.unionByName(unparsed.withColumn(REJECT_REASON, F.lit(NOT_PARSED_REASON)))
        yield rows, rejects, found.sequences
