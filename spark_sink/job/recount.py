"""Expected rows of a result, computed from all records of the topic at once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.job.reading import Job, records
from kafka_ratchet.spark_sink.job.unreadable import read_again
from kafka_ratchet.spark_sink.rows import digests
from kafka_ratchet.spark_sink.rows.columns import DELETED, NOT_PARSED_REASON, RECORD_COLUMNS, REJECT_REASON
from kafka_ratchet.spark_sink.rows.distinct import quoted
from kafka_ratchet.spark_sink.rows.judging.windows import judged_at_once
from kafka_ratchet.spark_sink.rows.write_mode import reduced
from kafka_ratchet.spark_sink.spark.dialect import to_arrow
from kafka_ratchet.spark_sink.spark.python_worker import Task, map_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def list_digest(numbers: Sequence[int]) -> str:
    """Return the digest of a list of hashes, as text of 64 characters."""
    return hashlib.sha256(",".join(map(str, numbers)).encode()).hexdigest()


@dataclass(frozen=True)
class Recount:
    """Expected result by key, computed from the topic's records up to some offsets: keys, deleted keys, rejects."""

    keys: pa.Table
    """Rows of the result. For totals: the columns of the table, with `list_digest` in place of lists. For upsert: a row
    for each key and Kafka partition, with key, partition and offset of the last record there, unless it is a
    deletion."""
    deleted: pa.Table
    """Deletions. For upsert: the columns of `keys`, for each key and partition with a deletion as the last record.
    For totals: empty."""
    rejects: pa.Table
    """`_kafka_partition` and `_kafka_offset` of each reject."""


def recount(
    spark: SparkSession, job: Job, start: Mapping[int, int], end: Mapping[int, int], *, restricted_values: int
) -> Recount:
    """Compute the expected result of a job with a key, from all records at once.

    The job's own pipeline reads the values, because only Spark knows how it parses them. The store's commits and
    merges, which may have faults, are not used.

    Args:
        spark: a running Spark.
        job: job with a key, and without `sql` or `transform`.
        start: first offset of each partition.
        end: offset after the last offset of each partition.
        restricted_values: see `ResultStore.restricted_values`.

    Raises:
        ValueError: the pipeline has no key, or has `sql` or `transform`.
    """
    pipeline, write_mode = job.pipeline, job.pipeline.write_mode
    if not write_mode.row_key or pipeline.transform is not None:
        raise ValueError("only a result with a key, and without sql or transform, can be counted again")
    return read_again(job, start, end, lambda: _recount(spark, job, start, end, restricted_values=restricted_values))


def _recount(
    spark: SparkSession, job: Job, start: Mapping[int, int], end: Mapping[int, int], *, restricted_values: int
) -> Recount:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql import functions as F

    pipeline, write_mode = job.pipeline, job.pipeline.write_mode
    with rows_and_rejects(spark, job, start, end, restricted_values=restricted_values) as (rows, rejects):
        if write_mode.kind == "totals":
            keys = reduced(rows, write_mode)
            for each in write_mode.aggregates:
                if each.rule == "hashes":  # for many keys the lists would be too much for the driver
                    numbers = F.array_join(F.col(quoted(each.name)).cast("array<string>"), ",")
                    keys = keys.withColumn(each.name, F.sha2(numbers, 256))
        else:
            deleted = F.col(DELETED) if pipeline.deletes else F.lit(False)
            key = [F.col(quoted(name)) for name in write_mode.row_key]
            keyed = rows.withColumn(DELETED, deleted).groupBy(*key, "_kafka_partition")
            keys = keyed.agg(
                F.max("_kafka_offset").alias("_kafka_offset"), F.max_by(DELETED, "_kafka_offset").alias(DELETED)
            )
        rejected = _coordinates(rejects)
        counted = to_arrow(keys)
        gone = counted[DELETED] if write_mode.kind == "upsert" else pa.array([False] * counted.num_rows, pa.bool_())
        return Recount(counted.filter(pc.invert(gone)), counted.filter(gone), rejected)


