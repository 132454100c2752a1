"""Peers of Ratchet's Spark job: the usual job from a topic to a table, and a job that writes nothing.

Kinds:
    usual: Structured Streaming, a checkpoint next to the table, and foreachBatch with Delta's writer. The writer gets
        the application's name and the batch's number, so it does not write a retried batch again.
    nothing: Ratchet's job with a store that drops all rows.

Both print "commit N" on standard error, as Ratchet's job does.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_ratchet.app.local.jars import spark_jars
from kafka_ratchet.spark_sink.job.job import run_batch
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.spark.session import LOCAL_SETTINGS, ROW_SETTINGS, spark_session
from kafka_ratchet.spark_sink.stores.decision import Decision, RepairNote, Replacement, StoreCheck

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

MASTER = "local[2]"


@dataclass(frozen=True)
class SinkTask:
    """Task of a peer.

    Attributes:
        kind: usual or nothing
        path: folder of the table; the checkpoint is next to it
        columns: Spark DDL of the values' fields
        at_a_time: offsets per commit
        jars: jars of Delta, with dependencies
    """

    kind: str
    bootstrap: str
    topic: str
    path: str
    columns: str
    at_a_time: int
    jars: list[str]


class DroppingStore:
    """Result store that lets Spark compute all rows, and drops them."""

    restricted_values: int = False
    needs_local_master = ""
    judges = False

    def generation(self) -> int:
        """Return 0, because no generation is stored."""
        return 0

    def other_jobs(self) -> list[str]:
        return []

    def offsets(self) -> dict[int, int]:
        """Return no offsets, because nothing is kept."""
        return {}

    def first_offsets(self) -> dict[int, int]:
        return {}

    def columns(self) -> None:
        """Return None, because there is no table."""

    def column_names(self) -> list[str] | None:
        return None

    def require_fits(self, schema: StructType) -> None:
        """Accept every schema, because there is no table."""

    def require_write_mode(self) -> None:
        """Accept every write mode, because nothing is kept."""

    def open(self, schema: StructType) -> dict[int, int]:
        """Return no offsets, because nothing is kept."""
        return {}

    def commit(
        self,
        dataframe: DataFrame,
        start: dict[int, int],
        end: dict[int, int],
        rejects: DataFrame | None = None,
        sequences: DataFrame | None = None,
    ) -> int:
        """Make Spark compute the rows, and keep none."""
        dataframe.write.format("noop").mode("overwrite").save()
        return 0

    def check_before_commit(self, check: Callable[[], object]) -> None:
        """Call no check, because nothing is kept."""

    def check(self) -> StoreCheck:
        """Return a `StoreCheck` without offsets and problems, because nothing is kept."""
        return StoreCheck({}, {}, "")

    def other_sources(self) -> list[str]:
        return []

    def replace(
        self, dataframe: DataFrame, first: dict[int, int], last: dict[int, int], rejects: DataFrame | None = None
    ) -> int:
        """Replace nothing, because nothing is kept."""
        return 0

    def reset_offsets(self, offsets: dict[int, int], decision: Decision) -> int:
        """Return 0, because no offsets are kept."""
        return 0

    def require_repairable(self) -> None:
        """Accept every repair, because nothing is kept."""

    def repair(
        self, rows: Replacement | None, rejects: Replacement | None, start: Mapping[int, int], note: RepairNote
    ) -> None:
        """Repair nothing, because nothing is kept."""

    def close(self) -> None:
        """Do nothing, because nothing is open."""


def nothing(task: SinkTask) -> None:
    """Process all present records with Ratchet's job, without writing rows."""
    job = Job(task.bootstrap, task.topic, "nothing", RowPipeline(task.columns), task.at_a_time)
    jars = [str(jar) for jar in spark_jars()]
    planner = TopicPlanner(task.bootstrap, task.topic, {})
    run_batch(job, planner, DroppingStore(), lambda: spark_session("nothing", jars, MASTER))


def usual(task: SinkTask) -> None:
    """Run a streaming query over all present records, to its end."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    settings = {
        **ROW_SETTINGS,
        **LOCAL_SETTINGS,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.jars": ",".join([*map(str, spark_jars()), *task.jars]),
    }
    builder = SparkSession.builder.master(MASTER).appName("usual")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")

    def append(rows: DataFrame, number: int) -> None:
        writer = rows.write.format("delta").mode("append")
        writer.option("txnAppId", "usual").option("txnVersion", number).save(task.path)
        print(f"commit {number + 1}: at {time.time():.3f}", file=sys.stderr, flush=True)

    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", task.bootstrap)
        .option("subscribe", task.topic)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .option("maxOffsetsPerTrigger", task.at_a_time)
        .load()
    )
    event = F.from_json(F.col("value").cast("string"), task.columns).alias("event")
    rows = records.select(event, "partition", "offset", "timestamp", "key").select(
        "event.*",
        F.col("partition").alias("_kafka_partition"),
        F.col("offset").alias("_kafka_offset"),
        F.col("timestamp").alias("_kafka_timestamp"),
        F.col("key").alias("_kafka_key"),
    )
    query = rows.writeStream.foreachBatch(append).option("checkpointLocation", f"{task.path}.checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    asked = SinkTask(**json.loads(sys.argv[1]))
    {"usual": usual, "nothing": nothing}[asked.kind](asked)
