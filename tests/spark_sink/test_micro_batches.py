"""Micro-batches of Structured Streaming that are no plain range of a topic: with state, without offsets, in parts."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_ratchet.spark_sink import exactly_once
from kafka_ratchet.spark_sink.errors import OffsetsLost
from kafka_ratchet.spark_sink.library import Sink
from kafka_ratchet.spark_sink.spark.micro_batch import (
    NO_DATA_MICRO_BATCHES,
    MicroBatch,
    micro_batch,
    require_query_start,
)
from tests.markers import partition_ends

NewTopic = Callable[..., str]
Commit = Callable[[DataFrame, int], None]

MINUTE_MS = 60_000
FIRST_MS = int(time.time()) // 60 * MINUTE_MS - 60 * MINUTE_MS + MINUTE_MS // 2
"""Middle of a minute, an hour ago: Kafka deletes records with times of weeks ago."""


@pytest.fixture(autouse=True)
def settings(spark: SparkSession) -> Iterator[None]:
    """Few stores of state, and the settings of before afterwards."""
    names = ("spark.sql.shuffle.partitions", NO_DATA_MICRO_BATCHES)
    before = {name: spark.conf.get(name) for name in names}
    spark.conf.set(names[0], "1")
    yield
    for name, value in before.items():
        spark.conf.set(name, str(value))


def fill(broker: str, topic: str, numbers: range, partition: int = 0) -> None:
    """Add records, one for each minute."""
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    for number in numbers:
        value = json.dumps({"id": number}).encode()
        producer.produce(topic, value, b"k%d" % number, partition, timestamp=FIRST_MS + number * MINUTE_MS)
    assert producer.flush(30) == 0


def read(spark: SparkSession, broker: str, topic: str, starting: str = "earliest", **options: str | int) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker).option("subscribe", topic)
    return reader.option("kafka.isolation.level", "read_committed").options(startingOffsets=starting, **options).load()


def rows(records: DataFrame) -> DataFrame:
    event = F.from_json(F.col("value").cast("string"), "id long")
    return records.select("partition", "offset", event.alias("event")).select("partition", "offset", "event.id")


def run(frame: DataFrame, commit: Commit, checkpoint: Path, more: Callable[[], None] | None = None) -> None:
    """Run a query until it has all records, and again after `more`."""
    query = frame.writeStream.foreachBatch(commit).option("checkpointLocation", str(checkpoint)).start()
    try:
        query.processAllAvailable()
        if more is not None:
            more()
            query.processAllAvailable()
    finally:
        query.stop()


def ids(path: Path) -> list[int]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table(columns=["id"])["id"].to_pylist())


@pytest.mark.parametrize("other", ["{}/t", "delta:{}/t", "{}/./t/", "{}/link/t"])
def test_a_second_call_for_a_micro_batch_is_refused(
    other: str, spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    fill(broker, topic, range(10))
    (tmp_path / "link").symlink_to(tmp_path)

    def in_parts(frame: DataFrame, number: int) -> None:
        for rest in (0, 1):
            part = exactly_once([str(tmp_path / "t"), other.format(tmp_path)][rest], job="orders")
            part.batch(frame.where(F.col("id") % 2 == rest), number)

    for _ in range(2):  # also where the table has the offsets of the first call
        with pytest.raises(Exception, match="called twice for micro-batch 0"):
            run(rows(read(spark, broker, topic)), in_parts, tmp_path / "checkpoint")
    assert ids(tmp_path / "t") == [0, 2, 4, 6, 8]


def test_a_partition_that_was_added_is_read_from_its_beginning(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path = new_topic(1), tmp_path / "t"
    fill(broker, topic, range(10))
    run(rows(read(spark, broker, topic)), exactly_once(str(path), job="orders").batch, tmp_path / "a")
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    fill(broker, topic, range(10, 15), partition=1)
    assert partition_ends(broker, topic, 1) == (5, 5)
    sink = exactly_once(str(path), job="orders")
    late = rows(read(spark, broker, topic, json.dumps({topic: {"0": 10, "1": 3}})))
    with pytest.raises(Exception, match="added later, and micro-batch 0 begins at 3: 3 offsets would be missing"):
        run(late, sink.batch, tmp_path / "b")
    starting = sink.starting_offsets(topic, bootstrap=broker)
    assert json.loads(starting) == {topic: {"0": 10, "1": -2}}
    run(rows(read(spark, broker, topic, starting)), sink.batch, tmp_path / "c")
    assert ids(path) == list(range(15))


def test_a_query_that_passes_over_removed_records_is_refused(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path = new_topic(1), tmp_path / "t"
    fill(broker, topic, range(10))
    run(rows(read(spark, broker, topic)), exactly_once(str(path), job="orders").batch, tmp_path / "a")
    fill(broker, topic, range(10, 20))
    admin = AdminClient({"bootstrap.servers": broker})
    for removal in admin.delete_records([TopicPartition(topic, 0, 15)]).values():
        removal.result(30)
    sink = exactly_once(str(path), job="orders")
    for options, sentence in (({"failondataloss": "false"}, "failOnDataLoss=false"), ({}, "may have been lost")):
        with pytest.raises(Exception, match=sentence):
            run(rows(read(spark, broker, topic, **options)), sink.batch, tmp_path / "a")
    assert sink.offsets(topic) == {0: 10}
    assert ids(path) == list(range(10))


def test_a_checkpoint_without_its_table_is_refused(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path = new_topic(1), tmp_path / "t"
    fill(broker, topic, range(10))
    frame = rows(read(spark, broker, topic))
    run(frame, exactly_once(str(path), job="orders").batch, tmp_path / "a")
    shutil.rmtree(path)
    fill(broker, topic, range(10, 20))
    with pytest.raises(Exception, match="has no offsets of job orders, and micro-batch 1 begins at 10: 10 offsets"):
        run(frame, exactly_once(str(path), job="orders").batch, tmp_path / "a")
    assert not path.exists()
    run(frame, exactly_once(str(path), job="orders").batch, tmp_path / "b")
    assert ids(path) == list(range(20))
    # The first query of a table may begin anywhere, and wait for its first records.
    for starting, there in (("latest", range(20, 25)), (json.dumps({topic: {"0": 15}}), range(15, 30))):
        other = tmp_path / f"from {there.start}" / "t"
        first = rows(read(spark, broker, topic, starting))
        again = exactly_once(str(other), job="orders")
        more = partial(fill, broker, topic, range(there.stop - 5, there.stop))
        run(first, again.batch, other.with_name("checkpoint"), more)
        assert ids(other) == list(there)


@pytest.mark.matrix
def test_a_query_with_state_goes_on_after_a_crash(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path = new_topic(1), tmp_path / "t"
    fill(broker, topic, range(10))
    frame = rows(read(spark, broker, topic).dropDuplicates(["key"]))

    def then_fail(frame: DataFrame, number: int) -> None:
        exactly_once(str(path), job="orders").batch(frame, number)
        raise RuntimeError("ends after the table's commit")

    with pytest.raises(Exception, match="ends after"):
        run(frame, then_fail, tmp_path / "checkpoint")
    sink = exactly_once(str(path), job="orders")
    run(frame, sink.batch, tmp_path / "checkpoint", lambda: fill(broker, topic, range(5, 20)))
    assert ids(path) == list(range(20))


@pytest.mark.matrix
def test_a_watermark_may_move_without_records(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path = new_topic(1), tmp_path / "t"
    fill(broker, topic, range(10))
    records = read(spark, broker, topic).withWatermark("timestamp", "1 second")
    frame = rows(records.dropDuplicatesWithinWatermark(["key"]))
    numbers: list[int] = []
    sink = exactly_once(str(path), job="orders")

    def commit(frame: DataFrame, number: int) -> None:
        sink.batch(frame, number)
        numbers.append(number)

    run(frame, commit, tmp_path / "checkpoint", lambda: fill(broker, topic, range(10, 20)))
    assert numbers == [0, 1, 2, 3]  # two with records, and one without after each
    assert ids(path) == list(range(20))


@pytest.mark.matrix
def test_rows_of_micro_batches_without_records_are_refused_at_the_first_one(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, path, checkpoint = new_topic(1), tmp_path / "t", tmp_path / "checkpoint"
    fill(broker, topic, range(10))
    records = read(spark, broker, topic).withWatermark("timestamp", "1 second")
    counted = records.groupBy(F.window("timestamp", "1 minute")).count()
    frame = counted.select(F.col("window.start").alias("start"), "count")
    sink = exactly_once(str(path), job="orders")
    with pytest.raises(Exception, match=rf"Set {NO_DATA_MICRO_BATCHES} to false"):
        run(frame, sink.batch, checkpoint)
    assert not path.exists()
    with monkeypatch.context() as patch:  # an operator that is not known to send rows later
        patch.setattr("kafka_ratchet.spark_sink.spark.micro_batch._sends_later", lambda *_: False)
        with pytest.raises(Exception, match="micro-batch 1 has 9 rows without offsets"):
            run(frame, sink.batch, tmp_path / "other")
    spark.conf.set(NO_DATA_MICRO_BATCHES, "false")
    again: Sink = exactly_once(str(tmp_path / "again"), job="orders")
    run(frame, again.batch, checkpoint, lambda: fill(broker, topic, range(12, 13)))
    assert DeltaTable(str(tmp_path / "again")).to_pyarrow_table()["count"].to_pylist() == [1] * 9
    run(frame, again.batch, checkpoint, lambda: fill(broker, topic, range(20, 21)))
    assert DeltaTable(str(tmp_path / "again")).to_pyarrow_table()["count"].to_pylist() == [1] * 10


@pytest.mark.parametrize("topics", [1, 2])
def test_queries_of_one_sink_wait_for_each_other(
    topics: int, spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_by = [new_topic(1) for _ in range(topics)] * (3 - topics)
    for number, topic in enumerate(read_by[:topics]):
        fill(broker, topic, range(number * 10, number * 10 + 10))
    sink, both = exactly_once(str(tmp_path / "t"), job="orders"), threading.Barrier(2)

    def at_once(frame: DataFrame) -> object:
        both.wait(60)
        return micro_batch(frame)

    monkeypatch.setattr("kafka_ratchet.spark_sink.library.micro_batch", at_once)
    queries = [
        rows(read(spark, broker, topic, maxOffsetsPerTrigger=5))
        .writeStream.foreachBatch(sink.batch)
        .option("checkpointLocation", str(tmp_path / f"checkpoint {number}"))
        .trigger(availableNow=True)
        .start()
        for number, topic in enumerate(read_by)
    ]
    for query in queries:
        assert query.awaitTermination(120)
    assert ids(tmp_path / "t") == list(range(10 * topics))


def test_records_of_aborted_transactions_do_not_become_rows(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path = new_topic(1), tmp_path / "t"
    producer = Producer({"bootstrap.servers": broker, "log_level": 0, "transactional.id": topic})
    producer.init_transactions()
    for number, is_kept in ((1, True), (2, False), (3, True)):
        producer.begin_transaction()
        producer.produce(topic, json.dumps({"id": number}).encode())
        assert producer.flush(30) == 0
        if is_kept:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    run(rows(read(spark, broker, topic)), exactly_once(str(path), job="orders").batch, tmp_path / "a")
    assert ids(path) == [1, 3]
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker).option("subscribe", topic)
    reader = reader.option("startingOffsets", "earliest")
    other = tmp_path / "other"
    with pytest.raises(Exception, match=r"records are written in transactions, and the query has no kafka\.isolation"):
        run(rows(reader.load()), exactly_once(str(other), job="orders").batch, tmp_path / "b")
    assert not other.exists()
    plain = new_topic(1)
    fill(broker, plain, range(4))
    plainly = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker).option("subscribe", plain)
    plainly = plainly.option("startingOffsets", "earliest")
    of_plain = tmp_path / "plain"
    sink = exactly_once(str(of_plain), job="orders")
    run(rows(plainly.load()), sink.batch, tmp_path / "d")
    assert ids(of_plain) == [0, 1, 2, 3]
    # Kafka forgets producers, so that older records may be of transactions.
    past = new_topic(1)
    old = Producer({"bootstrap.servers": broker})
    old.produce(past, json.dumps({"id": 4}).encode(), timestamp=int((time.time() - 86_400) * 1000))
    assert old.flush(30) == 0
    with pytest.raises(Exception, match=r"offset 0: the record may be older than 720 minutes.*kafka\.isolation\.level"):
        run(rows(plainly.option("subscribe", past).load()), exactly_once(str(other), job="o").batch, tmp_path / "e")
    assert not other.exists()
    chosen = reader.option("kafka.isolation.level", "read_uncommitted").load()
    run(rows(chosen), exactly_once(str(other), job="orders").batch, tmp_path / "c")
    assert ids(other) == [1, 2, 3]


def test_a_query_that_began_before_its_topic_existed_begins_at_0() -> None:
    source = SimpleNamespace(initialOffset=lambda: SimpleNamespace(json=lambda: "{}"))  # as of subscribePattern
    given = MicroBatch("t", {0: 0}, {0: 5}, {}, None, "run", False, False, False, source)
    assert given.query_start() == {}
    require_query_start(given, 1, "job")
    with pytest.raises(OffsetsLost, match="begins at 2: 2 offsets"):
        require_query_start(replace(given, start={0: 2}), 2, "job")
