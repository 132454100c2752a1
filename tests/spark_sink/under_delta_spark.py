"""Checks of `engine="spark"` in a Spark with Delta's own writer.

`test_spark_engine.py` runs them in a process of their own: the other tests' Spark has no delta-spark.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.peer_programs import DELTA_SPARK, LOCK_FILE
from kafka_ratchet.app.local.jars import read_lock, resolve, spark_jars
from kafka_ratchet.spark_sink import Batch, exactly_once
from kafka_ratchet.spark_sink.errors import Fenced, OptionRefused, RuleBroken, SparkFailed, StoreError
from kafka_ratchet.spark_sink.library import Engine, Sink
from kafka_ratchet.spark_sink.spark.session import LOCAL_SETTINGS
from kafka_ratchet.spark_sink.stores.delta.log import LOG
from kafka_ratchet.spark_sink.stores.delta.spark_writer import SETTINGS, SparkWriter

NewTopic = Callable[..., str]
ENGINES: tuple[Engine, ...] = ("spark", "delta-rs")


def delta_spark_settings() -> dict[str, str]:
    """Return the settings of a Spark with Delta's writer and the Kafka connector."""
    jars = [*spark_jars(), *resolve(DELTA_SPARK, lock=read_lock(DELTA_SPARK.name, LOCK_FILE))]
    return {
        **SETTINGS,
        "spark.jars": ",".join(map(str, jars)),
        "spark.databricks.delta.snapshotPartitions": "1",
    }


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    # Of a user's zone: the rows must not depend on it.
    for name, value in {**LOCAL_SETTINGS, **delta_spark_settings(), "spark.sql.session.timeZone": "Asia/Tokyo"}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def fill(broker: str, topic: str, numbers: range, partitions: int = 2) -> None:
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    for number in numbers:
        producer.produce(
            topic, json.dumps({"id": number, "town": f"t{number % 3}"}).encode(), None, number % partitions
        )
    assert producer.flush(30) == 0


def rows_of(records: DataFrame) -> DataFrame:
    event = F.from_json(F.col("value").cast("string"), "id long, town string")
    return records.select("partition", "offset", event.alias("event")).select("partition", "offset", "event.*")


def ids(path: Path) -> list[int]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table(columns=["id"])["id"].to_pylist())


def read_by_spark(spark: SparkSession, path: Path) -> list[Any]:
    return spark.sql(f"SELECT * FROM delta.`{path}`").collect()  # noqa: S608


def run_loop(sink: Sink, spark: SparkSession, broker: str, topic: str, **options: Any) -> int:
    batches = sink.batches(spark, bootstrap=broker, topic=topic, **options)
    return sum(sink.commit(rows_of(batch.records), batch) for batch in batches)


def transactions(path: Path) -> set[str]:
    """List the names of the `txn` actions of the newest version."""
    entry = (path / LOG / f"{DeltaTable(str(path)).version():020d}.json").read_text()
    return {action["txn"]["appId"] for line in entry.splitlines() if "txn" in (action := json.loads(line))}


def made(path: Path, *fields: Field, partition_by: list[str] | None = None) -> DeltaTable:
    """Make a table with the columns of the rows, and more."""
    kinds = {"partition": "integer", "offset": "long", "id": "long", "town": "string"}
    plain = [Field(name, PrimitiveType(kind)) for name, kind in kinds.items()]
    return DeltaTable.create(str(path), Schema([*plain, *fields]), partition_by=partition_by)


