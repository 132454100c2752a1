"""Partitions and sort order of an Iceberg table.

Partitions are Iceberg's own, by columns or by days and hours of times. All files are in one folder, whatever their
partition: Iceberg stores the partition values in its manifests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import OptionRefused, SchemaDiffers
from kafka_ratchet.spark_sink.rows.distinct import quoted
from kafka_ratchet.spark_sink.rows.partition_by import PartitionField, option_text
from kafka_ratchet.spark_sink.spark.dialect import in_utc

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyiceberg.table.sorting import SortField
    from pyspark.sql import Column, DataFrame

TRANSFORMS = {"": "identity", "day": "day", "hour": "hour"}

UNSORTED = 0
"""Id that Iceberg gives the sort order of an unsorted table."""

SECONDS = {"day": 86_400, "hour": 3_600}


def add_partitions(transaction: Transaction, fields: Sequence[PartitionField]) -> None:
    """Define the partitions of a table that the transaction creates."""
    with transaction.update_spec() as update:
        for field in fields:
            update.add_field(field.column, TRANSFORMS[field.unit], field.name)


def require_partitions(where: object, table: Table, fields: Sequence[PartitionField]) -> None:
    """Refuse a table with other partitions than the job's.

    Raises:
        SchemaDiffers: the partitions differ.
    """
    present = []
    for found in table.spec().fields:
        column, transform = table.schema().find_column_name(found.source_id), str(found.transform)
        present.append(column if transform == "identity" else f"{transform}({column})")
    wanted = [str(field) for field in fields]
    if present != wanted:
        raise SchemaDiffers(
            f"{where}: the table is partitioned by {present or 'nothing'}, and this job has {option_text(fields)}. "
            "Partitions of an existing table do not change: give the job the partition_by of the table, or choose "
            "another table"
        )


def require_partitions_of(where: object, table: Table, task: FileScanTask, undone: str) -> None:
    """Refuse to rewrite a file with other partitions than the table's present ones.

    The file's rows may belong to several of the present partitions, but all rows of a new file belong to one.

    Args:
        where: the table, as messages name it.
        table: the table.
        task: the file.
        undone: sentence about the omitted action, without a full stop.

    Raises:
        OptionRefused: the partitions differ.
    """
    if task.file.spec_id != table.metadata.default_spec_id:
        raise OptionRefused(
            f"{where}: {task.file.file_path} has other partitions than the table's present ones. {undone}; let the "
            "engine that changed the partitions rewrite the file (rewrite_data_files)"
        )


def sorted_by(table: Table, dataframe: DataFrame) -> tuple[int | None, list[Column]]:
    """Return id and expressions of the table's sort order, for the rows of a task.

    Returns:
        None and no expressions if the table has no sort order, or one that Spark cannot compute without Iceberg's
        functions. Such an order has a transform such as `bucket` or `truncate`, or a nested field.
    """
    order = table.sort_order()
    found = [_expression(table, field, dataframe) for field in order.fields]
    if order.order_id == UNSORTED or any(each is None for each in found):
        return None, []
    return order.order_id, [column for each in found if each is not None for column in each]


def _expression(table: Table, field: SortField, dataframe: DataFrame) -> list[Column] | None:
    """Return the sort expressions of a field; empty: the rows lack the column; None: see `sorted_by`."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DateType, TimestampType

    name, transform = table.schema().find_column_name(field.source_id) or "", str(field.transform)
    if name not in dataframe.columns:
        return None if "." in name else []  # null in all rows
    column, kind = F.col(quoted(name)), dataframe.schema[name].dataType
    is_date = isinstance(kind, DateType)
    if transform in SECONDS and not is_date:
        column = F.floor(column.cast("timestamp").cast("double") / SECONDS[transform])
    elif transform in {"year", "month"}:
        moment = in_utc(column) if isinstance(kind, TimestampType) else column
        column = F.year(moment) if transform == "year" else F.year(moment) * 12 + F.month(moment)
    elif transform != "identity" and not (transform == "day" and is_date):
        return None
    is_ascending, are_nulls_first = field.direction.name == "ASC", field.null_order.name == "NULLS_FIRST"
    if is_ascending:
        return [column.asc_nulls_first() if are_nulls_first else column.asc_nulls_last()]
    return [column.desc_nulls_first() if are_nulls_first else column.desc_nulls_last()]
