"""Writer of an Iceberg table's files by Iceberg's writer for Spark, in Spark's tasks; pyiceberg commits the files.

Iceberg's writer follows the table's distribution, sort order, file sizes and compression, and its tasks run no Python.
The job declares the files to be part of a rewrite, so that Iceberg hands them to the driver instead of committing them.
Iceberg's own commit is not used: it cannot set the job's properties in the same version, and after a conflict Iceberg
repeats the commit on a newer snapshot. See docs/decisions/0103.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafka_ratchet.spark_sink.errors import OptionRefused, StoreError, first_line, refuse_rule
from kafka_ratchet.spark_sink.files.parquet import Values, WrittenFile, null_given
from kafka_ratchet.spark_sink.rows.distinct import quoted
from kafka_ratchet.spark_sink.spark.errors import messages_of, spark_errors
from kafka_ratchet.spark_sink.spark.session import is_connect
from kafka_ratchet.spark_sink.stores.iceberg.files import schema_of
from kafka_ratchet.spark_sink.stores.location import ENGINE
from kafka_ratchet.spark_sink.stores.optimistic import COMMIT_ATTEMPTS

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

PACKAGE: Final = "org.apache.iceberg:iceberg-spark-runtime"

NULL_GIVEN: Final = re.compile(r"NULL value appeared in non-nullable field:?\s*(?P<column>[^\n]*)")
"""Pattern of Spark's message about a null in a column that must not be null."""


@dataclass(frozen=True)
class SparkFiles:
    """Files that Iceberg's writer wrote for a later commit."""

    files: list[WrittenFile]
    """Files with their whole paths in place of names."""
    partitions: dict[str, Values]
    """Partition values of each file by path, if the table has partitions."""
    sort_order: int | None
    """Id of the sort order of all files' rows; None: the files have no common sort order."""
    spec: int
    """Id of the partition spec of all files."""
    fields: frozenset[int]
    """Field ids of the columns in the files, nested ones too; empty: there is no file."""


class Paths:
    """Files of a table by their whole paths, for `parquet.require_files`."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __str__(self) -> str:
        return str(self._table.location())

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Return the size of each file in bytes; None for a missing file."""
        found: list[int | None] = []
        for path in paths:
            try:
                found.append(len(self._table.io.new_input(path)))
            except FileNotFoundError:
                found.append(None)
        return found


def require_iceberg_spark(spark: SparkSession) -> None:
    """Refuse a Spark session that cannot use Iceberg's writer.

    Raises:
        OptionRefused: the session belongs to Spark Connect, or lacks the package.
    """
    if is_connect():
        raise OptionRefused(
            f"engine {ENGINE}: Python cannot reach Iceberg's writer over Spark Connect. Leave engine out, or run the "
            "job by classic Spark"
        )
    from py4j.java_gateway import JavaClass

    found = spark._jvm.org.apache.iceberg.spark.FileRewriteCoordinator  # type: ignore[union-attr]  # noqa: SLF001
    if not isinstance(found, JavaClass):
        raise OptionRefused(
            f"engine {ENGINE}: this Spark {spark.version} has no Iceberg runtime. Start Spark with --packages "
            f"{PACKAGE}-... for this Spark release, or leave engine out"
        )


