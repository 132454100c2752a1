"""A checkpoint beside the table, as most jobs have it, next to ours: the same topic, the same loss, other results."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from kafka_ratchet.spark_sink.job.run_state import RunSummary
from kafka_ratchet.spark_sink.spark.dialect import to_arrow
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.results import count


def test_a_lost_checkpoint_doubles_the_rows_of_the_usual_way_and_none_of_ours(
    broker: str,
    spark: SparkSession,
    new_topic: Callable[..., str],
    write: Callable[..., None],
    run: Callable[..., RunSummary],
    table: str,
    tmp_path: Path,
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [b"%d" % n for n in range(50)])
    usual, checkpoint = str(tmp_path / "usual"), tmp_path / "checkpoint"

    def append(rows: DataFrame, _: int) -> None:
        write_deltalake(usual, to_arrow(rows.select("value")), mode="append")

    def run_usual() -> None:
        records = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", broker)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("kafka.isolation.level", "read_committed")
            .load()
        )
        query = records.writeStream.foreachBatch(append).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    for _ in range(2):
        run_usual()
        run(topic)
    assert (DeltaTable(usual).count(), count(TableLocation("delta", table))) == (50, 50)  # on a good day they agree

    shutil.rmtree(checkpoint)
    run_usual()
    # All that ours has is the table. There is nothing beside it to lose.
    assert {entry.name for entry in tmp_path.iterdir()} >= {Path(table).name, "usual"}
    run(topic)
    assert (DeltaTable(usual).count(), count(TableLocation("delta", table))) == (100, 50)
