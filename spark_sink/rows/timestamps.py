"""Timestamps of records as Kafka has them, from what Spark's Kafka source makes of them.

The source reads each timestamp by `java.sql.Timestamp`. That knows the Julian calendar before 1582-10-15 and, where the
JVM's time zone is not UTC, other offsets before 1900, so that Spark has another moment than the record.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FIRST_MS: Final = -62_135_596_800_000
"""0001-01-01T00:00:00Z in milliseconds since 1970: the first moment that every store holds."""

END_MS: Final = 253_402_300_800_000
"""10000-01-01T00:00:00Z: the first moment after the last that every store holds."""

NO_TIMESTAMP_MS: Final = -1
"""Kafka's own, of a record without a timestamp."""

MOST_MS: Final = 9_200_000_000_000_000
"""Distance from 1970 within the reach of Spark's source: it counts microseconds in 64 bits."""

_SAME_SINCE_US: Final = -2_200_000_000_000_000
"""A moment in 1900, in microseconds: from then on both calendars and all offsets agree (Spark's tables end before)."""

_DAY_US: Final = 86_400_000_000

_OLDEST_US: Final = FIRST_MS * 1000 - 400 * _DAY_US
"""Moment before `FIRST_MS` by either calendar. The way back ends in an error for much earlier ones."""

_CALENDARS: Final = "org.apache.spark.sql.catalyst.util.RebaseDateTime"
"""Spark's own class for the way from one calendar to the other and back."""


def is_representable(timestamp_ms: int) -> bool:
    """Return whether every store holds this timestamp."""
    return FIRST_MS <= timestamp_ms < END_MS and timestamp_ms != NO_TIMESTAMP_MS


def mixed_up_days() -> frozenset[int]:
    """Return the days since 1970 that `with_exact_timestamps` cannot tell from another day."""
    leap_days = [
        date(year, 2, 28).toordinal() + _days_between_calendars(year) + 1 - date(1970, 1, 1).toordinal()
        for year in range(100, 1582, 100)
        if year % 400
    ]
    return frozenset(day + more for day in leap_days for more in (0, 1))


def _days_between_calendars(year: int) -> int:
    """Return the difference of both calendars, in days, on 28 February of a year."""
    before = year - 1
    return before // 100 - before // 400 - 2


def with_exact_timestamps(records: DataFrame) -> DataFrame:
    """Replace `timestamp` by the record's own one.

    It is null where Kafka has none, and where it lies outside the years 1 to 9999. It is null as well where Spark has
    mixed up two days: each 29 February that only the Julian calendar has, and the 1 March after it.

    Args:
        records: read by Spark's Kafka source.
    """
    from pyspark.sql import functions as F

    # The source has gone from the Julian calendar to the Gregorian one. This goes back, in the same JVM.
    back = f"cast(java_method('{_CALENDARS}', 'rebaseGregorianToJulianMicros', at) as bigint)"
    again = f"cast(java_method('{_CALENDARS}', 'rebaseJulianToGregorianMicros', own - {_DAY_US}L) as bigint)"
    at, own = F.col("at"), F.col("own")
    columns = records.columns
    found = records.withColumn("at", F.unix_micros("timestamp"))
    is_old = at.between(_OLDEST_US, _SAME_SINCE_US)
    found = found.withColumn("own", F.when(is_old, F.expr(back)).otherwise(at))
    is_one_day = F.when(is_old, F.expr(again) != at).otherwise(F.lit(True))
    is_held = own.between(FIRST_MS * 1000, END_MS * 1000 - 1) & (own != NO_TIMESTAMP_MS * 1000)
    exact = F.when(is_held & is_one_day, F.timestamp_micros(own))
    return found.withColumn("timestamp", exact).select(*columns)
