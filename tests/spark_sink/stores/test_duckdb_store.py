"""What is particular about a file: who else has it open, what lies beside it, what it is not."""

from __future__ import annotations

import decimal
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from kafka_ratchet.spark_sink.errors import OptionRefused, SchemaDiffers, StoreError
from kafka_ratchet.spark_sink.rows.columns import record_schema
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.decision import decide
from kafka_ratchet.spark_sink.stores.duckdb.job_state import TABLES, JobState
from kafka_ratchet.spark_sink.stores.duckdb.store import DuckDBStore, add
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import duckdb_store


def test_only_what_earlier_holders_left_is_removed(tmp_path: Path) -> None:
    def store(table: str = "results") -> DuckDBStore:
        return duckdb_store(str(tmp_path / "file"), table, "job", "events")

    store().open(record_schema())
    mine, others = store()._staged_prefix, store("other")._staged_prefix
    left, later = tmp_path / f"{mine}1-abc", tmp_path / f"{mine}7-abc"
    strangers = [tmp_path / name for name in ("1-abc", "1", f"{others}1-abc", f"{mine}x-abc", ".file")]
    for folder in (left, later, *strangers):
        folder.mkdir()
        (folder / "part").write_text("x")
    store().open(record_schema())
    assert not left.exists()
    assert all((folder / "part").exists() for folder in (later, *strangers))


def test_columns_of_local_times_are_read_back_as_they_were_made(tmp_path: Path) -> None:
    schema = StructType([*record_schema().fields]).add("local", "timestamp_ntz").add("at", "timestamp")
    for _ in range(2):
        store = duckdb_store(str(tmp_path / "file"), "results", "job", "events")
        store.open(store.columns() or schema)
    found = store.columns()
    assert found is not None
    assert {name: found[name].dataType for name in found.names} == {each.name: each.dataType for each in schema.fields}


def test_a_process_that_has_the_file_open_is_waited_for_and_named_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    store = duckdb_store(str(path), "results", "job", "events")
    store.open(record_schema())
    holding = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holding, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with monkeypatch.context() as patch:
            patch.setattr("kafka_ratchet.spark_sink.stores.duckdb.file.LOCK_PATIENCE_S", 0.0)
            with pytest.raises(StoreError, match=f"lock.*{other.pid}"):
                store.offsets()
        # Gone while this one waits. The store's name for the module is replaced: other threads sleep by time.sleep too.
        waiting = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: other.communicate())
        monkeypatch.setattr("kafka_ratchet.spark_sink.stores.duckdb.file.time", waiting)
        assert store.offsets() == {}


def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "garbage").write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match=r"garbage: .*not a valid DuckDB database"):
        duckdb_store(str(tmp_path / "garbage"), "results", "job", "events").offsets()
    with pytest.raises(StoreError, match="is a folder"):
        duckdb_store(str(tmp_path), "results", "job", "events").open(record_schema())
    with duckdb.connect(str(tmp_path / "other")) as database:
        database.execute("CREATE TABLE results (x INTEGER)")
    assert duckdb_store(str(tmp_path / "other"), "results", "job", "events").offsets() == {}


@pytest.mark.parametrize("path", ["s3://bucket/file", ":memory:", "a\0b"])
def test_paths_that_are_no_files_are_refused(path: str) -> None:
    with pytest.raises(OptionRefused):
        duckdb_store(path, "results", "job", "events")


@contextmanager
def signal_soon() -> Iterator[None]:
    """The handler of a signal raises something while the query runs: what Ctrl-C does, and a test's time limit."""

    def handler(*_: object) -> None:
        raise TimeoutError("enough")

    before = signal.signal(signal.SIGUSR1, handler)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        yield
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def never_ends(database: duckdb.DuckDBPyConnection, first: str) -> None:
    database.execute(
        "SET threads = 1"
    )  # where others compute, the main thread may wait for them without a look at signals
    database.execute(first)
    with signal_soon():
        database.execute("SELECT sum(a.range * b.range % 7) FROM range(1000000) a, range(1000000) b")


def test_a_signal_amid_a_query_is_a_sentence_and_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    # DuckDB raises RuntimeError for it, which is none of its own errors, and forgets what the handler raised.
    store = duckdb_store(str(tmp_path / "file"), "results", "job", "events")
    store.open(record_schema())
    said = r"file: a signal has interrupted a query of the job \(Ctrl-C, .*Run the job again to continue"
    for opened, first in ((store._file.writing, "DELETE FROM ratchet_sink_jobs"), (store._file.reading, "SELECT 1")):
        with pytest.raises(StoreError, match=said), opened() as database:
            never_ends(database, first)
    assert store.generation() == 1
    with pytest.raises(RuntimeError, match="of another kind"), store._file.reading():
        raise RuntimeError("of another kind")


