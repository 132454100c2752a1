"""What a table of totals has beside its key: counts, sums, averages, least and greatest values.

Each column has a rule that takes the table's value and a commit's to the new one, in any order and however the records
fall into commits; an average and a number of distinct values are made of columns that have one. The rules stand once
for each way of merging: here for Spark, in `stores/merge_sql.py`, and in `stores/iceberg/merge.py` for Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.ddl import MAX_DIGITS
from kafka_ratchet.spark_sink.rows.distinct import estimate, quoted, require_countable, with_hashes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

COUNT_COLUMN: Final = "_records"
"""Column of a table of totals: how many rows each of its rows stands for."""

SPARE_DIGITS: Final = 10
"""What Spark adds to a decimal's digits for its sum; a total has room for 10**10 of the largest values."""

Rule = Literal["records", "sum", "filled", "average", "least", "greatest", "hashes", "distinct"]

ADDED: Final[frozenset[Rule]] = frozenset({"records", "sum", "filled"})
"""Rules by which the two values are added."""

MADE_OF_ROWS: Final[frozenset[Rule]] = ADDED | {"least", "greatest"}
"""Rules by which Spark makes a column of the rows in one step; the others are made of hashes, or of other columns."""

ENDINGS: Final[dict[Rule, str]] = {
    "filled": "_count",
    "average": "_avg",
    "least": "_min",
    "greatest": "_max",
    "hashes": "_hashes",
    "distinct": "_distinct",
}
"""How the names of such columns end, behind the name of the column that they are of."""


class Aggregate(NamedTuple):
    """A column of a table of totals."""

    name: str
    rule: Rule
    """How it comes from the rows: their number, the sum, the number of those with a value, sum by that number, ..."""
    of: str
    """The rows' column; empty for the number of rows."""


def aggregates(
    sums: tuple[str, ...],
    averages: tuple[str, ...],
    mins: tuple[str, ...],
    maxes: tuple[str, ...],
    distinct: tuple[str, ...],
) -> list[Aggregate]:
    """The columns behind the key, in their order; what a column is made of stands before it."""
    added = [*sums, *(name for name in averages if name not in sums)]
    lists: list[tuple[Rule, tuple[str, ...]]] = [
        ("filled", averages),
        ("average", averages),
        ("least", mins),
        ("greatest", maxes),
        ("hashes", distinct),
        ("distinct", distinct),
    ]
    return [
        Aggregate(COUNT_COLUMN, "records", ""),
        *(Aggregate(name, "sum", name) for name in added),
        *(Aggregate(name + ENDINGS[rule], rule, name) for rule, names in lists for name in names),
    ]


def column_type(aggregate: Aggregate, of: DataType | None) -> DataType:
    """Type of the table's column.

    Args:
        aggregate: the column.
        of: type of the rows' column; None for the number of rows.

    Raises:
        OptionRefused: the rows' column has a type that does not do.
    """
    from pyspark.sql.types import ArrayType, DecimalType, DoubleType, LongType

    if of is None:
        return LongType()
    if aggregate.rule in {"hashes", "distinct"}:
        require_countable(aggregate.of, of)
        return ArrayType(LongType()) if aggregate.rule == "hashes" else LongType()
    if aggregate.rule in {"least", "greatest"}:
        return _ordered(aggregate.of, of)
    addend = _addend(aggregate.of, of)
    if aggregate.rule == "filled":
        return LongType()
    if aggregate.rule == "average":
        return DoubleType()
    return DecimalType(MAX_DIGITS, addend.scale if isinstance(addend, DecimalType) else 0)


def totals(dataframe: DataFrame, key: list[Column], columns: list[Aggregate]) -> DataFrame:
    """One row for each key, in the columns of the table."""
    from pyspark.sql import functions as F

    types = {field.name: field.dataType for field in dataframe.schema.fields}
    made = [_made(each, types[each.of] if each.of else None) for each in columns if each.rule in MADE_OF_ROWS]
    names = [each.name for each in columns]
    sketched = [each for each in columns if each.rule == "hashes"]
    if sketched:
        counted = with_hashes(dataframe, key, made, {each.name: (each.of, types[each.of]) for each in sketched})
    else:
        counted = dataframe.groupBy(*key).agg(*made)
    keys = counted.columns[: len(key)]
    for each in columns:
        if each.rule == "average":
            count = F.col(quoted(each.of + ENDINGS["filled"]))
            average = F.when(count > 0, F.col(quoted(each.of)).cast("double") / count.cast("double"))
            counted = counted.withColumn(each.name, average)
        elif each.rule == "distinct":
            counted = counted.withColumn(each.name, estimate(F.col(quoted(each.of + ENDINGS["hashes"]))))
    return counted.select(*[F.col(quoted(name)) for name in [*keys, *names]])


def _made(aggregate: Aggregate, of: DataType | None) -> Column:
    """What Spark computes from the rows of one commit."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DoubleType, FloatType, StringType

    if of is None:
        return F.count("*").alias(aggregate.name)
    column, wanted = F.col(quoted(aggregate.of)), column_type(aggregate, of)
    if aggregate.rule == "filled":
        made = F.count(column)
    elif aggregate.rule == "sum":
        # Widened before it is added: a sum of longs would overflow, which ends the job.
        made = F.coalesce(F.sum(column.cast(_addend(aggregate.of, of))), F.lit(0))
    else:
        if isinstance(of, FloatType | DoubleType):
            # One NaN and one zero, so that no store has to know that Spark takes them for equal.
            column = F.when(F.isnan(column), F.lit(float("nan"))).otherwise(column + F.lit(0.0))
        elif isinstance(of, StringType):
            column = column.cast("string")  # by its bytes, whatever collation it has
        made = F.min(column) if aggregate.rule == "least" else F.max(column)
    return made.cast(wanted).alias(aggregate.name)


def _ordered(name: str, data_type: DataType) -> DataType:
    from pyspark.sql.types import DateType, NumericType, StringType, TimestampNTZType, TimestampType

    if isinstance(data_type, NumericType | StringType | DateType | TimestampType | TimestampNTZType):
        return data_type
    raise OptionRefused(
        f"column {name!r} of type {data_type.simpleString()} has no least and no greatest value: use text, numbers, "
        "dates or times"
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
