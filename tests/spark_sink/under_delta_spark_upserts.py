"""Checks of upserts with `engine="spark"`, in a Spark with Delta's own writer; see `under_delta_spark`."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_ratchet.spark_sink import exactly_once
from kafka_ratchet.spark_sink.errors import Fenced, OptionRefused, RuleBroken, StoreError
from kafka_ratchet.spark_sink.library import Engine, Sink
from kafka_ratchet.spark_sink.stores.delta.spark_writer import SparkWriter
from kafka_ratchet.spark_sink.stores.delta.vacuum import STAGING
from tests.spark_sink.under_delta_spark import ENGINES, spark

NewTopic = Callable[..., str]
pytestmark = pytest.mark.timeout(1200)
KEY = ("id", "town")
TOWNS = ["Graz", "", None, "Süd / 50%"]
SIZES = ["1.5", "-0.0", "0.0", "NaN", "Infinity", None]
_ = spark  # a fixture


def fill(broker: str, topic: str, events: list[dict[str, Any]]) -> None:
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    for number, event in enumerate(events):
        producer.produce(topic, json.dumps(event).encode(), None, number % 2)
    assert producer.flush(30) == 0


def events(draw: random.Random, count: int, keys: int = 40) -> list[dict[str, Any]]:
    """Draw events; some have null as a key, others a number that JSON lacks."""
    return [
        {"id": draw.choice([None, *range(keys)]), "town": draw.choice(TOWNS), "size": draw.choice(SIZES), "n": n}
        for n in range(count)
    ]


def rows_of(records: DataFrame) -> DataFrame:
    event = F.from_json(F.col("value").cast("string"), "id long, town string, size string, n int")
    rows = records.select("partition", "offset", event.alias("event")).select("partition", "offset", "event.*")
    return rows.withColumn("size", F.col("size").cast("double"))


def made(path: Path, *fields: Field) -> DeltaTable:
    """Make a table with the columns of the rows, and more."""
    kinds = {"_kafka_partition": "integer", "_kafka_offset": "long", "id": "long", "town": "string"}
    kinds |= {"size": "double", "n": "integer"}
    return DeltaTable.create(
        str(path), Schema([*(Field(name, PrimitiveType(kind)) for name, kind in kinds.items()), *fields])
    )


def upsert(path: Path, engine: Engine, **options: Any) -> Sink:
    return exactly_once(str(path), job="orders", kind="upsert", key=KEY, engine=engine, **options)


def run(sink: Sink, spark: SparkSession, broker: str, topic: str, **options: Any) -> int:
    batches = sink.batches(spark, bootstrap=broker, topic=topic, **options)
    return sum(sink.commit(rows_of(batch.records), batch) for batch in batches)


def contents(path: Path) -> list[str]:
    """Return the table's rows as sorted texts, which tell -0.0 from 0.0."""
    return sorted(map(repr, DeltaTable(str(path)).to_pyarrow_table().to_pylist()))


def note(path: Path, text: str) -> None:
    """Set the foreign column of some rows, as another writer does."""
    DeltaTable(str(path)).update({"note": f"'{text}'"}, predicate="id % 3 = 0")


@pytest.mark.parametrize("seed", range(2))
def test_the_table_is_that_of_the_embedded_engine(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path, seed: int
) -> None:
    draw, topic = random.Random(seed), new_topic(2)
    paths = {name: tmp_path / f"{name} of Zoë #1" for name in (*ENGINES, "turns")}
    writers: dict[str, tuple[Engine, ...]] = {"spark": ("spark",), "delta-rs": ("delta-rs",), "turns": ENGINES}
    for path in paths.values():
        made(path, Field("note", PrimitiveType("string")))
    for turn in range(4):
        fill(broker, topic, events(draw, [60, 1, 15, 60][turn]))
        slice_of = draw.choice([40, 1000])
        counts = set()
        for name, path in paths.items():
            with upsert(path, writers[name][turn % len(writers[name])]) as sink:
                counts.add(run(sink, spark, broker, topic, max_records=slice_of))
                assert run(sink, spark, broker, topic) == 0
            note(path, f"turn {turn}")
        assert len(counts) == 1
        expected = contents(paths["delta-rs"])
        assert contents(paths["spark"]) == expected
        assert contents(paths["turns"]) == expected
        assert len({(row["id"], row["town"]) for row in rows(paths["spark"])}) == len(expected)
    assert {row["note"] for row in rows(paths["spark"])} > {None}
    assert any(math.isnan(row["size"] or 0) for row in rows(paths["spark"]))
    spark.sql(f"OPTIMIZE delta.`{paths['spark']}`")
    fill(broker, topic, events(draw, 30))
    for name in ENGINES:
        with upsert(paths[name], name) as sink:
            run(sink, spark, broker, topic)
    assert contents(paths["spark"]) == contents(paths["delta-rs"])
    read = spark.read.format("delta").load(str(paths["spark"])).collect()
    assert len(read) == len(contents(paths["spark"]))