class SparkWriter:
    """Writer of one Iceberg table's files by Spark.

    Args:
        where: the catalog, as messages name it.
        name: the table's name in Spark's catalog, quoted.
    """

    def __init__(self, where: object, name: str) -> None:
        self._where, self._name = where, name

    def write(self, table: Table, dataframe: DataFrame, look_again: Callable[[], None]) -> SparkFiles:
        """Write the rows into new files that no snapshot names yet.

        Args:
            table: the table at the version that the caller has checked.
            dataframe: the rows; columns of the table that they lack become null.
            look_again: function that refreshes `table` and checks it once more.

        Raises:
            RuleBroken: a row has null in a column declared NOT NULL.
            StoreError: Spark finds another table by this name, or the driver cannot read the files.
        """
        spark = dataframe.sparkSession
        jvm: Any = spark._jvm  # noqa: SLF001
        theirs = self._their_table(spark, table, look_again)
        options = jvm.org.apache.iceberg.spark.SparkWriteOptions
        coordinator = jvm.org.apache.iceberg.spark.FileRewriteCoordinator.get()
        # The name of the option is the release's own: with a name that Iceberg does not know, it would commit the rows.
        staged_as, set_id = options.REWRITTEN_FILE_SCAN_TASK_SET_ID, uuid.uuid4().hex
        rows = self._whole_rows(spark, dataframe)
        try:
            # pyiceberg reads Parquet, whatever `write.format.default` says.
            writer = rows.writeTo(self._name).option(staged_as, set_id).option(options.WRITE_FORMAT, "parquet")
            writer.append()
            found = list(coordinator.fetchNewFiles(theirs, set_id))
        except spark_errors() as error:
            self._refuse_null(error)
            raise
        finally:
            coordinator.clearRewrite(theirs, set_id)
        return self._written(jvm, table, found)

    def require_same_fields(self, table: Table, written: SparkFiles) -> None:
        """Refuse to commit files with a column that the table no longer has, or with another partition spec.

        Raises:
            StoreError: the table was altered after `write`.
        """
        from pyiceberg.schema import index_by_id

        same = written.fields <= index_by_id(table.schema()).keys()
        if written.files and not (same and written.spec == table.metadata.default_spec_id):
            raise StoreError(
                f"{self._where}: columns or partitions of the table were altered while Spark wrote rows for it. "
                "Nothing was added and no offset moved. Run the job again"
            )

    def _their_table(self, spark: SparkSession, table: Table, look_again: Callable[[], None]) -> Any:
        """Return Spark's object of the table, refreshed to the columns and partitions of `table`."""
        jvm: Any = spark._jvm  # noqa: SLF001
        for _ in range(COMMIT_ATTEMPTS):
            theirs = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, self._name)  # noqa: SLF001
            theirs.refresh()  # Spark's catalog may keep an older version for 30 seconds
            if theirs.uuid().toString() != str(table.metadata.table_uuid):
                raise StoreError(
                    f"{self._where}: Spark and pyiceberg find different tables by the name {self._name}. Nothing was "
                    "added and no offset moved. Give both the same catalog"
                )
            found = theirs.schema().schemaId(), theirs.spec().specId()
            if found == (table.metadata.current_schema_id, table.metadata.default_spec_id):
                return theirs
            look_again()
        raise StoreError(
            f"{self._where}: the table was altered {COMMIT_ATTEMPTS} times in a row before Spark could write. Run the "
            "job again"
        )

    def _whole_rows(self, spark: SparkSession, dataframe: DataFrame) -> DataFrame:
        """Return the rows with all columns of the table in its order."""
        from pyspark.sql import functions as F

        have = set(dataframe.columns)
        return dataframe.select(
            [
                F.col(quoted(field.name)) if field.name in have else F.lit(None).cast(field.dataType).alias(field.name)
                for field in spark.table(self._name).schema.fields
            ]
        )

    def _written(self, jvm: Any, table: Table, found: Sequence[Any]) -> SparkFiles:
        """Convert Iceberg's Java objects of the written files to `SparkFiles`."""
        anything = jvm.java.lang.Class.forName("java.lang.Object")
        files, partitions = [], dict[str, Values]()
        for each in found:
            file = WrittenFile(str(each.location()), int(each.recordCount()), int(each.fileSizeInBytes()), "")
            files.append(file)
            values = each.partition()
            if values.size():
                partitions[file.name] = tuple(values.get(n, anything) for n in range(values.size()))
        orders = {each.sortOrderId() or None for each in found}
        specs = {int(each.specId()) for each in found}
        if len(specs) > 1:
            raise StoreError(
                f"{self._where}: Spark wrote files of partition specs {sorted(specs)} for one commit. Nothing was "
                "added and no offset moved. Run the job again"
            )
        return SparkFiles(
            files,
            partitions,
            orders.pop() if len(orders) == 1 else None,
            specs.pop() if specs else table.metadata.default_spec_id,
            # One write has one schema.
            self._field_ids(table, files[0].name) if files else frozenset(),
        )

    def _field_ids(self, table: Table, path: str) -> frozenset[int]:
        """Return the field id of each column in a file."""
        import pyarrow.parquet as pq
        from pyiceberg.schema import index_by_id

        try:
            with table.io.new_input(path).open() as stream:
                return frozenset(index_by_id(schema_of(pq.read_metadata(stream))))
        except OSError as error:
            raise StoreError(
                f"{self._where}: Spark wrote {path}, and the driver cannot read it ({first_line(error)}). Nothing was "
                "added and no offset moved. Check that driver and executors share the folder; for a bucket, check "
                "storage_options"
            ) from None

    def _refuse_null(self, error: Exception) -> None:
        """Raise `RuleBroken` if the error's cause is a null in a column declared NOT NULL."""
        for message in messages_of(error):
            if found := NULL_GIVEN.search(message):
                refuse_rule(self._where, null_given(found["column"].strip().strip('"`')))
