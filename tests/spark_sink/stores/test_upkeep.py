"""Checkpoints, compaction, clean-up: what keeps a table quick loses neither offsets nor the holder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kafka_ratchet.spark_sink.errors import Fenced, RowsLost, TopicRecreated
from kafka_ratchet.spark_sink.stores.decision import decide
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.optimistic import Staged
from kafka_ratchet.spark_sink.stores.results import count
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import delta_store, iceberg_store

Frame = Callable[..., DataFrame]


@pytest.fixture(scope="module")
def schema(spark: SparkSession) -> StructType:
    return struct_of("who string, amount long")


@pytest.fixture
def frame(spark: SparkSession, schema: StructType) -> Frame:
    return lambda *rows: spark.createDataFrame(list(rows), schema)


def keep_up(path: str) -> None:
    """Everything that shortens a Delta table, as if all of it were due at once."""
    delta = DeltaTable(path)
    delta.optimize.compact()
    delta.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    delta.create_checkpoint()
    delta.cleanup_metadata()
    delta.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def test_a_compacted_cleaned_and_vacuumed_delta_table_knows_its_jobs(
    table: str, schema: StructType, frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = delta_store(table, "idle", "events", 78)  # has not committed for long when its entries are cleaned up
    idle.open(schema)
    idle.commit(frame(("idle", 1)), {5: 0}, {5: 9})
    older, store = delta_store(table, "job", "events", 77), delta_store(table, "job", "events", 77)
    older.open(schema)
    store.open(schema)
    store.commit(frame(("a", 1)), {0: 0}, {0: 1})
    keep_up(table)
    entries = {entry.name for entry in Path(table, "_delta_log").glob("*.json")}
    assert "00000000000000000000.json" not in entries
    assert len(list(Path(table).glob("*.parquet"))) == 1
    # Nothing says any more whether the table was restored while it was idle: somebody else has added rows meanwhile.
    idle = delta_store(table, "idle", "events", 78)
    assert (idle.check().stored, idle.generation()) == ({5: 9}, 1)
    with pytest.raises(RowsLost, match=r"cleaned up to version \d+ since this job's last commit"):
        idle.offsets()
    idle.reset_offsets({5: 9}, decide("stored", "nobody has restored it"))
    for name, topic_id, offsets, generation in (("job", 77, {0: 1}, 2), ("idle", 78, {5: 9}, 2)):
        again = delta_store(table, name, "events", topic_id)
        assert (again.offsets(), again.generation()) == (offsets, generation)
        with pytest.raises(TopicRecreated):
            delta_store(table, name, "events", 79).offsets()
    with pytest.raises(Fenced, match="generation 2 has taken over from 1"):
        older.commit(frame(("older", 1)), {0: 1}, {0: 2})

    def compact(point: str) -> None:
        if point == "before-commit":  # the rows are on their way, and the log moves on under them
            monkeypatch.undo()
            DeltaTable(table).optimize.compact()
            DeltaTable(table).create_checkpoint()

    assert store.commit(frame(("b", 1)), {0: 1}, {0: 2}) == 1
    monkeypatch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", compact)
    version = DeltaTable(table).version()
    assert store.commit(frame(("c", 1)), {0: 2}, {0: 3}) == 1
    assert DeltaTable(table).version() == version + 2
    assert (store.offsets(), count(TableLocation("delta", table))) == ({0: 3}, 4)


def test_a_delta_log_is_checkpointed_and_cleaned_by_the_commits_themselves(table: str, schema: StructType) -> None:
    store = delta_store(table, "job", "events", 77)
    store.open(schema)
    DeltaTable(table).alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    delta = DeltaTable(table)
    for offset in range(1, 110):
        store._write(delta, Staged(0), 1, {0: offset})
        store._refresh(delta)
    log = {entry.name for entry in Path(table, "_delta_log").iterdir()}
    assert "00000000000000000099.checkpoint.parquet" in log
    assert len(log) < 20
    assert (store.offsets(), store.generation()) == ({0: 109}, 1)


def test_iceberg_forgets_snapshots_and_neither_rows_nor_offsets(
    tmp_path: Path, schema: StructType, frame: Frame
) -> None:
    path = str(tmp_path / "results")
    store = iceberg_store(path, "results", "job", "events", 77)
    store.open(schema)
    store.commit(frame(("a", 1)), {0: 0}, {0: 1})
    other = iceberg_store(path, "results", "other", "events")
    table = store._find()
    assert table is not None
    first = table.current_snapshot()
    assert first is not None
    table.manage_snapshots().create_tag(first.snapshot_id, "kept by its name").commit()
    with table.transaction() as transaction:
        transaction.set_properties(
            {"history.expire.min-snapshots-to-keep": "2", "history.expire.max-snapshot-age-ms": "0"}
        )
    counts = []
    for _ in range(6):
        other.open(schema)  # a snapshot each
        table.refresh()
        counts.append(len(table.snapshots()))
    assert counts[2:] == [5, 4, 5, 4]  # two that are kept, the named one, and one or two new ones
    assert table.snapshot_by_id(first.snapshot_id) is not None
    assert (store.offsets(), other.generation()) == ({0: 1}, 6)
    assert store.commit(frame(("b", 1)), {0: 1}, {0: 2}) == 1
    table.refresh()
    assert sorted(table.scan().to_arrow()["who"].to_pylist()) == ["a", "b"]
    iceberg_store(path, "results", "job", "events", 77).open(schema)
    with pytest.raises(Fenced):
        store.commit(frame(("older", 1)), {0: 2}, {0: 3})