def rows(path: Path) -> list[dict[str, Any]]:
    return list(DeltaTable(str(path)).to_pyarrow_table().to_pylist())


def test_files_without_a_key_of_the_commit_stay(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path = new_topic(2), tmp_path / "t"
    for first in (0, 100, 200):
        fill(broker, topic, [{"id": first + n, "town": "Graz", "n": n} for n in range(20)])
        with upsert(path, "spark") as sink:
            assert run(sink, spark, broker, topic) == 20
    before = set(DeltaTable(str(path)).file_uris())
    fill(broker, topic, [{"id": 105, "town": "Graz", "n": 1000}, {"id": 106, "town": "Linz", "n": 1001}])
    with upsert(path, "spark") as sink:
        run(sink, spark, broker, topic)
    after = set(DeltaTable(str(path)).file_uris())
    assert len(before - after) == 1
    assert sorted((row["id"], row["town"]) for row in rows(path) if row["n"] >= 1000) == [(105, "Graz"), (106, "Linz")]
    assert len(rows(path)) == 61
    assert not any((path / STAGING).rglob("*.parquet"))


def test_rules_of_the_table_hold(spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path) -> None:
    topic, path = new_topic(2), tmp_path / "t"
    more = Field("twice", PrimitiveType("integer"), metadata={"delta.generationExpression": "n * 2"})
    made(path, more, Field("note", PrimitiveType("string"))).alter.add_constraint({"below": "n < 100"})
    fill(broker, topic, [{"id": n, "town": "Graz", "n": n} for n in range(20)])
    with upsert(path, "spark") as sink:
        run(sink, spark, broker, topic)
    fill(broker, topic, [{"id": 3, "town": "Graz", "n": 50}, {"id": 30, "town": "Graz", "n": 60}])
    with upsert(path, "spark") as sink:
        run(sink, spark, broker, topic)
    found = {row["id"]: (row["n"], row["twice"]) for row in rows(path)}
    assert found == {**{n: (n, n * 2) for n in range(20)}, 3: (50, 100), 30: (60, 120)}
    before = contents(path)
    fill(broker, topic, [{"id": 4, "town": "Graz", "n": 100}])
    sink = upsert(path, "spark")
    stored = sink.offsets(topic)
    with pytest.raises(RuleBroken, match=r"below \(n < 100\).*Nothing"):
        run(sink, spark, broker, topic)
    assert (contents(path), sink.offsets(topic)) == (before, stored)


def let_others_commit(
    monkeypatch: pytest.MonkeyPatch, spark: SparkSession, path: Path, row: Mapping[str, Any]
) -> list[Callable[[], object]]:
    """Let another writer append a row, compact, and delete `id = 5`: one act after each write of files.

    Returns the acts that are still to come.
    """

    def append() -> None:
        schema = pa.schema(DeltaTable(str(path)).schema().to_arrow())
        write_deltalake(str(path), pa.Table.from_pylist([dict(row)], schema), mode="append")

    others: list[Callable[[], object]] = [
        lambda: DeltaTable(str(path)).delete("id = 5"),
        lambda: spark.sql(f"OPTIMIZE delta.`{path}`"),
        append,
    ]
    write = SparkWriter.write_in

    def then_another(self: SparkWriter, *given: Any) -> Any:
        written = write(self, *given)
        if others:
            others.pop()()
        return written

    monkeypatch.setattr(SparkWriter, "write_in", then_another)
    return others


def test_commits_of_others_amid_a_merge(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, path = new_topic(2), tmp_path / "t"
    for _ in range(2):
        fill(broker, topic, [{"id": n, "town": "Graz", "n": n} for n in range(20)])
        with upsert(path, "spark") as sink:
            run(sink, spark, broker, topic)
    row = {**rows(path)[0], "id": 77, "n": -1}
    others = let_others_commit(monkeypatch, spark, path, row)
    fill(broker, topic, [{"id": n, "town": "Graz", "n": 500} for n in (1, 77)])
    with upsert(path, "spark") as sink:
        assert run(sink, spark, broker, topic) == 2
    assert not others
    found = sorted((row["id"], row["n"]) for row in rows(path))
    assert found == sorted({**{n: n for n in range(20) if n != 5}, 1: 500, 77: 500}.items())


def test_a_zombie_is_fenced_amid_its_merge(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, path, write = new_topic(2), tmp_path / "t", SparkWriter.write_in
    for engine in ENGINES:
        fill(broker, topic, [{"id": n, "town": "Graz", "n": n} for n in range(20)])
        older, newer = upsert(path, "spark"), upsert(path, engine)
        batch = next(older.batches(spark, bootstrap=broker, topic=topic))

        def then_take_over(self: SparkWriter, *given: Any, newer: Sink = newer) -> Any:
            written = write(self, *given)
            monkeypatch.setattr(SparkWriter, "write_in", write)
            run(newer, spark, broker, topic)
            return written

        monkeypatch.setattr(SparkWriter, "write_in", then_take_over)
        with pytest.raises(Fenced):
            older.commit(rows_of(batch.records), batch)
        assert sorted(row["id"] for row in rows(path)) == list(range(20))


def test_tables_that_are_refused(spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path) -> None:
    topic = new_topic(2)
    fill(broker, topic, [{"id": n, "town": "Graz", "n": n} for n in range(20)])
    feed = tmp_path / "feed"
    made(feed).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    with pytest.raises(OptionRefused, match=r"delta\.enableChangeDataFeed = 'true', and engine spark"):
        run(upsert(feed, "spark"), spark, broker, topic)
    path = tmp_path / "t"
    with upsert(path, "spark") as sink:
        run(sink, spark, broker, topic)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 3")  # noqa: S608
    fill(broker, topic, [{"id": 4, "town": "Graz", "n": 100}])
    sink = upsert(path, "spark")
    stored = sink.offsets(topic)
    with pytest.raises((StoreError, OptionRefused), match=r"deletion vector|deletionVectors"):
        run(sink, spark, broker, topic)
    assert sink.offsets(topic) == stored
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        with pytest.raises(OptionRefused, match="ignoreMissingFiles=true"):
            run(upsert(tmp_path / "other", "spark"), spark, broker, topic)
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def test_foreach_batch_and_a_lost_checkpoint(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path, checkpoint = new_topic(2), tmp_path / "t", tmp_path / "checkpoint"
    expected: dict[int, int] = {}
    for turn, engine in enumerate(("spark", "delta-rs", "spark")):
        new = [{"id": n % 11, "town": "Graz", "n": 100 * turn + n % 11} for n in range(22)]
        fill(broker, topic, new)
        expected |= {n % 11: 100 * turn + n % 11 for n in range(22)}
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker).option("subscribe", topic)
        reader = reader.option("kafka.isolation.level", "read_committed").option("maxOffsetsPerTrigger", 9)
        read = reader.option("startingOffsets", "earliest").load()
        query = rows_of(read).writeStream.foreachBatch(upsert(path, engine).batch)  # type: ignore[arg-type]
        query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query.start().awaitTermination(120)
        assert {row["id"]: row["n"] for row in rows(path)} == expected
        assert len(rows(path)) == 11
        shutil.rmtree(checkpoint)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_commit_of_a_key_with_several_rows_is_refused(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path, engine: Engine
) -> None:
    topic, path = new_topic(2), tmp_path / "t"
    old = [{"id": one, "town": town, "n": 0} for one, town in ((1, "Graz"), (1, "Linz"), (2, "Graz"))]
    fill(broker, topic, old)
    with upsert(path, engine) as sink:
        run(sink, spark, broker, topic)
    by_id, of_ids = exactly_once(str(path), job="by-id", kind="upsert", key="id", engine=engine), new_topic(2)
    fill(broker, of_ids, [{"id": 2, "town": "Wien", "n": 1}, {"id": 3, "town": "Wien", "n": 1}])
    assert run(by_id, spark, broker, of_ids) == 2
    before, stored = contents(path), by_id.offsets(of_ids)
    found = sorted((row["id"], row["town"], row["n"]) for row in rows(path))
    assert found == [(1, "Graz", 0), (1, "Linz", 0), (2, "Wien", 1), (3, "Wien", 1)]
    fill(broker, of_ids, [{"id": 1, "town": "Wien", "n": 2}, {"id": 3, "town": "Wien", "n": 2}])
    with pytest.raises(StoreError, match=r"several rows of one key \(id\).*Make one row of them"):
        run(by_id, spark, broker, of_ids)
    assert contents(path) == before
    assert by_id.offsets(of_ids) == stored


def test_keys_that_are_no_utf_8_have_one_row(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Spark keeps the bytes of such a text; Python and the statistics of delta-spark have another character."""
    topic, path = new_topic(1), tmp_path / "t"
    above, invalid = "\x00é".encode(), b"\x00\x9a\x01"
    assert invalid < above < invalid.decode(errors="replace").encode()
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    for keys in ((invalid, above), (invalid,), (above,), (b"\x00", invalid, above, b"\x01")):
        for key in keys:
            producer.produce(topic, b"x", key, 0)
        assert producer.flush(30) == 0
        with exactly_once(str(path), job="orders", kind="upsert", key="who", engine="spark") as sink:
            for batch in sink.batches(spark, bootstrap=broker, topic=topic):
                who = F.col("key").cast("string").alias("who")
                assert sink.commit(batch.records.select("partition", "offset", who), batch) == len(keys)
    found = DeltaTable(str(path)).to_pyarrow_table()["who"].cast(pa.binary()).to_pylist()
    assert sorted(found) == [b"\x00", invalid, above, b"\x01"]
