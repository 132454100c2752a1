"""Files of an Iceberg table with a sort order have their rows in that order."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    YearTransform,
)
from pyspark.sql import SparkSession

from kafka_ratchet.spark_sink.rows.partition_by import partition_fields
from kafka_ratchet.spark_sink.stores.iceberg.store import IcebergStore
from kafka_ratchet.spark_sink.stores.location import TableLocation

COLUMNS = "who string, town string, at timestamp, day date, _kafka_partition int, _kafka_offset long"
TIMES = [datetime.datetime(1969 + n % 3, 1 + n % 12, 1 + n % 28, n % 24, tzinfo=datetime.UTC) for n in range(40)]
TOWNS = ["ulm", None, "äger", "Graz", ""]


def rows(first: int) -> list[tuple[Any, ...]]:
    return [(f"w{n % 7}", TOWNS[n % 5], TIMES[n % 40], TIMES[n % 40].date(), 0, first + n) for n in range(40)]


def location_of(folder: Path) -> TableLocation:
    return TableLocation("iceberg", str(folder), "results")


def table_of(folder: Path) -> Table:
    return SqlCatalog("ratchet", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}").load_table(
        "ratchet.results"
    )


def utf8(text: str | None) -> tuple[bool, bytes]:
    return text is not None, (text or "").encode()


@pytest.mark.parametrize("partitioned", [False, True])
def test_each_file_has_the_order_of_the_table(spark: SparkSession, tmp_path: Path, partitioned: bool) -> None:
    fields = partition_fields(("who",)) if partitioned else ()
    store = IcebergStore(location_of(tmp_path), "job", "events", partition_by=fields)
    frame = spark.createDataFrame(rows(0), COLUMNS).repartition(2)
    store.open(frame.schema)
    store.commit(frame, {0: 0}, {0: 40})
    with table_of(tmp_path).update_sort_order() as update:
        update.asc("town", IdentityTransform(), NullOrder.NULLS_FIRST)
        update.desc("_kafka_offset", IdentityTransform(), NullOrder.NULLS_LAST)
    store.commit(spark.createDataFrame(rows(40), COLUMNS).repartition(2), {0: 40}, {0: 80})
    table = table_of(tmp_path)
    files = [task.file for task in table.scan().plan_files()]
    orders = {file.file_path: file.sort_order_id for file in files}
    assert set(orders.values()) == {None, table.sort_order().order_id}
    for path, order in orders.items():
        read = pq.read_table(path.removeprefix("file://")).to_pylist()
        in_order = sorted(read, key=lambda row: (utf8(row["town"]), -row["_kafka_offset"]))
        assert order is None or read == in_order
    assert sorted(row["_kafka_offset"] for row in table.scan().to_arrow().to_pylist()) == list(range(80))


@pytest.mark.parametrize(
    ("column", "transform", "key"),
    [
        ("at", HourTransform(), "%Y-%m-%d %H"),
        ("at", DayTransform(), "%Y-%m-%d"),
        ("day", DayTransform(), "%Y-%m-%d"),
        ("at", MonthTransform(), "%Y-%m"),
        ("day", YearTransform(), "%Y"),
        ("who", BucketTransform(4), None),
    ],
)
def test_orders_by_times(
    column: str, transform: Transform[Any, Any], key: str | None, spark: SparkSession, tmp_path: Path
) -> None:
    store = IcebergStore(location_of(tmp_path), "job", "events")
    frame = spark.createDataFrame(rows(0), COLUMNS).coalesce(1)
    store.open(frame.schema)
    with table_of(tmp_path).update_sort_order() as update:
        update.asc(column, transform, NullOrder.NULLS_FIRST)
        update.asc("_kafka_offset", IdentityTransform(), NullOrder.NULLS_FIRST)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        store.commit(frame, {0: 0}, {0: 40})
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    (file,) = (task.file for task in table_of(tmp_path).scan().plan_files())
    read = pq.read_table(file.file_path.removeprefix("file://")).to_pylist()
    if key is None:
        assert file.sort_order_id is None
        return
    assert file.sort_order_id == table_of(tmp_path).sort_order().order_id
    assert read == sorted(read, key=lambda row: (row[column].strftime(key), row["_kafka_offset"]))
