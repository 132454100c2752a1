"""Modes batch and stream: read from the store's offsets, commit rows and offsets together."""

from __future__ import annotations

import logging
import time
from threading import Event
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import KafkaUnavailable, OptionRefused, RegistryUnavailable, SparkFailed
from kafka_ratchet.spark_sink.job.commit import commit_slices
from kafka_ratchet.spark_sink.job.control import first_offsets, limited, require_whole
from kafka_ratchet.spark_sink.job.lag import LagWatch
from kafka_ratchet.spark_sink.job.plan import TopicPlanner, resume, warn_of_missing_beginning
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.run_log import bar_of, log_run
from kafka_ratchet.spark_sink.job.run_state import RunState, RunSummary
from kafka_ratchet.spark_sink.job.start import (
    FAILS_FOR_S,
    Opened,
    Session,
    opened,
    require_startable,
    take_over,
    take_over_again,
    wait_for_registry,
    with_columns,
)
from kafka_ratchet.spark_sink.job.unreadable import TimestampsUnreadable
from kafka_ratchet.spark_sink.stores.store import ResultStore, require_local_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("spark_sink")

RETRY_PAUSE_S = 1.0
"""Seconds between a failure and the next attempt."""


def run_batch(
    job: Job, planner: TopicPlanner, store: ResultStore, session: Session, run: RunState | None = None
) -> RunSummary:
    """Commit the records from the store's offsets to the topic's present end, then stop.

    Without records to read, Spark is not started and the store stays as it is. But a first run with `--start` stores
    the offsets of `--start`, even without records.

    Args:
        job: topic and pipeline.
        planner: planner of the job's topic.
        store: target of the rows.
        session: starts Spark, and stops it at the end.
        run: state of the run, updated at each step; None: steps are only logged.

    Raises:
        SinkError: see `ResultStore`, `TopicPlanner` and `resume`.
    """
    run = run or RunState(log_run)
    require_startable(job, store)
    # The store before the topic, here and below: a topic only grows, so that a job which commits in between cannot make
    # the stored offsets appear to lie beyond the end.
    stored = store.offsets()
    offset_range = planner.offset_range()
    require_whole(job.until, offset_range)
    start = first_offsets(job, offset_range, stored, planner.offsets_at)
    limit = limited(job, offset_range, start, planner.offsets_at).offset_range
    warn_of_missing_beginning(offset_range, stored if job.start is None else start)
    run.note_offsets(limit, stored)
    if start != limit.end or (job.start is not None and start != offset_range.earliest):
        with session() as spark:
            require_local_master(store, spark.conf.get("spark.master", None))
            resolved = _resolved(job, planner, store, spark, run)
            if resolved is None and job.start is not None:
                raise OptionRefused(
                    f"{job.start}: no record after this position has a value to infer the columns from, and without "
                    "columns no table can be made that stores the offsets. Name the columns, or run again once the "
                    "topic has such a record"
                )
            if resolved is not None:
                _commit_to_end(resolved, planner, store, spark, run)
    run.note_end(run.generation or store.generation(), run.offsets)
    return run.outcome()


def _resolved(job: Job, planner: TopicPlanner, store: ResultStore, spark: SparkSession, run: RunState) -> Job | None:
    """Return the job with its columns; None: no value exists to infer columns from.

    While the schema registry does not answer, the function waits and tries again.
    """
    while True:
        try:
            return with_columns(job, planner, store, spark)
        except RegistryUnavailable as error:
            wait_for_registry(run, error)
            time.sleep(RETRY_PAUSE_S)


def _commit_to_end(job: Job, planner: TopicPlanner, store: ResultStore, spark: SparkSession, run: RunState) -> None:
    """Take the table over, and commit up to the topic's present end.

    The topic's id is read before the first commit and after each, so that the run notices records of another topic.
    """
    stored = take_over(job, planner, store, job.pipeline.schema(spark), run)
    try:
        run.note_take_over(store.generation(), stored)
        offset_range = planner.offset_range()
        planner.require_first_topic(offset_range.topic_id, stored)
        start = resume(offset_range, stored)
        limit = limited(job, offset_range, start, planner.offsets_at).offset_range
        run.note_offsets(limit, start)
        with bar_of(run, sum(run.lag.values())):
            while start != limit.end:
                try:
                    for _ in commit_slices(limit, start, job, store, spark, run):
                        planner.require_still_first_topic(run.offsets)
                except RegistryUnavailable as error:
                    wait_for_registry(run, error)
                    time.sleep(RETRY_PAUSE_S)
                except TimestampsUnreadable as error:
                    log.warning("%s", error)
                    take_over_again(store, job.pipeline.schema(spark), run)
                start = resume(offset_range, run.offsets)
    finally:
        store.close()


