"""Writer of a Delta table's files by delta-spark, in Spark's tasks; delta-rs commits the files.

delta-spark checks each row against the table's CHECK constraints, invariants and NOT NULL, and computes generated
columns. Its own commit is not used: on a local folder and on S3 its log store excludes only writers of the same JVM, so
that a fenced driver could overwrite the entry of its successor. See docs/decisions/0097.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import unquote

from kafka_ratchet.spark_sink.errors import OptionRefused, StoreError, refuse_rule
from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.files.local import LocalFolder
from kafka_ratchet.spark_sink.files.parquet import WrittenFile
from kafka_ratchet.spark_sink.rows.partition_by import PartitionField
from kafka_ratchet.spark_sink.spark.errors import messages_of, spark_errors
from kafka_ratchet.spark_sink.spark.session import is_connect
from kafka_ratchet.spark_sink.stores.location import ENGINE
from kafka_ratchet.spark_sink.stores.optimistic import COMMIT_ATTEMPTS

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

PACKAGE: Final = "io.delta:delta-spark"

SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""Settings of a Spark session that delta-spark requires."""

VIOLATION: Final = re.compile(r"\.Delta(?:Invariant|Constraint)\w*Exception: (?:\[\w+\] )?(?P<rule>[^\n]*)")
"""Pattern of Java's message about a broken rule: exception class, error code, and a sentence that names the rule."""

DAY: Final = re.compile(r"\d{4}-\d\d-\d\d\Z")


@dataclass(frozen=True)
class Rules:
    """Rules of a table that its rows have to obey, as of one version."""

    columns: Mapping[str, str]
    """Text of each column by name: its type, its metadata and whether it may be null."""
    others: tuple[object, ...]
    """Properties, partition columns and protocol of the table, which may contain further rules."""
    free: frozenset[str]
    """Columns without a rule that may be null."""

    def admit(self, earlier: Rules) -> bool:
        """Return whether rows that obey the `earlier` rules obey these rules too."""
        kept = all(self.columns.get(name) == text for name, text in earlier.columns.items())
        return kept and self.others == earlier.others and self.columns.keys() - earlier.columns.keys() <= self.free


@dataclass(frozen=True)
class SparkFiles:
    """Files that delta-spark wrote for a later commit."""

    files: list[WrittenFile]
    partitions: dict[str, dict[str, str | None]]
    """Partition values of each file by name, as texts for the log."""
    rules: Rules
    """Rules of the table against which delta-spark checked the rows."""


def require_delta_spark(spark: SparkSession) -> None:
    """Refuse a Spark session that cannot use delta-spark.

    Raises:
        OptionRefused: the session belongs to Spark Connect, or lacks the package or its settings.
    """
    if is_connect():
        raise OptionRefused(
            f"engine {ENGINE}: Python cannot reach delta-spark's writer over Spark Connect. Leave engine out, or run "
            "the job by classic Spark"
        )
    from py4j.java_gateway import JavaClass

    found = spark._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr]  # noqa: SLF001
    if not isinstance(found, JavaClass):
        raise OptionRefused(
            f"engine {ENGINE}: this Spark {spark.version} has no delta-spark. Start Spark with --packages "
            f"{PACKAGE}_... for this Spark release, or leave engine out"
        )
    for name, value in SETTINGS.items():
        if value not in (spark.conf.get(name, None) or ""):
            raise OptionRefused(
                f"engine {ENGINE}: Spark was started without the setting {name}={value}, which delta-spark needs. "
                f"Start Spark with --conf {name}={value}, or leave engine out"
            )


