"""The store alone: one holder, offsets and rows together, other writers of the table do no harm."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from kafka_ratchet.spark_sink.errors import Fenced, OptionRefused, StoreError, TopicRecreated
from kafka_ratchet.spark_sink.files.parquet import WrittenFile, write_files
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.results import count, read_totals
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import delta_store

Frame = Callable[..., DataFrame]


@pytest.fixture(scope="module")
def schema(spark: SparkSession) -> StructType:
    return struct_of("who string, amount long")


@pytest.fixture
def frame(spark: SparkSession, schema: StructType) -> Frame:
    return lambda *rows: spark.createDataFrame(list(rows), schema)


def test_offsets_of_sparse_partitions_come_back(table: str, schema: StructType, frame: Frame) -> None:
    store = delta_store(table, "job", "events")
    assert store.offsets() == {}
    assert store.open(schema) == {}
    assert store.commit(frame(("a", 1), ("b", 2)), {3: 0, 17: 5}, {3: 2, 17: 5}) == 2
    assert store.offsets() == {3: 2, 17: 5}
    assert store.commit(frame(), {3: 2, 17: 5}, {3: 9, 17: 6}) == 0
    assert delta_store(table, "job", "events").open(schema) == {3: 9, 17: 6}
    assert delta_store(table, "job", "other-topic").offsets() == {}
    assert count(TableLocation("delta", table)) == 2


def test_the_older_of_two_jobs_is_fenced_before_and_after_its_files_are_written(
    table: str, schema: StructType, frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = delta_store(table, "job", "events"), delta_store(table, "job", "events")
    older.open(schema)
    older.commit(frame(("a", 1)), {0: 0}, {0: 1})
    assert newer.open(schema) == {0: 1}
    with pytest.raises(Fenced, match="generation 2 has taken over from 1"):
        older.commit(frame(("older", 1)), {0: 1}, {0: 2})
    newer.commit(frame(("b", 1)), {0: 1}, {0: 2})

    third = delta_store(table, "job", "events")

    def take_over_at(point: str) -> None:
        if point == "before-commit":
            third.open(schema)

    monkeypatch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", take_over_at)
    with pytest.raises(Fenced, match="generation 3 has taken over from 2"):
        newer.commit(frame(("newer", 1)), {0: 2}, {0: 3})
    assert third.offsets() == {0: 2}
    assert read_totals(TableLocation("delta", table), "who", ["amount"]) == {"a": {"amount": 1}, "b": {"amount": 1}}


def test_jobs_of_other_names_share_the_table(
    table: str, schema: StructType, frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = delta_store(table, "one", "events"), delta_store(table, "other", "events")
    one.open(schema)
    other.open(schema)

    def let_the_other_be_first(point: str) -> None:
        if point == "before-commit":
            monkeypatch.undo()
            other.commit(frame(("other", 1)), {0: 0}, {0: 4})

    monkeypatch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", let_the_other_be_first)
    assert one.commit(frame(("one", 1)), {0: 0}, {0: 1}) == 1
    assert (one.offsets(), other.offsets()) == ({0: 1}, {0: 4})
    assert count(TableLocation("delta", table)) == 2


def test_a_failure_after_the_log_entry_is_in_place_is_no_failure(
    table: str, schema: StructType, frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake.exceptions import DeltaError

    store = delta_store(table, "job", "events")
    store.open(schema)
    write = DeltaTable.create_write_transaction

    def write_and_fail(*arguments: Any, **options: Any) -> None:
        write(*arguments, **options)
        raise DeltaError("the checkpoint could not be written")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", write_and_fail)
    assert store.commit(frame(("a", 1)), {0: 0}, {0: 1}) == 1
    assert (store.offsets(), count(TableLocation("delta", table))) == ({0: 1}, 1)


def test_only_user_metadata_is_added_to_the_commit(table: str, schema: StructType, frame: Frame) -> None:
    store = delta_store(table, "job", "events")
    store.open(schema)
    store.commit(frame(("a", 1)), {0: 0}, {0: 1})
    entry = max(Path(table, "_delta_log").glob("*.json")).read_text("utf-8")
    [info] = [action["commitInfo"] for action in map(json.loads, entry.splitlines()) if "commitInfo" in action]
    assert json.loads(info["userMetadata"]) == {
        "job": "job",
        "topic": "events",
        "generation": 1,
        "offsets": {"0": 1},
        "table": str(DeltaTable(table).metadata().id),
    }
    assert "job" not in info


def test_another_topic_of_the_same_name_is_refused(table: str, schema: StructType, frame: Frame) -> None:
    store = delta_store(table, "job", "events", 1111)
    store.open(schema)
    store.commit(frame(("a", 1)), {0: 0}, {0: 1})
    again = delta_store(table, "job", "events", 2222)
    for use in (again.offsets, lambda: again.open(schema)):
        with pytest.raises(TopicRecreated, match=r"topic events is not the one .*\{0: 1\}.*ratchet sink resume"):
            use()
    assert delta_store(table, "job", "events", 0).offsets() == {0: 1}  # a broker that gives no id


@pytest.mark.parametrize(
    ("path", "name", "topic"),
    [
        ("t", "../up", "events"),
        ("t", "a/b", "events"),
        ("t", "", "events"),
        ("t", "job\n", "events"),
        ("t", "job", "a/b"),
        ("t", "job", ".."),
        ("s3://bucket", "job", "events"),
        ("s3://bucket/../t", "job", "events"),
        ("s3://bucket/t%20t", "job", "events"),
        ("s3://bucket/t#1", "job", "events"),
        ("s3://user:password@bucket/t", "job", "events"),
        ("gs://bucket/t", "job", "events"),
        ("a%20b", "job", "events"),
    ],
)
def test_names_and_paths_that_could_mean_something_else_are_refused(path: str, name: str, topic: str) -> None:
    with pytest.raises(OptionRefused):
        delta_store(path, name, topic)


def test_a_file_or_a_folder_without_rights_is_named(tmp_path: Path, schema: StructType) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"file is a file, not the folder"):
        delta_store(str(tmp_path / "file"), "job", "events").offsets()
    with pytest.raises(StoreError, match="folder cannot be made"):
        delta_store("/proc/nowhere/table", "job", "events").open(schema)


def test_totals(table: str, schema: StructType, frame: Frame) -> None:
    store = delta_store(table, "job", "events")
    store.open(schema)
    store.commit(frame(("b", 2**60), ("a", 1), (None, 5)), {0: 0}, {0: 3})
    store.commit(frame(("a", None), ("a", -4), ("c", None)), {0: 3}, {0: 6})
    assert read_totals(TableLocation("delta", table), "who", ["amount"]) == {
        "": {"amount": 5},
        "a": {"amount": -3},
        "b": {"amount": 2**60},
        "c": {"amount": 0},
    }
    with pytest.raises(OptionRefused, match="no column 'whom'"):
        read_totals(TableLocation("delta", table), "whom", ["amount"])


def test_totals_of_no_table(table: str) -> None:
    with pytest.raises(StoreError, match="there is no result table"):
        count(TableLocation("delta", table))


def test_who_finds_its_staged_files_removed_is_fenced(
    table: str, schema: StructType, frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mode = WriteMode("upsert", ("who",))
    store = delta_store(table, "job", "events", write_mode=write_mode)
    store.open(schema)

    def taken_over(*arguments: Any) -> list[WrittenFile]:
        delta_store(table, "job", "events", write_mode=write_mode).open(
            schema
        )  # removes the folder that the tasks write to
        return write_files(*arguments)

    monkeypatch.setattr("kafka_ratchet.spark_sink.stores.delta.store.write_files", taken_over)
    with pytest.raises(Fenced, match="generation 2 has taken over from 1"):
        store.commit(frame(("a", 1)), {0: 0}, {0: 1})
    assert count(TableLocation("delta", table)) == 0


def test_a_run_removes_staged_files_of_its_own_older_runs_alone(table: str) -> None:
    columns = StructType([StructField("who", StringType())])
    delta_store(table, "job", "events").open(columns)
    staged = Path(table, "_ratchet_staged")
    for name in ("job.0", "job.2", "job.later", "other.0"):
        (staged / name).mkdir(parents=True)
        (staged / name / "rows.parquet").touch()
    delta_store(table, "job", "events").open(columns)
    assert sorted(path.name for path in staged.iterdir()) == ["job.2", "job.later", "other.0"]
