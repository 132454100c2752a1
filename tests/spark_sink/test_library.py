"""The library: any DataFrame and the offsets it was made from, in one action, by a loop and by foreachBatch."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_ratchet.spark_sink import Batch, exactly_once, library
from kafka_ratchet.spark_sink.errors import (
    Fenced,
    OffsetsLost,
    OptionRefused,
    RowsLost,
    SchemaDiffers,
    SparkFailed,
    StoreError,
    TablePutBack,
    TopicRecreated,
)
from kafka_ratchet.spark_sink.library import LastCalls, Sink, SinkOptions, _without_stored, with_producer
from kafka_ratchet.spark_sink.stores import optimistic
from kafka_ratchet.spark_sink.stores.delta.store import DeltaStore
from kafka_ratchet.spark_sink.stores.results import read_rows
from kafka_ratchet.spark_sink.targets import iceberg_catalog, location_of, place_of
from tests.topic_config import recreate_topic

NewTopic = Callable[..., str]


def fill(broker: str, topic: str, numbers: range, partitions: int = 2) -> None:
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    for number in numbers:
        value = json.dumps({"id": number, "town": number % 3}).encode()
        headers: list[tuple[str, bytes | str]] = [("source", b"s%d" % number)]
        if number % 2:
            headers += [("ratchet-sequence", struct.pack(">q", number)), ("ratchet-producer", b"meter")]
        producer.produce(topic, value, b"k%d" % number, number % partitions, headers=headers)
    assert producer.flush(30) == 0


def enrich(records: DataFrame) -> DataFrame:
    towns = records.sparkSession.createDataFrame([(0, "Graz"), (1, "Linz"), (2, "Wien")], "town int, name string")
    event = F.from_json(F.col("value").cast("string"), "id long, town int")
    return (
        records.select("partition", "offset", "sequence", event.alias("event"))
        .select("partition", "offset", "sequence", "event.id", "event.town")
        .join(towns, "town")
    )


def ids(path: Path) -> list[int]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table(columns=["id"])["id"].to_pylist())


def run_loop(sink: Sink, spark: SparkSession, broker: str, topic: str, **options: Any) -> int:
    return sum(
        sink.commit(enrich(batch.records), batch)
        for batch in sink.batches(spark, bootstrap=broker, topic=topic, **options)
    )


def test_a_loop_over_a_foreign_topic(spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path) -> None:
    topic, path = new_topic(2), tmp_path / "orders"
    fill(broker, topic, range(50))
    before = {row["key"]: row["value"] for row in spark.sql("SET").collect()}
    sink = exactly_once(str(path), job="orders")
    seen: list[Batch] = []
    for batch in sink.batches(spark, bootstrap=broker, topic=topic, max_records=20):
        seen.append(batch)
        sink.commit(enrich(batch.records), batch)
    assert len(seen) == 3
    columns = set(seen[0].records.columns)
    assert {"key", "value", "headers", "topic", "partition", "offset", "timestamp", "sequence", "producer"} <= columns
    rows = seen[0].records.select("offset", "sequence", "producer", "headers").collect()
    assert {row["producer"] for row in rows} == {None, "meter"}
    assert all(row["sequence"] in (None, int(row["headers"][0]["value"][1:])) for row in rows)
    assert ids(path) == list(range(50))
    assert {row["key"]: row["value"] for row in spark.sql("SET").collect()} == before
    fill(broker, topic, range(50, 60))
    with exactly_once(f"delta:{path}", job="orders") as again:
        assert run_loop(again, spark, broker, topic) == 10
        assert run_loop(again, spark, broker, topic) == 0
        assert again.offsets(topic) == {0: 30, 1: 30}
    assert ids(path) == list(range(60))


@pytest.mark.matrix
def test_tasks_share_a_kafka_partition_that_holds_much(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimistic, "TASK_OFFSETS", 10)
    topic, path = new_topic(1), tmp_path / "orders"
    fill(broker, topic, range(40), partitions=1)
    sink, tasks = exactly_once(str(path), job="orders"), []
    for batch in sink.batches(spark, bootstrap=broker, topic=topic, max_records=30):
        tasks.append(batch.records.rdd.getNumPartitions())
        sink.commit(enrich(batch.records), batch)
    assert tasks == [3, 1]
    assert ids(path) == list(range(40))


def test_sequences_and_producers_of_any_bytes(spark: SparkSession) -> None:
    values = {
        b"\x00\xff\xfe\x80\x00\x00\x00\x01": 0xFFFE8000000001,
        b"12345678": 12345678,
        b"9" * 19: None,
        b"x": None,
    }
    values |= {b"\xff" * 8: None, b"\x00" * 9: None, b"": None, b"7": 7, b"\x7f" + b"\xff" * 7: 2**63 - 1}
    rows = [([("ratchet-sequence", bytearray(value)), ("ratchet-producer", bytearray(b"\xff"))],) for value in values]
    read = spark.createDataFrame(rows, "headers array<struct<key: string, value: binary>>")
    found = [row["sequence"] for row in with_producer(read).collect()]
    assert found == list(values.values())
    twice = [([("ratchet-sequence", bytearray(b"7")), ("ratchet-sequence", bytearray(b"8"))],)]
    read = spark.createDataFrame(twice, "headers array<struct<key: string, value: binary>>")
    assert with_producer(read).collect()[0]["sequence"] is None


def test_a_batch_that_is_not_committed_ends_the_loop(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    fill(broker, topic, range(10), partitions=1)
    sink = exactly_once(str(tmp_path / "t"), job="orders")
    with pytest.raises(OptionRefused, match="are not committed"):
        for _ in sink.batches(spark, bootstrap=broker, topic=topic, max_records=5):
            pass


@pytest.mark.parametrize("size", [0, -1, True, 2.5, "9"])
def test_batches_without_a_record_are_refused_at_the_call(size: Any, tmp_path: Path) -> None:
    sink = exactly_once(str(tmp_path / "t"), job="orders")
    with pytest.raises(OptionRefused, match=rf"max_records={size!r}: write a whole number of at least 1"):
        sink.batches(None, bootstrap="127.0.0.1:9", topic="orders", max_records=size)  # type: ignore[arg-type]


NANOSECONDS = 1_790_000_000_000_000_000


def stamped(broker: str, new_topic: NewTopic, odd: dict[int, int]) -> str:
    """A topic with 40 records in one partition, some of them with other timestamps than the rest."""
    topic = new_topic(1, message_timestamp_after_max_ms=2**63 - 1, retention_ms=-1)
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    for number in range(40):
        value = json.dumps({"id": number, "town": number % 3}).encode()
        producer.produce(topic, value, timestamp=odd.get(number, 1_790_000_000_000))
    assert producer.flush(30) == 0
    return topic


def test_a_loop_reads_around_timestamps_of_nanoseconds(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path = stamped(broker, new_topic, {3: NANOSECONDS, 17: NANOSECONDS}), tmp_path / "t"
    assert run_loop(exactly_once(str(path), job="orders"), spark, broker, topic, max_records=20) == 40
    assert ids(path) == list(range(40))


def test_a_second_loop_reads_around_timestamps_that_the_first_one_could_not_read(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path = stamped(broker, new_topic, {3: -NANOSECONDS}), tmp_path / "t"
    sink = exactly_once(str(path), job="orders")
    with pytest.raises(SparkFailed, match=r"cannot read the timestamps.*0: 0-40.*new loop of `batches`"):
        run_loop(sink, spark, broker, topic)
    assert run_loop(sink, spark, broker, topic) == 40
    assert ids(path) == list(range(40))


@pytest.mark.matrix
def test_a_query_with_timestamps_of_nanoseconds_names_the_way_on(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path = stamped(broker, new_topic, {3: NANOSECONDS}), tmp_path / "t"
    sink = exactly_once(str(path), job="orders")
    with pytest.raises(Exception, match="Commit these offsets by a loop over"):
        run_query(stream(spark, broker, topic), sink, tmp_path / "a")
    for batch in sink.batches(spark, bootstrap=broker, topic=topic):
        sink.commit(enrich(batch.records).select("partition", "offset", "id", "town"), batch)
    fill(broker, topic, range(40, 45), partitions=1)
    run_query(stream(spark, broker, topic), sink, tmp_path / "a")
    assert ids(path) == list(range(45))


def test_an_older_run_is_fenced_and_a_batch_counts_once(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path = new_topic(1), tmp_path / "t"
    fill(broker, topic, range(20), partitions=1)
    first, second = (exactly_once(str(path), job="orders") for _ in range(2))
    batches = first.batches(spark, bootstrap=broker, topic=topic, max_records=10)
    batch = next(batches)
    first.commit(enrich(batch.records), batch)
    with pytest.raises(Fenced):
        first.commit(enrich(batch.records), batch)
    assert run_loop(second, spark, broker, topic) == 10
    batch = next(batches)
    with pytest.raises(Fenced):
        first.commit(enrich(batch.records), batch)
    assert ids(path) == list(range(20))


@pytest.mark.matrix
def test_upserts_and_totals(spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path) -> None:
    topic = new_topic(1)
    fill(broker, topic, range(30), partitions=1)
    newest = exactly_once(f"duckdb:{tmp_path}/t.duckdb?table=newest", job="newest", kind="upsert", key="town")
    assert run_loop(newest, spark, broker, topic, max_records=10) == 9
    newest.close()
    import duckdb

    with duckdb.connect(f"{tmp_path}/t.duckdb", read_only=True) as database:
        found = database.execute("SELECT town, id, _kafka_offset FROM newest ORDER BY 1").fetchall()
    assert found == [(0, 27, 27), (1, 28, 28), (2, 29, 29)]
    sums = exactly_once(str(tmp_path / "sums"), job="sums", kind="totals", key=("town",), sums="id")
    run_loop(sums, spark, broker, topic, max_records=10)
    rows = DeltaTable(str(tmp_path / "sums")).to_pyarrow_table().to_pylist()
    assert {row["town"]: int(row["id"]) for row in rows} == {0: 135, 1: 145, 2: 155}


def stream(spark: SparkSession, broker: str, topic: str, starting: str = "earliest") -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker).option("subscribe", topic)
    reader = reader.option("kafka.isolation.level", "read_committed").option("maxOffsetsPerTrigger", 7)
    read = reader.option("startingOffsets", starting).load()
    event = F.from_json(F.col("value").cast("string"), "id long, town int")
    return read.select("partition", "offset", event.alias("event")).select("partition", "offset", "event.*")


def run_query(frame: DataFrame, sink: Sink, checkpoint: Path) -> None:
    query = (
        frame.writeStream.foreachBatch(sink.batch)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert query.exception() is None


def test_foreach_batch_and_a_lost_checkpoint(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path, checkpoint = new_topic(2), tmp_path / "t", tmp_path / "checkpoint"
    fill(broker, topic, range(40))
    run_query(stream(spark, broker, topic), exactly_once(str(path), job="orders"), checkpoint)
    assert ids(path) == list(range(40))
    shutil.rmtree(checkpoint)
    fill(broker, topic, range(40, 61))
    run_query(stream(spark, broker, topic), exactly_once(str(path), job="orders"), checkpoint)
    assert ids(path) == list(range(61))
    # Without the record's place in the rows, the query has to begin where the table ends.
    shutil.rmtree(checkpoint)
    fill(broker, topic, range(61, 70))
    sink = exactly_once(str(path), job="orders")
    run_query(stream(spark, broker, topic, sink.starting_offsets(topic)), sink, checkpoint)
    assert ids(path) == list(range(70))


def clients_made(spark: SparkSession, broker: str) -> int:
    """Return the number that Kafka's library gives the next client: it counts those of the process."""
    jvm: Any = spark._jvm
    options = jvm.java.util.Properties()
    options.setProperty("bootstrap.servers", broker)
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(options)
    name = admin.metrics().keySet().iterator().next().tags()["client-id"]
    admin.close()
    return int(name.removeprefix("adminclient-"))


