"""What a commit's rows do to the rows that are there: they are added, replace others by key, or are added up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.ddl import MAX_DIGITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

Kind = Literal["append", "upsert", "totals"]

COUNT_COLUMN = "_records"
"""Column of a table of totals: how many rows each of its rows stands for."""

SPARE_DIGITS = 10
"""What Spark adds to a decimal's digits for its sum; a total has room for 10**10 of the largest values."""


@dataclass(frozen=True)
class WriteMode:
    """What the result table is, beside its columns.

    Raises:
        OptionRefused: the parts contradict each other.
    """

    kind: Kind = "append"
    key: tuple[str, ...] = ()
    """Columns that identify a row of the table; null is a value like others."""
    sums: tuple[str, ...] = ()
    """Columns that are added up."""

    def __post_init__(self) -> None:
        if self.kind == "append" and (self.key or self.sums):
            raise OptionRefused("a result that is appended to has no key and no sums. Choose upsert or totals")
        if self.kind != "append" and not self.key:
            raise OptionRefused(f"a result of kind {self.kind} needs a key: name the columns that identify a row")
        if self.kind != "totals" and self.sums:
            raise OptionRefused(f"a result of kind {self.kind} has no sums. Choose totals")
        named = [*self.key, *self.sums]
        if len(set(named)) < len(named):
            raise OptionRefused(f"key and sums name a column twice ({', '.join(named)})")


APPEND = WriteMode()


def table_schema(write_mode: WriteMode, rows: StructType) -> StructType:
    """Columns of the result table for rows of that schema.

    Raises:
        OptionRefused: the rows lack a column that the shape names, or have it with a type that does not do.
    """
    from pyspark.sql.types import LongType, StructField, StructType

    if write_mode.kind == "append":
        return rows
    fields = {field.name: field.dataType for field in rows.fields}
    needed = [*write_mode.key, *write_mode.sums, *(("_partition", "_offset") if write_mode.kind == "upsert" else ())]
    for name in needed:
        if name not in fields:
            why = " (it says which row of a key is the last)" if name in {"_partition", "_offset"} else ""
            raise OptionRefused(
                f"a result of kind {write_mode.kind} needs column {name!r}{why}; the rows have: {', '.join(fields)}"
            )
    for name in write_mode.key:
        _require_comparable(name, fields[name])
    if write_mode.kind == "upsert":
        return rows
    if COUNT_COLUMN in write_mode.key or COUNT_COLUMN in write_mode.sums:
        raise OptionRefused(f"column {COUNT_COLUMN!r} is the count of a table of totals. Give yours another name")
    return StructType(
        [
            *[StructField(name, fields[name]) for name in write_mode.key],
            StructField(COUNT_COLUMN, LongType()),
            *[StructField(name, _total(name, fields[name])) for name in write_mode.sums],
        ]
    )


def reduced(dataframe: DataFrame, write_mode: WriteMode) -> DataFrame:
    """At most one row per key, in the columns of `table_schema`; for an appended result, the rows as they are."""
    from pyspark.sql import functions as F

    if write_mode.kind == "append":
        return dataframe
    key = [F.col(quoted(name)) for name in write_mode.key]
    if write_mode.kind == "upsert":
        row = F.struct(*[F.col(quoted(name)) for name in dataframe.columns])
        last = F.max_by(row, F.struct(F.col("_partition"), F.col("_offset"))).alias("row")
        return dataframe.groupBy(*key).agg(last).select("row.*")
    fields = {field.name: field.dataType for field in dataframe.schema.fields}
    sums = []
    for name in write_mode.sums:
        # Widened before it is added: a sum of longs would overflow, which ends the job.
        whole = F.sum(F.col(quoted(name)).cast(_addend(name, fields[name])))
        sums.append(F.coalesce(whole, F.lit(0)).cast(_total(name, fields[name])).alias(name))
    return dataframe.groupBy(*key).agg(F.count("*").alias(COUNT_COLUMN), *sums)


def _require_comparable(name: str, data_type: DataType) -> None:
    from pyspark.sql.types import ArrayType, DoubleType, FloatType, MapType, StructType

    if isinstance(data_type, ArrayType | MapType | StructType | FloatType | DoubleType):
        raise OptionRefused(
            f"column {name!r} of type {data_type.simpleString()} cannot be a key: use text, whole numbers, decimals, "
            "booleans, dates or times"
        )


def _addend(name: str, data_type: DataType) -> DataType:
    """Wide enough for one value, and narrow enough that Spark's sum, which adds ten digits, loses none of it."""
    from pyspark.sql.types import ByteType, DecimalType, IntegerType, LongType, ShortType

    if isinstance(data_type, DecimalType) and data_type.precision <= MAX_DIGITS - SPARE_DIGITS:
        return data_type
    if isinstance(data_type, ByteType | ShortType | IntegerType | LongType):
        return DecimalType(19, 0)
    raise OptionRefused(
        f"column {name!r} of type {data_type.simpleString()} cannot be added up exactly: declare it as a whole number "
        f"or as decimal(digits, places) of at most {MAX_DIGITS - SPARE_DIGITS} digits"
    )


def _total(name: str, data_type: DataType) -> DataType:
    from pyspark.sql.types import DecimalType

    addend = _addend(name, data_type)
    return DecimalType(MAX_DIGITS, addend.scale if isinstance(addend, DecimalType) else 0)


def quoted(name: str) -> str:
    """A column's name as Spark takes it, whatever characters it has."""
    return f"`{name.replace('`', '``')}`"
