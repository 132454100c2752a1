"""Which records of a slice are new: against those before them in the slice, and the last sequences from before it.

State is kept per input partition, as a worker keeps it: an identity that arrives in two partitions is two. So the order
that counts is the offset's, and there is no question which of two partitions was first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka_ratchet.spark_sink.rows.judging.reading import IDENTITY, REASON, RECORD, REPLAYED, SEQUENCE, read
from kafka_ratchet.spark_sink.rows.judging.rule import JudgeRule

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

LAST, SEEN = "_last", "_seen"
"""Columns of last sequences, beside `_partition` and `_identity`. SEEN, with a reorder window: the sequences below the
last that have come, as far as the window reaches."""

TOO_LATE, NOT_NEW = "too-late", "replay-not-new"

_STORED_LAST, _STORED_SEEN = "_ratchet_stored", "_ratchet_stored_seen"


class Judged(NamedTuple):
    """What a slice comes to."""

    fresh: DataFrame
    """The records that are new, in the columns of Spark's Kafka source that become rows."""
    rejected: DataFrame
    """Those that cannot be judged, or are dead letters by their verdict; and their `REASON`."""
    sequences: DataFrame
    """Last sequences of the identities that had a new record, see `sequences_schema`."""


def sequences_schema(rule: JudgeRule) -> StructType:
    """Columns of last sequences. Needs no running Spark."""
    from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StructField, StructType

    fields = [StructField("_partition", IntegerType()), StructField("_identity", BinaryType())]
    fields.append(StructField(LAST, LongType()))
    if rule.reorder_window:
        fields.append(StructField(SEEN, ArrayType(LongType())))
    return StructType(fields)


@contextmanager
def judged(records: DataFrame, rule: JudgeRule, known: DataFrame | None) -> Iterator[Judged]:
    """Judge a slice. The judged records are cached for as long as the block runs.

    Args:
        records: what Spark's Kafka source read, with headers: the slice, whole.
        rule: how.
        known: last sequences of the records before it; several rows of one identity count as the highest of them. None:
            there are none.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as F

    found = _verdicts(read(records, rule), rule, known).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        is_fresh = F.col(REASON).isNull()
        yield Judged(
            found.where(is_fresh).select(*RECORD),
            found.where(~is_fresh).select(*RECORD, REASON),
            _changes(found.where(is_fresh), rule),
        )
    finally:
        found.unpersist()


def merged(sequences: DataFrame, rule: JudgeRule) -> DataFrame:
    """One row for each identity, of several: the highest last sequence, and what was seen below it."""
    from pyspark.sql import functions as F

    last = F.max(LAST).alias(LAST)
    if not rule.reorder_window:
        return sequences.groupBy("_partition", "_identity").agg(last)
    seen = F.flatten(F.collect_list(F.array_union(F.col(SEEN), F.array(F.col(LAST))))).alias(SEEN)
    return _within_window(sequences.groupBy("_partition", "_identity").agg(last, seen), rule)


def _within_window(sequences: DataFrame, rule: JudgeRule) -> DataFrame:
    """Without the sequences that no record can ask for any more."""
    from pyspark.sql import functions as F

    reachable = F.filter(
        F.array_distinct(SEEN), lambda each: (each < F.col(LAST)) & (each >= F.col(LAST) - rule.reorder_window)
    )
    return sequences.select("_partition", "_identity", LAST, F.array_sort(reachable).alias(SEEN))


def _verdicts(found: DataFrame, rule: JudgeRule, known: DataFrame | None) -> DataFrame:
    """The records that are no duplicates: `REASON` is null where one is new."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    before_all = F.lit(-1).cast("long")
    # Records that cannot be judged go through the same pass, each in a group of its own: a second one would read Kafka
    # again, and in one group a flood of them would be one task's.
    group = F.when(F.col(REASON).isNull(), before_all).otherwise(F.col("offset")).alias("_ratchet_group")
    rows = found.select(*found.columns, group, F.lit(None).cast("array<bigint>").alias(_STORED_SEEN))
    if known is not None:
        merged_known = merged(known, rule) if rule.reorder_window else known
        rows = rows.unionByName(
            merged_known.select(
                F.col("_partition").alias("partition"),
                before_all.alias("offset"),
                F.col("_identity").alias(IDENTITY),
                F.col(LAST).alias(SEQUENCE),
                before_all.alias("_ratchet_group"),
                (F.col(SEEN) if rule.reorder_window else F.lit(None).cast("array<bigint>")).alias(_STORED_SEEN),
            ),
            allowMissingColumns=True,
        )
    of_identity = Window.partitionBy("partition", IDENTITY, "_ratchet_group").orderBy("offset")
    earlier = of_identity.rowsBetween(Window.unboundedPreceding, -1)
    last = F.max(SEQUENCE).over(earlier)
    columns: list[Any] = [*RECORD, REASON, REPLAYED, IDENTITY, SEQUENCE, last.alias(LAST)]
    if rule.reorder_window:
        of_sequence = Window.partitionBy("partition", IDENTITY, "_ratchet_group", SEQUENCE).orderBy("offset")
        so_far = of_identity.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        stored_last = F.max(F.when(F.col("offset") < 0, F.col(SEQUENCE))).over(so_far)
        columns += [
            F.row_number().over(of_sequence).alias("_ratchet_times"),
            F.first(_STORED_SEEN, ignorenulls=True).over(so_far).alias(_STORED_SEEN),
            stored_last.alias(_STORED_LAST),
        ]
    judged = rows.select(*columns).where(F.col("offset") >= 0)
    verdict = _reason(rule)
    kept = [*RECORD, IDENTITY, SEQUENCE, *([_STORED_SEEN, _STORED_LAST] if rule.reorder_window else [])]
    judged = judged.select(*kept, F.coalesce(F.col(REASON), verdict).alias(REASON))
    return judged.where(F.col(REASON).isNull() | (F.col(REASON) != "duplicate"))


