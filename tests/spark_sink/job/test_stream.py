"""The same loop without an end: new records, new partitions, a broker that does not answer, and a clean stop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from threading import Event

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

from kafka_ratchet.app.local.jars import spark_jars
from kafka_ratchet.spark_sink.errors import Fenced, KafkaUnavailable, OffsetsLost, TablePutBack, TopicRecreated
from kafka_ratchet.spark_sink.job.job import run_stream
from kafka_ratchet.spark_sink.job.plan import OffsetRange, TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.run_state import RunState, RunSummary
from kafka_ratchet.spark_sink.job.start import take_over_again
from kafka_ratchet.spark_sink.rows.columns import result_schema
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.results import count
from tests.spark_sink.conftest import spark_jvm
from tests.spark_sink.sites import delta_store, duckdb_store

Write = Callable[..., None]
Rows = Callable[..., list[tuple[object, ...]]]


class Scripted(TopicPlanner):
    """Does the next step of a script whenever the job is about to look at the topic."""

    def __init__(self, broker: str, topic: str, steps: list[Callable[[], None]]) -> None:
        super().__init__(broker, topic, {})
        self._steps = iter(steps)

    def offset_range(self) -> OffsetRange:
        next(self._steps)()
        return super().offset_range()


@pytest.fixture
def stream(broker: str, spark: SparkSession, table: str) -> Callable[..., RunSummary]:
    """stream(topic, steps, max_records=...) runs until a step sets the event that it is given."""

    def run(topic: str, steps: list[Callable[[], None]], stop: Event, max_records: int = 1_000_000) -> RunSummary:
        planner = Scripted(broker, topic, steps)
        store = delta_store(table, "job", topic, planner.topic_id())
        job = Job(broker, topic, "job", RowPipeline(), max_records)
        return run_stream(job, planner, store, lambda: nullcontext(spark), 0.0, stop)

    return run


def _nothing() -> None: ...


def test_a_table_put_back_before_a_second_try_is_no_take_over(tmp_path: Path) -> None:
    """Without Spark: DuckDB's own file, copied after the first take-over and put back after the second."""
    place, copy, run = tmp_path / "results.duckdb", tmp_path / "copy.duckdb", RunState()
    duckdb_store(str(place), "results", "job", "events").open(result_schema(None))
    shutil.copy(place, copy)
    store = duckdb_store(str(place), "results", "job", "events")
    run.note_take_over(2, store.open(result_schema(None)))
    shutil.copy(copy, place)
    with pytest.raises(TablePutBack, match="generation 1, where generation 2 was expected"):
        take_over_again(store, result_schema(None), run)
    duckdb_store(str(place), "results", "job", "events").open(result_schema(None))
    run.note_take_over(1, {})
    with pytest.raises(Fenced, match="generation 2 has taken over from 1"):
        take_over_again(store, result_schema(None), run)


def test_a_stream_goes_on_with_what_comes(
    broker: str, new_topic: Callable[..., str], write: Write, stream: Callable[..., RunSummary], rows: Rows
) -> None:
    topic, stop = new_topic(partitions=1), Event()

    def add_a_partition() -> None:
        admin = AdminClient({"bootstrap.servers": broker})
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
        while len(admin.list_topics(topic, timeout=60).topics[topic].partitions) < 2:
            pass
        write(topic, [b"new"], 1)

    def be_away() -> None:
        raise KafkaUnavailable("the broker is being restarted")

    steps = [
        _nothing,
        lambda: write(topic, [b"a", b"b"]),
        lambda: write(topic, [b"never"], commit=False),
        be_away,
        add_a_partition,
        stop.set,
    ]
    outcome = stream(topic, steps, stop)
    assert outcome == RunSummary(3, 3, {0: 5, 1: 2})
    assert rows("_kafka_partition", "_kafka_offset", "_kafka_value") == [(0, 0, b"a"), (0, 1, b"b"), (1, 0, b"new")]


def test_a_stop_waits_for_the_commit_under_way_and_no_longer(
    new_topic: Callable[..., str], write: Write, stream: Callable[..., RunSummary], table: str
) -> None:
    topic, stop = new_topic(partitions=1), Event()
    write(topic, [b"x"] * 10)
    assert stream(topic, [stop.set], stop, max_records=4).commits == 1
    assert delta_store(table, "job", topic).offsets() == {0: 4}
    assert count(TableLocation("delta", table)) == 4


def test_a_stream_steps_over_no_hole_and_into_no_other_topic(
    broker: str,
    new_topic: Callable[..., str],
    write: Write,
    stream: Callable[..., RunSummary],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic(partitions=1)

    def lose_records() -> None:
        write(topic, [b"y"] * 10)
        admin = AdminClient({"bootstrap.servers": broker})
        admin.delete_records([TopicPartition(topic, 0, 8)])[TopicPartition(topic, 0)].result(30)

    with pytest.raises(OffsetsLost, match="needs offset 2 next"):
        stream(topic, [lambda: write(topic, [b"x"]), lose_records], Event())

    again = new_topic(partitions=1)
    other = OffsetRange(again, {0: 0}, {0: 5}, topic_id=1)
    monkeypatch.setattr(TopicPlanner, "offset_range", lambda _: other)
    with pytest.raises(TopicRecreated, match="deleted and created again while"):
        stream(again, [_nothing], Event())


def test_sigterm_ends_the_process_after_a_commit(
    broker: str, new_topic: Callable[..., str], write: Write, shipped: Path, table: str, tmp_path: Path
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [b"x"] * 10)
    words = [
        sys.executable,
        "-m",
        "kafka_ratchet.spark_sink",
        f"--bootstrap={broker}",
        f"--topic={topic}",
        f"--path={table}",
    ]
    words += ["--name=job", "--mode=stream", "--interval=0.1", "--master=local[1]", "--json"]
    words += ["--jars", ",".join(map(str, spark_jars()))]
    search = os.pathsep.join([str(shipped), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        words,
        env={**os.environ, "PYTHONPATH": search, **spark_jvm()},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        try:
            assert job.stderr is not None
            said = next((line for line in job.stderr if "commit 1:" in line), "")
            assert "10 rows" in said
            job.send_signal(signal.SIGTERM)
            out, err = job.communicate(timeout=120)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["offsets"] == {"0": 11}
    assert "Traceback" not in err
    assert count(TableLocation("delta", table)) == 10
