"""Before the first commit: what is refused without Spark, and columns that nobody has named."""

from __future__ import annotations

import logging
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import KafkaUnavailable, SparkFailed
from kafka_ratchet.spark_sink.job.plan import TopicPlanner, resume, slices
from kafka_ratchet.spark_sink.job.reading import Job, records
from kafka_ratchet.spark_sink.rows.infer import SAMPLE_OFFSETS, of_table, require_columns, sampled
from kafka_ratchet.spark_sink.spark.errors import spark_errors_named
from kafka_ratchet.spark_sink.stores.store import ResultStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("spark_sink")

PAUSE_S = 0.5
"""Between two looks, at least, where there is no value yet to read columns off, in seconds."""


def require_startable(job: Job, store: ResultStore) -> None:
    """Refuse what is known to be wrong without Spark, which takes seconds to start; also where nothing is to be read.

    Raises:
        OptionRefused: columns and kind of result do not fit together.
        SchemaDiffers: the table is there with other columns.
        RuleDiffers: its rows came there by another kind, key or sums.
        StoreError: the store cannot be read.
    """
    store.require_rule()
    schema = job.recipe.known_schema()
    if schema is not None:
        store.require_fits(schema)


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
    values = 0
    for begin, until in slices(resume(extent, stored), extent.end, SAMPLE_OFFSETS):
        with spark_errors_named(job.topic, begin, until):
            sample = sampled(records(spark, job, begin, until))
        values += sample.values
        if sample.columns.fields:
            break
    if values == 0:
        return None
    columns = require_columns(replace(sample, values=values), job.topic)
    return replace(job, recipe=replace(job.recipe, columns=columns))


def wait_for_columns(
    job: Job, planner: TopicPlanner, store: ResultStore, spark: SparkSession, interval_s: float, stop: Event
) -> Job | None:
    """The same for a job without an end: looks again while there is no value yet, or Kafka or Spark cannot say.

    Args:
        job: what to read.
        planner: of the job's topic.
        store: where the rows go.
        spark: a running Spark.
        interval_s: between two looks, in seconds; `PAUSE_S` at least.
        stop: set by whoever wants an end.

    Returns:
        None once `stop` is set.

    Raises:
        OptionRefused: see `with_columns`.
    """
    while True:
        try:
            settled = with_columns(job, planner, store, spark)
        except (KafkaUnavailable, SparkFailed) as error:
            log.warning("%s; the job asks again and goes on when it answers", error)
            settled = None
        if settled is not None:
            return settled
        if stop.wait(max(interval_s, PAUSE_S)):
            return None
