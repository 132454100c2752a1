"""Windows: durations as settings say them, and times that have none."""

from __future__ import annotations

import datetime

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.windows import WINDOW_COLUMN, Windows, read_windows, windowed


@pytest.mark.parametrize(
    ("length", "slide", "found"),
    [
        ("1 hour", None, (3600, 3600, 1)),
        ("15minutes", None, (900, 900, 1)),
        (" 1 DAY ", "6 hours", (86_400, 21_600, 4)),
        ("366 days", None, (31_622_400, 31_622_400, 1)),
        ("1000 seconds", "1 second", (1000, 1, 1000)),
    ],
)
def test_durations(length: str, slide: str | None, found: tuple[int, ...]) -> None:
    windows = read_windows(length, slide, "at")
    assert (windows.length_s, windows.slide_s, windows.overlap) == found


@pytest.mark.parametrize(
    ("length", "slide", "sentence"),
    [
        ("1 month", None, "window '1 month': write a number and"),
        ("0 hours", None, "window '0 hours': write"),
        ("-1 hour", None, "write a number"),
        ("1.5 hours", None, "write a number"),
        ("1 hour", "x", "slide 'x': write"),
        ("1 hour", "25 minutes", "not a multiple of slide"),
        ("1 hour", "2 hours", "not a multiple of slide"),
        ("367 days", None, "longer than 366 days"),
        ("1001 seconds", "1 second", "lies in 1,001 windows"),
    ],
)
def test_what_no_windows_are(length: str, slide: str | None, sentence: str) -> None:
    with pytest.raises(OptionRefused, match=sentence):
        read_windows(length, slide, "at")


FAR = {
    "a date": "make_date(5000000, 1, 1)",
    "before the year 1": "timestamp_micros(-62135596800000001)",
    "behind 9999": "timestamp_micros(253402300800000000)",
    "the last there is": "timestamp_micros(9223372036854775807)",
    "the first there is": "timestamp_micros(-9223372036854775808)",
    "null": "CAST(NULL AS timestamp_ntz)",
}


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_a_time_that_has_no_window_is_there_once_with_null(spark: SparkSession, ansi: str) -> None:
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        for what, text in FAR.items():
            for windows in (Windows("at", 3600, 3600), Windows("at", 3600, 900)):
                rows = windowed(spark.range(1).select(F.expr(text).alias("at")), windows).select(WINDOW_COLUMN)
                assert [row[0] for row in rows.collect()] == [None], what
        last = spark.range(1).select(F.expr("date'9999-12-31'").alias("at"))
        [row] = windowed(last, Windows("at", 86_400, 86_400)).select(WINDOW_COLUMN).collect()
        assert row[0].astimezone(datetime.UTC).date() == datetime.date(9999, 12, 31)
    finally:
        spark.conf.set("spark.sql.ansi.enabled", str(before))