def test_both_engines_take_turns_on_one_table(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path, total = new_topic(2), tmp_path / "orders of Zoë #1", 0
    noted = []
    for turn in range(6):
        fill(broker, topic, range(total, total + 30))
        total += 30
        with exactly_once(str(path), job="orders", engine=ENGINES[turn % 2]) as sink:
            assert run_loop(sink, spark, broker, topic, max_records=20) == 30
            assert run_loop(sink, spark, broker, topic) == 0
            assert sink.offsets(topic) == {0: total // 2, 1: total // 2}
        assert ids(path) == list(range(total))
        noted.append(transactions(path))
    assert all(each == noted[0] for each in noted)
    names = [Path(uri).name for uri in DeltaTable(str(path)).file_uris()]
    assert any(name.startswith("part-orders.") for name in names)
    assert any(name.startswith("part-0000") for name in names)
    # Plain readers, delta-spark's count of rows from statistics, and its own clean-up of the log.
    assert sorted(row["id"] for row in read_by_spark(spark, path)) == list(range(total))
    spark.sql(f"OPTIMIZE delta.`{path}`")
    fill(broker, topic, range(total, total + 10))
    assert run_loop(exactly_once(str(path), job="orders", engine="spark"), spark, broker, topic) == 10
    assert ids(path) == list(range(total + 10))


def test_a_name_in_the_catalog(spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path) -> None:
    topic, path = new_topic(2), tmp_path / "t"
    spark.sql(
        f"CREATE TABLE orders (partition int, offset bigint, id bigint, town string, seen timestamp) USING delta "
        f"LOCATION '{path}'"
    )
    fill(broker, topic, range(20))
    sink = exactly_once("spark_catalog.default.orders", job="orders", engine="spark")
    for batch in sink.batches(spark, bootstrap=broker, topic=topic):
        sink.commit(rows_of(batch.records).withColumn("seen", F.timestamp_seconds(F.lit(1))), batch)
    assert spark.sql("SELECT count(*) AS n, min(unix_seconds(seen)) AS s FROM orders").collect() == [(20, 1)]
    seen = DeltaTable(str(path)).to_pyarrow_table()["seen"].cast("int64").to_pylist()
    assert set(seen) == {1_000_000}


def test_rules_of_the_table_hold(spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path) -> None:
    topic, path = new_topic(1), tmp_path / "t"
    table = made(
        path,
        Field("twice", PrimitiveType("long"), metadata={"delta.generationExpression": "id * 2"}),
        Field("free", PrimitiveType("string")),
        Field("must", PrimitiveType("string"), nullable=False),
        Field("odd", PrimitiveType("long"), metadata={"delta.invariants": '{"expression":{"expression":"odd < 9"}}'}),
    )
    table.alter.add_constraint({"below_fifteen": "id < 15"})
    fill(broker, topic, range(20), partitions=1)
    breaking = {
        r"constraint below_fifteen \(id < 15\)": {"must": F.lit("a"), "odd": F.lit(1).cast("long")},
        "must": {"must": F.when(F.col("id") == 3, F.lit("a")), "odd": F.lit(1).cast("long")},
        "odd < 9": {"must": F.lit("a"), "odd": F.col("id") + 9},
    }
    for named, columns in breaking.items():
        sink = exactly_once(str(path), job="orders", engine="spark")
        batch = next(sink.batches(spark, bootstrap=broker, topic=topic))
        rows = rows_of(batch.records)
        if named == "must" or named == "odd < 9":
            rows = rows.where("id < 15")
        with pytest.raises(RuleBroken, match=rf"{named}.*Nothing"):
            sink.commit(rows.withColumns(columns), batch)
        assert sink.offsets(topic) == {}
        assert ids(path) == []
    sink = exactly_once(str(path), job="orders", engine="spark")
    for batch in sink.batches(spark, bootstrap=broker, topic=topic, max_records=15):
        good = rows_of(batch.records).where("id < 15")
        sink.commit(good.withColumns({"must": F.lit("a"), "odd": F.lit(1).cast("long")}), batch)
    found = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["twice"], row["free"]) for row in found) == [(n, n * 2, None) for n in range(15)]
    assert sink.offsets(topic) == {0: 20}
    embedded = exactly_once(str(path), job="orders")
    fill(broker, topic, range(1), partitions=1)
    batch = next(embedded.batches(spark, bootstrap=broker, topic=topic))
    with pytest.raises(OptionRefused, match="constraint below_fifteen"):
        embedded.commit(rows_of(batch.records).withColumns(breaking["odd < 9"]), batch)


