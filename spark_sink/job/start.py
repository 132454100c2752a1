"""Steps before the first commit: checks without Spark, inference of columns, and the take-over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from threading import Event
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import (
    Fenced,
    KafkaUnavailable,
    RegistryUnavailable,
    SecondJob,
    SparkFailed,
    TablePutBack,
)
from kafka_ratchet.spark_sink.job.control import first_offsets, limited, require_first_run
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job, records, slices
from kafka_ratchet.spark_sink.job.run_state import RunState
from kafka_ratchet.spark_sink.job.unreadable import read_again
from kafka_ratchet.spark_sink.rows.infer import (
    SAMPLE_OFFSETS,
    InferredColumns,
    nothing_sampled,
    of_table,
    require_columns,
    sampled,
    with_new_fields,
)
from kafka_ratchet.spark_sink.spark.errors import spark_errors_named
from kafka_ratchet.spark_sink.stores.decision import decide
from kafka_ratchet.spark_sink.stores.store import ResultStore, require_local_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

PAUSE_S = 0.5
"""Least seconds between two checks of the topic, while it has no value to infer columns from."""


FAILS_FOR_S = 600.0
"""Maximum seconds of failed attempts without a commit in between: brokers restart, partitions move,
registries are replaced and disks are freed within minutes. A longer fault needs an operator."""

Session = Callable[[], AbstractContextManager["SparkSession"]]
"""Function that starts Spark, and stops it at the end."""


@dataclass(frozen=True)
class Opened:
    """Job, Spark session and table schema of a stream, once its store is open."""

    job: Job
    """Job with its columns."""
    spark: SparkSession
    schema: StructType
    """Columns of the result table."""


def require_startable(job: Job, store: ResultStore) -> None:
    """Check a job for contradictions that show without Spark.

    It is called even if no record is left to read.

    Raises:
        OptionRefused: columns and kind of result do not fit together, or `--start` was given and the table has offsets.
        SchemaDiffers: the table has other columns.
        WriteModeDiffers: the table's rows have another kind, key or sums.
        SecondJob: see `require_first_job`.
        StoreError: the store cannot be read.
    """
    store.require_write_mode()
    require_first_job(job, store)
    if job.start is not None:
        require_first_run(job, store.offsets(), job.topic)
    schema = job.pipeline.known_schema()
    if schema is not None:
        store.require_fits(schema)


def require_first_job(job: Job, store: ResultStore) -> None:
    """Check that no job of another name has committed the topic to the table.

    A job with commits in the table is not checked again.

    Raises:
        SecondJob: another job has committed the topic, and `--second-job` is not set.
        SinkError: see `ResultStore.offsets`.
    """
    if job.second_job or store.offsets():
        return
    others = store.other_jobs()
    if not others and (beside := job.jobs_of_other_topic()):
        raise SecondJob(
            f"job {job.name}: job {', '.join(beside)} already writes the same stream to this table: one of the two "
            "jobs reads the workers' input (from_input), and the other job their output. Every record would be in the "
            "table twice. Choose another table. To have the rows of both jobs in one table, start this job with "
            "--second-job"
        )
    if others:
        one = others[0]
        raise SecondJob(
            f"job {job.name}: topic {job.topic} has been committed to this table by job {', '.join(others)}, and not "
            "by this one. This job would read the topic from its beginning, and every record would count twice. To "
            f"continue from that job's offsets, give this job its name (sink.name = {one!r}, --name {one}). For "
            "separate rows, choose another table. To have the rows of both jobs in one table, start this job with "
            "--second-job"
        )


def take_over(job: Job, planner: TopicPlanner, store: ResultStore, schema: StructType, run: RunState) -> dict[int, int]:
    """Take the store over, unless another job made a first commit while Spark started.

    The offsets of `--start` are stored before the first read, so that they survive a run without a commit. Each commit
    checks that the topic was not created again.

    Raises:
        SecondJob: see `require_first_job`.
        OptionRefused: see `first_offsets`.
        SinkError: see `ResultStore.open`.
    """
    require_first_job(job, store)
    stored = store.open(schema)
    store.check_before_commit(lambda: planner.require_still_first_topic(run.offsets))
    if job.start is None:
        return stored
    first = first_offsets(job, planner.offset_range(), stored, planner.offsets_at)
    store.reset_offsets(first, decide(job.start.text, f"{job.start}: beginning of the first run", {}))
    return store.open(schema)


def take_over_again(store: ResultStore, schema: StructType, run: RunState) -> None:
    """Open the store again after a failed commit, to fence the commit's running tasks.

    Raises:
        Fenced: a newer run has taken over; this run must not fence that run in turn.
        TablePutBack: the table was put back to a state before this run's take-over.
    """
    newest = store.generation()
    if newest < run.generation:
        raise TablePutBack(
            f"the table was put back to an earlier state: it has generation {newest}, where generation "
            f"{run.generation} was expected. Run the job again, and it goes on from the table's offsets"
        )
    if newest != run.generation:
        raise Fenced(
            f"a newer run of this job has taken the table over: generation {newest} has taken over from "
            f"{run.generation}. Let the newer run continue"
        )
    stored = store.open(schema)
    run.note_take_over(store.generation(), stored)


def with_columns(
    job: Job, planner: TopicPlanner, store: ResultStore, spark: SparkSession, *, grow: bool = True
) -> Job | None:
    """Return the job with columns in place of `INFER`: the table's, or else columns of the first values.

    The columns of a registry's values come from the registry's newest schema. If the pipeline adds new fields, the
    result has the table's columns, and the new fields of the first unread values or of that schema.

    Args:
        job: topic and pipeline.
        planner: planner of the job's topic.
        store: the store with the table.
        spark: a running Spark.
        grow: False: take the columns of an existing table, and add no fields.

    Returns:
        None: neither a table nor a value exists to infer columns from.

    Raises:
        OptionRefused: none of the topic's values has a field that can be a column, or no schema gives the columns.
        RegistryUnavailable: the registry does not answer.
        RegistryRefused: the registry denies access.
    """
    if not job.pipeline.infers:
        return job
    table, registry = store.columns(), job.pipeline.registry
    if table is not None and not (grow and job.pipeline.takes_up):
        columns = of_table(table, "the table")
        return replace(job, pipeline=replace(job.pipeline, columns=columns))
    if registry is None:
        sample = _sample(job, planner, store, spark)
    else:
        newest = registry.newest_columns()
        sample = InferredColumns(len(newest), newest, {})
    if table is not None:
        columns = with_new_fields(of_table(table, "the table"), sample, job.topic)
    elif sample.values:
        columns = require_columns(sample, job.topic)
    else:
        return None
    return replace(job, pipeline=replace(job.pipeline, columns=columns))


def _sample(job: Job, planner: TopicPlanner, store: ResultStore, spark: SparkSession) -> InferredColumns:
    """Sample the unread records, up to the first slice of offsets with a usable field."""
    stored = store.offsets()
    offset_range = planner.offset_range()
    values, sample = 0, nothing_sampled()
    start = first_offsets(job, offset_range, stored, planner.offsets_at)
    limit = limited(job, offset_range, start, planner.offsets_at)
    for begin, until in slices(start, limit.offset_range.end, SAMPLE_OFFSETS):
        with spark_errors_named(job.topic, begin, until):
            sample = read_again(job, begin, until, lambda: sampled(records(spark, job, begin, until)))  # noqa: B023
        values += sample.values
        if sample.columns.fields:
            break
    return replace(sample, values=values)


def wait_for_registry(run: RunState, error: RegistryUnavailable) -> None:
    """Record that the registry does not answer; raise its error after `FAILS_FOR_S` seconds."""
    if run.failing_s() > FAILS_FOR_S:
        raise error
    run.note_failure(error)


def wait_for_columns(
    job: Job,
    planner: TopicPlanner,
    store: ResultStore,
    spark: SparkSession,
    interval_s: float,
    stop: Event,
    run: RunState,
) -> Job | None:
    """Return the job with its columns as `with_columns` does, and wait as long as necessary.

    This is for a job that runs until stopped: the call waits for the topic's first value, and tries again while Kafka,
    Spark or the registry fails.

    Args:
        job: topic and pipeline.
        planner: planner of the job's topic.
        store: target of the rows.
        spark: a running Spark.
        interval_s: seconds between two checks of the topic; `PAUSE_S` at least.
        stop: set it to end the run.
        run: state of the run, which records failures.

    Returns:
        None: `stop` was set.

    Raises:
        OptionRefused: see `with_columns`.
        RegistryUnavailable: the registry has not answered for `FAILS_FOR_S` seconds.
    """
    while True:
        try:
            resolved = with_columns(job, planner, store, spark)
            if resolved is not None:
                return resolved
        except RegistryUnavailable as error:
            wait_for_registry(run, error)
        except (KafkaUnavailable, SparkFailed) as error:
            run.note_failure(error)
        if stop.wait(max(interval_s, PAUSE_S)):
            return None


@contextmanager
def opened(
    job: Job,
    planner: TopicPlanner,
    store: ResultStore,
    session: Session,
    interval_s: float,
    stop: Event,
    run: RunState,
) -> Iterator[Opened | None]:
    """Start Spark, determine the columns, and take the store over.

    This is for a job that runs until stopped. Yields None if `stop` was set. The arguments are those of `run_stream`.
    """
    with session() as spark:
        require_local_master(store, spark.conf.get("spark.master", None))
        resolved = wait_for_columns(job, planner, store, spark, interval_s, stop, run)
        if resolved is None:
            yield None
            run.note_end(store.generation(), store.offsets())
            return
        schema = resolved.pipeline.schema(spark)
        stored = take_over(resolved, planner, store, schema, run)
        try:
            run.note_take_over(store.generation(), stored)
            yield Opened(resolved, spark, schema)
        finally:
            store.close()
    run.note_end(run.generation, run.offsets)
