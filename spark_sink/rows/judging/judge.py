"""Deduplication of a slice of offsets by stored last sequences and the slice's own records.

State is kept per input partition, as in a worker: an identity that arrives in two partitions counts as two. Spark's
Kafka source reads a partition in one task, in the order of its offsets. So a task can judge its records one after the
other, and no record has to be sorted or sent to another task.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka_ratchet.spark_sink.rows.judging.reading import REASON, RECORD, read
from kafka_ratchet.spark_sink.rows.judging.rule import JudgeRule
from kafka_ratchet.spark_sink.rows.judging.task import LAST, SEEN, Known, judging
from kafka_ratchet.spark_sink.spark.python_worker import map_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class DeduplicatedSlice(NamedTuple):
    """Outcome of deduplicating a slice: new records, rejected records, and changed last sequences."""

    fresh: DataFrame
    """New records, in the columns of Spark's Kafka source that become rows."""
    rejected: DataFrame
    """Records that cannot be judged, and re-sent dead letters that are not new, with their `REASON`."""
    sequences: DataFrame
    """Last sequences of the identities with a new record, see `sequences_schema`. All rows of a Kafka partition are in
    one partition of the frame."""


def sequences_schema(rule: JudgeRule) -> StructType:
    """Return the columns of last sequences. Needs no running Spark."""
    from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

    return StructType(
        [StructField("_kafka_partition", IntegerType()), StructField("_identity", BinaryType()), *_state(rule)]
    )


@contextmanager
def judged(records: DataFrame, rule: JudgeRule, known: Known | None) -> Iterator[DeduplicatedSlice]:
    """Deduplicate a slice, and cache the result while the block runs.

    Args:
        records: records of Spark's Kafka source, with headers: the whole slice. All records of a Kafka partition are in
            one partition of the frame, in the order of their offsets.
        rule: the job's rule.
        known: function that returns last sequences from before the slice. None: the slice is the first.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    found = read(records, rule)
    columns = [found.schema[name] for name in RECORD]
    schema = StructType([*columns, StructField(REASON, StringType()), *_state(rule)])
    done = map_batches(found, judging(rule, known), schema).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        is_record, is_fresh = F.col(LAST).isNull(), F.col(REASON).isNull()
        identity = [F.col("partition").alias("_kafka_partition"), F.col("key").alias("_identity")]
        yield DeduplicatedSlice(
            done.where(is_record & is_fresh).select(*RECORD),
            done.where(~is_fresh).select(*RECORD, REASON),
            done.where(~is_record).select(*identity, *(field.name for field in _state(rule))),
        )
    finally:
        done.unpersist()


def merged(sequences: DataFrame, rule: JudgeRule) -> DataFrame:
    """Merge the rows of each identity into one, with the highest last sequence and the seen sequences below it."""
    from pyspark.sql import functions as F

    last = F.max(LAST).alias(LAST)
    if not rule.reorder_window:
        return sequences.groupBy("_kafka_partition", "_identity").agg(last)
    seen = F.flatten(F.collect_list(F.array_union(F.col(SEEN), F.array(F.col(LAST))))).alias(SEEN)
    whole = sequences.groupBy("_kafka_partition", "_identity").agg(last, seen)
    # Without those that no record can need any more.
    reachable = F.filter(
        F.array_distinct(SEEN), lambda each: (each < F.col(LAST)) & (each >= F.col(LAST) - rule.reorder_window)
    )
    return whole.select("_kafka_partition", "_identity", LAST, F.array_sort(reachable).alias(SEEN))


def _state(rule: JudgeRule) -> list[Any]:
    from pyspark.sql.types import ArrayType, LongType, StructField

    fields = [StructField(LAST, LongType())]
    return [*fields, StructField(SEEN, ArrayType(LongType()))] if rule.reorder_window else fields