def test_a_rule_that_comes_while_spark_writes_is_kept(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, path = new_topic(1), tmp_path / "t"
    made(path)
    fill(broker, topic, range(20), partitions=1)
    sink = exactly_once(str(path), job="orders", engine="spark")
    batch = next(sink.batches(spark, bootstrap=broker, topic=topic))
    write, alter = SparkWriter.write, [
        f"ALTER TABLE delta.`{path}` ADD COLUMN more string",
        f"ALTER TABLE delta.`{path}` ADD CONSTRAINT positive CHECK (id >= 0)",
    ]  # fmt: skip

    def then_alter(self: SparkWriter, *given: Any) -> Any:
        written = write(self, *given)
        spark.sql(alter.pop())
        return written

    monkeypatch.setattr(SparkWriter, "write", then_alter)
    with pytest.raises(StoreError, match="was altered while Spark wrote"):
        sink.commit(rows_of(batch.records), batch)
    assert (sink.offsets(topic), ids(path)) == ({}, [])
    batch = next(sink.batches(spark, bootstrap=broker, topic=topic))
    assert sink.commit(rows_of(batch.records), batch) == 20  # a column that may be null is no rule
    assert not alter
    assert ids(path) == list(range(20))


def test_a_zombie_is_fenced_before_and_after_it_wrote(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, path = new_topic(1), tmp_path / "t"
    fill(broker, topic, range(30), partitions=1)
    for successor in ENGINES:
        older = exactly_once(str(path), job="orders", engine="spark")
        batch = next(older.batches(spark, bootstrap=broker, topic=topic, max_records=10))
        # A take-over while the older run's files are written and not committed.
        write = SparkWriter.write
        newer = exactly_once(str(path), job="orders", engine=successor)

        def then_take_over(self: SparkWriter, *given: Any, write: Any = write, newer: Sink = newer) -> Any:
            written = write(self, *given)
            monkeypatch.setattr(SparkWriter, "write", write)
            ahead = next(newer.batches(spark, bootstrap=broker, topic=topic, max_records=10))
            newer.commit(rows_of(ahead.records), ahead)
            return written

        monkeypatch.setattr(SparkWriter, "write", then_take_over)
        with pytest.raises(Fenced):
            older.commit(rows_of(batch.records), batch)
        with pytest.raises(Fenced):
            older.commit(rows_of(batch.records), batch)
        assert ids(path) == list(range(len(ids(path))))
    assert ids(path) == list(range(20))
    assert exactly_once(str(path), job="orders").offsets(topic) == {0: 20}


def test_other_writers_may_commit_meanwhile(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topics, path = [new_topic(1) for _ in ENGINES], tmp_path / "t"
    made(path)
    failed: list[BaseException] = []

    def fill_table(topic: str, engine: Engine, first: int) -> None:
        try:
            fill(broker, topic, range(first, first + 60), partitions=1)
            with exactly_once(str(path), job=f"of-{engine}", engine=engine) as sink:
                assert run_loop(sink, spark, broker, topic, max_records=10) == 60
        except BaseException as error:
            failed.append(error)

    threads = [
        threading.Thread(target=fill_table, args=(topic, engine, first))
        for topic, engine, first in zip(topics, ENGINES, (0, 60), strict=True)
    ]
    for thread in threads:
        thread.start()
    for _ in range(3):
        spark.sql(f"OPTIMIZE delta.`{path}`")
    for thread in threads:
        thread.join()
    assert not failed
    assert ids(path) == list(range(120))


def test_partitions_and_texts_that_are_none(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path = new_topic(1), tmp_path / "t"
    made(path, partition_by=["town"])
    towns = ["Graz / Süd", "a=b&c", "50%", None, "it's #1", "../..", "x:y"]
    fill(broker, topic, range(21), partitions=1)
    sink = exactly_once(str(path), job="orders", engine="spark", partition_by=["town"])
    names = F.array(*map(F.lit, towns))

    def named(batch: Batch) -> DataFrame:
        return rows_of(batch.records).withColumn("town", names[(F.col("id") % 7).cast("int")])

    for batch in sink.batches(spark, bootstrap=broker, topic=topic, max_records=10):
        sink.commit(named(batch), batch)
    expected = sorted((n, towns[n % 7]) for n in range(21))
    found = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["town"]) for row in found) == expected
    assert sorted((row["id"], row["town"]) for row in read_by_spark(spark, path)) == expected
    fill(broker, topic, range(21, 30), partitions=1)
    batch = next(sink.batches(spark, bootstrap=broker, topic=topic))
    with pytest.raises(SparkFailed, match="is an empty text"):
        sink.commit(named(batch).withColumn("town", F.lit("")), batch)
    assert sink.offsets(topic) == {0: 21}
    other = exactly_once(str(tmp_path / "other"), job="orders", engine="spark", partition_by=["at"])
    batch = next(other.batches(spark, bootstrap=broker, topic=topic))
    with pytest.raises(OptionRefused, match="column at is timestamp, but partitions need text"):
        other.commit(rows_of(batch.records).withColumn("at", F.timestamp_seconds("id")), batch)


def test_foreach_batch_and_a_lost_checkpoint(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path, checkpoint = new_topic(2), tmp_path / "t", tmp_path / "checkpoint"
    for total, engine in ((40, "spark"), (61, "delta-rs"), (90, "spark")):
        fill(broker, topic, range(len(ids(path)) if path.exists() else 0, total))
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker).option("subscribe", topic)
        reader = reader.option("kafka.isolation.level", "read_committed").option("maxOffsetsPerTrigger", 7)
        read = reader.option("startingOffsets", "earliest").load()
        sink = exactly_once(str(path), job="orders", engine=engine)  # type: ignore[arg-type]
        query = rows_of(read).writeStream.foreachBatch(sink.batch).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination(120)
        assert ids(path) == list(range(total))
        shutil.rmtree(checkpoint)


def test_columns_are_added_and_empty_batches_move_offsets(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path = new_topic(1), tmp_path / "t"
    fill(broker, topic, range(30), partitions=1)
    sink = exactly_once(str(path), job="orders", engine="spark", evolve=True)
    for batch in sink.batches(spark, bootstrap=broker, topic=topic, max_records=10):
        rows = rows_of(batch.records)
        if batch.start[0] == 10:
            rows = rows.limit(0)
        if batch.start[0] == 20:
            rows = rows.withColumn("more `of` it", F.lit(1))
        sink.commit(rows, batch)
    assert ids(path) == [*range(10), *range(20, 30)]
    assert sink.offsets(topic) == {0: 30}


def test_rows_that_are_not_counted_are_refused(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path = new_topic(1), tmp_path / "t"
    fill(broker, topic, range(10), partitions=1)
    sink = exactly_once(str(path), job="orders", engine="spark")
    batch = next(sink.batches(spark, bootstrap=broker, topic=topic))
    spark.conf.set("spark.databricks.delta.stats.collect", "false")
    try:
        with pytest.raises(StoreError, match="did not count the rows"):
            sink.commit(rows_of(batch.records), batch)
    finally:
        spark.conf.unset("spark.databricks.delta.stats.collect")
    assert (sink.offsets(topic), ids(path)) == ({}, [])