def run_stream(
    job: Job,
    planner: TopicPlanner,
    store: ResultStore,
    session: Session,
    interval_s: float,
    stop: Event,
    run: RunState | None = None,
) -> RunSummary:
    """Take the table over, then commit the topic's new records until stopped.

    While Kafka does not answer, the job keeps trying. After a failure of Spark, the job reads the table's offsets and
    tries again, for up to `FAILS_FOR_S` seconds.

    Args:
        job: topic and pipeline.
        planner: planner of the job's topic.
        store: target of the rows.
        session: starts Spark, and stops it at the end.
        interval_s: seconds between two checks of the topic for new records; 0: without a pause.
        stop: set it to end the run; a running commit is finished first.
        run: state of the run, updated at each step; None: steps are only logged.

    Raises:
        SinkError: see `ResultStore`, `TopicPlanner` and `resume`.
    """
    run = run or RunState(log_run)
    require_startable(job, store)
    with opened(job, planner, store, session, interval_s, stop, run) as found:
        if found is not None:
            stream = _Stream(found, planner, store, stop, run)
            while not stop.is_set():
                began = time.monotonic()
                stream.look()
                stop.wait(max(0.0, interval_s - (time.monotonic() - began)))
    return run.outcome()


class _Stream:
    """Running stream: the open store, and the repeated check of the topic for new records."""

    def __init__(self, found: Opened, planner: TopicPlanner, store: ResultStore, stop: Event, run: RunState) -> None:
        self._job, self._spark, self._schema = found.job, found.spark, found.schema
        self._planner, self._store, self._stop, self._run = planner, store, stop, run
        self._lag = LagWatch(planner, run)
        self._known: set[int] = set()
        """Partitions already checked for records that retention removed before the first read."""

    def look(self) -> None:
        """Commit the topic's new records."""
        run = self._run
        try:
            offset_range = self._planner.offset_range()
        except KafkaUnavailable as error:
            run.note_failure(error)
            return
        self._planner.require_first_topic(offset_range.topic_id, run.offsets)
        start = resume(offset_range, run.offsets)
        try:
            limit = limited(self._job, offset_range, start, self._planner.offsets_at)
        except KafkaUnavailable as error:
            run.note_failure(error)
            return
        if limit.is_reached:
            log.info("%s: the table has all records before this end; the run ends", self._job.until)
            self._stop.set()
            return
        if not self._known:
            require_whole(self._job.until, offset_range)
        if offset_range.end.keys() - self._known:  # the first look, or partitions were added
            warn_of_missing_beginning(offset_range, dict.fromkeys(self._known, 0) | run.offsets)
            self._known |= offset_range.end.keys()
        self._lag.look(offset_range, run.offsets)
        try:
            for _ in commit_slices(limit.offset_range, start, self._job, self._store, self._spark, run):
                self._lag.look(offset_range, run.offsets)
                if self._stop.is_set():
                    break
        except KafkaUnavailable as error:  # before the rows were visible
            run.note_failure(error)
            self._stop.wait(RETRY_PAUSE_S)
            take_over_again(self._store, self._schema, run)
        except RegistryUnavailable as error:  # before anything was written
            wait_for_registry(run, error)
            self._stop.wait(RETRY_PAUSE_S)
        except TimestampsUnreadable as error:
            log.warning("%s", error)
            take_over_again(self._store, self._schema, run)
        except SparkFailed as error:
            if run.failing_s() > FAILS_FOR_S:
                raise
            run.note_failure(error)
            self._stop.wait(RETRY_PAUSE_S)
            take_over_again(self._store, self._schema, run)
