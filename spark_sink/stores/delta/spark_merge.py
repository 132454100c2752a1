"""Merge of keyed rows into a Delta table by Spark: no row passes through the driver.

Spark joins the keys of a commit with one version of the table, to find the files that contain such keys. Then Spark
merges the rows of these files with the new rows, and delta-spark writes the result into new files. A log entry by
delta-rs replaces the files. See docs/decisions/0098.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from kafka_ratchet.spark_sink.errors import OptionRefused, StoreError, refuse_several_rows
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.distinct import quoted
from kafka_ratchet.spark_sink.spark.errors import messages_of, spark_errors
from kafka_ratchet.spark_sink.stores.delta.rules import GENERATED
from kafka_ratchet.spark_sink.stores.delta.spark_sums import as_struct, field_of, refused_sum, with_sums
from kafka_ratchet.spark_sink.stores.delta.spark_writer import SparkFiles, SparkWriter
from kafka_ratchet.spark_sink.stores.location import ENGINE

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession

OMITTING: Final = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
"""Settings that make Spark leave out the rows of files that it cannot read."""

BOUNDED: Final = frozenset({"tinyint", "smallint", "int", "bigint", "date"})
"""Types with values that mean the same in Spark, Python and statistics. They do not include text: invalid UTF-8 becomes
another character in Python and in the statistics of delta-spark, and sorts differently."""

SOURCE: Final = "source"
TARGET: Final = "target"
FILES: Final = "files"
ROWS: Final = "rows"


@dataclass(frozen=True)
class SparkMerge:
    """Merge of one commit's rows into a table.

    Args:
        writer: writer of the table's files.
        key: columns that identify a row; null counts as a value.
        spark: session of the rows.
        paths: staged Parquet files with at most one row per key in all of them together. A row with true in a column
            `DELETED` removes the table's row with that key.
        names: columns of the staged rows.
        added: columns with values to add to the table's values; empty: the staged rows replace the table's values.
    """

    writer: SparkWriter
    key: Sequence[str]
    spark: SparkSession
    paths: Sequence[str]
    names: Sequence[str]
    added: Sequence[str] = ()

    def write(self, table: DeltaTable, look_again: Callable[[], None]) -> tuple[SparkFiles, list[dict[str, Any]]]:
        """Write the merged rows into new files that no table version names yet.

        Args:
            table: the table at the version that the caller has checked.
            look_again: function that refreshes `table` and checks it once more.

        Returns:
            The new files, and the `add` actions of the files that they replace.

        Raises:
            RuleBroken: a row breaks a rule of the table.
            StoreError: the table has several rows of one key; a file of the table cannot be replaced, or has lost rows;
                or a sum overflows.
            OptionRefused: a setting of the session makes Spark leave out rows.
        """
        for name in OMITTING:
            if (self.spark.conf.get(name, None) or "").lower() == "true":
                raise OptionRefused(
                    f"engine {ENGINE}: with {name}=true Spark leaves out files that it cannot read, and a merge would "
                    f"remove the rows of such files from the table. Set {name} to false"
                )
        transaction = self.writer.begin(self.spark, table, look_again)
        source = self._source(table)
        files = self._touched(transaction, table, source)
        old = [json.loads(each.json())["add"] for each in files]
        self._require_replaceable(old)
        merged = self._merged(transaction, table, source, files)
        try:
            written = self.writer.write_in(transaction, table, merged)
        except spark_errors() as error:
            self._refuse_sum(error)
            raise
        self._require_all(old, written)
        return written, old

    def _source(self, table: DeltaTable) -> DataFrame:
        """Return the staged rows."""
        from pyspark.sql.types import BooleanType, StructField, StructType

        # Spark and Delta describe schemas in the same JSON.
        whole = StructType.fromJson(json.loads(table.schema().to_json()))
        fields = [StructField(each.name, each.dataType) for each in whole.fields if each.name in self.names]
        if DELETED in self.names:
            fields.append(StructField(DELETED, BooleanType()))
        reader = self.spark.read.schema(StructType(fields)).option("globPaths", "false")
        return reader.parquet(*(f"file:{path}" for path in self.paths))

    def _touched(self, transaction: Any, table: DeltaTable, source: DataFrame) -> list[Any]:
        """Return the files with a key of the staged rows, as Java objects.

        The files are from the version that the transaction reads.

        Raises:
            StoreError: the table has several rows of such a key, or one of the files is outside the table's folder.
        """
        from pyspark.sql import functions as F

        read = self.spark.read.format("delta").option("versionAsOf", table.version()).load(self.writer.path)
        keys = source.select([F.col(quoted(name)) for name in self.key])
        at = read.where(self._bounds(keys)).select(
            *[F.col(quoted(name)).alias(f"k{n}") for n, name in enumerate(self.key)],
            F.col("_metadata.file_path").alias(TARGET),
        )
        same = reduce(and_, [at[f"k{n}"].eqNullSafe(keys[quoted(name)]) for n, name in enumerate(self.key)])
        each_key = (
            at.join(keys, same, "left_semi")
            .groupBy(*[f"k{n}" for n in range(len(self.key))])
            .agg(F.collect_set(TARGET).alias(FILES), F.count(F.lit(1)).alias(ROWS))
        )
        by_file = each_key.select(F.explode(FILES).alias(TARGET), F.col(ROWS)).groupBy(TARGET)
        found = by_file.agg(F.max(ROWS).alias(ROWS)).collect()
        if any(row[ROWS] > 1 for row in found):
            refuse_several_rows(self.writer.folder, self.key)
        if not found:
            return []
        root = f"{self.writer.folder.path}/"
        names = {f"/{unquote(row[TARGET]).removeprefix('file:').lstrip('/')}".removeprefix(root) for row in found}
        all_files = transaction.snapshot().allFiles()
        paths = [path for path in _paths(all_files, self.spark) if unquote(path) in names]
        if len(paths) != len(names):
            raise StoreError(
                f"{self.writer.folder}: the table has files outside its folder, as a shallow clone has, and engine "
                f"{ENGINE} cannot replace them. Nothing was added and no offset moved. Leave engine out"
            )
        return list(all_files.filter(F.col("path").isin(paths)._jc).collectAsList())  # noqa: SLF001

    def _bounds(self, keys: DataFrame) -> Column:
        """Return a condition that is true for each row with one of the keys, so that Delta can skip files."""
        from pyspark.sql import functions as F

        kinds = {field.name: field.dataType.simpleString() for field in keys.schema.fields}
        names = [name for name in self.key if kinds[name] in BOUNDED]
        condition = F.lit(True)
        if not names:
            return condition
        wanted = [
            each
            for n, name in enumerate(names)
            for column in [F.col(quoted(name))]
            for each in (
                F.min(column).alias(f"least{n}"),
                F.max(column).alias(f"greatest{n}"),
                F.count(F.when(column.isNull(), 1)).alias(f"nulls{n}"),
            )
        ]
        row = keys.agg(*wanted).collect()[0]
        for n, name in enumerate(names):
            if row[f"nulls{n}"] == 0 and row[f"least{n}"] is not None:
                condition &= F.col(quoted(name)).between(row[f"least{n}"], row[f"greatest{n}"])
        return condition

    def _require_replaceable(self, old: Sequence[Mapping[str, Any]]) -> None:
        if any(each.get("deletionVector") for each in old):
            raise StoreError(
                f"{self.writer.folder}: a file to be changed has a deletion vector, which engine {ENGINE} does not "
                "support when it replaces files. Nothing was added and no offset moved. Run REORG TABLE delta."
                f"`{self.writer.folder}` APPLY (PURGE), and the job again"
            )

    def _merged(self, transaction: Any, table: DeltaTable, source: DataFrame, files: Sequence[Any]) -> DataFrame:
        """Return the rows of the new files: the rows of the touched files, merged with the staged rows."""
        from pyspark.sql import DataFrame as ClassicDataFrame
        from pyspark.sql import functions as F

        ours = [name for name in source.columns if name != DELETED]
        if not files:
            alone = source if DELETED not in source.columns else source.where(~_is_gone(DELETED))
            return alone.select([F.col(quoted(name)) for name in ours])
        jvm: Any = self.spark._jvm  # noqa: SLF001
        listed = jvm.java.util.ArrayList()
        for file in files:
            listed.add(file)
        sequence = jvm.scala.jdk.javaapi.CollectionConverters.asScala(listed).toSeq()
        log = transaction.deltaLog()
        frame = log.createDataFrame(transaction.snapshot(), sequence, False, jvm.scala.Option.empty())
        target = ClassicDataFrame(frame, self.spark)
        # delta-spark computes generated columns that the rows lack.
        kept = [each.name for each in table.schema().fields if each.name in ours or GENERATED not in each.metadata]
        if self.added:
            return with_sums(target.select([F.col(quoted(name)) for name in kept]), source, self.key, self.added)
        left = target.select(as_struct(kept).alias(TARGET))
        right = source.select(as_struct(source.columns).alias(SOURCE))
        same = reduce(and_, [field_of(TARGET, name).eqNullSafe(field_of(SOURCE, name)) for name in self.key])
        both = left.join(right, same, "full_outer")
        if DELETED in source.columns:
            both = both.where(F.col(SOURCE).isNull() | ~_is_gone(f"{SOURCE}.{DELETED}"))
        return both.select(*self._columns(kept, ours))

    def _columns(self, kept: Sequence[str], ours: Sequence[str]) -> Iterator[Column]:
        """Yield each column after the merge; other jobs' columns keep their values."""
        from pyspark.sql import functions as F

        is_new = F.col(SOURCE).isNotNull()
        for name in kept:
            value = field_of(TARGET, name)
            if name in ours:
                value = F.when(is_new, field_of(SOURCE, name)).otherwise(value)
            yield value.alias(name)

    def _refuse_sum(self, error: Exception) -> None:
        """Raise `StoreError` if `with_sums` has refused a row; see `spark_sums.refused_sum`."""
        if reason := refused_sum(messages_of(error)):
            raise StoreError(
                f"{self.writer.folder}: {reason}. Nothing was added and no offset moved. Correct the table's rows and "
                "run the job again"
            ) from None

    def _require_all(self, old: Sequence[Mapping[str, Any]], written: SparkFiles) -> None:
        """Refuse new files that lack rows of the replaced files, apart from deleted rows."""
        counts = [json.loads(each.get("stats") or "{}").get("numRecords") for each in old]
        new = sum(file.rows for file in written.files)
        if DELETED in self.names or None in counts or new >= sum(counts):
            return
        raise StoreError(
            f"{self.writer.folder}: Spark read fewer rows than the log counts in the files to be changed ({new} "
            f"instead of {sum(counts)}). Nothing was added and no offset moved. Check that driver and executors see "
            "all files"
        )


def actions_of(written: SparkFiles, old: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the actions of the log entry that carries out a merge.

    Args:
        written: files with the merged rows.
        old: `add` actions of the files that they replace.
    """
    from deltalake.transaction import AddAction, RemoveAction

    now_ms = int(time.time() * 1000)
    actions: list[Any] = [
        AddAction(file.name, file.bytes, written.partitions[file.name], now_ms, True, file.statistics)
        for file in written.files
    ]
    actions += [
        RemoveAction(each["path"], True, now_ms, each["size"], dict(each.get("partitionValues") or {})) for each in old
    ]
    return actions


def _paths(files: Any, spark: SparkSession) -> list[str]:
    """Return the paths of a Java dataset of files, as the log names them."""
    from pyspark.sql import DataFrame

    return [row["path"] for row in DataFrame(files.toDF(), spark).select("path").collect()]


def _is_gone(column: str) -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(F.col(column), F.lit(False))