class SparkWriter:
    """Writer of one Delta table's files by delta-spark.

    Args:
        folder: the table's folder.
        fields: partition columns.

    Raises:
        OptionRefused: the table is in a bucket, or has partitions by days or hours.
    """

    def __init__(self, folder: Folder, fields: Sequence[PartitionField]) -> None:
        if not isinstance(folder, LocalFolder):
            raise OptionRefused(
                f"{folder}: engine {ENGINE} writes only to folders that driver and executors share, and not to "
                "buckets. Leave engine out"
            )
        if any(field.unit for field in fields):
            raise OptionRefused(
                f"{folder}: engine {ENGINE} writes partitions by plain columns, and not by days or hours. Leave engine "
                "out"
            )
        self.folder, self.path, self._fields = folder, f"file:{folder.path}", fields

    def write(
        self,
        table: DeltaTable,
        dataframe: DataFrame,
        look_again: Callable[[], None],
    ) -> SparkFiles:
        """Write the rows into new files that no table version names yet.

        Args:
            table: the table at the version that the caller has checked.
            dataframe: the rows; each of its columns is one of the table.
            look_again: function that refreshes `table` and checks it once more.

        Raises:
            RuleBroken: a row breaks a rule of the table.
            StoreError: see `begin`; or delta-spark did not count the rows, or a partition value cannot be stored in the
                log.
        """
        return self.write_in(self.begin(dataframe.sparkSession, table, look_again), table, dataframe)

    def write_in(self, transaction: Any, table: DeltaTable, dataframe: DataFrame) -> SparkFiles:
        """Write the rows into new files within a transaction from `begin`; see `write`."""
        rules = rules_of(table)
        try:
            # The files alone: the transaction is never committed.
            rows = _without_empty_texts(dataframe, self._fields)._jdf  # noqa: SLF001
            actions = transaction.writeFiles(rows)
            found = [json.loads(actions.apply(number).json()) for number in range(actions.size())]
        except spark_errors() as error:
            self._refuse_violation(error)
            raise
        files, partitions = [], {}
        for action in found:
            if set(action) != {"add"} or action["add"].get("deletionVector"):
                raise StoreError(
                    f"{self.folder}: for new rows delta-spark returned log actions {sorted(action)} instead of `add`. "
                    "Nothing was committed. Leave engine out"
                )
            file = self._written(action["add"])
            files.append(file)
            partitions[file.name] = dict(action["add"]["partitionValues"])
        dates = {field.name for field in table.schema().fields if getattr(field.type, "type", "") == "date"}
        for values in partitions.values():
            for name in dates & values.keys():
                if values[name] is not None and not DAY.match(values[name] or ""):
                    raise StoreError(
                        f"{self.folder}: in a row, the date in column {name} is outside the years 1 to 9999, and no "
                        "partition of a Delta table can have it. Nothing was committed. Replace such dates in sql"
                    )
        return SparkFiles(files, partitions, rules)

    def require_same_rules(self, table: DeltaTable, written: SparkFiles) -> None:
        """Refuse to commit rows that delta-spark checked against other rules than the table's present ones.

        Raises:
            StoreError: the table was altered after `write`.
        """
        if not rules_of(table).admit(written.rules):
            raise StoreError(
                f"{self.folder}: the table was altered while Spark wrote rows for it, and the rows may break the new "
                "rules. Nothing was added and no offset moved. Run the job again"
            )

    def begin(self, spark: SparkSession, table: DeltaTable, look_again: Callable[[], None]) -> Any:
        """Start a transaction of delta-spark at the version of `table`, and return the transaction.

        Raises:
            StoreError: Spark finds another table in the folder, or other writers always committed first.
        """
        jvm: Any = spark._jvm  # noqa: SLF001
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, self.path)  # noqa: SLF001
        for _ in range(COMMIT_ATTEMPTS):
            transaction = log.startTransaction()
            if transaction.metadata().id() != str(table.metadata().id):
                raise StoreError(
                    f"{self.folder}: Spark and delta-rs find different tables in this folder. Nothing was added and no "
                    "offset moved. Check that driver and executors share the folder"
                )
            if transaction.snapshot().version() == table.version():
                return transaction
            look_again()
        raise StoreError(
            f"{self.folder}: other writers committed first {COMMIT_ATTEMPTS} times in a row. Run the job again"
        )

    def _written(self, added: dict[str, Any]) -> WrittenFile:
        rows = json.loads(added.get("stats") or "{}").get("numRecords")
        if rows is None:
            raise StoreError(
                f"{self.folder}: delta-spark did not count the rows of {added['path']}. Nothing was added and no "
                "offset moved. Set spark.databricks.delta.stats.collect to true"
            )
        return WrittenFile(unquote(added["path"]), int(rows), int(added["size"]), added["stats"])

    def _refuse_violation(self, error: Exception) -> None:
        """Raise `RuleBroken` if the error's cause is a broken rule of the table."""
        for message in messages_of(error):
            if found := VIOLATION.search(message):
                self._refuse(found["rule"])

    def _refuse(self, rule: str) -> NoReturn:
        refuse_rule(self.folder, rule.removesuffix(" violated by row with values:"))


def rules_of(table: DeltaTable) -> Rules:
    """Return the rules of the table at the version that it was read at."""
    metadata, protocol, fields = table.metadata(), table.protocol(), table.schema().fields
    others = (
        dict(metadata.configuration),
        tuple(metadata.partition_columns),
        protocol.min_writer_version,
        tuple(sorted(protocol.writer_features or ())),
    )
    free = frozenset(field.name for field in fields if field.nullable and not field.metadata)
    return Rules({field.name: field.to_json() for field in fields}, others, free)


def _without_empty_texts(dataframe: DataFrame, fields: Sequence[PartitionField]) -> DataFrame:
    """Make Spark fail on an empty text in a partition column.

    Readers of the format would interpret it as null.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType

    names = [field.name for field in fields if isinstance(dataframe.schema[field.name].dataType, StringType)]

    def checked(rows: DataFrame, name: str) -> DataFrame:
        column = F.col("`" + name.replace("`", "``") + "`")
        empty = F.raise_error(
            f"column {name} is an empty text in a row, and no partition of a Delta table can have that value: replace "
            f"the value in sql by nullif({name}, '')"
        ).cast("string")
        return rows.withColumn(name, F.when(column == "", empty).otherwise(column))

    return reduce(checked, names, dataframe)
