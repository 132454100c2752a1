"""Changes of a Delta table's rows as its log shows them, without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from kafka_ratchet.spark_sink.files.local import LocalFolder
from kafka_ratchet.spark_sink.rows.identities import Identities
from kafka_ratchet.spark_sink.stores.delta.log import HistoryBreak, Log
from kafka_ratchet.spark_sink.stores.delta.repair import rewrite

ROWS = pa.table({"who": ["a", "b", "a"], "amount": pa.array([1, 2, 3], pa.int64())})


def test_added_rows_leave_the_others_and_a_missing_entry_is_unknown(tmp_path: Path) -> None:
    for _ in range(3):
        write_deltalake(str(tmp_path), ROWS, mode="append")
    table = DeltaTable(str(tmp_path))
    log = Log(LocalFolder(tmp_path), table, "job")
    assert log.break_since(0) is None
    (tmp_path / "_delta_log" / f"{1:020d}.json").unlink()
    assert log.break_since(1) is None
    assert log.break_since(0) == HistoryBreak("unknown", 1)
    write_deltalake(table, ROWS, mode="overwrite")
    table.update_incremental()
    assert log.break_since(0) == HistoryBreak("replaced", 3, "WRITE")


def test_a_rewritten_file_keeps_its_partition(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), ROWS, partition_by=["who"])
    table = DeltaTable(str(tmp_path))
    [found] = rewrite(table, LocalFolder(tmp_path), Identities(pa.table({"amount": [3]})), "part-job.1")
    assert found.partition == {"who": "a"}
    assert found.new is not None
    assert found.new.rows == 1


def test_an_overwrite_of_a_partitioned_table_may_be_of_some_partitions(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), ROWS, partition_by=["who"])
    write_deltalake(str(tmp_path), ROWS, mode="overwrite")  # Spark's dynamic overwrite names no partition either
    found = Log(LocalFolder(tmp_path), DeltaTable(str(tmp_path)), "job").break_since(0)
    assert found is not None
    assert found.sentence.startswith("all rows of the table, or of some of its partitions, were replaced or removed")
