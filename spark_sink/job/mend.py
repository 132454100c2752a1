"""Repair of a table's rows from the topic, in a commit that moves no offset.

The job's own pipeline computes the rows from the topic again. As with all rows, the store commits them only for the run
that opened the store last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.recount import rows_and_rejects
from kafka_ratchet.spark_sink.job.unreadable import read_again
from kafka_ratchet.spark_sink.rows import write_mode as modes
from kafka_ratchet.spark_sink.rows.columns import DELETED, RECORD, rejects_schema
from kafka_ratchet.spark_sink.rows.distinct import quoted
from kafka_ratchet.spark_sink.spark.dialect import from_arrow
from kafka_ratchet.spark_sink.stores.decision import RepairNote, Replacement
from kafka_ratchet.spark_sink.stores.store import ResultStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class TableRepair:
    """Repair of one table: identities of rows to remove, and of rows to insert."""

    gone: pa.Table
    """Identities of the rows to remove, each once."""
    put_in: pa.Table
    """Identities of the rows to insert, each once: partition and offset of a record, or for totals the key."""

    def __bool__(self) -> bool:
        return bool(self.gone.num_rows or self.put_in.num_rows)


def identity_of(mode: modes.WriteMode) -> tuple[str, ...]:
    """Return the columns that identify a row of the table."""
    return mode.row_key or RECORD


def mend(
    spark: SparkSession,
    job: Job,
    store: ResultStore,
    spans: tuple[Mapping[int, int], Mapping[int, int]],
    wanted: tuple[TableRepair, TableRepair],
    note: RepairNote,
) -> None:
    """Compute rows again from the topic, and commit them in place of wrong rows.

    Args:
        spark: a running Spark.
        job: the job, without `sql` or `transform`.
        store: the open store.
        spans: first offset of each partition in the topic, and the stored offsets.
        wanted: rows to change in the result table, and in the rejects table.
        note: note about the repair, stored with the commit.

    Raises:
        SinkError: see `ResultStore.repair`.
    """
    start, end = spans
    schema, beside = job.pipeline.schema(spark), rejects_schema(judged=job.pipeline.write_mode.judged is not None)

    def commit(rows: DataFrame | None, rejects: DataFrame | None) -> None:
        result = _replacement(spark, rows, schema, wanted[0], identity_of(job.pipeline.write_mode))
        store.repair(result, _replacement(spark, rejects, beside, wanted[1], RECORD), end, note)

    if not any(each.put_in.num_rows for each in wanted):
        commit(None, None)
        return
    begin, until = _narrowed(job, start, end, [each.put_in for each in wanted])

    def carry_out() -> None:
        with _frames(spark, job, begin, until, restricted_values=store.restricted_values) as (rows, rejects):
            commit(rows, rejects)

    read_again(job, begin, until, carry_out)


def _narrowed(
    job: Job, start: Mapping[int, int], end: Mapping[int, int], put_in: Sequence[pa.Table]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the range of offsets that the rows to insert follow from."""
    write_mode = job.pipeline.write_mode
    if write_mode.judged is not None or write_mode.kind == "totals":
        return dict(start), dict(end)  # a verdict, or a total, follows from all records before
    spans: dict[int, tuple[int, int]] = {}
    for each in put_in:
        found = each.group_by("_kafka_partition").aggregate([("_kafka_offset", "min"), ("_kafka_offset", "max")])
        for partition, least, most in zip(
            *(found[name].to_pylist() for name in ("_kafka_partition", "_kafka_offset_min", "_kafka_offset_max")),
            strict=True,
        ):
            first, last = spans.get(partition, (least, most))
            spans[partition] = min(first, least), max(last, most)
    return {p: first for p, (first, _) in spans.items()}, {p: last + 1 for p, (_, last) in spans.items()}


@contextmanager
def _frames(
    spark: SparkSession, job: Job, start: Mapping[int, int], end: Mapping[int, int], *, restricted_values: int
) -> Iterator[tuple[DataFrame, DataFrame | None]]:
    """Yield the computed rows and rejects in the columns of their tables."""
    with rows_and_rejects(spark, job, start, end, restricted_values=restricted_values) as (rows, rejects):
        if job.pipeline.write_mode.kind == "totals":
            yield modes.reduced(rows, job.pipeline.write_mode), rejects
        else:
            yield (rows.drop(DELETED) if job.pipeline.deletes else rows), rejects


def _replacement(
    spark: SparkSession, rows: DataFrame | None, schema: StructType, wanted: TableRepair, identity: tuple[str, ...]
) -> Replacement | None:
    """Return the changes to one table: identities to remove, and rows to insert; None if the table stays as it is."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    if not wanted:
        return None
    chosen = spark.createDataFrame([], schema)
    if wanted.put_in.num_rows and rows is not None:
        names = wanted.put_in.column_names
        renamed = [f"wanted_{n}" for n in range(len(names))]
        of_rows = StructType([schema[name] for name in names])
        keys = from_arrow(spark, wanted.put_in, of_rows).toDF(*renamed)
        same = reduce(
            lambda one, other: one & other,
            [rows[quoted(name)].eqNullSafe(keys[each]) for name, each in zip(names, renamed, strict=True)],
        )
        chosen = rows.join(F.broadcast(keys), same, "left_semi").select(*[F.col(quoted(each)) for each in schema.names])
    return Replacement(identity, wanted.gone, chosen, wanted.put_in.num_rows)
