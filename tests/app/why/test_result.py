"""Commit by which a record came into the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql.types import LongType, StructType

from kafka_ratchet.app.settings import Settings, SinkSettings, StreamSettings
from kafka_ratchet.app.status.results import access_of, planner_of, spec_of
from kafka_ratchet.app.verify.reading import TopicReader
from kafka_ratchet.app.why.answer import RecordPosition
from kafka_ratchet.app.why.result import find_rows, oldest_past
from kafka_ratchet.app.why.scan import Scan
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.results import partition_and_offset, scan


@pytest.mark.parametrize(
    ("offset", "commit"),
    [(0, "version 1"), (4, "version 1"), (5, "version 3"), (8, "version 3"), (9, None)],
)
def test_it_is_the_oldest_whose_offset_is_past_it(offset: int, commit: str | None) -> None:
    commits = [
        ("version 4", {0: 9}),
        ("version 3", {0: 9}),
        ("version 2", {0: 5}),
        ("version 1", {0: 5}),
        ("version 0", {}),
    ]
    assert oldest_past(commits, RecordPosition("out", 0, offset)) == commit


def test_where_older_ones_are_cleaned_up_it_is_that_or_an_older_one() -> None:
    assert oldest_past([("version 9", {0: 50})], RecordPosition("out", 0, 7)) == "version 9 at the latest"
    assert oldest_past([], RecordPosition("out", 0, 7)) is None


def test_rows_of_other_records_are_left_out_where_the_store_can(tmp_path: Path) -> None:
    for partition in (0, 1):
        rows = {
            "_kafka_partition": pa.array([partition] * 3, pa.int32()),
            "_kafka_offset": pa.array([1, 2, 3], pa.int64()),
        }
        write_deltalake(str(tmp_path), pa.table(rows), mode="append")
    found = scan(TableLocation("delta", str(tmp_path), "results"), partition_and_offset(), records=(1, 2, 3))
    assert sorted(
        row["_kafka_offset"] for batch in found for row in batch.to_pylist() if row["_kafka_partition"] == 1
    ) == [2, 3]
    found = scan(TableLocation("delta", str(tmp_path), "results"), partition_and_offset(), records=(1, 9, 9))
    assert sum(batch.num_rows for batch in found) == 0


def test_each_sink_of_the_stream_says_what_its_table_has(
    broker: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=1)
    stream = StreamSettings(input=new_topic(partitions=1), output=topic, dead_letters=new_topic(partitions=1))
    sinks = {
        name: SinkSettings(store="duckdb", path=str(tmp_path / name), name=name) for name in ("one", "two", "unused")
    }
    away = SinkSettings(path=__file__, name="away")
    settings = Settings(bootstrap=broker, streams={"events": stream}, sinks={**sinks, "away": away})
    for name, rows, read_to in (("one", 1, 7), ("two", 0, 5)):
        kept = settings.of_sink(name)
        store = spec_of(kept, topic, broker).result_store(
            spec_of(kept, topic, broker).pipeline(), access_of(kept), planner_of(broker, kept, topic).topic_id()
        )
        store.open(StructType().add("_kafka_partition", LongType()).add("_kafka_offset", LongType()))
        with duckdb.connect(sinks[name].path) as database:
            for _ in range(rows):
                database.execute("INSERT INTO results VALUES (0, 5)")
            database.execute(
                "INSERT INTO ratchet_sink_offsets VALUES ('results', ?, ?, 0, ?, 0)", [name, topic, read_to]
            )
    scan = Scan(TopicReader(settings, stream, broker), 60, lambda done, total: None)
    place = RecordPosition(topic, 0, 5)
    found, limits = find_rows(settings, "events", broker, [place], scan)
    assert [(each.job, each.rows, each.read_to) for each in found[place]] == [("one", 1, 7), ("two", 0, 5)]
    (limit,) = limits
    assert limit.startswith("the result table of sink away cannot be read: ")
