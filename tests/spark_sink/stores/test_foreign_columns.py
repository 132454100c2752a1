"""Columns that others have added to a result table: the job leaves them alone, in append and in upsert."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from psycopg import sql
from pyiceberg.table import Table
from pyiceberg.types import DecimalType, IntegerType, TimestamptzType, UUIDType
from pyspark.sql import DataFrame, SparkSession

from faults.mariadb import MariadbServer
from kafka_ratchet.spark_sink.errors import SchemaDiffers
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.write_mode import APPEND, WriteMode
from kafka_ratchet.spark_sink.stores.iceberg.files import data_location
from tests.spark_sink.damage import add_column
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import (
    LOCAL,
    SERVED,
    DeltaSite,
    DuckDBSite,
    IcebergSite,
    MysqlSite,
    PostgresSite,
    Site,
    iceberg_store,
    param,
)

SIMPLE = "_kafka_partition int, _kafka_offset long, who string, amount long"
UPSERT = WriteMode("upsert", ("who",))
TOTALS = WriteMode("totals", ("who",), ("amount",))
SITES = [param(kind, by_default=kind in ("delta", "postgres", "iceberg")) for kind in (*LOCAL, *SERVED)]

Frame = Callable[..., DataFrame]


@pytest.fixture
def frame(spark: SparkSession) -> Frame:
    """frame(*rows, schema=SIMPLE), in one task."""
    return lambda *rows, schema=SIMPLE: spark.createDataFrame(list(rows), schema).coalesce(1)


def table_of(site: IcebergSite) -> Table:
    table = iceberg_store(str(site.path), "results", "reader", "none")._find()
    assert table is not None
    return table


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def statement(site: Site, text: str) -> None:
    """Run SQL with {table} in the place of the table."""
    if isinstance(site, PostgresSite):
        with site.connect() as database:
            name = sql.Identifier(site.schema, site.table).as_string(None)
            database.execute(text.replace("{table}", name))
    elif isinstance(site, MysqlSite):
        with site.connect() as cursor:
            cursor.execute(text.replace("{table}", site.name()))
    elif isinstance(site, DuckDBSite):
        with duckdb.connect(site.path) as database:
            database.execute(text.replace("{table}", quoted(site.table)))


def write_note(site: Site, who: str) -> None:
    if isinstance(site, DeltaSite):
        DeltaTable(site.path).update(updates={"more": "'seen'"}, predicate=f"who = '{who}'")
    elif isinstance(site, IcebergSite):
        table = table_of(site)
        rows = table.scan(f"who == '{who}'").to_arrow()
        at = rows.schema.get_field_index("more")
        note = rows.schema.field(at)
        rows = rows.set_column(at, note, pa.array(["seen"] * len(rows), note.type))
        table.overwrite(rows, f"who == '{who}'")
    else:
        statement(site, f"UPDATE {{table}} SET more = 'seen' WHERE who = '{who}'")  # noqa: S608


def notes(site: Site) -> list[tuple[Any, ...]]:
    return sorted((row["who"], row["amount"], row["more"]) for row in site.rows())


def leaves_alone(site: Site, frame: Frame, write_mode: WriteMode) -> None:
    def rows(*pairs: tuple[str, int]) -> DataFrame:
        return frame(*((0, 0, *pair) for pair in pairs))

    store = site.make(write_mode=write_mode)
    store.open(struct_of(SIMPLE))
    store.commit(rows(("a", 1), ("b", 2)), {0: 0}, {0: 2})
    add_column(site)
    write_note(site, "a")
    # The running job goes on, and the next one starts.
    assert store.commit(rows(("a", 3), ("c", 4)), {0: 2}, {0: 4}) == 2
    store.close()
    again = site.make(write_mode=write_mode)
    again.require_fits(struct_of(SIMPLE))
    assert again.open(struct_of(SIMPLE)) == {0: 4}
    again.commit(rows(("b", 5)), {0: 4}, {0: 5})
    if write_mode.kind == "append":
        assert notes(site) == [
            ("a", 1, "seen"), ("a", 3, None), ("b", 2, None), ("b", 5, None), ("c", 4, None)
        ]  # fmt: skip
        return
    assert notes(site) == [("a", 3, "seen"), ("b", 5, None), ("c", 4, None)]
    gone = frame((0, 0, "b", None, True), (0, 0, "a", 7, False), schema=f"{SIMPLE}, {DELETED} boolean")
    again.commit(gone, {0: 5}, {0: 7})
    assert notes(site) == [("a", 7, "seen"), ("c", 4, None)]


@pytest.mark.parametrize("site", SITES, indirect=True)
@pytest.mark.parametrize("write_mode", [APPEND, UPSERT], ids=["append", "upsert"])
def test_a_column_that_may_be_null_is_left_alone(site: Site, frame: Frame, write_mode: WriteMode) -> None:
    if write_mode.kind not in site.kinds:
        pytest.skip("this site has no keys")
    leaves_alone(site, frame, write_mode)


@pytest.mark.matrix
@pytest.mark.parametrize("write_mode", [APPEND, UPSERT], ids=["append", "upsert"])
def test_on_mariadb(mariadb: MariadbServer, tmp_path: Path, frame: Frame, write_mode: WriteMode) -> None:
    leaves_alone(MysqlSite(mariadb, f"columns of {tmp_path.name}"[:56]), frame, write_mode)


@pytest.mark.parametrize("site", SITES, indirect=True)
def test_totals_leave_it_alone(site: Site, frame: Frame) -> None:
    if "totals" not in site.kinds:
        pytest.skip("this site has no keys")
    columns = "who string, _records long, amount decimal(38,0)"
    store = site.make(write_mode=TOTALS)
    store.open(struct_of(columns))
    store.commit(frame(("a", 1, Decimal(1)), schema=columns), {0: 0}, {0: 1})
    add_column(site)
    seen = None
    if not isinstance(site, IcebergSite):  # rows without offsets count as replaced
        write_note(site, "a")
        seen = "seen"
    store.commit(frame(("a", 1, Decimal(2)), ("b", 1, Decimal(5)), schema=columns), {0: 1}, {0: 3})
    assert notes(site) == [("a", Decimal(3), seen), ("b", Decimal(5), None)]


def with_own_values(site: Site, frame: Frame, definitions: list[str], expected: dict[str, Any]) -> None:
    """Add columns with values of the table's own, and commit."""
    store = site.make()
    store.open(struct_of(SIMPLE))
    store.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1})
    for definition in definitions:
        statement(site, f"ALTER TABLE {{table}} ADD COLUMN {definition}")
    store.commit(frame((0, 1, "b", 21)), {0: 1}, {0: 2})
    assert site.make().open(struct_of(SIMPLE)) == {0: 2}
    [row] = [row for row in site.rows() if row["who"] == "b"]
    assert {name: row[name] for name in expected} == expected


