"""Sums of a commit added to the rows of a Delta table, by Spark.

Spark's `+` drops decimal places of two decimals with 38 digits, if they have more than six places. Its aggregate `sum`
keeps the places, so rows of the table and of the commit are summed in a window over the key. See docs/decisions/0100.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from kafka_ratchet.spark_sink.rows.distinct import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

KEY: Final = "key"
ADDENDS: Final = "addends"
OLD: Final = "old"
"""Column with the table's whole row; null for a row of the commit. `KEY` is the column with the key, and `ADDENDS` the
column with the values to add up."""

ADDED: Final = "added"
ROWS: Final = "rows"
"""Column with the number of rows that the table has for a key. `ADDED` is the column with the commit's number of such
rows, 0 or 1."""

MARK: Final = "sums|"
"""Prefix of the message about a refused row; `|` ends the message."""

REFUSAL: Final = re.compile(rf"{re.escape(MARK)}(?P<reason>[^|\n]*)\|")


def with_sums(target: DataFrame, source: DataFrame, key: Sequence[str], names: Sequence[str]) -> DataFrame:
    """Add the values of a commit to rows of the table, and append rows for new keys.

    Null plus a number is null. Spark's tasks fail if a sum overflows, or if several rows of the table have one key of
    the commit; `refused_sum` then finds the reason.

    Args:
        target: rows of the table, with its columns in their order.
        source: rows of the commit, at most one for each key, with the columns of `key` and `names`.
        key: columns that identify a row; null counts as a value.
        names: columns to add up.

    Returns:
        All rows of `target`, and the new ones, in the columns of `target`.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    def parts(rows: DataFrame, old: Column) -> DataFrame:
        return rows.select(as_struct(key).alias(KEY), as_struct(names).alias(ADDENDS), old.alias(OLD))

    there = parts(target, as_struct(target.columns))
    nothing = F.lit(None).cast(there.schema[OLD].dataType)
    sums = [(F.try_sum(field_of(ADDENDS, name)), F.count(field_of(ADDENDS, name))) for name in names]
    # A window and no groups: the rows of another job may all have null in the key, and a group would be one array.
    of_key = Window.partitionBy(KEY)
    summed = (
        there.union(parts(source, nothing))
        .select(
            "*",
            F.count(F.when(F.col(OLD).isNull(), 1)).over(of_key).alias(ADDED),
            F.count(OLD).over(of_key).alias(ROWS),
            *[total.over(of_key).alias(f"sum{n}") for n, (total, _) in enumerate(sums)],
            *[count.over(of_key).alias(f"count{n}") for n, (_, count) in enumerate(sums)],
        )
        .where(F.col(OLD).isNotNull() | (F.col(ROWS) == 0))
    )
    values = {name: field_of(OLD, name) for name in target.columns} | {name: field_of(KEY, name) for name in key}
    for n, name in enumerate(names):
        values[name] = _sum(key, name, n, target.schema[name].dataType)
    return summed.select([values[name].alias(name) for name in target.columns])


def refused_sum(messages: Iterable[str]) -> str:
    """Return the reason of a refused row from messages of Spark's errors; empty: no task refused a row."""
    found = (REFUSAL.search(message) for message in messages)
    return next((match["reason"] for match in found if match), "")


def _sum(key: Sequence[str], name: str, n: int, data_type: DataType) -> Column:
    """Return the new value of a summed column, from column `n` of the sums."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DecimalType

    digits = f"{data_type.precision} digits" if isinstance(data_type, DecimalType) else "64 bits"
    total, of_table = F.col(f"sum{n}"), field_of(OLD, name)

    def refused(reason: str) -> Column:
        return F.raise_error(F.lit(f"{MARK}{reason}|")).cast(data_type)

    return (
        F.when(F.col(ADDED) == 0, of_table)
        .when(F.col(ROWS) > 1, refused(f"the table has several rows of one key ({', '.join(key)})"))
        .when(F.col(f"count{n}") < F.col(ROWS) + F.col(ADDED), F.lit(None))
        .when(total.isNull(), refused(f"a sum of column {name} has more than {digits}"))
        .otherwise(total)
    )


def as_struct(names: Sequence[str]) -> Column:
    """Return a struct of columns."""
    from pyspark.sql import functions as F

    return F.struct(*[F.col(quoted(name)) for name in names])


def field_of(part: str, name: str) -> Column:
    """Return a field of a struct column."""
    from pyspark.sql import functions as F

    return F.col(f"{part}.{quoted(name)}")
