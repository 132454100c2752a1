"""Somebody's foreachBatch job with faults put in: the comparison names all of them, and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_ratchet.verify import compare

EVENTS = 1000


@pytest.mark.matrix
@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_all_faults_of_a_foreach_batch_job_are_named(
    form: str, broker: str, spark: SparkSession, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=3)
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    for number in range(EVENTS):
        event = {
            "id": number,
            "city": f"Łódź {number % 7}",
            "amount": number / 4,
            "at": f"2026-01-02T03:{number % 60:02}:05Z",
        }
        producer.produce(topic, json.dumps(event).encode(), str(number).encode())
    assert producer.flush(60) == 0
    chosen = random.Random(36).sample(range(EVENTS), 23)
    wrong = {"lost": chosen[:7], "doubled": chosen[7:18], "altered": chosen[18:]}
    folder = str(tmp_path / "table")

    def append(rows: DataFrame, number: int) -> None:
        values = F.from_json(F.col("value").cast("string"), "id long, city string, amount double, at timestamp")
        table = rows.select(values.alias("v")).select("v.*").where(~F.col("id").isin(wrong["lost"]))
        table = table.withColumn("amount", F.col("amount") + F.col("id").isin(wrong["altered"]).cast("int"))
        table = table.union(table.where(F.col("id").isin(wrong["doubled"])))
        table.write.mode("append").option("header", "true").format(form).save(folder)

    query = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", EVENTS // 3)
        .load()
        .writeStream.foreachBatch(append)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    query.trigger(availableNow=True).start().awaitTermination()
    columns = "city,amount,at" if form == "parquet" else "city,amount"  # a CSV file has no times, and Spark's own form
    result = compare(f"kafka:{topic}", f"{form}:{folder}", "id", columns, bootstrap=broker)
    named = {
        kind: sorted(int(each["identity"]) for each in result.findings if each["finding"] == kind) for kind in wrong
    }
    assert named == {kind: sorted(numbers) for kind, numbers in wrong.items()}
    assert len(result.findings) == 23
    assert (result.unexpected, result.in_flight, result.unread) == (0, 0, [])
