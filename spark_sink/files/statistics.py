"""Statistics of a Parquet file in the form of a Delta log: bounds of values, and null counts.

Readers skip files by these statistics. An uncertain value is left out: readers then open the file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

TEXT_LENGTH: Final = 32
"""Maximum characters of a text in the statistics. Delta's own writers shorten texts to the same length."""

EXACT_DIGITS: Final = 15
"""Maximum digits of a decimal in the statistics. A reader that parses a decimal as a 64-bit float changes no value with
so few digits."""

INDEXED: Final = 32
"""Default number of columns with statistics; a table may set its own (`delta.dataSkippingNumIndexedCols`)."""

Statistics = Callable[[Any, Any, Collection[str]], str]
"""Function that returns the statistics as JSON. Its arguments are the footer and the Arrow schema of a file, and the
names of its columns with NaN."""


def statistics_maker(indexed: int = INDEXED) -> Statistics:
    """Return the function that computes a file's statistics in Spark's tasks.

    It is a nested function, so that executors get it by value.

    Args:
        indexed: number of columns with statistics, counted from the first column; -1: all. Columns about the record
            (`_kafka_...`) always have statistics.
    """
    text_length, exact_digits = TEXT_LENGTH, EXACT_DIGITS

    def make(footer: Any, schema: Any, with_nan: Collection[str]) -> str:
        import datetime
        import json
        import math

        import pyarrow as pa

        def leaves(data_type: Any) -> int:
            if not pa.types.is_nested(data_type):
                return 1
            return sum(leaves(data_type.field(n).type) for n in range(data_type.num_fields))

        def least(value: Any, data_type: Any) -> Any:
            if isinstance(value, str):
                return value[:text_length]
            if isinstance(value, datetime.datetime):
                return instant(value, data_type, 0)
            return plain(value, data_type)

        def greatest(value: Any, data_type: Any) -> Any:
            if isinstance(value, str):  # no text is greater than the last character
                return value if len(value) <= text_length else value[:text_length] + "\U0010ffff"
            if isinstance(value, datetime.datetime):
                return instant(value, data_type, 999)  # readers know milliseconds
            return plain(value, data_type)

        def instant(value: Any, data_type: Any, more_us: int) -> Any:
            whole = (value + datetime.timedelta(microseconds=more_us)).replace(tzinfo=None)
            text = whole.isoformat(timespec="milliseconds")
            return f"{text}Z" if data_type.tz else text

        def plain(value: Any, data_type: Any) -> Any:
            if isinstance(value, datetime.date):
                return value.isoformat()
            if pa.types.is_decimal(data_type):
                return float(value) if data_type.precision <= exact_digits else None
            return value if not isinstance(value, float) or math.isfinite(value) else None

        def has_bounds(data_type: Any) -> bool:
            kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_date32)
            texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_timestamp)
            return any(is_kind(data_type) for is_kind in (*kinds, *texts))

        found: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
        at = -1
        for number, field in enumerate(schema):
            at += 1
            if pa.types.is_nested(field.type):
                at += leaves(field.type) - 1
                continue
            if 0 <= indexed <= number and not field.name.startswith("_kafka_"):
                continue
            groups = [footer.row_group(n).column(at).statistics for n in range(footer.num_row_groups)]
            if any(each is None or not each.has_null_count for each in groups):
                continue
            found["nullCount"][field.name] = sum(each.null_count for each in groups)
            some = [each for each in groups if each.num_values]
            if not some or not has_bounds(field.type) or any(not each.has_min_max for each in some):
                continue
            try:
                low = least(min(each.min for each in some), field.type)
                high = greatest(max(each.max for each in some), field.type)
            except (ValueError, OverflowError, TypeError):  # a time outside the years of Python
                continue
            if low is not None:
                found["minValues"][field.name] = low
            if high is not None and field.name not in with_nan:  # NaN is above every number, and not in the footer
                found["maxValues"][field.name] = high
        return json.dumps(found)

    return make