@dataclass(frozen=True)
class DueRecords:
    """Expected rows and rejects, computed from the topic's records up to some offsets."""

    rows: pa.Table
    """`_kafka_partition`, `_kafka_offset`, `_digest` and `_value_digest` of each record with a row."""
    rejects: pa.Table
    """`_kafka_partition` and `_kafka_offset` of each reject."""


def due_records(
    spark: SparkSession,
    job: Job,
    columns: Sequence[str],
    start: Mapping[int, int],
    end: Mapping[int, int],
    *,
    restricted_values: int,
) -> DueRecords:
    """Compute digests of the expected row and the value of each record.

    Args:
        spark: as in `recount`.
        job: job without `sql` or `transform`.
        columns: names of the columns that the row's digest covers.
        start: as in `recount`.
        end: as in `recount`.
        restricted_values: as in `recount`.
    """
    whole = replace(job, pipeline=replace(job.pipeline, keep_value=True))

    def read() -> DueRecords:
        with rows_and_rejects(spark, whole, start, end, restricted_values=restricted_values) as (rows, rejects):
            return DueRecords(_digests(rows, columns), _coordinates(rejects))

    return read_again(job, start, end, read)


def _digests(rows: DataFrame, columns: Sequence[str]) -> pa.Table:
    from pyspark import cloudpickle
    from pyspark.sql import functions as F

    cloudpickle.register_pickle_by_value(digests)  # type: ignore[no-untyped-call]
    names = ["_kafka_partition", "_kafka_offset", "_kafka_value", *columns]
    found = rows.select(*[F.col(quoted(name)) for name in names]).toDF(*[f"c{n}" for n in range(len(names))])
    schema = "_kafka_partition int, _kafka_offset long, _digest long, _value_digest long"
    return to_arrow(map_batches(found, _digesting(), schema))


def _coordinates(rejects: DataFrame | None) -> pa.Table:
    """Return partition and offset of the rejects."""
    import pyarrow as pa

    schema = pa.schema([("_kafka_partition", pa.int32()), ("_kafka_offset", pa.int64())])
    return schema.empty_table() if rejects is None else to_arrow(rejects.select(*schema.names)).cast(schema)


def record_times(
    spark: SparkSession, job: Job, start: Mapping[int, int], end: Mapping[int, int], *, restricted_values: int
) -> pa.Table:
    """Return partition, offset and timestamp of each row, for totals by windows; arguments as in `recount`."""

    def read() -> pa.Table:
        with rows_and_rejects(spark, job, start, end, restricted_values=restricted_values) as (rows, _):
            return to_arrow(rows.select("_kafka_partition", "_kafka_offset", "_kafka_timestamp"))

    return read_again(job, start, end, read)


def _digesting() -> Task:
    row_digests = digests.row_digests

    def digest(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            partition, offset, value, *columns = batch.columns
            found = [partition, offset, *(pa.array(row_digests(each)) for each in (columns, [value]))]
            yield pa.RecordBatch.from_arrays(found, ["_kafka_partition", "_kafka_offset", "_digest", "_value_digest"])

    return digest


@contextmanager
def rows_and_rejects(
    spark: SparkSession, job: Job, start: Mapping[int, int], end: Mapping[int, int], *, restricted_values: int
) -> Iterator[tuple[DataFrame, DataFrame | None]]:
    """Yield one row for each record, not reduced by key, and the rejects.

    Rejects have no row, nor have duplicates of a raw topic. The records of a raw topic are deduplicated all at once.
    """
    from pyspark.sql import functions as F

    read, rule = records(spark, job, start, end), job.pipeline.write_mode.judged
    if rule is None:
        with job.pipeline.read(read, restricted_values=restricted_values) as found:
            yield found
        return
    with (
        judged_at_once(read, rule) as (fresh, rejected),
        job.pipeline.read(fresh, restricted_values=restricted_values) as (rows, unparsed),
    ):
        rejects = rejected.toDF(*RECORD_COLUMNS, REJECT_REASON)
        if unparsed is not None:
            rejects = rejects.unionByName(unparsed.withColumn(REJECT_REASON, F.lit(NOT_PARSED_REASON)))
        yield rows, rejects
