"""`partition_by`: files of their own for each value, whatever the values are, and the same rows."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.expressions import EqualTo
from pyspark.sql import SparkSession

from kafka_ratchet.spark_sink.errors import OptionRefused, SchemaDiffers, StoreError
from kafka_ratchet.spark_sink.rows.partition_by import PartitionField, partition_fields, require_columns_of
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.compact import compact
from kafka_ratchet.spark_sink.stores.iceberg.store import IcebergStore
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.open_store import make_store, reader
from kafka_ratchet.spark_sink.stores.store import ResultStore
from kafka_ratchet.spark_sink.stores.vacuum import vacuum
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import LOCAL, Site, params

COLUMNS = "country string, n int, on date, at timestamp, _kafka_partition int, _kafka_offset long"
BY = ("country", "day(at)")

HOSTILE = [
    None,
    "DE",
    "a/b",
    "../../etc",
    "/absolute",
    "a%2Fb=c",
    "__HIVE_DEFAULT_PARTITION__",
    "null",
    " ",
    "x" * 5000,
    "Zoë \U0001f600",
    'quote\'s "and" \\ `tick`',
    "line\nbreak\ttab",
    "de",
]


@pytest.fixture(params=params("delta", "iceberg"))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return LOCAL[request.param](tmp_path)


def store(site: Site, *by: str, evolve: bool = False) -> ResultStore:
    pipeline = RowPipeline("country string")
    return make_store(site.location, "job", "events", 0, pipeline, evolve=evolve, partition_by=partition_fields(by))


def row(offset: int, country: str | None = "DE", day: int = 1, hour: int = 0) -> tuple[object, ...]:
    at = datetime.datetime(2026, 11, day, hour, 59, 59, 999_999, tzinfo=datetime.UTC)
    return (country, offset, at.date(), at, 0, offset)


def seen(site: Site) -> list[tuple[object, ...]]:
    columns = ["country", "n", "on", "at", "_kafka_partition", "_kafka_offset"]
    return sorted((tuple(found[name] for name in columns) for found in site.rows()), key=lambda each: each[-1])


def plans(site: Site, country: str) -> int:
    """How many files a reader looks into for the rows of one country."""
    if site.location.kind == "delta":
        dataset = DeltaTable(site.location.path).to_pyarrow_dataset()
        return len(list(dataset.get_fragments(ds.field("country") == country)))
    found = reader(site.location)
    assert isinstance(found, IcebergStore)
    equal: Any = EqualTo
    return len(list(found._existing().scan(row_filter=equal("country", country)).plan_files()))


def test_what_is_understood() -> None:
    assert partition_fields(["country", "day(_kafka_timestamp)", "hour(a (b))"]) == (
        PartitionField("country"),
        PartitionField("_kafka_timestamp", "day"),
        PartitionField("a (b)", "hour"),
    )
    for texts, match in (
        (["a", "day(a)"], "a column is named twice"),
        ([""], "name 1 to 5"),
        (list("abcdef"), "name 1 to 5"),
    ):
        with pytest.raises(OptionRefused, match=match):
            partition_fields(texts)


def test_what_is_refused_before_anything_is_made(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    schema = struct_of("d double, t timestamp, on date, t_day int, s string, b binary")
    for text, match in (
        ("x", "has no column 'x'"),
        ("d", "column d is double, but partitions need text"),
        ("b", "column b is binary"),
        ("t", r"Write day\(t\) or hour\(t\)"),
        ("day(on)", "column on is date. Leave the day out"),
        ("day(s)", "Name a column of times"),
        ("day(t)", "would be named t_day, but the result has a column of that name"),
    ):
        with pytest.raises(OptionRefused, match=match):
            require_columns_of(partition_fields([text]), schema)
        with pytest.raises(OptionRefused, match=match):
            store(site, text).open(schema)
    with pytest.raises(OptionRefused, match="no other columns"):
        require_columns_of(partition_fields(["s"]), struct_of("s string"))
    assert reader(site.location).columns() is None
    with pytest.raises(OptionRefused, match="partition_by is for delta and iceberg"):
        make_store(
            TableLocation("duckdb", str(tmp_path / "x")),
            "job",
            "events",
            0,
            RowPipeline(),
            partition_by=(PartitionField("a"),),
        )
    keyed = RowPipeline("who string", WriteMode("upsert", ("who",)), rejects=True)
    with pytest.raises(OptionRefused, match="is for kind append"):
        make_store(site.location, "job", "events", 0, keyed, partition_by=(PartitionField("who"),))


def test_hostile_values_are_values_and_never_names(site: Site, spark: SparkSession) -> None:
    values = [*HOSTILE, *(["nul\0nul"] if site.location.kind == "delta" else [""])]
    rows = [row(n, country, 1 + n % 2) for n, country in enumerate(values * 2)]
    holder = store(site, *BY)
    holder.open(struct_of(COLUMNS))
    holder.commit(spark.createDataFrame(rows, COLUMNS), {0: 0}, {0: len(rows)})
    assert seen(site) == rows
    data = [path for path in site.folder.rglob("*.parquet") if "_delta_log" not in path.parts]
    assert len(data) == len(set(rows_partition(each) for each in rows))
    assert all(path.name.startswith("part-job.1-") for path in data)
    assert len({path.parent for path in data}) == 1  # no folder has a value for its name
    for value in ("DE", "a/b", "../../etc", "x" * 5000):
        assert plans(site, value) == len({rows_partition(each) for each in rows if each[0] == value})
    [done] = compact(site.location, execute=True)
    assert done.groups == ()
    more = [row(100 + n, each, 1) for n, each in enumerate(values)]
    holder.commit(spark.createDataFrame(more, COLUMNS), {0: len(rows)}, {0: 200})
    [done] = compact(site.location, execute=True)
    assert done.written > 0
    assert seen(site) == [*rows, *more]
    assert vacuum(site.location, -60.0) == []
    assert plans(site, "DE") <= 2
    again = store(site, *BY)
    assert again.open(struct_of(COLUMNS)) == {0: 200}
    columns = again.columns()
    assert columns is not None
    assert set(columns.names) == set(struct_of(COLUMNS).names)


def rows_partition(each: tuple[Any, ...]) -> tuple[Any, ...]:
    return each[0], each[3].date()


@pytest.mark.parametrize("by", [("on",), ("n",), ("hour(at)",), ("hour(at)", "country", "on", "_kafka_partition")])
def test_partitions_of_every_type(site: Site, spark: SparkSession, by: tuple[str, ...]) -> None:
    rows = [row(0), row(1, None, 2), row(2, "FR", 2, 5), row(3, "FR", 2, 5), row(4, "DE", 3, 23)]
    old = datetime.datetime(1969, 12, 31, 22, 30, tzinfo=datetime.UTC)
    rows += [("US", 5, old.date(), old, 0, 5), ("US", 6, None, None, None, 6)]
    holder = store(site, *by)
    holder.open(struct_of(COLUMNS))
    holder.commit(spark.createDataFrame(rows, COLUMNS), {0: 0}, {0: 4})
    holder.commit(spark.createDataFrame([row(7, "FR", 2, 5)], COLUMNS), {0: 4}, {0: 8})
    compact(site.location, execute=True)
    assert seen(site) == [*rows, row(7, "FR", 2, 5)]
    if site.location.kind == "delta" and "hour(at)" in by:
        hours = {each["_kafka_offset"]: each["at_hour"] for each in site.rows()}
        assert (hours[0], hours[2], hours[5], hours[6]) == ("2026-11-01-00", "2026-11-02-05", "1969-12-31-22", None)


def test_partitions_of_a_table_that_is_there_do_not_change(site: Site, spark: SparkSession) -> None:
    store(site, *BY).open(struct_of(COLUMNS))
    for other in ((), ("country",), ("day(at)", "country"), ("country", "hour(at)")):
        for use in (store(site, *other).require_fits, store(site, *other).open, store(site, *other, evolve=True).open):
            with pytest.raises(SchemaDiffers, match=r"the table is partitioned by \['country', .*, and this job has "):
                use(struct_of(COLUMNS))
    more = f"{COLUMNS}, more string"
    newer = store(site, *BY, evolve=True)
    newer.open(struct_of(more))
    newer.commit(spark.createDataFrame([(*row(0), "x")], more), {0: 0}, {0: 1})
    assert [each["more"] for each in site.rows()] == ["x"]
    unpartitioned = LOCAL[site.location.kind](site.folder / "another")
    store(unpartitioned).open(struct_of(COLUMNS))
    with pytest.raises(SchemaDiffers, match="partitioned by nothing"):
        store(unpartitioned, "country").open(struct_of(COLUMNS))


def test_partitions_that_another_writer_changes_end_the_job(tmp_path: Path, spark: SparkSession) -> None:
    site = LOCAL["iceberg"](tmp_path)
    holder = store(site, "country")
    holder.open(struct_of(COLUMNS))
    found = reader(site.location)
    assert isinstance(found, IcebergStore)
    with found._existing().update_spec() as update:
        update.add_field("n", "identity", "n")
    with pytest.raises(SchemaDiffers, match=r"partitioned by \['country', 'n'\]"):
        holder.commit(spark.createDataFrame([row(0)], COLUMNS), {0: 0}, {0: 1})


def test_a_text_that_delta_would_make_null_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    site = LOCAL["delta"](tmp_path)
    holder = store(site, "country")
    holder.open(struct_of(COLUMNS))
    with pytest.raises(StoreError, match=r"country is an empty text in a row.*nullif\(country, ''\)"):
        holder.commit(spark.createDataFrame([row(0), row(1, "")], COLUMNS), {0: 0}, {0: 2})
    assert (seen(site), holder.offsets()) == ([], {})
