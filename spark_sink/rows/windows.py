"""Windows by event time, and the windows that a row belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.columns import FIRST_YEAR, LAST_YEAR

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

WINDOW_COLUMN: Final = "_window"
"""Column of a table of totals with windows: the start of the window, in UTC."""

RECORD_TIME: Final = "_kafka_timestamp"
"""Column with the record's own time in Kafka, or null: the event time unless the settings name another column."""

UNITS: Final = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
"""Seconds of each unit. A month or a year has no fixed length, and a week begins on another day in each country."""

DURATION = re.compile(r"(\d{1,9})\s*(second|minute|hour|day)s?")

MAX_LENGTH_S: Final = 366 * UNITS["day"]
MAX_OVERLAP: Final = 1_000
"""Maximum number of windows of one record, which becomes as many rows before the totals."""

FIRST_US: Final = -62_135_596_800_000_000
"""0001-01-01T00:00:00Z in microseconds since 1970. Some stores and readers do not support earlier times."""

US: Final = 1_000_000
"""Microseconds of a second."""


@dataclass(frozen=True)
class Windows:
    """Windows of event time with equal length, beginning at whole multiples of `slide_s` since 1970-01-01T00:00:00Z."""

    time: str
    """Column of the rows with the event time."""
    length_s: int
    slide_s: int
    """Seconds from the start of one window to the next; `length_s` if windows do not overlap."""

    @property
    def overlap(self) -> int:
        """Return the number of windows that overlap at a moment."""
        return self.length_s // self.slide_s


def read_windows(length: str, slide: str | None, time: str) -> Windows:
    """Parse the windows of the settings.

    Args:
        length: such as "1 hour" or "15 minutes".
        slide: distance between the starts of windows; None: windows do not overlap.
        time: the rows' column with the event time.

    Raises:
        OptionRefused: a duration cannot be read, or the windows are too long or too many.
    """
    length_s = _seconds("window", length)
    slide_s = length_s if slide is None else _seconds("slide", slide)
    if length_s > MAX_LENGTH_S:
        raise OptionRefused(
            f"window {length!r} is longer than {MAX_LENGTH_S // UNITS['day']} days. Choose a shorter window"
        )
    if length_s % slide_s:
        raise OptionRefused(
            f"window {length!r} is not a multiple of slide {slide!r}, so that records would lie in different "
            "numbers of windows. Choose a slide that divides the window"
        )
    if length_s // slide_s > MAX_OVERLAP:
        raise OptionRefused(
            f"with window {length!r} and slide {slide!r} each record lies in {length_s // slide_s:,} windows, but "
            f"at most {MAX_OVERLAP:,} are supported. Choose a longer slide"
        )
    return Windows(time, length_s, slide_s)


def _seconds(name: str, text: str) -> int:
    found = DURATION.fullmatch(text.strip().lower())
    seconds = int(found[1]) * UNITS[found[2]] if found else 0
    if seconds == 0:
        raise OptionRefused(
            f'{name} {text!r}: write a number and seconds, minutes, hours or days, such as "15 minutes"'
        )
    return seconds


def require_time(name: str, data_type: DataType) -> None:
    """Check that a column's type can be an event time.

    Raises:
        OptionRefused: the column has another type.
    """
    from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

    if not isinstance(data_type, DateType | TimestampType | TimestampNTZType):
        raise OptionRefused(
            f"column {name!r} of type {data_type.simpleString()} is not an event time. Declare it as timestamp "
            "(JSON numbers are seconds since 1970 then) or date, or convert it in sql (timestamp_millis(at))"
        )


def windowed(dataframe: DataFrame, windows: Windows) -> DataFrame:
    """Add `WINDOW_COLUMN`, and repeat each row for every window that it lies in.

    A row without a time, or with a time or windows outside the years 1 to 9999, appears once, with null as window.

    Args:
        dataframe: rows with a column `windows.time`: a timestamp, a timestamp without a time zone (taken as UTC), or a
            date (taken as midnight).
        windows: the windows.
    """
    from pyspark.sql import functions as F

    time = F.col(f"`{windows.time.replace('`', '``')}`")
    # Checked before the cast: a date may lie beyond all timestamps, and the cast would end the job.
    is_known = F.year(time).between(FIRST_YEAR, LAST_YEAR)
    at_us = F.when(is_known, F.unix_micros(time.cast("timestamp")))
    slide_us, length_us = windows.slide_s * US, windows.length_s * US
    newest = at_us - F.pmod(at_us, F.lit(slide_us))  # pmod is never negative, even before 1970
    none = F.lit(None).cast("timestamp")
    is_whole = newest - F.lit(length_us - slide_us) >= F.lit(FIRST_US)
    if windows.overlap == 1:
        return dataframe.withColumn(WINDOW_COLUMN, F.when(is_whole, F.timestamp_micros(newest)).otherwise(none))
    back_us = F.sequence(*(F.lit(us).cast("long") for us in (0, length_us - slide_us, slide_us)))
    starts = F.transform(back_us, lambda back: F.timestamp_micros(newest - back))
    found = F.when(is_whole, starts).otherwise(F.array(none))
    return dataframe.withColumn(WINDOW_COLUMN, F.explode(found))