@pytest.mark.parametrize("site", [param("postgres"), param("postgres-tasks", by_default=False)], indirect=True)
def test_defaults_generated_and_identity_columns_of_postgres(site: Site, frame: Frame) -> None:
    own = [
        "source text NOT NULL DEFAULT 'kafka'",
        "twice bigint GENERATED ALWAYS AS (amount * 2) STORED",
        "id bigint GENERATED ALWAYS AS IDENTITY",
    ]
    with_own_values(site, frame, own, {"source": "kafka", "twice": 42, "id": 2})
    statement(site, "ALTER TABLE {table} ADD COLUMN must text")
    statement(site, "UPDATE {table} SET must = 'x'")
    statement(site, "ALTER TABLE {table} ALTER COLUMN must SET NOT NULL")
    with pytest.raises(SchemaDiffers, match=r"column must of .* is text in the table and absent in this job"):
        site.make().open(struct_of(SIMPLE))


@pytest.mark.parametrize("site", [param("duckdb", by_default=False)], indirect=True)
def test_defaults_of_duckdb(site: Site, frame: Frame) -> None:
    with_own_values(site, frame, ["source VARCHAR DEFAULT 'kafka'"], {"source": "kafka"})


@pytest.mark.parametrize("site", [param("duckdb", by_default=False)], indirect=True)
def test_a_key_of_duckdb_with_an_index(site: Site, frame: Frame) -> None:
    store = site.make(write_mode=UPSERT)
    store.open(struct_of(SIMPLE))
    statement(site, "CREATE UNIQUE INDEX one ON {table} (who)")
    add_column(site)
    for offset in range(3):
        store.commit(frame((0, offset, "a", offset), (0, offset, f"b{offset}", 1)), {0: offset}, {0: offset + 1})
    assert notes(site) == [("a", 2, None), ("b0", 1, None), ("b1", 1, None), ("b2", 1, None)]


