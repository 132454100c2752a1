"""Batch and stream: ask the store how far it is, read on from there, commit rows and offsets together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import Fenced, KafkaUnavailable, SparkFailed
from kafka_ratchet.spark_sink.job.commit import Outcome, after, commit_slices
from kafka_ratchet.spark_sink.job.lag import LagLog
from kafka_ratchet.spark_sink.job.plan import Extent, TopicPlanner, require_identity, resume, say_what_is_gone
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.run_state import Figures
from kafka_ratchet.spark_sink.job.start import require_startable, wait_for_columns, with_columns
from kafka_ratchet.spark_sink.spark.progress import log_commit, progress
from kafka_ratchet.spark_sink.stores.store import ResultStore, require_reach

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger("spark_sink")

FAILS_FOR_S = 600.0
"""How long a stream tries again, in seconds, without one commit in between: brokers restart, partitions move and disks
are freed within minutes. What lasts longer is for somebody to look at."""

RETRY_PAUSE_S = 1.0
"""Between a failure and the next try, in seconds."""


def run_batch(
    job: Job,
    planner: TopicPlanner,
    store: ResultStore,
    session: Callable[[], AbstractContextManager[SparkSession]],
    figures: Figures | None = None,
) -> Outcome:
    """Read on from the store's offsets to the topic's end as of now, then stop.

    Where there is nothing to read, Spark is not started and the store is left as it is.

    Args:
        job: what to read.
        planner: of the job's topic.
        store: where the rows go.
        session: starts Spark, and stops it at the end.
        figures: what is counted; None: nobody asks.

    Raises:
        SinkError: see `ResultStore`, `TopicPlanner` and `resume`.
    """
    figures = figures or Figures()
    require_startable(job, store)
    # The store before the topic, here and below: a topic only grows, so that a job which commits in between cannot
    # make the stored offsets look as if they lay beyond the end.
    stored = store.offsets()
    extent = planner.extent()
    start = resume(extent, stored)
    say_what_is_gone(extent, stored)
    figures.stand(extent, stored)
    if start == extent.end:
        return Outcome(0, 0, stored)
    with session() as spark:
        require_reach(store, spark.conf.get("spark.master", None))
        settled = with_columns(job, planner, store, spark)
        if settled is None:
            return Outcome(0, 0, stored)
        job = settled
        stored = store.open(job.recipe.schema(spark))
        try:
            figures.generation = store.generation()
            extent = planner.extent()
            return _commit_to_end(extent, resume(extent, stored), job, store, spark, figures)
        finally:
            store.close()


def run_stream(
    job: Job,
    planner: TopicPlanner,
    store: ResultStore,
    session: Callable[[], AbstractContextManager[SparkSession]],
    interval_s: float,
    stop: Event,
    figures: Figures | None = None,
) -> Outcome:
    """Take over, then commit what the topic has, again and again.

    While Kafka does not answer, the job keeps asking. What Spark could not read or compute is tried again for
    `FAILS_FOR_S`, after a look at how far the table is.

    Args:
        job: what to read.
        planner: of the job's topic.
        store: where the rows go.
        session: starts Spark, and stops it at the end.
        interval_s: from the beginning of one look at the topic to the next, in seconds; 0: at once.
        stop: set by whoever wants an end; the commit that is under way is finished first.
        figures: what is counted; None: nobody asks.

    Raises:
        SinkError: see `ResultStore`, `TopicPlanner` and `resume`.
    """
    figures = figures or Figures()
    require_startable(job, store)
    lag = LagLog(planner, figures)
    with session() as spark:
        require_reach(store, spark.conf.get("spark.master", None))
        settled = wait_for_columns(job, planner, store, spark, interval_s, stop)
        if settled is None:
            return Outcome(0, 0, store.offsets())
        job = settled
        schema = job.recipe.schema(spark)
        outcome = Outcome(0, 0, store.open(schema))
        generation = figures.generation = store.generation()
        fails_since = None
        identity = planner.identity()
        has_looked = False
        try:
            while not stop.is_set():
                began = time.monotonic()
                try:
                    extent = planner.extent()
                except KafkaUnavailable as error:
                    log.warning("%s; the job asks again and goes on when it answers", error)
                else:
                    require_identity(extent, identity, outcome.offsets)
                    start = resume(extent, outcome.offsets)
                    if not has_looked:
                        say_what_is_gone(extent, outcome.offsets)
                        has_looked = True
                    lag.look(extent, outcome.offsets)
                    try:
                        for committed in commit_slices(extent, start, job, store, spark, figures, outcome.commits + 1):
                            log_commit(committed)
                            outcome, fails_since = after(outcome, committed), None
                            lag.look(extent, outcome.offsets)
                            if stop.is_set():
                                break
                    except SparkFailed as error:
                        fails_since = began if fails_since is None else fails_since
                        if time.monotonic() - fails_since > FAILS_FOR_S:
                            raise
                        log.warning("%s; the job looks how far the table is and goes on", error)
                        stop.wait(RETRY_PAUSE_S)
                        generation, offsets = _taken_again(store, schema, generation)
                        figures.generation = generation
                        outcome = replace(outcome, offsets=offsets)
                stop.wait(max(0.0, interval_s - (time.monotonic() - began)))
        finally:
            store.close()
    return outcome


def _taken_again(store: ResultStore, schema: StructType, generation: int) -> tuple[int, dict[int, int]]:
    """A new generation, which fences tasks of the failed commit that may still run, and the offsets as they are.

    Raises:
        Fenced: another job has taken over meanwhile; it must not be fenced in turn.
    """
    newest = store.generation()
    if newest != generation:
        raise Fenced(f"generation {newest} has taken over from {generation}. Let the other job go on")
    offsets = store.open(schema)
    return store.generation(), offsets


def _commit_to_end(
    extent: Extent, start: dict[int, int], job: Job, store: ResultStore, spark: SparkSession, figures: Figures
) -> Outcome:
    outcome = Outcome(0, 0, extent.end)
    with progress(sum(extent.end.values()) - sum(start.values())) as report:
        for committed in commit_slices(extent, start, job, store, spark, figures):
            outcome = after(outcome, committed)
            figures.stand(extent, outcome.offsets)
            report(committed)
    return outcome