def test_a_signal_amid_a_commit_ends_the_job_even_if_the_commit_is_done(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = duckdb_store(str(tmp_path / "file"), "results", "job", "events")
    store.open(record_schema())
    change_in = store._in_transaction

    def interrupted(*arguments: Any) -> None:
        change_in(*arguments)
        with store._file.reading():
            raise RuntimeError("Query interrupted")

    monkeypatch.setattr(store, "_in_transaction", interrupted)
    with pytest.raises(StoreError, match="a signal has interrupted"):
        store.commit(spark.createDataFrame([], record_schema()), {}, {0: 1})
    assert store.offsets() == {0: 1}
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_one_table_has_one_name(tmp_path: Path) -> None:
    """DuckDB takes small and capital letters for one: by the other name all would be read again, into one table."""
    path = str(tmp_path / "file")
    duckdb_store(path, "results", "job", "events").open(record_schema())
    other = duckdb_store(path, "Results", "job", "events")
    for ask in (other.require_write_mode, lambda: other.open(record_schema())):
        with pytest.raises(StoreError, match="a job has already filled table Results under the name results"):
            ask()
    duckdb_store(path, "results", "job", "events").open(record_schema())
    duckdb_store(path, "results2", "job", "events").open(record_schema())


def test_jobs_that_fill_one_table_by_two_names_go_on(tmp_path: Path) -> None:
    """As an earlier version let them: each has its offsets by its own."""
    path = str(tmp_path / "file")
    duckdb_store(path, "results", "first", "events").open(record_schema())
    with duckdb.connect(path) as database:
        database.execute("INSERT INTO ratchet_sink_jobs SELECT 'Results', 'second', 1")
    for table, job in (("results", "first"), ("Results", "second"), ("results", "third"), ("Results", "fourth")):
        duckdb_store(path, table, job, "events").require_write_mode()
    for table, job in (("Results", "first"), ("results", "second")):
        with pytest.raises(StoreError, match=f"a job has already filled table {table} under the name"):
            duckdb_store(path, table, job, "events").require_write_mode()


def test_a_table_that_was_renamed_is_not_a_new_one(tmp_path: Path) -> None:
    """Its offsets stay with the old name: by the new one all would be read again, behind the rows that are there."""
    path = str(tmp_path / "file")
    store = duckdb_store(path, "results", "job", "events")
    store.open(record_schema())
    store.reset_offsets({0: 1}, decide("latest", "as if it had committed so far"))
    duckdb_store(path, "empty", "job", "events").open(record_schema())
    with duckdb.connect(path) as database:
        database.execute("INSERT INTO results VALUES (0, 0, now(), NULL, NULL)")
        database.execute("ALTER TABLE results RENAME TO clicks")
    renamed = duckdb_store(path, "clicks", "job", "events")
    for ask in (renamed.require_write_mode, lambda: renamed.open(record_schema())):
        with pytest.raises(StoreError, match=r"table clicks has rows but no stored offsets\. .* for table results, "):
            ask()
    duckdb_store(path, "clicks", "job", "another").require_write_mode()
    with duckdb.connect(path) as database:
        database.execute("ALTER TABLE clicks RENAME TO results")
    assert duckdb_store(path, "results", "job", "events").open(record_schema()) == {0: 1}
    duckdb_store(path, "another", "job", "events").open(record_schema())


def test_a_column_whose_type_somebody_changes_is_named_and_no_value_is_rounded(
    tmp_path: Path, spark: SparkSession
) -> None:
    columns = "_kafka_partition int, _kafka_offset long, amount decimal(12,2)"
    holder = duckdb_store(str(tmp_path / "file"), "results", "job", "events")
    holder.open(struct_of(columns))

    def commit(at: int) -> int:
        brought = spark.createDataFrame([(0, at, decimal.Decimal("1.55"))], columns)
        return holder.commit(brought, {0: at}, {0: at + 1})

    def alter(kind: str) -> None:
        with duckdb.connect(str(tmp_path / "file")) as database:
            database.execute(f"ALTER TABLE results ALTER amount SET DATA TYPE {kind}")

    commit(0)
    alter("DECIMAL(14,4)")  # as another job's `evolve` makes it: each value is one of it
    commit(1)
    alter("DECIMAL(12,1)")
    with pytest.raises(SchemaDiffers, match=r"amount .* is DECIMAL\(12,1\) in the table and DECIMAL\(12,2\)"):
        commit(2)
    assert duckdb_store(str(tmp_path / "file"), "results", "job", "events").offsets() == {0: 2}
    assert holder.count() == 2


def test_the_number_of_the_sequences_is_that_of_the_last_move(tmp_path: Path) -> None:
    state = JobState("results", "job", "events", 0, ["results"])
    with duckdb.connect(str(tmp_path / "file")) as database:
        assert state.sequences(database) == 0
        database.execute(TABLES)
        assert state.sequences(database) == 0
        state.move_sequences(database, 7)
        assert state.sequences(database) == 7


@pytest.mark.parametrize("columns", [(), ("who", "_records")])
@pytest.mark.parametrize("write_mode", [WriteMode("upsert", ("who",)), WriteMode("totals", ("who",))])
def test_a_collation_makes_no_two_keys_one(write_mode: WriteMode, columns: tuple[str, ...]) -> None:
    with duckdb.connect() as database:
        database.execute("CREATE TABLE results (who VARCHAR COLLATE NOCASE, _records BIGINT)")
        for who in ("a", "A", None, "a", None):
            database.register("source", pa.table({"who": pa.array([who], pa.string()), "_records": [1]}))
            assert add(database, "results", write_mode, deletes=False, columns=columns) == 1
        found = database.execute("SELECT encode(who), _records FROM results").fetchall()
    twice = 2 if write_mode.kind == "totals" else 1
    assert sorted(found, key=str) == sorted([(b"A", 1), (b"a", twice), (None, twice)], key=str)
