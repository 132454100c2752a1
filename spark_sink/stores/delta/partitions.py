"""Partitions of a Delta table: columns with values in the log instead of the files.

A column of text, integers, booleans or dates is a partition column itself. A day or hour of a time becomes a further
column: `<column>_day` of type date, or `<column>_hour` of type text, such as 2026-11-23-17; both in UTC. Generated
columns of Delta could compute the same, but Spark would evaluate their expressions in each session's own time zone.

All files are in the table's own folder, whatever their partition: Delta reads the values from the log, and folders
named after values are only a convention. So no value becomes part of a path.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import SchemaDiffers, StoreError
from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.files.parquet import Values
from kafka_ratchet.spark_sink.rows.partition_by import PartitionField, option_text

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Fields = Sequence[PartitionField]

TYPES = frozenset({"string", "boolean", "byte", "short", "integer", "long", "date"})
"""Types of partition columns that `as_text` can write as the log requires."""

EPOCH = datetime.date(1970, 1, 1)

LAST_DAY = (datetime.date.max - EPOCH).days
FIRST_DAY = (datetime.date.min - EPOCH).days


def with_partitions(schema: StructType, fields: Fields) -> StructType:
    """Return the table's columns: the job's columns, and a column for each partition by day or hour."""
    from pyspark.sql.types import DateType, StringType, StructField, StructType

    types = {"day": DateType(), "hour": StringType()}
    return StructType([*schema.fields, *(StructField(field.name, types[field.unit]) for field in fields if field.unit)])


def with_partition_columns(dataframe: DataFrame, fields: Fields) -> DataFrame:
    """Add the partition columns of days and hours to the rows; the session's time zone is UTC."""
    from pyspark.sql import functions as F

    forms = {"day": "yyyy-MM-dd", "hour": "yyyy-MM-dd-HH"}
    for field in fields:
        if field.unit:
            text = F.date_format(F.col(field.column), forms[field.unit])
            dataframe = dataframe.withColumn(field.name, text.cast("date") if field.unit == "day" else text)
    return dataframe


def without_partitions(schema: StructType, fields: Fields) -> StructType:
    """Return the job's columns of a table, without partition columns of days and hours."""
    from pyspark.sql.types import StructType

    added = {field.name for field in fields if field.unit}
    return StructType([field for field in schema.fields if field.name not in added])


def require_partitions(folder: Folder, table: DeltaTable, fields: Fields) -> None:
    """Refuse a table with other partition columns than the job's.

    Raises:
        SchemaDiffers: the partition columns differ.
    """
    present, wanted = list(table.metadata().partition_columns), [field.name for field in fields]
    if present != wanted:
        raise SchemaDiffers(
            f"{folder}: the table is partitioned by {present or 'nothing'}, and this job has {option_text(fields)}, "
            f"which needs the partition columns {wanted or '(none)'}. Partitions of an existing table do not change: "
            "give the job the partition_by of the table, or choose another path"
        )


def partition_values(folder: Folder, table: DeltaTable, fields: Fields, values: Values) -> dict[str, str | None]:
    """Return the partition values of a file as texts for the log, by column name.

    Raises:
        StoreError: a value is an empty text, which readers of the format interpret as null, or a date outside the years
            1 to 9999.
    """
    dates = {field.name for field in table.schema().fields if getattr(field.type, "type", "") == "date"}
    found: dict[str, str | None] = {}
    for field, value in zip(fields, values, strict=True):
        if field.unit and isinstance(value, int):
            days, hour = divmod(value, 24) if field.unit == "hour" else (value, 0)
            day = _day(days)
            found[field.name] = None if day is None else f"{day}-{hour:02}" if field.unit == "hour" else day
            continue
        text = _day(value) if field.name in dates and isinstance(value, int) else as_text(value)
        if not text and value is not None:
            what = "a date outside the years 1 to 9999" if text is None else "an empty text"
            raise StoreError(
                f"{folder}: column {field.column} is {what} in a row, and no partition of a Delta table can have that "
                f"value. Nothing was committed. Replace it in sql (an empty text by nullif({field.column}, '')), "
                "or choose another table and other partition columns"
            )
        found[field.name] = text
    return found


def as_text(value: str | bool | int | datetime.date | None) -> str | None:
    """Return a partition value as text, as Delta's log requires."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def _day(days: int) -> str | None:
    """Return a date as text, from its days since 1970; None: the year is outside 1 to 9999."""
    return (EPOCH + datetime.timedelta(days)).isoformat() if FIRST_DAY <= days <= LAST_DAY else None
