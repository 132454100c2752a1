# ruff: noqa: S608
"""What Delta's own writer and Iceberg's runtime for Spark do to a result table behind the job's back."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kafka_ratchet.spark_sink.errors import OptionRefused, RowsLost, StoreError
from kafka_ratchet.spark_sink.rows.partition_by import partition_fields
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.compact import compact
from kafka_ratchet.spark_sink.stores.decision import decide
from kafka_ratchet.spark_sink.stores.delta.store import DeltaStore
from kafka_ratchet.spark_sink.stores.iceberg.store import IcebergStore
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.registry import store_class
from kafka_ratchet.spark_sink.stores.store import ResultStore
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import delta_store, iceberg_store
from tests.spark_sink.stores.other_spark import Execute, other_spark

pytestmark = [
    pytest.mark.long,  # two Sparks, and every statement of Delta's takes seconds
    pytest.mark.timeout(1800),
]

COLUMNS = "_kafka_partition int, _kafka_offset long, who string"


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="module")
def execute(warehouse: Path) -> Iterator[Execute]:
    """execute(statement) by the other Spark; its rows."""
    with other_spark(warehouse) as run:
        yield run


@pytest.fixture
def frame(spark: SparkSession) -> Callable[..., DataFrame]:
    return lambda *offsets: spark.createDataFrame([(0, n, str(n)) for n in offsets], COLUMNS)


def ddl() -> StructType:
    return struct_of(COLUMNS)


def read_on(store: ResultStore, frame: Callable[..., DataFrame], *ends: int) -> None:
    """As the job does: from where the store says, a commit to each end."""
    at = store.open(ddl()).get(0, 0)
    for end in ends:
        store.commit(frame(*range(at, end)), {0: at}, {0: end})
        at = end


def resumed(store: ResultStore, reached: dict[int, int]) -> None:
    """Somebody decides for what the table has."""
    check = store.check()
    assert check.row_offsets == reached
    store.reset_offsets(reached, decide("table", "why"))


def test_delta_by_its_own_writer(
    execute: Execute, frame: Callable[..., DataFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "results")
    table = f"delta.`{path}`"

    def make() -> DeltaStore:
        return delta_store(path, "job", "events", 7 << 64)

    def offsets() -> list[int]:
        return sorted(row["_kafka_offset"] for row in execute(f"SELECT _kafka_offset FROM {table}"))

    def refused(match: str) -> None:
        for use in (make().offsets, lambda: make().open(ddl())):
            with pytest.raises(RowsLost, match=match):
                use()

    holder = make()
    read_on(holder, frame, 2, 4)  # versions 2 and 3
    execute(f"RESTORE TABLE {table} TO VERSION AS OF 2")
    refused(r"restored to version 2 \(version 4 of its log, RESTORE\)")
    with pytest.raises(RowsLost):
        holder.commit(frame(4), {0: 4}, {0: 5})
    resumed(make(), {0: 2})
    holder = make()
    read_on(holder, frame, 4, 6)
    assert offsets() == [0, 1, 2, 3, 4, 5]

    # By a moment, which the log has in its writer's time zone only. A version is of the moment of its file.
    before_last = Path(path, "_delta_log", f"{DeltaTable(path).version() - 1:020d}.json").stat().st_mtime_ns
    moment = datetime.datetime.fromtimestamp(before_last // 10**6 / 1000, datetime.UTC)
    moment += datetime.timedelta(milliseconds=1)
    execute(f"RESTORE TABLE {table} TO TIMESTAMP AS OF '{moment.isoformat()}'")
    refused(r"restored to version \d+")
    resumed(make(), {0: 4})
    holder = make()
    read_on(holder, frame, 6)

    # What leaves the rows that the offsets stand for, or takes some on purpose.
    execute(f"INSERT INTO {table} VALUES (9, 9, 'by hand')")
    execute(f"OPTIMIZE {table}")
    execute(f"UPDATE {table} SET who = 'changed' WHERE _kafka_partition = 9")
    execute(f"DELETE FROM {table} WHERE _kafka_partition = 9")
    assert make().offsets() == {0: 6}
    holder.commit(frame(6), {0: 6}, {0: 7})
    assert offsets() == list(range(7))

    # A clean-up takes the file that a task has written and nobody has named yet.
    def vacuum(here: str) -> None:
        if here == "before-commit":
            monkeypatch.undo()
            execute(f"VACUUM {table} RETAIN 0 HOURS")

    monkeypatch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", vacuum)
    with pytest.raises(StoreError, match=r"part-job\.\d+-.* is gone, .*Nothing was committed"):
        holder.commit(frame(7), {0: 7}, {0: 8})
    assert (make().offsets(), offsets()) == ({0: 7}, list(range(7)))

    execute(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.setTransactionRetentionDuration' = 'interval 1 days')")
    with pytest.raises(OptionRefused):
        holder.commit(frame(7), {0: 7}, {0: 8})
    with pytest.raises(OptionRefused, match="erases the job's offsets") as told:
        make().offsets()
    statement = re.search(r"ALTER TABLE .*\)$", str(told.value))
    assert statement
    execute(statement[0])  # the way on is the sentence's own
    # Whether a checkpoint has erased the transactions meanwhile is Delta's affair: then the log's entries tell.
    if make().generation() == 0:
        resumed(make(), {0: 7})
        holder = make()
        holder.open(ddl())
    assert holder.commit(frame(7), {0: 7}, {0: 8}) == 1

    clone = str(tmp_path / "clone")
    execute(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE {table}")
    with pytest.raises(RowsLost, match="or the table is a clone"):
        delta_store(clone, "job", "events").offsets()

    execute(f"INSERT OVERWRITE {table} VALUES (9, 9, 'by hand')")
    refused(r"all rows of the table were replaced or removed \(version \d+ of its log, WRITE\)")
    execute(f"RESTORE TABLE {table} TO VERSION AS OF {DeltaTable(path).version() - 1}")  # undone
    assert make().offsets() == {0: 8}
    execute(f"DELETE FROM {table}")
    refused("DELETE")
    resumed(make(), {})
    read_on(make(), frame, 3)
    execute(
        f"CREATE OR REPLACE TABLE {table} USING delta AS SELECT 0 AS _kafka_partition, 0L AS _kafka_offset, '0' AS who"
    )
    refused("CREATE OR REPLACE TABLE AS SELECT")
    assert make().check().row_offsets is None  # the row may be the job's
    make().reset_offsets({}, decide("earliest", "the row is another's"))
    holder = make()
    read_on(holder, frame, 2)

    execute(f"ALTER TABLE {table} ADD COLUMNS (more string)")
    holder.commit(frame(2), {0: 2}, {0: 3})
    read_on(make(), frame, 4)
    assert [row["more"] for row in execute(f"SELECT * FROM {table}")] == [None] * 5


def test_iceberg_by_its_own_runtime(execute: Execute, frame: Callable[..., DataFrame], warehouse: Path) -> None:
    table = "ratchet.ratchet.results"
    expire = (
        f"CALL ratchet.system.expire_snapshots(table => '{table}', older_than => TIMESTAMP '2100-01-01', "
        "retain_last => 1)"
    )

    def make() -> IcebergStore:
        return iceberg_store(str(warehouse), "results", "job", "events", 7 << 64)

    def offsets() -> list[int]:
        return sorted(row["_kafka_offset"] for row in execute(f"SELECT _kafka_offset FROM {table}"))

    history = f"{table}.snapshots ORDER BY committed_at"

    def snapshots() -> list[int]:
        return [row["snapshot_id"] for row in execute(f"SELECT snapshot_id FROM {history}")]

    def refused(match: str) -> None:
        for use in (make().offsets, lambda: make().open(ddl())):
            with pytest.raises(RowsLost, match=match):
                use()

    holder = make()
    read_on(holder, frame, 2, 4)
    _, first, second = snapshots()
    execute(f"CALL ratchet.system.rollback_to_snapshot('{table}', {first})")
    refused("rolled back to an older snapshot")
    with pytest.raises(RowsLost):
        holder.commit(frame(4), {0: 4}, {0: 5})
    execute(f"CALL ratchet.system.set_current_snapshot('{table}', {second})")  # undone
    assert make().offsets() == {0: 4}
    execute(f"CALL ratchet.system.set_current_snapshot('{table}', {first})")
    execute(f"INSERT INTO {table} VALUES (9, 9, 'by hand')")  # and somebody goes on from there
    refused("rolled back to an older snapshot")
    resumed(make(), {0: 2})
    holder = make()
    read_on(holder, frame, 4, 6)
    assert offsets() == [0, 1, 2, 3, 4, 5, 9]

    assert len(execute(f"SELECT * FROM {table}")) == 7  # no column has a name that Iceberg reserves
    execute(f"UPDATE {table} SET who = 'changed' WHERE _kafka_offset = 9")
    execute(f"CALL ratchet.system.rewrite_data_files('{table}')")
    execute(f"CALL ratchet.system.rewrite_manifests('{table}')")
    assert make().offsets() == {0: 6}
    execute(expire)
    assert len(snapshots()) == 1
    assert make().offsets() == {0: 6}  # as many rows as the job has left
    holder.commit(frame(6), {0: 6}, {0: 7})
    execute(f"INSERT INTO {table} VALUES (9, 9, 'by hand')")
    execute(expire)
    refused("have expired")
    assert make().check().row_offsets is None
    make().reset_offsets({0: 7}, decide("stored", "nobody rolled it back"))
    holder = make()
    read_on(holder, frame, 8)

    execute(f"INSERT OVERWRITE TABLE {table} SELECT 9, 9L, 'by hand'")
    refused(r"all rows of the table were replaced or removed \(snapshot \d+, overwrite\)")
    resumed(make(), {})
    read_on(make(), frame, 2)
    execute(f"TRUNCATE TABLE {table}")
    refused("all rows of the table were removed")
    resumed(make(), {})
    read_on(make(), frame, 2)
    execute(
        f"CREATE OR REPLACE TABLE {table} USING iceberg AS "
        "SELECT 0 AS _kafka_partition, 0L AS _kafka_offset, '0' AS who"
    )
    refused("the table was replaced")
    assert make().check().row_offsets is None  # the row may be the job's
    make().reset_offsets({}, decide("earliest", "the row is another's"))
    holder = make()
    read_on(holder, frame, 1)
    assert offsets() == [0, 0]  # what somebody else has put there stays

    execute(f"ALTER TABLE {table} ADD COLUMNS (more string)")
    holder.commit(frame(1), {0: 1}, {0: 2})
    read_on(make(), frame, 3)
    assert [row["more"] for row in execute(f"SELECT * FROM {table}")] == [None] * 4


def test_spark_finds_iceberg_columns_by_their_ids(execute: Execute, spark: SparkSession, warehouse: Path) -> None:
    """In files of appends, of merges and of compactions, and in tables that another has made with ids of its own."""
    columns = "who string, town string, n long, _kafka_offset long"
    modes = {"ids_append": WriteMode(), "ids_upsert": WriteMode("upsert", ("who",)), "ids_made": WriteMode()}
    execute(
        "CREATE TABLE ratchet.ratchet.ids_made (gone string, who string, town string, n bigint, _kafka_offset bigint) "
        "USING iceberg"
    )
    execute("ALTER TABLE ratchet.ratchet.ids_made DROP COLUMN gone")
    for name, mode in modes.items():
        table, location = f"ratchet.ratchet.{name}", TableLocation("iceberg", str(warehouse), name)
        store = store_class("iceberg")(location, "job", "events", 7 << 64, mode)
        store.open(struct_of(columns))
        for n, row in enumerate([("ann", "ulm", 7), ("bob", "bonn", 8), ("ann", "ulm", 9)]):
            store.commit(spark.createDataFrame([(*row, n)], columns), {0: n} if n else {}, {0: n + 1})
        store.close()
        if name == "ids_append":
            compact(location, execute=True)
        execute(f"ALTER TABLE {table} RENAME COLUMN who TO between")
        execute(f"ALTER TABLE {table} RENAME COLUMN town TO who")
        execute(f"ALTER TABLE {table} RENAME COLUMN between TO town")
        execute(f"ALTER TABLE {table} DROP COLUMN n")
        execute(f"ALTER TABLE {table} ADD COLUMN n string")
        found = execute(f"SELECT town, who, n FROM {table} ORDER BY _kafka_offset")
        rows = [("ann", "ulm", None), ("bob", "bonn", None), ("ann", "ulm", None)]
        assert [tuple(each.values()) for each in found] == (rows[1:] if name == "ids_upsert" else rows), name


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_both_read_what_new_columns_merges_and_compactions_leave(
    kind: str, execute: Execute, spark: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    path, name = (str(tmp_path / "evolved"), "results") if kind == "delta" else (str(warehouse), "evolved")
    table = f"delta.`{path}`" if kind == "delta" else f"ratchet.ratchet.{name}"
    location = TableLocation(kind, path, name)
    wider = "who string, n int, more string" if kind == "delta" else "who string, n long, more string"

    def commit(columns: str, begin: int, *rows: tuple[object, ...]) -> None:
        write_mode = WriteMode("upsert", ("who",))
        store = store_class(kind)(location, "job", "events", 7 << 64, write_mode, evolve=True)
        assert store.open(struct_of(columns)) == ({0: begin} if begin else {})
        store.commit(spark.createDataFrame(list(rows), columns), {0: begin}, {0: begin + len(rows)})

    def seen() -> list[tuple[object, ...]]:
        return [tuple(row.values()) for row in execute(f"SELECT who, n, more FROM {table} ORDER BY who NULLS LAST")]

    commit("who string, n int", 0, ("a", 1), ("b", 2), (None, 3))
    commit(wider, 3, ("b", 5, "x"), ("c", 6, None))
    expected = [("a", 1, None), ("b", 5, "x"), ("c", 6, None), (None, 3, None)]
    assert seen() == expected
    append = store_class(kind)(location, "another", "events", 7 << 64)
    append.open(struct_of(wider))
    append.commit(spark.createDataFrame([("d", 7, "y")], wider), {}, {0: 1})
    [done] = compact(location, execute=True)
    assert done.replaced >= 2
    assert seen() == [*expected[:3], ("d", 7, "y"), expected[3]]
    commit(wider, 5, ("a", 8, "z"), (None, 9, None))  # Spark has seen nothing that stands in the way
    execute(f"INSERT INTO {table} (who, n, more) VALUES ('e', 10, 'w')")
    assert seen() == [("a", 8, "z"), *expected[1:3], ("d", 7, "y"), ("e", 10, "w"), (None, 9, None)]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_both_read_partitions_and_the_files_of_one_only(
    kind: str, execute: Execute, spark: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    path, name = (str(tmp_path / "parts"), "results") if kind == "delta" else (str(warehouse), "parts")
    table = f"delta.`{path}`" if kind == "delta" else f"ratchet.ratchet.{name}"
    location = TableLocation(kind, path, name)
    columns = "country string, at timestamp, _kafka_offset long"
    store = store_class(kind)(location, "job", "events", partition_by=partition_fields(["country", "day(at)"]))
    store.open(struct_of(columns))
    countries = ["DE", "a/b=c", "x" * 5000, None, "Zo\u00eb '\U0001f600'"]
    noon = datetime.datetime(2026, 11, 23, 12, tzinfo=datetime.UTC)
    rows = [
        (country, noon + datetime.timedelta(days), 5 * days + n)
        for days in (0, 1)
        for n, country in enumerate(countries)
    ]
    store.commit(spark.createDataFrame(rows, columns), {}, {0: 5})
    store.commit(spark.createDataFrame(rows[:1], columns), {0: 5}, {0: 6})
    compact(location, execute=True)
    found = execute(f"SELECT country, _kafka_offset FROM {table}")
    assert sorted((each["_kafka_offset"], each["country"]) for each in found) == sorted(
        (n, c) for c, _, n in [*rows, rows[0]]
    )
    day = "at_day = '2026-11-24'" if kind == "delta" else "at >= '2026-11-24' AND at < '2026-11-25'"
    wanted = f"FROM {table} WHERE country = 'DE' AND {day}"
    assert [each["_kafka_offset"] for each in execute(f"SELECT _kafka_offset {wanted}")] == [5]
    file = "input_file_name()" if kind == "delta" else "_file"
    assert len(execute(f"SELECT DISTINCT {file} AS file FROM {table}")) == 10
    said = execute(f"EXPLAIN FORMATTED SELECT _kafka_offset {wanted}")[0]["plan"]
    assert "PartitionFilters: [isnotnull(country" in said if kind == "delta" else "country = 'DE'" in said
    assert execute(f"SELECT count(*) AS n FROM {table} WHERE country IS NULL") == [{"n": 2}]
