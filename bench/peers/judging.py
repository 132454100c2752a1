"""Peers that deduplicate a topic with Spark's own means into a Delta table.

Kinds:
    watermark: dropDuplicatesWithinWatermark on producer and sequence
    state: transformWithState (Spark 4), which keeps the last sequence of each producer: the rule of Ratchet itself

Both are written as Spark's and Delta's guides recommend. They use Structured Streaming, state in RocksDB with changelog
checkpointing, a checkpoint next to the table, and foreachBatch with Delta's writer. The writer gets the application's
name and the batch's number, so it writes no batch twice. Each prints "commit N" on standard error.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka_ratchet.app.local.jars import spark_jars
from kafka_ratchet.spark_sink.spark.session import LOCAL_SETTINGS, ROW_SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STATE = "spark.sql.streaming.stateStore"
WITHIN = "1 day"
"""Time until the peer forgets a record. It is longer than a run, so that the peer's output is right."""


@dataclass(frozen=True)
class JudgingTask:
    """Task of a peer.

    Attributes:
        kind: watermark or state
        path: folder of the table; the checkpoint is next to it
        at_a_time: offsets per commit
        jars: jars of Delta, with dependencies
    """

    kind: str
    bootstrap: str
    topic: str
    path: str
    at_a_time: int
    jars: list[str]
    master: str


def main(task: JudgingTask) -> None:
    """Run a streaming query over all present records, to its end."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    settings = {
        **ROW_SETTINGS,
        **LOCAL_SETTINGS,
        f"{STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.jars": ",".join([*map(str, spark_jars()), *task.jars]),
    }
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # or the workers would be whatever `python3` the path has
    builder = SparkSession.builder.master(task.master).appName(task.kind)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def append(rows: DataFrame, number: int) -> None:
        writer = rows.write.format("delta").mode("append")
        writer.option("txnAppId", f"{task.kind}-{APPLICATION}").option("txnVersion", number).save(task.path)
        print(f"commit {number + 1}: at {time.time():.3f}", file=sys.stderr, flush=True)

    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", task.bootstrap)
        .option("subscribe", task.topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", "read_committed")
        .option("maxOffsetsPerTrigger", task.at_a_time)
        .load()
    )
    named = "filter(headers, header -> header.key = '{}')[0].value"
    rows = records.select(
        F.expr(named.format("ratchet-producer")).alias("_producer"),
        F.expr(f"cast(conv(hex({named.format('ratchet-sequence')}), 16, 10) as bigint)").alias("_sequence"),
        F.col("partition").alias("_kafka_partition"),
        F.col("offset").alias("_kafka_offset"),
        F.col("timestamp").alias("_kafka_timestamp"),
        F.col("key").alias("_kafka_key"),
        F.col("value").alias("_kafka_value"),
    )
    fresh = _within_watermark(rows) if task.kind == "watermark" else _with_state(rows)
    query = fresh.drop("_producer", "_sequence").writeStream.foreachBatch(append)
    query = query.option("checkpointLocation", f"{task.path}.checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


APPLICATION = time.time_ns()
"""Name of the application for Delta, new in each process.

A query with a new checkpoint counts its batches from 0 again, and Delta would skip these numbers under the old name.
"""


def _within_watermark(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("_kafka_timestamp", WITHIN).dropDuplicatesWithinWatermark(["_producer", "_sequence"])


def _with_state(rows: DataFrame) -> DataFrame:
    """Return the rows with a sequence above the last one of their producer, by a stateful processor in Python."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Rising(StatefulProcessor):
        """Processor that passes records with a sequence above the last one of their producer."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            self._last = handle.getValueState("last", "sequence long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
            known = self._last.get()
            last = -1 if known is None else int(known[0])
            before = last
            for batch in rows:
                ordered = batch.sort_values("_kafka_offset")
                top = ordered["_sequence"].cummax().shift(fill_value=-1).clip(lower=last)
                yield ordered[ordered["_sequence"] > top]
                last = max(last, int(ordered["_sequence"].max()))
            if last > before:
                self._last.update((last,))

        def close(self) -> None:
            pass

    grouped: Any = rows.groupBy("_producer")
    found: DataFrame = grouped.transformWithStateInPandas(
        statefulProcessor=Rising(), outputStructType=rows.schema, outputMode="Append", timeMode="None"
    )
    return found


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    main(JudgingTask(**json.loads(sys.argv[1])))
