"""The `txn` actions of a Delta table are read in one pass, however many Kafka partitions there are."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from kafka_ratchet.spark_sink.files.local import LocalFolder
from kafka_ratchet.spark_sink.stores.delta.log import LOG
from kafka_ratchet.spark_sink.stores.delta.store import DeltaStore
from kafka_ratchet.spark_sink.stores.delta.transactions import TransactionReader
from kafka_ratchet.spark_sink.stores.optimistic import Staged
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import delta_store

SCHEMA = StructType([StructField("_kafka_partition", IntegerType()), StructField("_kafka_offset", LongType())])


def filled(path: str, partitions: int, commits: int, more: int = 0) -> DeltaStore:
    """Return an open store after some commits without rows, and `more` behind a checkpoint."""
    store = delta_store(path, "job", "events", 7 << 100)
    store.open(SCHEMA)
    for number in range(1, commits + more + 1):
        commit(store, dict.fromkeys(range(partitions), number))
        if number == commits and more:
            DeltaTable(path).create_checkpoint()
    return store


def commit(store: DeltaStore, end: dict[int, int]) -> None:
    """Commit as the store does, without the tasks."""
    table = store._table
    assert table is not None
    store._consistency.require_same_table(store._table_id, store._version)
    store._refresh(table)
    store._require_holder(table, store._stored(table))
    store._write(table, Staged(0), 1, end)
    store._after_commit()


def test_a_commit_reads_as_many_files_for_many_partitions_as_for_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_by_one(table: DeltaTable, app_id: str) -> int | None:
        raise AssertionError(f"the log was read for {app_id} alone")

    read: list[str] = []
    plain = LocalFolder.read

    def counted(folder: LocalFolder, name: str, *inner: str) -> bytes | None:
        read.append(name)
        return plain(folder, name, *inner)

    found = {}
    for partitions in (4, 400):
        store = filled(str(tmp_path / f"{partitions}"), partitions, 5)
        monkeypatch.setattr(DeltaTable, "transaction_version", one_by_one)
        monkeypatch.setattr(LocalFolder, "read", counted)
        read.clear()
        commit(store, dict.fromkeys(range(partitions), 6))
        found[partitions] = len(read)
        assert store.offsets() == dict.fromkeys(range(partitions), 6)
        monkeypatch.undo()
    assert found[4] == found[400]


def test_an_entry_names_the_partitions_that_have_moved(tmp_path: Path) -> None:
    store = filled(str(tmp_path / "t"), 50, 2)
    commit(store, {**dict.fromkeys(range(50), 2), 7: 3})
    table = DeltaTable(str(tmp_path / "t"))
    entry = LocalFolder(tmp_path / "t").read(f"{table.version():020d}.json", LOG)
    names = [action["txn"]["appId"] for line in (entry or b"").splitlines() if "txn" in (action := json.loads(line))]
    moved = [name for name in names if name.startswith("ratchet-sink/job/events/") and name[-1].isdecimal()]
    assert sorted(moved) == ["ratchet-sink/job/events/49", "ratchet-sink/job/events/7"]
    assert delta_store(str(tmp_path / "t"), "job", "events").offsets() == {**dict.fromkeys(range(50), 2), 7: 3}


@pytest.mark.parametrize("more", [0, 3])
def test_what_is_read_is_what_delta_rs_says(tmp_path: Path, more: int) -> None:
    path = tmp_path / "t"
    store = filled(str(path), 3, 3, more)
    names = [f"ratchet-sink/job/events/{each}" for each in (0, 1, 2, 3, "partitions", "identity")]
    reader = TransactionReader(LocalFolder(path))

    def compared() -> None:
        table = DeltaTable(str(path))
        known = reader.of(table)
        assert known is not table
        for name in [*names, "ratchet-sink/job/generation", "another"]:
            assert known.transaction_version(name) == table.transaction_version(name), name

    compared()
    commit(store, dict.fromkeys(range(4), 9))
    compared()
    DeltaTable(str(path)).create_checkpoint()
    commit(store, dict.fromkeys(range(4), 10))
    compared()


def test_a_checkpoint_of_the_first_version_is_read(tmp_path: Path) -> None:
    DeltaTable.create(
        str(tmp_path),
        pa.schema([("n", pa.int64())]),
        commit_properties=CommitProperties(app_transactions=[Transaction("ratchet-sink/job/events/0", 7)]),
    )
    table = DeltaTable(str(tmp_path))
    table.create_checkpoint()
    known = TransactionReader(LocalFolder(tmp_path)).of(table)
    assert known is not table
    assert known.transaction_version("ratchet-sink/job/events/0") == 7


def test_a_table_that_was_made_again_is_read_from_its_beginning(tmp_path: Path) -> None:
    reader = TransactionReader(LocalFolder(tmp_path / "t"))
    filled(str(tmp_path / "t"), 3, 6)
    assert reader.of(DeltaTable(str(tmp_path / "t"))).transaction_version("ratchet-sink/job/events/1") == 6
    (tmp_path / "t").rename(tmp_path / "away")
    filled(str(tmp_path / "t"), 3, 8)
    other = DeltaTable(str(tmp_path / "t"))
    assert reader.of(other).transaction_version("ratchet-sink/job/events/1") == 8
    old = DeltaTable(str(tmp_path / "t"), version=4)
    assert reader.of(old).transaction_version("ratchet-sink/job/events/1") == old.transaction_version(
        "ratchet-sink/job/events/1"
    )


def test_a_log_that_cannot_be_read_whole_is_left_to_delta_rs(tmp_path: Path) -> None:
    path = tmp_path / "t"
    filled(str(path), 3, 4, 2)
    checkpoint = next((path / LOG).glob("*.checkpoint.parquet"))
    kept = json.loads((path / LOG / "_last_checkpoint").read_text())
    (path / LOG / "_last_checkpoint").write_text(json.dumps({**kept, "parts": 2}))
    table = DeltaTable(str(path))
    assert checkpoint.exists()
    assert TransactionReader(LocalFolder(path)).of(table).transaction_version("ratchet-sink/job/events/1") == 6


def test_readers_leave_files_out_by_the_statistics(tmp_path: Path, spark: SparkSession) -> None:
    path = str(tmp_path / "t")
    store = delta_store(path, "job", "events")
    schema = struct_of("_kafka_partition int, _kafka_offset long, n int, who string")
    store.open(schema)
    for number in range(3):
        rows = [(0, number * 10 + n, number * 10 + n, f"who {number}") for n in range(10)]
        start, end = ({0: at * 10} for at in (number, number + 1))
        store.commit(spark.createDataFrame(rows, schema).coalesce(1), start, end)
    table = DeltaTable(path)
    actions = table.get_add_actions(flatten=True)
    found = {name: sorted(actions[name].to_pylist()) for name in ("min.n", "max.n", "null_count.who", "num_records")}
    assert found == {"min.n": [0, 10, 20], "max.n": [9, 19, 29], "null_count.who": [0] * 3, "num_records": [10] * 3}
    fragments = list(table.to_pyarrow_dataset().get_fragments(ds.field("n") == 15))
    assert len(fragments) == 1