def test_a_micro_batch_asks_by_one_client(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    counts = []
    for micro_batches in (1, 4):
        topic = new_topic(1)
        fill(broker, topic, range(7 * micro_batches), partitions=1)
        before = clients_made(spark, broker)
        sink = exactly_once(str(tmp_path / topic), job="orders")
        run_query(stream(spark, broker, topic), sink, tmp_path / f"checkpoint of {topic}")
        counts.append(clients_made(spark, broker) - before)
        assert len(ids(tmp_path / topic)) == 7 * micro_batches
    assert counts[1] - counts[0] == 3


def test_a_query_that_begins_behind_the_table_is_refused(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path = new_topic(1), tmp_path / "t"
    fill(broker, topic, range(10), partitions=1)
    run_query(stream(spark, broker, topic), exactly_once(str(path), job="orders"), tmp_path / "a")
    fill(broker, topic, range(10, 20), partitions=1)
    starting = json.dumps({topic: {"0": 15}})
    failed: list[BaseException] = []
    sink = exactly_once(str(path), job="orders")

    def commit(frame: DataFrame, number: int) -> None:
        try:
            sink.batch(frame, number)
        except BaseException as error:
            failed.append(error)
            raise

    query = (
        stream(spark, broker, topic, starting)
        .writeStream.foreachBatch(commit)
        .option("checkpointLocation", str(tmp_path / "b"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match="would be missing"):
        query.awaitTermination(120)
    assert isinstance(failed[0], OffsetsLost)
    assert ids(path) == list(range(10))


@pytest.mark.matrix
def test_a_topic_that_was_created_again_is_refused_by_both_forms(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path, looped = new_topic(1), tmp_path / "t", tmp_path / "looped"
    fill(broker, topic, range(10), partitions=1)
    sink = exactly_once(str(path), job="orders")
    run_query(stream(spark, broker, topic), sink, tmp_path / "a")
    run_loop(exactly_once(str(looped), job="orders"), spark, broker, topic)
    recreate_topic(broker, topic, 1)
    fill(broker, topic, range(100, 105), partitions=1)
    for each in (sink, exactly_once(str(path), job="orders")):
        query = (
            stream(spark, broker, topic)
            .writeStream.foreachBatch(each.batch)
            .option("checkpointLocation", str(tmp_path / f"b{id(each)}"))
            .trigger(availableNow=True)
            .start()
        )
        with pytest.raises(Exception, match="deleted and created again"):
            query.awaitTermination(120)
    with pytest.raises(TopicRecreated):
        run_loop(exactly_once(str(looped), job="orders"), spark, broker, topic)
    assert ids(path) == ids(looped) == list(range(10))


@pytest.mark.matrix
@pytest.mark.parametrize("form", ["batches", "foreachBatch"])
def test_a_topic_that_is_created_again_while_spark_reads_it(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    topic, path, stage = new_topic(1), tmp_path / "t", DeltaStore._stage
    fill(broker, topic, range(10), partitions=1)
    sink = exactly_once(str(path), job="orders")
    run_loop(sink, spark, broker, topic)
    fill(broker, topic, range(10, 20), partitions=1)

    def stage_of_another_topic(self: DeltaStore, *given: Any) -> Any:
        recreate_topic(broker, topic, 1)
        fill(broker, topic, range(100, 130), partitions=1)
        staged = stage(self, *given)
        assert staged.rows
        return staged

    monkeypatch.setattr(DeltaStore, "_stage", stage_of_another_topic)
    if form == "batches":
        with pytest.raises(TopicRecreated, match="deleted and created again"):
            run_loop(exactly_once(str(path), job="orders"), spark, broker, topic)
    else:
        query = (
            stream(spark, broker, topic)
            .writeStream.foreachBatch(exactly_once(str(path), job="orders").batch)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        with pytest.raises(Exception, match="The table has no row of this micro-batch"):
            query.awaitTermination(120)
    assert ids(path) == list(range(10))
    assert sink.offsets(topic) == {0: 10}


def test_a_loop_that_follows_rests_and_a_failed_commit_is_made_once(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, path, rested = new_topic(2), tmp_path / "t", list[float]()

    def rest(seconds: float) -> None:
        rested.append(seconds)
        if len(rested) in (3, 5):
            fill(broker, topic, range(len(rested) * 10, len(rested) * 10 + 10))

    monkeypatch.setattr(library, "time", SimpleNamespace(sleep=rest))
    sink = exactly_once(str(path), job="orders")
    seen = 0
    for batch in sink.batches(spark, bootstrap=broker, topic=topic, follow=True):
        seen += 1
        assert sink._store is not None
        with monkeypatch.context() as patch:
            commit = sink._store.commit

            def then_fail(*given: Any, **named: Any) -> int:
                commit(*given, **named)  # noqa: B023 - called before the next turn
                raise StoreError("the answer was lost")

            if seen == 2:
                patch.setattr(sink._store, "commit", then_fail)
                with pytest.raises(StoreError):
                    sink.commit(enrich(batch.records), batch)
        if seen == 2:
            with pytest.raises(Fenced, match="was committed before"):
                sink.commit(enrich(batch.records), batch)
            break
        sink.commit(enrich(batch.records), batch)
    assert len(rested) == 5
    assert ids(path) == [*range(30, 40), *range(50, 60)]


def remove_before(broker: str, topic: str, partition: int, offset: int) -> None:
    """Remove the records below an offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": broker})  # another one would know no leader of a new partition
    for removal in admin.delete_records([TopicPartition(topic, partition, offset)]).values():
        removal.result(30)


def test_a_loop_that_follows_reads_added_partitions_and_reports_a_removed_beginning(
    spark: SparkSession,
    broker: str,
    new_topic: NewTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, path, rested, admin = new_topic(1), tmp_path / "t", list[float](), AdminClient({"bootstrap.servers": broker})

    def add_partitions(count: int, removed: int) -> None:
        admin.create_partitions([NewPartitions(topic, count)])[topic].result(30)
        fill(broker, topic, range(10 * count, 10 * count + 10), partitions=count)
        remove_before(broker, topic, count - 1, removed)

    def rest(seconds: float) -> None:
        rested.append(seconds)
        if len(rested) in (1, 3):
            add_partitions(*{1: (2, 0), 3: (3, 1)}[len(rested)])
        elif len(rested) == 6:
            raise TimeoutError("rested enough")

    monkeypatch.setattr(library, "time", SimpleNamespace(sleep=rest))
    sink = exactly_once(str(path), job="orders")
    fill(broker, topic, range(10), partitions=1)
    with caplog.at_level("WARNING", "spark_sink"), pytest.raises(TimeoutError):
        run_loop(sink, spark, broker, topic, follow=True)
    assert ids(path) == [*range(10), *range(20, 32), *range(33, 40)]
    removed = [each.getMessage() for each in caplog.records if "earlier records are gone" in each.getMessage()]
    assert len(removed) == 1
    assert "partition 2 at 1" in removed[0]


@pytest.mark.parametrize(
    ("target", "error", "sentence"),
    [
        (
            "duckdb:{}/t.duckdb?table=orders",
            TablePutBack,
            r"put back to an earlier state.*generation 1.*generation 2 and",
        ),
        ("{}/t", RowsLost, "was removed or recreated while job orders wrote to it. Nothing more was added"),
    ],
    ids=["duckdb", "delta"],
)
def test_a_copy_that_is_restored_amid_a_loop(
    target: str,
    error: type[Exception],
    sentence: str,
    spark: SparkSession,
    broker: str,
    new_topic: NewTopic,
    tmp_path: Path,
) -> None:
    topic, place, copy = new_topic(2), tmp_path / "place", tmp_path / "copy"
    place.mkdir()
    sink, again = (exactly_once(target.format(place), job="orders", kind="upsert", key="id") for _ in range(2))
    fill(broker, topic, range(10))
    assert run_loop(sink, spark, broker, topic) == 10
    sink.close()
    shutil.copytree(place, copy)
    fill(broker, topic, range(10, 30))
    batches = sink.batches(spark, bootstrap=broker, topic=topic, max_records=10)
    batch = next(batches)
    sink.commit(enrich(batch.records), batch)
    shutil.rmtree(place)
    shutil.copytree(copy, place)
    batch = next(batches)
    with pytest.raises(error, match=sentence):
        sink.commit(enrich(batch.records), batch)
    assert again.offsets(topic) == {0: 5, 1: 5}
    with again:
        assert run_loop(again, spark, broker, topic) == 20
    location = location_of(target.format(place), {}, {})
    assert location is not None
    assert sorted(read_rows(location, ["id"])) == [(number,) for number in range(30)]


@pytest.mark.parametrize("at_once", [False, True], ids=["before the commit", "amid it"])
def test_a_table_that_is_removed_before_the_first_commit_of_a_loop(
    at_once: bool,
    spark: SparkSession,
    broker: str,
    new_topic: NewTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, path, opened = new_topic(1), tmp_path / "t", DeltaStore.open
    fill(broker, topic, range(10), partitions=1)
    with exactly_once(str(path), job="orders") as sink:
        assert run_loop(sink, spark, broker, topic) == 10
    fill(broker, topic, range(10, 20), partitions=1)
    batches = sink.batches(spark, bootstrap=broker, topic=topic)
    batch = next(batches)

    def open_without_table(self: DeltaStore, *given: Any) -> dict[int, int]:
        shutil.rmtree(path)
        return opened(self, *given)

    if at_once:
        monkeypatch.setattr(DeltaStore, "open", open_without_table)
    else:
        shutil.rmtree(path)
    with pytest.raises(TablePutBack, match=rf"{topic} had offsets {{0: 10}} when this run began, and has {{}} now"):
        sink.commit(enrich(batch.records), batch)
    monkeypatch.undo()
    assert sink.offsets(topic) == {}
    assert run_loop(sink, spark, broker, topic) == 20
    assert ids(path) == list(range(20))


def test_a_query_of_another_topic_does_not_take_the_sink_of_a_loop(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, other, path = new_topic(1), new_topic(1), tmp_path / "t"
    for each in (topic, other):
        fill(broker, each, range(10), partitions=1)
    sink = exactly_once(str(path), job="orders")
    for number, batch in enumerate(sink.batches(spark, bootstrap=broker, topic=topic, max_records=5)):
        if number:
            with pytest.raises(Exception, match=rf"a loop over topic {topic} uses this sink"):
                run_query(stream(spark, broker, other), sink, tmp_path / "a")
        sink.commit(enrich(batch.records).select("partition", "offset", "id", "town"), batch)
    assert ids(path) == list(range(10))
    run_query(stream(spark, broker, other), sink, tmp_path / "a")  # the loop has ended
    assert len(ids(path)) == 20


def test_other_columns_do_not_fence_a_newer_run(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path = new_topic(1), tmp_path / "t"
    fill(broker, topic, range(20), partitions=1)
    first, second = (exactly_once(str(path), job="orders", evolve=True) for _ in range(2))
    older = first.batches(spark, bootstrap=broker, topic=topic, max_records=5)
    batch = next(older)
    first.commit(enrich(batch.records), batch)
    newer = second.batches(spark, bootstrap=broker, topic=topic, max_records=5)
    ahead = next(newer)
    second.commit(enrich(ahead.records), ahead)
    batch = next(older)
    with pytest.raises(Fenced):
        first.commit(enrich(batch.records).withColumn("more", F.lit(1)), batch)
    ahead = next(newer)
    second.commit(enrich(ahead.records), ahead)
    assert ids(path) == list(range(15))


def test_rows_without_a_place_are_refused_amid_a_committed_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(0, 5, 1), (0, 9, 2), (None, None, 3)], "partition int, offset long, id int")
    given, start, end = frame.where("partition = 0"), {0: 5, 1: 0}, {0: 10, 1: 3}
    assert [row["id"] for row in _without_stored(given, start, {0: 7, 1: 3}, end, "orders").collect()] == [2]
    with pytest.raises(Exception, match="rows without partition and offset"):
        _without_stored(frame, start, {0: 7}, end, "orders").collect()
    for narrow in (({0: 6, 1: 0}, end), (start, {0: 9, 1: 3}), ({1: 0}, {1: 3})):
        with pytest.raises(Exception, match="whose partition and offset are outside the micro-batch"):
            _without_stored(given, narrow[0], {0: 7, 1: 3}, narrow[1], "orders").collect()


def test_partitions_of_files_are_for_rows_that_stay(tmp_path: Path) -> None:
    with pytest.raises(OptionRefused, match="partition_by is for kind append"):
        exactly_once(str(tmp_path / "a"), job="orders", kind="upsert", key="id", partition_by=["who"])
    with pytest.raises(OptionRefused, match="cannot divide a table"):
        exactly_once(f"duckdb:{tmp_path}/b.duckdb?table=b", job="orders", partition_by=["who"])


@pytest.mark.parametrize("kind", ["Upsert", "merge", ""])
def test_a_kind_that_does_not_exist_is_refused(kind: Any) -> None:
    with pytest.raises(OptionRefused, match=rf"kind {kind!r} is unknown; write one of append, upsert, totals"):
        exactly_once("/t", job="orders", kind=kind, key="id")


def test_an_option_that_does_not_exist_is_refused() -> None:
    misspelled: Any = {"evole": True, "partitionby": "day"}
    with pytest.raises(OptionRefused, match=r"unknown options: evole, partitionby\. Write .*evolve.*partition_by"):
        exactly_once("/t", job="orders", **misspelled)


@pytest.mark.parametrize("target", ["{}/t", "duckdb:{}/t.duckdb?table=t"])
def test_two_columns_of_one_name_are_refused(
    target: str, spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    fill(broker, topic, range(3), partitions=1)
    sink = exactly_once(target.format(tmp_path), job="orders")
    batch = next(sink.batches(spark, bootstrap=broker, topic=topic))
    rows = enrich(batch.records)
    for doubled, names in ((rows.select("*", "id"), "id, id"), (rows.select("*", F.lit(1).alias("ID")), "id, ID")):
        with pytest.raises(OptionRefused, match=rf"the rows have two columns of one name \({names}\)"):
            sink.commit(doubled, batch)
    totals = exactly_once(str(tmp_path / "sums"), job="sums", kind="totals", key="town", sums="id")
    batch = next(totals.batches(spark, bootstrap=broker, topic=topic))
    rows = enrich(batch.records)
    with pytest.raises(OptionRefused, match=r"\(town, town\)"):
        totals.commit(rows.select("*", "town"), batch)
    assert totals.commit(rows.select("*", "partition"), batch) == 3  # totals do not use this column


def test_one_partition_column_may_be_a_text(tmp_path: Path) -> None:
    one = exactly_once(str(tmp_path / "a"), job="orders", partition_by="day(at)")
    assert one._partition_by == exactly_once(str(tmp_path / "a"), job="orders", partition_by=["day(at)"])._partition_by
    assert [field.name for field in one._partition_by] == ["at_day"]


@pytest.mark.parametrize("target", ["{}/t", "iceberg:sales.t", "duckdb:{}/t.duckdb?table=t"])
def test_arrays_without_null_fit_a_table_of_arrays(
    target: str, spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, options = new_topic(1), SinkOptions(catalog={"path": str(tmp_path)})
    text = F.col("value").cast("string")
    strict = F.create_map(F.lit("a"), F.array(F.struct(F.col("offset").alias("n"))))
    loose = F.from_json(F.lit('{"a": [null, {"n": 7}]}'), "map<string, array<struct<n: long>>>")
    for number, nested in enumerate((strict, loose, strict)):
        fill(broker, topic, range(number, number + 1), partitions=1)
        sink = exactly_once(target.format(tmp_path), job="orders", **options)
        batch = next(sink.batches(spark, bootstrap=broker, topic=topic))
        words = F.split(text, ",") if number != 1 else F.array(F.lit(None).cast("string"))
        assert sink.commit(batch.records.select("offset", words.alias("words"), nested.alias("nested")), batch) == 1
        sink.close()
    location = location_of(target.format(tmp_path), {}, options["catalog"])
    assert location is not None
    assert [len(words) for _, words in sorted(read_rows(location, ["offset", "words"]))] == [2, 1, 2]


def test_a_table_of_arrays_without_null_still_takes_them(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    fill(broker, topic, range(3), partitions=1)
    element = deltalake.schema.ArrayType(deltalake.schema.PrimitiveType("string"), contains_null=False)
    words = deltalake.schema.Field("words", element)
    DeltaTable.create(str(tmp_path / "t"), deltalake.Schema([words]))
    sink = exactly_once(str(tmp_path / "t"), job="orders")
    batch = next(sink.batches(spark, bootstrap=broker, topic=topic))
    text = F.col("value").cast("string")
    with pytest.raises(SchemaDiffers, match="column words is"):
        sink.commit(batch.records.select(F.array(F.when(F.col("offset") > 0, text)).alias("words")), batch)
    assert sink.commit(batch.records.select(F.split(text, ",").alias("words")), batch) == 3


def test_targets() -> None:
    for target in ("orders", "", "postgresql://host/db", "mysql://host/db"):
        with pytest.raises(OptionRefused):
            exactly_once(target, job="orders")
    with pytest.raises(OptionRefused, match="no micro-batch"):
        exactly_once("/t", job="orders").batch(_Outside(), 0)  # type: ignore[arg-type]


class _Outside:
    sparkSession = None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://b/t", "delta:s3a://b/t/"),
        ("postgresql://me:secret@db/shop?table=t", "postgres://you@db/shop?table=t&sslmode=require"),
        ("duckdb:/w/t.duckdb", "duckdb:/w/./t.duckdb?table=results"),
    ],
)
def test_two_spellings_of_one_table_have_one_place(one: str, other: str) -> None:
    first, second = (place_of(found) for each in (one, other) if (found := location_of(each, {}, {})))
    assert first == second
    other_table = location_of("duckdb:/w/t.duckdb?table=other", {}, {})
    assert other_table is not None
    assert place_of(other_table) != first


def test_the_numbers_of_few_queries_are_kept() -> None:
    calls = LastCalls(2)
    for run, number in (("a", 0), ("b", 0), ("a", 1), ("c", 7)):
        calls.note((run,), number)
    assert [calls.of((run,)) for run in "abc"] == [1, None, 7]


def test_addresses_and_catalogs() -> None:
    access = {"path": "/w", "type": "sql"}
    found = location_of("postgresql://me@db:5432/shop?sslmode=require&table=public.t", {}, access)
    assert found is not None
    assert (found.kind, found.table, found.url) == (
        "postgres",
        "public.t",
        "postgresql://me@db:5432/shop?sslmode=require",
    )
    found = location_of("iceberg:sales.orders", {}, access)
    assert found is not None
    assert (found.kind, found.path, found.table, dict(found.catalog)) == (
        "iceberg",
        "/w",
        "sales.orders",
        {"type": "sql"},
    )
    assert location_of("prod.sales.orders", {}, access) is None
    rest = {"": "org.apache.iceberg.spark.SparkCatalog", "type": "rest", "uri": "http://c:8181", "warehouse": "w"}
    assert iceberg_catalog("c.t", "c", rest) == {"type": "rest", "uri": "http://c:8181", "warehouse": "w"}
    assert iceberg_catalog("c.t", "c", rest | {"s3.endpoint": "http://s3"}) == iceberg_catalog("c.t", "c", rest)
    with pytest.raises(OptionRefused, match="of type hadoop"):
        iceberg_catalog("c.t", "c", {"type": "hadoop"})


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("jdbc:sqlite:/w/catalog.db", "sqlite:////w/catalog.db"),
        ("jdbc:sqlite:file:/w/catalog.db?mode=rw", "sqlite:////w/catalog.db"),
        ("jdbc:postgresql://db:5432/c", "postgresql+psycopg://me:a%40b%2F@db:5432/c"),
        ("jdbc:mysql://db/c?connectTimeout=9", "mysql+pymysql://me:a%40b%2F@db/c?connectTimeout=9"),
    ],
)
def test_jdbc_addresses_become_those_of_sqlalchemy(uri: str, address: str) -> None:
    jdbc = {"type": "jdbc", "uri": uri, "jdbc.user": "me", "jdbc.password": "a@b/", "warehouse": "w"}
    assert iceberg_catalog("c.t", "c", jdbc) == {"type": "sql", "name": "c", "uri": address, "warehouse": "w"}


@pytest.fixture
def prod(spark: SparkSession, tmp_path: Path) -> Iterator[SqlCatalog]:
    """Iceberg catalog `prod` of the Spark session, over JDBC; this Spark has no Iceberg, the library reads settings."""
    uri = tmp_path / "tokens.db"
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:{uri}",
        ".warehouse": f"file://{tmp_path}/warehouse",
    }
    for name, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.prod{name}", value)
    catalog = SqlCatalog("prod", uri=f"sqlite:///{uri}", warehouse=f"file://{tmp_path}/warehouse")
    yield catalog
    catalog.close()
    for name in settings:
        spark.conf.unset(f"spark.sql.catalog.prod{name}")


def test_a_table_of_an_iceberg_catalog_over_jdbc(
    spark: SparkSession, broker: str, new_topic: NewTopic, prod: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(2)
    fill(broker, topic, range(10))
    prod.create_namespace("sales")
    of_spark = pa.schema({"partition": pa.int32(), "offset": pa.int64(), "id": pa.int64()})
    prod.create_table("sales.orders", of_spark)

    def commit_to(target: str) -> int:
        sink = exactly_once(target, job="orders")
        event = F.from_json(F.col("value").cast("string"), "id long")
        return sum(
            sink.commit(batch.records.select("partition", "offset", event["id"].alias("id")), batch)
            for batch in sink.batches(spark, bootstrap=broker, topic=topic)
        )

    assert commit_to("prod.sales.orders") == 10
    assert sorted(prod.load_table("sales.orders").scan().to_arrow()["id"].to_pylist()) == list(range(10))
    fill(broker, topic, range(10, 14))
    monkeypatch.setattr(type(spark.catalog), "currentCatalog", lambda _: "prod")
    assert commit_to("sales.orders") == 4
    assert sorted(prod.load_table("sales.orders").scan().to_arrow()["id"].to_pylist()) == list(range(14))
    with pytest.raises(OptionRefused, match=r"as in prod\.NAMESPACE\.orders"):
        commit_to("prod.orders")
    with pytest.raises(OptionRefused, match=r"a name with a dot in backquotes"):
        commit_to("prod.`a.b`.orders")
    named = exactly_once("prod.sales.orders", job="orders")
    assert named.offsets(topic) == {0: 7, 1: 7}
    assert json.loads(named.starting_offsets(topic)) == {topic: {"0": 7, "1": 7}}
    with ThreadPoolExecutor(1) as threads:  # Spark's active session is one of the thread
        assert threads.submit(named.offsets, topic).result() == {0: 7, 1: 7}