@pytest.mark.matrix
def test_defaults_generated_and_numbered_columns_of_mariadb(
    mariadb: MariadbServer, tmp_path: Path, frame: Frame
) -> None:
    own = [
        "source varchar(9) NOT NULL DEFAULT 'kafka'",
        "twice bigint GENERATED ALWAYS AS (amount * 2) STORED",
        "id bigint NOT NULL AUTO_INCREMENT UNIQUE",
    ]
    site = MysqlSite(mariadb, f"own columns of {tmp_path.name}"[:56])
    with_own_values(site, frame, own, {"source": "kafka", "twice": 42, "id": 2})


def test_columns_of_iceberg_that_another_tool_has_added_can_be_named(tmp_path: Path, frame: Frame) -> None:
    site = IcebergSite(tmp_path)
    store = site.make()
    store.open(struct_of(SIMPLE))
    store.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1})
    with table_of(site).update_schema() as update:
        update.add_column("n", IntegerType())
        update.add_column("price", DecimalType(9, 2))
        update.add_column("at", TimestamptzType())
    wider = f"{SIMPLE}, n int, price decimal(9,2), at timestamp"
    at = datetime.datetime(2026, 11, 28, 9, tzinfo=datetime.UTC)
    named = site.make()
    named.require_fits(struct_of(wider))
    assert named.open(struct_of(wider)) == {0: 1}
    named.commit(frame((0, 1, "b", 2, 7, Decimal("1.10"), at), schema=wider), {0: 1}, {0: 2})
    [row] = [row for row in site.rows() if row["who"] == "b"]
    assert (row["n"], row["price"], row["at"]) == (7, Decimal("1.10"), at)
    other = f"{SIMPLE}, n string, price decimal(9,2), at timestamp"
    with pytest.raises(SchemaDiffers, match="column n is integer in the table and string in this job"):
        site.make().open(struct_of(other))


@pytest.mark.usefixtures("spark")
def test_nested_types_that_iceberg_keeps_as_larger_ones_are_the_jobs_own(tmp_path: Path) -> None:
    columns = f"{SIMPLE}, a array<smallint>, m map<string,tinyint>, s struct<byte: tinyint, of: array<short>>"
    site = IcebergSite(tmp_path)
    for _ in range(2):
        site.make().open(struct_of(columns))
    with pytest.raises(SchemaDiffers, match=r"column a is .*short.* in the table and .*long.* in this job"):
        site.make().open(struct_of(columns.replace("array<smallint>", "array<long>")))


@pytest.mark.usefixtures("spark")
def test_a_uuid_of_iceberg_is_no_text(tmp_path: Path) -> None:
    site = IcebergSite(tmp_path)
    site.make().open(struct_of(SIMPLE))
    with table_of(site).update_schema() as update:
        update.add_column("event", UUIDType())
    with pytest.raises(SchemaDiffers, match="column event is uuid in the table and string in this job"):
        site.make().open(struct_of(f"{SIMPLE}, event string"))


def test_files_of_iceberg_lie_where_the_owner_says_and_old_snapshots_go_by_age(tmp_path: Path, frame: Frame) -> None:
    site = IcebergSite(tmp_path)
    store = site.make()
    store.open(struct_of(SIMPLE))
    store.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1})
    with table_of(site).transaction() as transaction:
        transaction.set_properties({"write.data.path": f"file://{tmp_path / 'elsewhere'}"})
    for offset in range(1, 26):
        store.commit(frame((0, offset, "b", 1)), {0: offset}, {0: offset + 1})
    table = table_of(site)
    files = [task.file.file_path for task in table.scan().plan_files()]
    assert len(files) == 26
    assert sum(file.startswith(data_location(table)) for file in files) == 25
    assert str(table.metadata.table_uuid) in data_location(table)
    assert len(site.rows()) == 26
    assert len(table.snapshots()) == 27  # all are young
    with table.transaction() as transaction:
        transaction.set_properties({"history.expire.max-snapshot-age-ms": "1"})
    store.commit(frame((0, 26, "b", 1)), {0: 26}, {0: 27})
    assert len(table_of(site).snapshots()) == 28  # the newest 20 are a minimum, and 20 go at once
    with table.transaction() as transaction:
        transaction.set_properties({"history.expire.min-snapshots-to-keep": "3"})
    store.commit(frame((0, 27, "b", 1)), {0: 27}, {0: 28})
    assert len(table_of(site).snapshots()) == 4
    assert json.loads(json.dumps(store.offsets())) == {"0": 28}
