"""Checks of `engine="spark"` in a Spark with Iceberg's runtime.

`test_iceberg_engine.py` runs them in a process of their own with Spark 4.0, the newest that Iceberg 1.11 runs on.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_ratchet.app.local.jars import resolve, spark_jars
from kafka_ratchet.spark_sink import exactly_once
from kafka_ratchet.spark_sink.errors import Fenced, OptionRefused, RuleBroken, SchemaDiffers, StoreError
from kafka_ratchet.spark_sink.library import Engine, Sink
from kafka_ratchet.spark_sink.spark.session import LOCAL_SETTINGS
from kafka_ratchet.spark_sink.spark.versions import RELEASES
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.compact import compact
from kafka_ratchet.spark_sink.stores.iceberg.catalog import IcebergCatalog
from kafka_ratchet.spark_sink.stores.iceberg.lineage import OFFSETS_KEY
from kafka_ratchet.spark_sink.stores.iceberg.spark_writer import SparkWriter
from kafka_ratchet.spark_sink.stores.location import TableLocation
from tests.spark_sink.stores.other_spark import ICEBERG, ICEBERG_LOCK, RELEASE, SQLITE, SQLITE_LOCK

pytestmark = pytest.mark.timeout(900)  # the first one starts Spark, on a machine at any load

NewTopic = Callable[..., str]
ENGINES: tuple[Engine, ...] = ("spark", "delta-rs")


def iceberg_spark_settings(warehouse: Path) -> dict[str, str]:
    """Return the settings of a Spark with Iceberg's catalog `ratchet` and the Kafka connector."""
    jars = [
        *spark_jars(release=RELEASES[RELEASE]),
        *resolve(ICEBERG, lock=ICEBERG_LOCK),
        *resolve(SQLITE, lock=SQLITE_LOCK),
    ]
    return {
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.ratchet": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ratchet.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "spark.sql.catalog.ratchet.uri": f"jdbc:sqlite:{warehouse}/catalog.db",
        "spark.sql.catalog.ratchet.warehouse": f"file://{warehouse}",
        "spark.sql.catalog.ratchet.jdbc.schema-version": "V1",
    }


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="session")
def spark(warehouse: Path) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    IcebergCatalog(str(warehouse), {}, {}).connect().create_namespace_if_not_exists("ns")
    builder = SparkSession.builder.master("local[2]")
    # Of a user's zone: the rows must not depend on it.
    chosen = {**LOCAL_SETTINGS, **iceberg_spark_settings(warehouse), "spark.sql.session.timeZone": "Asia/Tokyo"}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


class OneTable:
    """Table of the warehouse, as pyiceberg and plain Spark read it."""

    def __init__(self, spark: SparkSession, warehouse: Path, name: str) -> None:
        self._spark, self._warehouse, self.name = spark, warehouse, f"ns.{name}"
        self.target = f"ratchet.{self.name}"

    def load(self) -> Table:
        return IcebergCatalog(str(self._warehouse), {}, {}).connect().load_table(self.name)

    def sink(self, engine: Engine = "spark", **options: Any) -> Sink:
        return exactly_once(self.target, job="orders", engine=engine, **options)

    def location(self) -> TableLocation:
        return TableLocation("iceberg", str(self._warehouse), self.name)

    def offsets(self, topic: str) -> dict[int, int]:
        named = exactly_once(f"iceberg:{self.name}", job="orders", catalog={"path": str(self._warehouse)})
        return named.offsets(topic)

    def ids(self) -> list[int]:
        return sorted(self.load().scan().to_arrow()["id"].to_pylist())

    def read(self) -> list[Any]:
        """Return the rows as a plain SELECT in Spark finds them."""
        self._spark.catalog.refreshTable(self.target)
        return self._spark.sql(f"SELECT * FROM {self.target}").collect()  # noqa: S608

    def files(self) -> list[str]:
        return [task.file.file_path for task in self.load().scan().plan_files()]

    def make(self, *columns: str, more: str = "") -> None:
        plain = ["partition int", "offset bigint", "id bigint", "town string"]
        self._spark.sql(f"CREATE TABLE {self.target} ({', '.join([*plain, *columns])}) USING iceberg {more}")


