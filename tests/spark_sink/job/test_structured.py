"""Structured Streaming with a throw-away checkpoint: killed, its folder deleted, and begun again from the store."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_ratchet.spark_sink.errors import Fenced, OffsetsLost, OptionRefused, TopicRecreated
from kafka_ratchet.spark_sink.job.plan import OffsetRange, TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.run_state import RunState, RunSummary
from kafka_ratchet.spark_sink.job.structured import run_structured
from kafka_ratchet.spark_sink.rows.avro.avro import avro_values
from kafka_ratchet.spark_sink.rows.columns import record_schema
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline, Transform, sql_transform
from kafka_ratchet.spark_sink.spark.versions import RELEASES, installed_release
from kafka_ratchet.spark_sink.stores import crash_points, optimistic
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.open_store import make_store
from kafka_ratchet.spark_sink.stores.results import count, read_rows
from kafka_ratchet.spark_sink.stores.store import ResultStore
from tests.spark_sink.sites import Site, delta_store

Write = Callable[..., None]
Rows = Callable[..., list[tuple[object, ...]]]
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def structured(
    broker: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., RunSummary]]:
    """structured(store, topic, reached, pipeline, **options) runs until a commit has reached those offsets."""
    scratch = tmp_path / "scratch of Zoë; $(id) #1 50%"
    scratch.mkdir()

    def run(
        store: ResultStore, topic: str, reached: dict[int, int], pipeline: RowPipeline | None = None,
        max_records: int = 1_000_000, after: Callable[[], None] | None = None, *, splits: bool = False, **options: Any,
    ) -> RunSummary:  # fmt: skip
        commit, stop = store.commit, Event()

        def watched(rows: DataFrame, start: dict[int, int], end: dict[int, int], *rejects: DataFrame | None) -> int:
            count = commit(rows, start, end, *rejects)
            if end == reached:
                stop.set()
            if after is not None:
                after()
            return count

        monkeypatch.setattr(store, "commit", watched)
        job = Job(broker, topic, "job", pipeline or RowPipeline(), max_records, splits=splits)
        planner = TopicPlanner(broker, topic, {})
        return run_structured(job, planner, store, lambda: nullcontext(spark), 0.0, stop, scratch=scratch, **options)

    yield run
    assert not list(scratch.iterdir())  # no checkpoint outlives its run


def test_micro_batches_end_where_spark_says_and_not_where_the_rows_do(
    new_topic: Callable[..., str], write: Write, structured: Callable[..., RunSummary], site: Site
) -> None:
    topic = new_topic(partitions=2)
    write(topic, [b"a", b"b"])
    write(topic, [b"never"] * 20, commit=False)
    write(topic, [b"c"])
    write(topic, [b"never"] * 20, commit=False)
    write(topic, [b"never"] * 5, 1, commit=False)

    def make() -> ResultStore:
        return make_store(site.location, "job", topic, 0, RowPipeline())

    outcome = structured(make(), topic, {0: 47, 1: 6}, max_records=20)  # one has aborted records only
    assert (outcome.rows, outcome.offsets) == (3, {0: 47, 1: 6})
    assert outcome.commits == 3
    write(topic, [b"d"], 1)
    assert structured(make(), topic, {0: 47, 1: 8}) == RunSummary(1, 1, {0: 47, 1: 8})
    found = sorted((row["_kafka_partition"], row["_kafka_offset"], bytes(row["_kafka_value"])) for row in site.rows())
    assert found == [(0, 0, b"a"), (0, 1, b"b"), (0, 24, b"c"), (1, 6, b"d")]


@pytest.mark.matrix
@pytest.mark.skipif(installed_release() is RELEASES["3.5"], reason="its source has no option for it")
def test_tasks_share_a_kafka_partition_that_holds_much(
    new_topic: Callable[..., str],
    write: Write,
    structured: Callable[..., RunSummary],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optimistic, "TASK_OFFSETS", 6)
    topic, files = new_topic(partitions=1), []
    for splits in (False, True):
        write(topic, [b"%d" % n for n in range(30)])
        store = delta_store(str(tmp_path / "table"), "job", topic)
        assert structured(store, topic, {0: 62 if splits else 31}, splits=splits).rows == 30
        files.append(len(list((tmp_path / "table").glob("*.parquet"))))
    assert files == [1, 1 + 6]
    # What is below the bound stays in one task.
    write(topic, [b"x"] * 4)
    assert structured(delta_store(str(tmp_path / "table"), "job", topic), topic, {0: 67}, splits=True).rows == 4
    assert len(list((tmp_path / "table").glob("*.parquet"))) == 8


@pytest.mark.timeout(600)  # a start of Spark, seconds on an idle machine
def test_ended_between_and_after_commits_it_goes_on_from_the_store(
    new_topic: Callable[..., str], write: Write, command: Command, structured: Callable[..., RunSummary], table: str,
    rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        write(topic, [b"%d" % n for n in range(100)], partition)
        write(topic, [b"aborted"] * 50, partition, commit=False)
        write(topic, [b"%d" % n for n in range(100, 200)], partition)
    left = tmp_path / "temporary"
    left.mkdir()
    arguments = [f"--topic={topic}", f"--path={table}", "--name=job", "--mode=structured", "--interval=0"]
    arguments += ["--max-records=100", f"--scratch={left}"]
    killed = command(*arguments, SPARK_SINK_CRASH_AT="after-commit:2")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert sum(delta_store(table, "job", topic).offsets().values()) == 200
    [checkpoint] = left.iterdir()
    # It has a batch begun that it does not know to be committed: resumed from, it would add those rows again.
    assert (checkpoint / "offsets" / "1").exists()
    assert not (checkpoint / "commits" / "1").exists()
    shutil.rmtree(checkpoint)

    passed = []

    def end_between(point: str) -> None:
        passed.append(point)
        if passed.count("before-commit") == 2:
            raise InterruptedError("files are written, and not named in the table's log")

    monkeypatch.setattr(crash_points, "passing", end_between)
    with pytest.raises(InterruptedError):
        structured(delta_store(table, "job", topic), topic, {}, max_records=100)
    monkeypatch.undo()
    assert sum(delta_store(table, "job", topic).offsets().values()) == 300

    end = {0: 253, 1: 253}  # records, aborted records, markers
    assert structured(delta_store(table, "job", topic), topic, end).offsets == end
    assert rows("_kafka_partition", "_kafka_value") == [(p, b"%d" % n) for p in (0, 1) for n in range(200)]


def _distinct(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["_kafka_value"]).select("_kafka_partition", "_kafka_offset", "_kafka_value")


def _windows(rows: DataFrame) -> DataFrame:
    timed = rows.withWatermark("_kafka_timestamp", "1 minute").groupBy(F.window("_kafka_timestamp", "1 minute"))
    return timed.agg(F.count("*").alias("n")).select("n")


def _first(rows: DataFrame) -> DataFrame:
    return rows.limit(1)


def _pairs(rows: DataFrame) -> DataFrame:
    return rows.join(rows.select("_kafka_value"), "_kafka_value")


@pytest.mark.parametrize("pipeline", [_distinct, _windows, _first, _pairs])
def test_a_pipeline_that_keeps_state_is_refused_before_the_first_commit(
    new_topic: Callable[..., str], write: Write, structured: Callable[..., RunSummary], table: str, pipeline: Transform
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [b"x"])
    store = delta_store(table, "job", topic)
    with pytest.raises(OptionRefused, match=r"the pipeline keeps state.*--state-is-lost"):
        structured(store, topic, {}, RowPipeline(transform=pipeline))
    assert store.offsets() == {}


@pytest.mark.matrix
def test_a_pipeline_whose_state_may_be_lost_forgets_at_each_start(
    new_topic: Callable[..., str], write: Write, structured: Callable[..., RunSummary], table: str, rows: Rows
) -> None:
    topic, pipeline = new_topic(partitions=1), RowPipeline(transform=_distinct)

    def run(reached: dict[int, int]) -> int:
        return structured(delta_store(table, "job", topic), topic, reached, pipeline, state_is_lost=True).rows

    write(topic, [b"x", b"x", b"y"])
    assert run({0: 4}) == 2
    write(topic, [b"x"])
    assert run({0: 6}) == 1
    assert sorted(rows("_kafka_value")) == [(b"x",), (b"x",), (b"y",)]


def test_a_query_reads_what_a_batch_reads(
    new_topic: Callable[..., str], write: Write, structured: Callable[..., RunSummary], table: str, rows: Rows
) -> None:
    numbers = '{"type":"record","name":"event","fields":[{"name":"n","type":"int"}]}'
    avro = RowPipeline(
        avro=avro_values(numbers, None),
        transform=sql_transform("SELECT n + 1 AS n, _kafka_partition, _kafka_offset FROM records"),
    )
    topic = new_topic(partitions=1)
    write(topic, [b"\x02", b"\x04", b"neither"])  # zigzag: 1 and 2
    structured(make_store(TableLocation("delta", table), "job", topic, 0, avro), topic, {0: 4}, avro)
    assert rows("n") == [(2,), (3,), (None,)]

    inferred, beside = RowPipeline("infer"), f"{table} of JSON"
    topic = new_topic(partitions=1)
    write(topic, [b'{"n":1}', b"[]"])
    structured(make_store(TableLocation("delta", beside), "job", topic, 0, inferred), topic, {0: 3}, inferred)
    assert sorted(read_rows(TableLocation("delta", beside), ["n", "_kafka_value"]), key=str) == [
        (1, None),
        (None, b"[]"),
    ]


def test_the_lag_is_known_before_a_commit_which_may_hang(
    new_topic: Callable[..., str],
    write: Write,
    structured: Callable[..., RunSummary],
    table: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [b"a"])
    run, lags = RunState(), []
    store = delta_store(table, "job", topic)
    commit = store.commit

    def looks(*slice_of_records: Any) -> int:
        lags.append(dict(run.lag))
        if len(lags) == 1:
            write(topic, [b"b", b"c"])
        return commit(*slice_of_records)

    monkeypatch.setattr(store, "commit", looks)
    structured(store, topic, {0: 5}, run=run)
    assert lags == [{0: 2}, {0: 3}]
    assert run.lag == {0: 0}


def test_who_is_fenced_ends_with_that_error_and_a_new_partition_is_read(
    broker: str,
    new_topic: Callable[..., str],
    write: Write,
    structured: Callable[..., RunSummary],
    table: str,
    rows: Rows,
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [b"a"])
    commits = []

    def go_on() -> None:
        commits.append(delta_store(table, "job", topic).offsets())
        if len(commits) == 1:
            admin = AdminClient({"bootstrap.servers": broker})
            admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
            write(topic, [b"b"], 1)
        else:
            delta_store(table, "job", topic).open(record_schema())
            write(topic, [b"c"])

    with pytest.raises(Fenced, match="generation 2 has taken over from 1"):
        structured(delta_store(table, "job", topic), topic, {}, after=go_on)
    assert commits == [{0: 2}, {0: 2, 1: 2}]
    assert rows("_kafka_partition", "_kafka_value") == [(0, b"a"), (1, b"b")]


def test_retention_that_passes_a_running_query_is_named(
    broker: str, new_topic: Callable[..., str], write: Write, structured: Callable[..., RunSummary], table: str
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [b"x"] * 10)

    def lose_records() -> None:
        write(topic, [b"y"] * 10)
        admin = AdminClient({"bootstrap.servers": broker})
        admin.delete_records([TopicPartition(topic, 0, 15)])[TopicPartition(topic, 0)].result(30)

    with pytest.raises(OffsetsLost, match=rf"{topic}/0: the table needs offset 11 next, but the topic begins at 15"):
        structured(delta_store(table, "job", topic), topic, {}, after=lose_records)
    assert count(TableLocation("delta", table)) == 10


def test_another_topic_of_the_name_is_not_read(
    new_topic: Callable[..., str], write: Write, structured: Callable[..., RunSummary], table: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    topic = new_topic(partitions=1)
    write(topic, [b"x"])

    def create_again() -> None:
        other = OffsetRange(topic, {0: 0}, {0: 9}, topic_id=1)
        monkeypatch.setattr(TopicPlanner, "offset_range", lambda _: other)
        write(topic, [b"y"])

    with pytest.raises(TopicRecreated, match="deleted and created again while"):
        structured(delta_store(table, "job", topic), topic, {}, after=create_again)
    assert count(TableLocation("delta", table)) == 1


def test_rejects_beside_a_pipeline_are_refused(structured: Callable[..., RunSummary], table: str) -> None:
    pipeline = RowPipeline("user string", rejects=True, transform=sql_transform("SELECT * FROM records"))
    with pytest.raises(OptionRefused, match="a streaming query has a single result"):
        structured(delta_store(table, "job", "events"), "events", {}, pipeline)


def test_the_folder_for_the_checkpoint_must_be_there(
    broker: str, new_topic: Callable[..., str], table: str, tmp_path: Path
) -> None:
    topic = new_topic()
    planner, store = TopicPlanner(broker, topic, {}), delta_store(table, "job", topic)
    with pytest.raises(OptionRefused, match="is not a folder"):
        run_structured(Job(broker, topic, "job"), planner, store, nullcontext, 0.0, Event(), scratch=tmp_path / "none")  # type: ignore[arg-type]