def _reason(rule: JudgeRule) -> Column:
    """Why a record that can be judged is not new; null: it is."""
    from pyspark.sql import functions as F

    last, sequence = F.col(LAST), F.col(SEQUENCE)
    is_fresh = last.isNull() | (sequence > last)
    not_new = F.when(F.col(REPLAYED), NOT_NEW)
    if rule.reorder_window:
        in_reach = (sequence < last) & (last - sequence <= rule.reorder_window)
        was_seen = (F.col("_ratchet_times") > 1) | F.array_contains(_STORED_SEEN, sequence)
        is_fresh = is_fresh | (in_reach & ~F.coalesce(was_seen, F.lit(False)))
        if rule.late == "dead-letter":
            not_new = not_new.when(last - sequence > rule.reorder_window, TOO_LATE)
    return F.when(~is_fresh, not_new.otherwise("duplicate"))


def _changes(fresh: DataFrame, rule: JudgeRule) -> DataFrame:
    """Last sequences after the slice."""
    from pyspark.sql import functions as F

    key = [F.col("partition").alias("_partition"), F.col(IDENTITY).alias("_identity")]
    if not rule.reorder_window:
        return fresh.groupBy(*key).agg(F.max(SEQUENCE).alias(LAST))
    # The stored last may be above all of the slice, and counts as seen where it is not.
    nothing = F.array().cast("array<bigint>")
    stored = F.col(_STORED_LAST)
    found = fresh.groupBy(*key).agg(
        F.greatest(F.max(SEQUENCE), F.max(_STORED_LAST)).alias(LAST),
        F.collect_set(SEQUENCE).alias("_in_slice"),
        F.first(_STORED_SEEN, ignorenulls=True).alias(_STORED_SEEN),
        F.max(_STORED_LAST).alias(_STORED_LAST),
    )
    seen = F.concat(
        F.col("_in_slice"),
        F.coalesce(F.col(_STORED_SEEN), nothing),
        F.when(stored.isNotNull(), F.array(stored)).otherwise(nothing),
    )
    return _within_window(found.select("_partition", "_identity", LAST, seen.alias(SEEN)), rule)