@pytest.fixture
def table(spark: SparkSession, warehouse: Path, request: pytest.FixtureRequest) -> OneTable:
    return OneTable(spark, warehouse, re.sub(r"\W", "_", request.node.name))


def fill(broker: str, topic: str, numbers: range, partitions: int = 2) -> None:
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    for number in numbers:
        value = json.dumps({"id": number, "town": f"t{number % 3}"}).encode()
        producer.produce(topic, value, None, number % partitions)
    assert producer.flush(30) == 0


def rows_of(records: DataFrame) -> DataFrame:
    event = F.from_json(F.col("value").cast("string"), "id long, town string")
    return records.select("partition", "offset", event.alias("event")).select("partition", "offset", "event.*")


def run_loop(sink: Sink, spark: SparkSession, broker: str, topic: str, **options: Any) -> int:
    batches = sink.batches(spark, bootstrap=broker, topic=topic, **options)
    return sum(sink.commit(rows_of(batch.records), batch) for batch in batches)


def after_writing(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Let something happen once when Spark has written files and nothing is committed."""
    write = SparkWriter.write

    def then(self: SparkWriter, *given: Any) -> Any:
        written = write(self, *given)
        monkeypatch.setattr(SparkWriter, "write", write)
        happens()
        return written

    monkeypatch.setattr(SparkWriter, "write", then)


def test_both_engines_take_turns_on_one_table(
    spark: SparkSession, broker: str, new_topic: NewTopic, table: OneTable
) -> None:
    topic, total = new_topic(2), 0
    for turn in range(4):
        fill(broker, topic, range(total, total + 30))
        total += 30
        with table.sink(ENGINES[turn % 2]) as sink:
            assert run_loop(sink, spark, broker, topic, max_records=20) == 30
            assert run_loop(sink, spark, broker, topic) == 0
        assert table.offsets(topic) == {0: total // 2, 1: total // 2}
        assert table.ids() == list(range(total))
        if turn == 1:
            compact(table.location(), execute=True)
            assert table.ids() == list(range(total))
    assert sorted(row["id"] for row in table.read()) == list(range(total))
    names = [path.rpartition("/")[2] for path in table.files()]
    assert any(name.startswith("part-orders.") for name in names)
    assert any(re.match(r"\d{5}-\d+-", name) for name in names)
    # Rows and offsets are of one snapshot, whatever the engine.
    for snapshot in table.load().snapshots():
        assert snapshot.summary is not None
        if (found := snapshot.summary.additional_properties).get("added-records"):
            own = found.get(OFFSETS_KEY)
            stored = json.loads(own)["topics"][topic] if own else {}
            assert sum(stored.values()) == int(found["total-records"] or 0) or not own
    spark.sql(f"CALL ratchet.system.rewrite_data_files(table => '{table.name}', options => map('rewrite-all', 'true'))")
    fill(broker, topic, range(total, total + 10))
    assert run_loop(table.sink(), spark, broker, topic) == 10
    assert table.ids() == list(range(total + 10))


@pytest.mark.parametrize("point", ["before-write", "before-commit", "after-commit"])
def test_an_exception_at_each_named_step(
    spark: SparkSession, broker: str, new_topic: NewTopic, table: OneTable, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    class Died(Exception):
        """Error that stands for the end of the process."""

    topic, left = new_topic(2), [2]
    fill(broker, topic, range(60))

    def die(here: str) -> None:
        left[0] -= here == point
        if here == point and left[0] == 0:
            raise Died

    monkeypatch.setattr(crash_points, "passing", die)
    with pytest.raises(Died):
        run_loop(table.sink(), spark, broker, topic, max_records=20)
    seen = 40 if point == "after-commit" else 20
    assert (len(table.ids()), sum(table.offsets(topic).values())) == (seen, seen)
    assert run_loop(table.sink(), spark, broker, topic, max_records=20) == 60 - seen
    assert table.ids() == list(range(60))


@pytest.mark.parametrize("successor", ENGINES)
def test_a_zombie_is_fenced_before_and_after_it_wrote(
    spark: SparkSession,
    broker: str,
    new_topic: NewTopic,
    table: OneTable,
    monkeypatch: pytest.MonkeyPatch,
    successor: Engine,
) -> None:
    topic = new_topic(1)
    fill(broker, topic, range(20), partitions=1)
    older, newer = table.sink(), table.sink(successor)
    batch = next(older.batches(spark, bootstrap=broker, topic=topic, max_records=10))

    def take_over() -> None:
        ahead = next(newer.batches(spark, bootstrap=broker, topic=topic, max_records=10))
        newer.commit(rows_of(ahead.records), ahead)

    after_writing(monkeypatch, take_over)
    for _ in range(2):
        with pytest.raises(Fenced):
            older.commit(rows_of(batch.records), batch)
    assert (table.ids(), table.offsets(topic)) == (list(range(10)), {0: 10})


def test_another_writers_commit_in_between_is_kept(
    spark: SparkSession, broker: str, new_topic: NewTopic, table: OneTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(1)
    table.make()
    fill(broker, topic, range(20), partitions=1)
    after_writing(monkeypatch, lambda: spark.sql(f"INSERT INTO {table.target} VALUES (9, 9, 99, 'by hand')"))  # noqa: S608
    assert run_loop(table.sink(), spark, broker, topic) == 20
    assert table.ids() == [*range(20), 99]
    assert table.offsets(topic) == {0: 20}
    assert sorted(row["id"] for row in table.read()) == [*range(20), 99]


def test_a_table_altered_while_spark_writes(
    spark: SparkSession, broker: str, new_topic: NewTopic, table: OneTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, alter = new_topic(1), f"ALTER TABLE {table.target}"
    table.make()
    fill(broker, topic, range(20), partitions=1)

    def commit(*statements: str) -> int:
        sink = table.sink()
        batch = next(sink.batches(spark, bootstrap=broker, topic=topic))
        after_writing(monkeypatch, lambda: [spark.sql(each) for each in statements])
        return sink.commit(rows_of(batch.records), batch)

    by_hand = f"INSERT INTO {table.target} VALUES (9, 9, 99, 'by hand')"  # noqa: S608
    with pytest.raises(SchemaDiffers):
        commit(f"{alter} RENAME COLUMN town TO place", by_hand)
    spark.sql(f"{alter} RENAME COLUMN place TO town")
    # Another column of the same name: the files have the old one's id.
    with pytest.raises(StoreError, match="were altered while Spark wrote"):
        commit(f"{alter} DROP COLUMN town", f"{alter} ADD COLUMN town string", by_hand)
    with pytest.raises(SchemaDiffers, match="partition"):
        commit(f"{alter} ADD PARTITION FIELD town", by_hand)
    spark.sql(f"{alter} DROP PARTITION FIELD town")
    assert (table.ids(), table.offsets(topic)) == ([99] * 3, {})
    assert commit(by_hand, f"{alter} ADD COLUMN more string") == 20
    assert table.ids() == [*range(20), *[99] * 4]
    fill(broker, topic, range(20, 40), partitions=1)
    # Without another snapshot the commit comes before the change, and its values follow their columns.
    assert commit(f"{alter} RENAME COLUMN town TO place") == 20
    assert {row["place"] for row in table.read() if row["id"] < 99} == {"t0", "t1", "t2"}
    assert table.offsets(topic) == {0: 40}


def test_partitions_texts_and_times(spark: SparkSession, broker: str, new_topic: NewTopic, table: OneTable) -> None:
    topic, towns = new_topic(1), ["Graz / Süd", "a=b&c", "50%", None, "it's #1", "../..", ""]
    fill(broker, topic, range(28), partitions=1)
    names = F.array(*map(F.lit, towns))
    for turn in range(4):
        sink = table.sink(ENGINES[turn % 2], partition_by=["town", "day(at)", "day"])
        batch = next(sink.batches(spark, bootstrap=broker, topic=topic, max_records=7))
        at = F.timestamp_seconds(F.col("id") * 50_000 - 300_000)
        rows = rows_of(batch.records).withColumn("town", names[(F.col("id") % 7).cast("int")])
        sink.commit(
            rows.withColumn("at", at).withColumn("day", F.date_add(F.lit("1969-12-31"), F.col("partition"))), batch
        )
    expected = sorted((n, towns[n % 7], n * 50_000 - 300_000) for n in range(28))
    found = table.load().scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["town"], int(row["at"].timestamp())) for row in found) == expected
    assert sorted((row["id"], row["town"], int(row["at"].timestamp())) for row in table.read()) == expected
    chosen = table.load().scan("town = '../..' and at < '1970-01-01T00:00:00+00:00'").to_arrow()
    assert chosen["id"].to_pylist() == [5]
    counted = spark.sql(f"SELECT count(*) AS n FROM {table.target} WHERE town = '50%' AND day = date '1969-12-31'")  # noqa: S608
    assert counted.collect() == [(4,)]


def test_properties_of_the_table_hold(spark: SparkSession, broker: str, new_topic: NewTopic, table: OneTable) -> None:
    topic = new_topic(1)
    table.make("free string", "must string NOT NULL")
    elsewhere = Path(table.location().path) / "elsewhere"
    for statement in (
        "WRITE ORDERED BY truncate(town, 1), id DESC",
        f"SET TBLPROPERTIES ('write.data.path' = 'file://{elsewhere}', 'write.object-storage.enabled' = 'true')",
        "SET TBLPROPERTIES ('write.format.default' = 'orc', 'write.parquet.compression-codec' = 'gzip')",
    ):
        spark.sql(f"ALTER TABLE {table.target} {statement}")
    fill(broker, topic, range(20), partitions=1)
    sink = table.sink()
    batch = next(sink.batches(spark, bootstrap=broker, topic=topic))
    with pytest.raises(RuleBroken, match=r"column .*must.* is NOT NULL"):
        sink.commit(rows_of(batch.records).withColumn("must", F.when(F.col("id") < 9, "a")), batch)
    assert (table.ids(), table.offsets(topic)) == ([], {})
    sink = table.sink()
    for batch in sink.batches(spark, bootstrap=broker, topic=topic):
        sink.commit(rows_of(batch.records).withColumn("must", F.lit("a")), batch)
    found = table.load().scan().to_arrow().to_pylist()
    assert [row["id"] for row in found] == list(range(19, -1, -1))
    assert {(row["free"], row["must"]) for row in found} == {(None, "a")}
    files = [task.file for task in table.load().scan().plan_files()]
    assert all(str(elsewhere) in file.file_path and file.file_path.endswith(".parquet") for file in files)
    footers = [pq.read_metadata(file.file_path.removeprefix("file:")) for file in files]
    assert {footer.row_group(0).column(0).compression for footer in footers} == {"GZIP"}
    assert {file.sort_order_id for file in files} <= {None, table.load().sort_order().order_id}
    assert len(table.read()) == 20


TYPES = {
    "flag": "id % 2 = 0",
    "tiny": "cast(id AS tinyint)",
    "small": "cast(id - 9 AS smallint)",
    "real": "cast(id / 7 AS float)",
    "double": "if(id = 3, double('NaN'), id / 7)",
    "cents": "cast(id * 1.25 - 6 AS decimal(5, 2))",
    "mills": "cast(id * 123456.125 AS decimal(15, 3))",
    "wide": "cast(id AS decimal(38, 10)) * -1",
    "bytes": "encode(concat('é', id), 'utf-8')",
    "day": "date_add(date '1969-12-27', cast(id AS int))",
    "at": "timestamp_micros(id * 1000001 - 5000000)",
    "here": "to_timestamp_ntz(concat('1969-12-31 23:59:5', id))",
    "listed": "if(id = 4, null, array(named_struct('a', id, 'b', array(town, null))))",
    "mapped": "map(town, cast(id AS decimal(12, 1)))",
}
"""Column of each type by name, as an expression over the rows."""


def test_both_engines_store_the_same_values(
    spark: SparkSession, broker: str, new_topic: NewTopic, table: OneTable
) -> None:
    topic = new_topic(1)
    found: list[list[Any]] = []
    bounds = []
    for engine in ENGINES:
        fill(broker, topic, range(10), partitions=1)
        sink, before = table.sink(engine), set(table.files()) if found else set[str]()
        for batch in sink.batches(spark, bootstrap=broker, topic=topic):
            rows = rows_of(batch.records).withColumns({name: F.expr(text) for name, text in TYPES.items()})
            sink.commit(rows.coalesce(1), batch)
        (new,) = [task for task in table.load().scan().plan_files() if task.file.file_path not in before]
        bounds.append((new.file.lower_bounds, new.file.upper_bounds, new.file.null_value_counts))
        first = 10 * len(found)
        read = table.load().scan(f"offset >= {first}").to_arrow().drop(["offset"]).sort_by("id").to_pylist()
        found.append([repr(row) for row in read])
    assert found[0] == found[1]
    # Offsets go on, and pyarrow states a least float of 0 as -0.
    apart = {table.load().schema().find_field(name).field_id for name in ("offset", "real", "double")}
    for each in bounds[0][:2] + bounds[1][:2]:
        for field in apart:
            each.pop(field, None)
    assert bounds[0] == bounds[1]
    assert len(table.read()) == 20
    read = [repr(row) for row in spark.table(table.target).drop("offset").orderBy("id").collect()]
    assert read[::2] == read[1::2]


def test_foreach_batch_and_a_lost_checkpoint(
    spark: SparkSession, broker: str, new_topic: NewTopic, table: OneTable, tmp_path: Path
) -> None:
    topic, checkpoint, before = new_topic(2), tmp_path / "checkpoint", 0
    for total, engine in ((40, "spark"), (61, "delta-rs"), (90, "spark")):
        fill(broker, topic, range(before, total))
        before = total
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker).option("subscribe", topic)
        reader = reader.option("kafka.isolation.level", "read_committed").option("maxOffsetsPerTrigger", 17)
        read = reader.option("startingOffsets", "earliest").load()
        sink = table.sink(engine)  # type: ignore[arg-type]
        query = rows_of(read).writeStream.foreachBatch(sink.batch).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination(120)
        assert table.ids() == list(range(total))
        shutil.rmtree(checkpoint)


def test_columns_are_added_and_empty_batches_move_offsets(
    spark: SparkSession, broker: str, new_topic: NewTopic, table: OneTable
) -> None:
    topic = new_topic(1)
    fill(broker, topic, range(30), partitions=1)
    sink = table.sink(evolve=True)
    for batch in sink.batches(spark, bootstrap=broker, topic=topic, max_records=10):
        rows = rows_of(batch.records)
        if batch.start[0] == 10:
            rows = rows.limit(0)
        if batch.start[0] == 20:
            rows = rows.withColumn("more `of` it", F.array(F.struct(F.lit(1).alias("a"))))
        sink.commit(rows, batch)
    assert table.ids() == [*range(10), *range(20, 30)]
    assert table.offsets(topic) == {0: 30}


def test_files_that_are_gone_and_a_table_of_another_catalog(
    spark: SparkSession,
    broker: str,
    new_topic: NewTopic,
    table: OneTable,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    topic = new_topic(1)
    table.make()
    fill(broker, topic, range(20), partitions=1)
    sink = table.sink()
    batch = next(sink.batches(spark, bootstrap=broker, topic=topic))
    folder = Path(table.load().location().removeprefix("file:")) / "data"

    def clean_up() -> None:
        for path in folder.glob("*.parquet"):
            path.unlink()

    after_writing(monkeypatch, clean_up)
    with pytest.raises(StoreError, match=r"is gone\. .*Nothing was committed"):
        sink.commit(rows_of(batch.records), batch)
    assert (table.ids(), table.offsets(topic)) == ([], {})
    other = IcebergCatalog(str(tmp_path), {}, {})
    other.make()
    elsewhere = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    sink = table.sink(catalog=elsewhere)
    batch = next(sink.batches(spark, bootstrap=broker, topic=topic))
    with pytest.raises(StoreError, match="Spark and pyiceberg find different tables"):
        sink.commit(rows_of(batch.records), batch)
    with pytest.raises(OptionRefused, match=r"kind upsert needs a merge"):
        next(table.sink(kind="upsert", key="id").batches(spark, bootstrap=broker, topic=topic))
