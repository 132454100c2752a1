"""Many topics into many tables in one Spark application: one that fails ends alone, and goes on later."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from kafka_ratchet.spark_sink import exactly_once

NewTopic = Callable[..., str]


def fill(broker: str, topic: str, first: int, values: int, broken: int | None = None) -> None:
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    for n in range(first, first + values):
        producer.produce(topic, b"broken" if n == broken else json.dumps({"id": n}).encode())
    assert producer.flush(30) == 0


def rows(records: DataFrame, *, strict: bool) -> DataFrame:
    value = F.from_json(F.col("value").cast("string"), "id long")["id"]
    broken = F.raise_error(F.concat(F.lit("not an order: "), F.col("value").cast("string"))).cast("long")
    return records.select("partition", "offset", F.coalesce(value, broken if strict else F.lit(-1)).alias("id"))


def ids(path: Path) -> list[int]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table(columns=["id"])["id"].to_pylist())


def test_loops_in_threads(spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path) -> None:
    topics = [new_topic(1) for _ in range(3)]
    bad = topics[1]
    for topic in topics:
        fill(broker, topic, 0, 30, broken=25 if topic == bad else None)

    def run(topic: str, *, strict: bool) -> int:
        with exactly_once(str(tmp_path / topic), job=topic) as sink:
            batches = sink.batches(spark, bootstrap=broker, topic=topic, max_records=10)
            return sum(sink.commit(rows(batch.records, strict=strict), batch) for batch in batches)

    def run_all(*, strict: bool) -> tuple[dict[str, int], dict[str, BaseException]]:
        with ThreadPoolExecutor(len(topics)) as threads:
            runs = {topic: threads.submit(run, topic, strict=strict) for topic in topics}
        failed = {topic: error for topic, each in runs.items() if (error := each.exception())}
        return {topic: each.result() for topic, each in runs.items() if topic not in failed}, failed

    done, failed = run_all(strict=True)
    assert done == {topics[0]: 30, topics[2]: 30}
    assert list(failed) == [bad]
    assert "not an order: broken" in str(failed[bad])
    assert [len(ids(tmp_path / topic)) for topic in topics] == [30, 20, 30]
    done, failed = run_all(strict=False)
    assert (done, failed) == ({topics[0]: 0, bad: 10, topics[2]: 0}, {})
    assert ids(tmp_path / bad) == [-1, *range(25), *range(26, 30)]


@pytest.mark.matrix
def test_queries_of_structured_streaming(spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path) -> None:
    topics = [new_topic(1) for _ in range(3)]
    bad = topics[1]
    for topic in topics:
        fill(broker, topic, 0, 30, broken=25 if topic == bad else None)

    def start(topic: str, *, strict: bool) -> StreamingQuery:
        read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker).option("subscribe", topic)
        read = read.option("kafka.isolation.level", "read_committed").option("maxOffsetsPerTrigger", 10)
        read = read.option("startingOffsets", "earliest")
        sink = exactly_once(str(tmp_path / topic), job=topic)
        query = rows(read.load(), strict=strict).writeStream.foreachBatch(sink.batch)
        return query.option("checkpointLocation", str(tmp_path / "of" / topic)).trigger(availableNow=True).start()

    def run_all(*, strict: bool) -> list[str | None]:
        """Return what each query ended with."""
        queries = [start(topic, strict=strict) for topic in topics]
        errors: list[str | None] = []
        for query in queries:
            try:
                query.awaitTermination(120)
            except Exception as error:
                errors.append(str(error))
            else:
                errors.append(None)
        return errors

    first, failure, last = run_all(strict=True)
    assert (first, last) == (None, None)
    assert failure is not None
    assert "not an order: broken" in failure
    assert [len(ids(tmp_path / topic)) for topic in topics] == [30, 20, 30]
    assert run_all(strict=False) == [None] * 3
    assert ids(tmp_path / bad) == [-1, *range(25), *range(26, 30)]
    assert [len(ids(tmp_path / topic)) for topic in topics] == [30] * 3
