"""Aggregates of a table of totals: counts, sums, averages, least and greatest values, numbers of distinct values.

The rule of a column computes the new value from the table's value and a commit's value. The order of the commits, and
the number of records in each, make no difference. Averages and numbers of distinct values have no such rule: they are
computed from the new values of other columns. The rules are written once for each engine that merges: here for Spark,
in `stores/merge_sql.py` for SQL, and in `stores/iceberg/merge.py` for Arrow.
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
"""Column of a table of totals with the number of records of each row."""

SPARE_DIGITS: Final = 10
"""Number of digits that Spark adds to a decimal for its sum: enough for a sum of 10**10 of the largest values."""

Rule = Literal["records", "sum", "filled", "average", "least", "greatest", "hashes", "distinct"]

ADDED: Final[frozenset[Rule]] = frozenset({"records", "sum", "filled"})
"""Rules that add a commit's value to the table's value."""

MADE_OF_ROWS: Final[frozenset[Rule]] = ADDED | {"least", "greatest"}
"""Rules that Spark computes from the rows in one step. Columns of other rules are computed from hashes, or from other
columns."""

ENDINGS: Final[dict[Rule, str]] = {
    "filled": "_count",
    "average": "_avg",
    "least": "_min",
    "greatest": "_max",
    "hashes": "_hashes",
    "distinct": "_distinct",
}
"""Suffixes of the names of computed columns, by rule; the name of the aggregated column comes first."""


class Aggregate(NamedTuple):
    """Column of a table of totals: its name, the rule that computes it, and the column of the rows."""

    name: str
    rule: Rule
    """Rule that computes the column from the rows. "records" is the number of rows, "filled" the number of rows with a
    value, "average" the sum divided by "filled"."""
    of: str
    """Column of the rows; empty for the number of rows."""


def aggregates(
    sums: tuple[str, ...],
    averages: tuple[str, ...],
    mins: tuple[str, ...],
    maxes: tuple[str, ...],
    distinct: tuple[str, ...],
) -> list[Aggregate]:
    """Return the columns that follow the key, in the table's order.

    Each computed column comes after the columns that it is computed from.
    """
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
    """Return the type of the table's column.

    Args:
        aggregate: the column.
        of: type of the rows' column; None for the number of rows.

    Raises:
        OptionRefused: a column of this type cannot be aggregated by this rule.
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
    """Reduce the rows to one row for each key, with the table's columns."""
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
    """Return the column expression that computes an aggregate from the rows of one commit."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DoubleType, FloatType, StringType

    if of is None:
        return F.count("*").alias(aggregate.name)
    column, wanted = F.col(quoted(aggregate.of)), column_type(aggregate, of)
    if aggregate.rule == "filled":
        made = F.count(column)
    elif aggregate.rule == "sum":
        # Widened before the sum: a sum of longs would overflow, which ends the job.
        made = F.coalesce(F.sum(column.cast(_addend(aggregate.of, of))), F.lit(0))
    else:
        if isinstance(of, FloatType | DoubleType):
            # One NaN and one zero, so that no store has to know that Spark takes them for equal.
            column = F.when(F.isnan(column), F.lit(float("nan"))).otherwise(column + F.lit(0.0))
        elif isinstance(of, StringType):
            column = column.cast("string")  # by its bytes, whatever its collation
        made = F.min(column) if aggregate.rule == "least" else F.max(column)
    return made.cast(wanted).alias(aggregate.name)


def _ordered(name: str, data_type: DataType) -> DataType:
    from pyspark.sql.types import DateType, NumericType, StringType, TimestampNTZType, TimestampType

    if isinstance(data_type, NumericType | StringType | DateType | TimestampType | TimestampNTZType):
        return data_type
    raise OptionRefused(
        f"column {name!r} of type {data_type.simpleString()} has no least and no greatest value. Use a column of "
        "text, numbers, dates or times"
    )


def _addend(name: str, data_type: DataType) -> DataType:
    """Return the type of the values to add up; Spark's sum has `SPARE_DIGITS` more digits.

    Raises:
        OptionRefused: no such type holds the column's values, or the sum would have too many digits.
    """
    from pyspark.sql.types import ByteType, DecimalType, IntegerType, LongType, ShortType

    if isinstance(data_type, DecimalType) and data_type.precision <= MAX_DIGITS - SPARE_DIGITS:
        return data_type
    if isinstance(data_type, ByteType | ShortType | IntegerType | LongType):
        return DecimalType(19, 0)
    raise OptionRefused(
        f"column {name!r} of type {data_type.simpleString()} cannot be added up exactly. Declare it as a whole "
        f"number or as decimal(digits, places) of at most {MAX_DIGITS - SPARE_DIGITS} digits"
    )
