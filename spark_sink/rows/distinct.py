"""Estimate of the number of distinct values from the smallest of their hashes: a sketch that any SQL can merge.

Each value has a 63-bit hash, and the `HASHES` smallest different hashes are kept in a list. A merge of two lists keeps
the smallest hashes of both; order and repetition of the values make no difference. While a list is not full, its length
is the number of distinct values. In a full list, the largest hash shows how densely hashes lie, and so how many values
are distinct (Bar-Yossef et al., "Counting distinct elements in a data stream", 2002; Beyer et al., 2007, for the
unbiased form).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kafka_ratchet.spark_sink.errors import OptionRefused

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

HASHES: Final = 1024
"""Number of hashes kept for each row of the table, in 8 KiB. The standard error is 1 / sqrt(HASHES - 2), 3.1 %. With
another number, existing lists would get another meaning, so the number can only change with
`stored_write_mode.FORMAT`."""

SCALE: Final = (HASHES - 1) * 2.0**63
"""Numerator of the estimate, which a double holds without rounding. The denominator is the largest hash of a full
list."""

WHICH, HASH = "_ratchet_which", "_ratchet_hash"
"""Columns of rows before Spark reduces them to totals: number of the hashed column (0: none), and the hash."""


def require_countable(name: str, data_type: DataType) -> None:
    """Check that equal values of a column's type have the same text.

    Distinct values are counted by their texts.

    Raises:
        OptionRefused: equal values of the type may have different texts, or no text.
    """
    from pyspark.sql.types import (
        BinaryType,
        BooleanType,
        DateType,
        IntegralType,
        StringType,
        TimestampNTZType,
        TimestampType,
    )

    simple = BinaryType | BooleanType | DateType | IntegralType | StringType | TimestampNTZType | TimestampType
    if not isinstance(data_type, simple):
        raise OptionRefused(
            f"column {name!r} of type {data_type.simpleString()}: distinct values can be counted in columns of text, "
            "bytes, whole numbers, booleans, dates and times. Convert it to text in sql"
        )


def hashed(value: Column, data_type: DataType) -> Column:
    """Return the hash of a value, 0 to 2**63 - 1; null for null.

    A whole number has the hash of its digits, so that a widened column counts no value twice.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType, TimestampNTZType, TimestampType

    if isinstance(data_type, TimestampType | TimestampNTZType):
        value = F.unix_micros(value.cast("timestamp"))
    text = value if isinstance(data_type, BinaryType) else value.cast("string")
    return F.when(value.isNotNull(), F.shiftrightunsigned(F.xxhash64(text), 1))


def with_hashes(
    dataframe: DataFrame, key: list[Column], made: list[Column], sketches: Mapping[str, tuple[str, DataType]]
) -> DataFrame:
    """Return one row per key, with aggregates and each counted column's smallest hashes.

    No task holds more than twice `HASHES` hashes of one key and column, however many values there are. Each row is
    repeated once for each hashed column, equal hashes become one row, and all but the smallest are dropped.

    Args:
        dataframe: the rows.
        key: columns to group by.
        made: aggregates to compute from the rows.
        sketches: column of the rows to hash, with its type, by the name of the resulting column of hashes.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    keys = dataframe.select(*key).columns
    hashes = [hashed(F.col(quoted(name)), data_type) for name, data_type in sketches.values()]
    none = F.struct(F.lit(0).alias(WHICH), F.lit(None).cast("long").alias(HASH))
    each = [F.struct(F.lit(n).alias(WHICH), value.alias(HASH)) for n, value in enumerate(hashes, 1)]
    copied = dataframe.withColumn("_ratchet_copy", F.explode(F.array(none, *each)))
    copied = copied.withColumn(WHICH, F.col(f"_ratchet_copy.{WHICH}")).withColumn(HASH, F.col(f"_ratchet_copy.{HASH}"))
    copied = copied.where((F.col(WHICH) == 0) | F.col(HASH).isNotNull())
    # Sums over the repeated rows with a hash are unused; the rows with 0 hold every row once.
    unlike = copied.groupBy(*key, WHICH, HASH).agg(*made)
    smallest_first = Window.partitionBy(*key, WHICH).orderBy(HASH)
    few = unlike.withColumn("_ratchet_rank", F.row_number().over(smallest_first)).where(
        F.col("_ratchet_rank") <= HASHES
    )
    names = [name for name in unlike.columns if name not in {*keys, WHICH, HASH}]
    first = [F.max(F.when(F.col(WHICH) == 0, F.col(quoted(name)))).alias(name) for name in names]
    lists = [
        F.array_sort(F.collect_list(F.when(F.col(WHICH) == n, F.col(HASH)))).alias(name)
        for n, name in enumerate(sketches, 1)
    ]
    return few.groupBy(*key).agg(*first, *lists)


def estimate(hashes: Column) -> Column:
    """Return the estimated number of distinct values from a list of hashes; exact below `HASHES` values."""
    from pyspark.sql import functions as F

    last = F.get(hashes, F.lit(HASHES - 1)).cast("double")  # null where no list exists
    return F.when(F.size(hashes) < HASHES, F.size(hashes).cast("long")).otherwise(
        F.floor(F.lit(SCALE) / last).cast("long")
    )


def quoted(name: str) -> str:
    """Quote a column's name for Spark, whatever characters it has."""
    return f"`{name.replace('`', '``')}`"
