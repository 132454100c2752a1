"""Effect of a commit's rows on the table: they are appended, replace rows by key, or are added up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, get_args

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.aggregates import (
    COUNT_COLUMN,
    Aggregate,
    aggregates,
    column_type,
    totals,
)
from kafka_ratchet.spark_sink.rows.distinct import quoted
from kafka_ratchet.spark_sink.rows.judging.rule import JudgeRule
from kafka_ratchet.spark_sink.rows.windows import WINDOW_COLUMN, Windows, require_time, windowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

Kind = Literal["append", "upsert", "totals"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass(frozen=True)
class WriteMode:
    """Kind of the result table, with its key, aggregates and deduplication settings.

    Raises:
        OptionRefused: the parts contradict each other.
    """

    kind: Kind = "append"
    key: tuple[str, ...] = ()
    """Columns of the rows that identify a row of the table; null is a value like others."""
    sums: tuple[str, ...] = ()
    """Columns to add up."""
    windows: Windows | None = None
    """Windows of the totals: one total for each key and window; None: one for each key."""
    averages: tuple[str, ...] = ()
    mins: tuple[str, ...] = ()
    maxes: tuple[str, ...] = ()
    distinct: tuple[str, ...] = ()
    """Columns with distinct values to count."""
    judged: JudgeRule | None = None
    """Rule for a raw topic that this job deduplicates itself; None: workers have deduplicated the records."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OptionRefused(f"kind {self.kind!r} is unknown; write one of {', '.join(KINDS)}")
        if self.kind == "append" and (self.key or self.sums):
            raise OptionRefused(
                "a result of kind append has no key and no sums. Leave them out, or choose upsert or totals"
            )
        if self.kind != "append" and not self.row_key:
            raise OptionRefused(f"a result of kind {self.kind} needs a key: name the columns that identify a row")
        for name, names in self.lists.items():
            if self.kind != "totals" and names:
                raise OptionRefused(f"a result of kind {self.kind} has no {name}. Choose kind totals")
            if len(set(names)) < len(names):
                raise OptionRefused(f"{name}: a column is named twice ({', '.join(names)}). Name each column once")
        if self.kind != "totals" and self.windows is not None:
            raise OptionRefused(f"a result of kind {self.kind} has no windows. Choose kind totals, or leave window out")
        named = [*self.key, *self.sums]
        if len(set(named)) < len(named):
            raise OptionRefused(f"key and sums name a column twice ({', '.join(named)}). Name each column once")
        if self.kind == "totals":
            self._require_names()

    def _require_names(self) -> None:
        """Refuse column names that differ only in case, because Delta and DuckDB ignore the case."""
        of = [*self.key, *(name for names in self.lists.values() for name in names)]
        for reserved, what in ((COUNT_COLUMN, "the count"), (WINDOW_COLUMN, "the window's beginning")):
            if reserved in map(str.lower, of):
                raise OptionRefused(
                    f"column {reserved!r} is {what} of a table of totals. Give your column another name"
                )
        names = [*self.row_key, *(each.name for each in self.aggregates)]
        name, times = Counter(name.lower() for name in names).most_common(1)[0]
        if times > 1:
            raise OptionRefused(
                f"two columns of the table would have the name {name!r} (it has: {', '.join(names)}). Give one of the "
                "rows' columns another name, by sql for example"
            )

    @property
    def lists(self) -> dict[str, tuple[str, ...]]:
        """Return the aggregated columns, by the name of their setting."""
        return {
            "sums": self.sums,
            "averages": self.averages,
            "mins": self.mins,
            "maxes": self.maxes,
            "distinct": self.distinct,
        }

    @property
    def row_key(self) -> tuple[str, ...]:
        """Return the columns that identify a row: the key and, with windows, the start of the window."""
        return self.key if self.windows is None else (*self.key, WINDOW_COLUMN)

    @property
    def more_than_sums(self) -> bool:
        """Return whether the totals use settings other than `key` and `sums`."""
        return self.windows is not None or any(names for name, names in self.lists.items() if name != "sums")

    @cached_property
    def aggregates(self) -> list[Aggregate]:
        """Return the columns of a table of totals after the columns of `row_key`."""
        return aggregates(self.sums, self.averages, self.mins, self.maxes, self.distinct)


APPEND = WriteMode()


def table_schema(write_mode: WriteMode, rows: StructType) -> StructType:
    """Return the columns of the result table, for rows with the schema `rows`.

    Raises:
        OptionRefused: the rows lack a column that the write mode names, or have it with an unsuitable type.
    """
    from pyspark.sql.types import StructField, StructType, TimestampType

    if write_mode.kind == "append":
        return rows
    fields = {field.name: field.dataType for field in rows.fields}
    windows = write_mode.windows
    needed = [*write_mode.key, *(name for names in write_mode.lists.values() for name in names)]
    needed += ["_kafka_partition", "_kafka_offset"] if write_mode.kind == "upsert" else []
    needed += [] if windows is None else [windows.time]
    for name in needed:
        if name not in fields:
            why = " (to find the last row of a key)" if name in {"_kafka_partition", "_kafka_offset"} else ""
            why = " (the event time of the windows)" if windows is not None and name == windows.time else why
            raise OptionRefused(
                f"a result of kind {write_mode.kind} needs column {name!r}{why}; the rows have: {', '.join(fields)}"
            )
    for name in write_mode.key:
        _require_comparable(name, fields[name])
    if write_mode.kind == "upsert":
        return rows
    if windows is not None:
        require_time(windows.time, fields[windows.time])
    return StructType(
        [
            *[StructField(name, fields[name]) for name in write_mode.key],
            *([] if windows is None else [StructField(WINDOW_COLUMN, TimestampType())]),
            *[StructField(each.name, column_type(each, fields.get(each.of))) for each in write_mode.aggregates],
        ]
    )


def reduced(dataframe: DataFrame, write_mode: WriteMode) -> DataFrame:
    """Reduce the rows to one for each key, in the columns of `table_schema`; appended rows stay as they are."""
    from pyspark.sql import functions as F

    if write_mode.kind == "append":
        return dataframe
    if write_mode.windows is not None:
        dataframe = windowed(dataframe, write_mode.windows)
    key = [F.col(quoted(name)) for name in write_mode.row_key]
    if write_mode.kind == "upsert":
        row = F.struct(*[F.col(quoted(name)) for name in dataframe.columns])
        last = F.max_by(row, F.struct(F.col("_kafka_partition"), F.col("_kafka_offset"))).alias("row")
        return dataframe.groupBy(*key).agg(last).select("row.*")
    return totals(dataframe, key, write_mode.aggregates)


def _require_comparable(name: str, data_type: DataType) -> None:
    from pyspark.sql.types import ArrayType, DoubleType, FloatType, MapType, StructType

    if isinstance(data_type, ArrayType | MapType | StructType | FloatType | DoubleType):
        raise OptionRefused(
            f"column {name!r} of type {data_type.simpleString()} cannot be a key: use text, whole numbers, decimals, "
            "booleans, dates or times"
        )
