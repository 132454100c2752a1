"""Timestamps of records as in Kafka, restored from the timestamps of Spark's Kafka source.

The source reads each timestamp as a `java.sql.Timestamp`. That class uses the Julian calendar before 1582-10-15 and,
unless the JVM's time zone is UTC, other offsets from UTC before 1900. So Spark's moment differs from the record's.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FIRST_MS: Final = -62_135_596_800_000
"""0001-01-01T00:00:00Z in milliseconds since 1970: the first moment of every store."""

END_MS: Final = 253_402_300_800_000
"""10000-01-01T00:00:00Z: the first moment beyond every store's last."""

NO_TIMESTAMP_MS: Final = -1
"""Value in Kafka of a record without a timestamp."""

MOST_MS: Final = 9_200_000_000_000_000
"""Maximum milliseconds before or after 1970 that Spark's source can represent, in microseconds of 64 bits."""

_SAME_SINCE_US: Final = -2_200_000_000_000_000
"""Moment in 1900, in microseconds since 1970. From this moment on, both calendars and all offsets from UTC agree, and
Spark's tables of differences have no entries.
"""

_DAY_US: Final = 86_400_000_000

_OLDEST_US: Final = FIRST_MS * 1000 - 400 * _DAY_US
"""Moment before `FIRST_MS` in either calendar. The conversion back raises an error for much earlier moments."""

_CALENDARS: Final = "org.apache.spark.sql.catalyst.util.RebaseDateTime"
"""Spark's class that converts between both calendars."""


def is_representable(timestamp_ms: int) -> bool:
    """Return True if every store can hold this timestamp; False also for `NO_TIMESTAMP_MS`."""
    return FIRST_MS <= timestamp_ms < END_MS and timestamp_ms != NO_TIMESTAMP_MS


def mixed_up_days() -> frozenset[int]:
    """Return the days that Spark's Kafka source cannot tell apart, as day numbers since 1970.

    They come in pairs: a 29 February that only the Julian calendar has, and the 1 March after it.
    """
    leap_days = [
        date(year, 2, 28).toordinal() + _days_between_calendars(year) + 1 - date(1970, 1, 1).toordinal()
        for year in range(100, 1582, 100)
        if year % 400
    ]
    return frozenset(day + more for day in leap_days for more in (0, 1))


def _days_between_calendars(year: int) -> int:
    """Return the days between Julian and Gregorian calendar on 28 February of a year."""
    before = year - 1
    return before // 100 - before // 400 - 2


def with_exact_timestamps(records: DataFrame) -> DataFrame:
    """Replace Spark's `timestamp` by the record's timestamp in Kafka.

    The new timestamp is null if the record has none, or one outside the years 1 to 9999. It is also null on days that
    Spark confuses: each 29 February that only the Julian calendar has, and the 1 March after it.

    Args:
        records: read by Spark's Kafka source.
    """
    from pyspark.sql import functions as F

    # The source has converted from the Julian calendar to the Gregorian one. This converts back, in the same JVM.
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
