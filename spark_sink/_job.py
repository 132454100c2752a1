"""The loop: ask the store how far it is, read on from there, commit rows and offsets together."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from threading import Event
from typing import TYPE_CHECKING, TypeVar

from spark_sink._infer import SAMPLE_OFFSETS, Sample, of_table, require_columns, sampled
from spark_sink._plan import Extent, TopicPlanner, resume, slices
from spark_sink._progress import Committed, log_commit, progress
from spark_sink._recipe import Recipe
from spark_sink._spark_errors import spark_errors_named
from spark_sink._store import ResultStore, require_reach
from spark_sink.errors import Fenced, KafkaUnavailable, SparkFailed, TopicRecreated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

    Reader = TypeVar("Reader", DataFrameReader, DataStreamReader)

log = logging.getLogger("spark_sink")

MAX_RECORDS = 1_000_000
"""Offsets per commit: seconds of work, so that a kill costs little, and far more than the cost of a commit itself."""

FAILS_FOR_S = 600.0
"""How long a stream tries again, in seconds, without one commit in between: brokers restart, partitions move and disks
are freed within minutes. What lasts longer is for somebody to look at."""

RETRY_PAUSE_S = 1.0
"""Between a failure and the next try, in seconds."""


PAUSE_S = 0.5
"""Between two looks, at least, where there is no value yet to read columns off, in seconds."""


@dataclass(frozen=True)
class Job:
    """What to read, and what to make of it."""

    bootstrap: str
    topic: str
    name: str
    recipe: Recipe = field(default_factory=Recipe)
    """What becomes of the records."""
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
        require_reach(store, spark.conf.get("spark.master", None))
        settled = with_columns(job, planner, store, spark)
        if settled is None:
            return Outcome(0, 0, stored)
        job = settled
        stored = store.open(job.recipe.schema(spark))
        try:
            extent = planner.extent()
            return _commit_until(extent.end, resume(extent, stored), job, store, spark)
        finally:
            store.close()


def run_stream(
    job: Job,
    planner: TopicPlanner,
    store: ResultStore,
    session: Callable[[], AbstractContextManager[SparkSession]],
    interval_s: float,
    stop: Event,
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

    Raises:
        SinkError: see `ResultStore`, `TopicPlanner` and `resume`.
    """
    with session() as spark:
        require_reach(store, spark.conf.get("spark.master", None))
        while (settled := columns_when_it_answers(job, planner, store, spark)) is None:
            if stop.wait(max(interval_s, PAUSE_S)):
                return Outcome(0, 0, store.offsets())
        job = settled
        schema = job.recipe.schema(spark)
        outcome = Outcome(0, 0, store.open(schema))
        generation, fails_since = store.generation(), None
        identity = planner.identity()
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
                    try:
                        for committed in _commits(extent.end, start, job, store, spark, outcome.commits + 1):
                            log_commit(committed)
                            rows, commits = outcome.rows + committed.rows, outcome.commits + 1
                            outcome, fails_since = Outcome(commits, rows, dict(committed.end)), None
                            if stop.is_set():
                                break
                    except SparkFailed as error:
                        fails_since = began if fails_since is None else fails_since
                        if time.monotonic() - fails_since > FAILS_FOR_S:
                            raise
                        log.warning("%s; the job looks how far the table is and goes on", error)
                        stop.wait(RETRY_PAUSE_S)
                        generation, offsets = _taken_again(store, schema, generation)
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


def with_columns(job: Job, planner: TopicPlanner, store: ResultStore, spark: SparkSession) -> Job | None:
    """The job with columns in the place of `INFER`: the table's, or those of the first records that have any.

    Returns:
        None where there is neither a table nor a value to read them off.

    Raises:
        OptionRefused: none of the topic's values has a field that can be a column.
    """
    if not job.recipe.infers:
        return job
    table = store.columns()
    if table is not None:
        return replace(job, recipe=replace(job.recipe, columns=of_table(table, "the table")))
    stored = store.offsets()
    extent = planner.extent()
    looked_at: Sample | None = None
    for begin, until in slices(resume(extent, stored), extent.end, SAMPLE_OFFSETS):
        with spark_errors_named(job.topic, begin, until):
            sample = sampled(records(spark, job, begin, until))
        if sample.values and (looked_at is None or not looked_at.columns.fields):
            looked_at = sample
        if sample.columns.fields:
            break
    if looked_at is None:
        return None
    return replace(job, recipe=replace(job.recipe, columns=require_columns(looked_at, job.topic)))


def columns_when_it_answers(job: Job, planner: TopicPlanner, store: ResultStore, spark: SparkSession) -> Job | None:
    """The same; None also while Kafka or Spark cannot say."""
    try:
        return with_columns(job, planner, store, spark)
    except (KafkaUnavailable, SparkFailed) as error:
        log.warning("%s; the job asks again and goes on when it answers", error)
        return None


def require_identity(extent: Extent, identity: int, offsets: Mapping[int, int]) -> None:
    """Raise `TopicRecreated` unless the topic is still the one that the job began with."""
    if extent.identity != identity:
        raise TopicRecreated(
            f"topic {extent.topic} was deleted and created again while the job read it (up to {dict(offsets)}). To "
            "read the new topic from its beginning into the same table, give the job a new name; rows may then be "
            "there twice"
        )


def _commit_until(
    end: dict[int, int], start: dict[int, int], job: Job, store: ResultStore, spark: SparkSession
) -> Outcome:
    commits = rows = 0
    with progress(sum(end.values()) - sum(start.values())) as report:
        for committed in _commits(end, start, job, store, spark):
            commits, rows = commits + 1, rows + committed.rows
            report(committed)
    return Outcome(commits, rows, end)


def _commits(
    end: dict[int, int], start: dict[int, int], job: Job, store: ResultStore, spark: SparkSession, first: int = 1
) -> Iterator[Committed]:
    for number, (begin, until) in enumerate(slices(start, end, job.max_records), first):
        began = time.monotonic()
        with (
            spark_errors_named(job.topic, begin, until),
            job.recipe.frames(records(spark, job, begin, until), narrow=store.narrow) as (rows, rejects),
        ):
            count = store.commit(rows, begin, until, rejects)
        yield Committed(number, count, begin, until, time.monotonic() - began)


def records(spark: SparkSession, job: Job, start: Mapping[int, int], end: Mapping[int, int]) -> DataFrame:
    """Exactly the committed records from `start` up to, not including, `end`.

    `failOnDataLoss` stays at its default, true: false was measured to skip rows without a word.
    """
    # assign, not subscribe: Spark demands an offset for every partition it sees, and one may be added at any moment.
    return (
        reading(spark.read, job)
        .option("assign", json.dumps({job.topic: sorted(start)}))
        .option("startingOffsets", json.dumps({job.topic: start}))
        .option("endingOffsets", json.dumps({job.topic: end}))
        .load()
    )


def reading(reader: Reader, job: Job) -> Reader:
    """A reader of the job's Kafka, committed records only; what to read of it is left to say."""
    reader = reader.format("kafka").option("kafka.bootstrap.servers", job.bootstrap)
    reader = reader.option("kafka.isolation.level", "read_committed")
    for name, value in job.reader_options.items():
        reader = reader.option(f"kafka.{name}", value)
    return reader
