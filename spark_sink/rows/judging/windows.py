"""Judging of a whole topic at once by window functions, for an independent count.

The job itself judges by module `task`, slice by slice. This module implements the same rule a second time, and holds
no identities in memory, because window functions spill to disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kafka_ratchet.rule.verdicts import TOO_LATE
from kafka_ratchet.spark_sink.rows.judging.reading import IDENTITY, REASON, RECORD, REPLAYED, SEQUENCE, read
from kafka_ratchet.spark_sink.rows.judging.rule import JudgeRule
from kafka_ratchet.spark_sink.rows.judging.task import LAST, NOT_NEW

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TIMES = "_ratchet_times"


@contextmanager
def judged_at_once(records: DataFrame, rule: JudgeRule) -> Iterator[tuple[DataFrame, DataFrame]]:
    """Yield the new records, and the rejects with their `REASON`; cached while the block runs.

    Args:
        records: records of Spark's Kafka source, with headers, from the topic's start; in any order.
        rule: the job's rule.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as F

    found = _verdicts(read(records, rule), rule).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        is_fresh = F.col(REASON).isNull()
        yield found.where(is_fresh).select(*RECORD), found.where(~is_fresh).select(*RECORD, REASON)
    finally:
        found.unpersist()


def _verdicts(found: DataFrame, rule: JudgeRule) -> DataFrame:
    """Return all records except duplicates; a new record has null as `REASON`."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    # Records that cannot be judged go through the same pass, each in its own group. A second pass would read Kafka
    # again, and one group for a flood of them would be one task's.
    group = F.when(F.col(REASON).isNull(), F.lit(-1).cast("long")).otherwise(F.col("offset")).alias("_ratchet_group")
    of_identity = Window.partitionBy("partition", IDENTITY, "_ratchet_group").orderBy("offset")
    last = F.max(SEQUENCE).over(of_identity.rowsBetween(Window.unboundedPreceding, -1))
    columns: list[Any] = [*RECORD, REASON, REPLAYED, SEQUENCE, last.alias(LAST)]
    if rule.reorder_window:
        of_sequence = Window.partitionBy("partition", IDENTITY, "_ratchet_group", SEQUENCE).orderBy("offset")
        columns.append(F.row_number().over(of_sequence).alias(_TIMES))
    rows = found.select(*found.columns, group).select(*columns)
    judged = rows.select(*RECORD, F.coalesce(F.col(REASON), _reason(rule)).alias(REASON))
    return judged.where(F.col(REASON).isNull() | (F.col(REASON) != "duplicate"))


def _reason(rule: JudgeRule) -> Column:
    """Return the column with the reason why a record is rejected or dropped; null for a new record."""
    from pyspark.sql import functions as F

    last, sequence = F.col(LAST), F.col(SEQUENCE)
    is_fresh = last.isNull() | (sequence > last)
    not_new = F.when(F.col(REPLAYED), NOT_NEW)
    if rule.reorder_window:
        in_reach = (sequence < last) & (last - sequence <= rule.reorder_window)
        is_fresh = is_fresh | (in_reach & (F.col(_TIMES) == 1))
        if rule.late == "dead-letter":
            not_new = not_new.when(last - sequence > rule.reorder_window, TOO_LATE)
    return F.when(~is_fresh, not_new.otherwise("duplicate"))
