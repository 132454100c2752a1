"""What fails inside Spark: one sentence for a batch, another try for a stream, and the end for a fenced one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from threading import Event

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_ratchet.spark_sink.errors import Fenced, SparkFailed
from kafka_ratchet.spark_sink.job.job import run_batch, run_stream
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.run_state import RunSummary
from kafka_ratchet.spark_sink.rows.columns import result_schema
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.spark.errors import reason_of, spark_errors
from tests.spark_sink.sites import delta_store

Write = Callable[..., None]
Rows = Callable[..., list[tuple[object, ...]]]


def failing_where(exists: Path) -> Callable[[DataFrame], DataFrame]:
    """A user's step that fails on a record b"bad" as long as there is such a file."""
    path = str(exists)

    def step(rows: DataFrame) -> DataFrame:
        def judged(value: bytes) -> bytes:
            import os

            if value == b"bad" and os.path.exists(path):
                raise ValueError("this record is bad")
            return value

        judged.__annotations__.clear()  # Spark 4.2 reads them, and warns of those that it does not know
        return rows.withColumn("_kafka_value", F.udf(judged, "binary")("_kafka_value"))

    return step


def test_a_batch_ends_with_one_sentence_and_the_next_goes_on(
    broker: str,
    spark: SparkSession,
    new_topic: Callable[..., str],
    write: Write,
    rows: Rows,
    table: str,
    tmp_path: Path,
) -> None:
    topic, switch = new_topic(partitions=1), tmp_path / "switch"
    write(topic, [b"good", b"good", b"bad"])
    switch.touch()
    planner = TopicPlanner(broker, topic, {})
    job = Job(broker, topic, "job", RowPipeline(transform=failing_where(switch)), max_records=2)

    def run() -> RunSummary:
        return run_batch(job, planner, delta_store(table, "job", topic, planner.topic_id()), lambda: nullcontext(spark))

    with pytest.raises(SparkFailed, match=r"offsets 0: 2-4 \(ValueError: this record is bad\)\. Earlier"):
        run()
    assert rows("_kafka_offset", "_kafka_value") == [(0, b"good"), (1, b"good")]
    switch.unlink()
    assert run().rows == 1
    assert rows("_kafka_offset", "_kafka_value") == [(0, b"good"), (1, b"good"), (2, b"bad")]


class Watched(TopicPlanner):
    """Calls somebody whenever the job is about to look at the topic."""

    def __init__(self, broker: str, topic: str, seen: Callable[[int], None]) -> None:
        super().__init__(broker, topic, {})
        self._looks, self._seen = 0, seen

    def offset_range(self):  # type: ignore[no-untyped-def]
        self._looks += 1
        self._seen(self._looks)
        return super().offset_range()


@pytest.mark.matrix
def test_a_stream_tries_again_and_counts_nothing_twice(
    broker: str,
    spark: SparkSession,
    new_topic: Callable[..., str],
    write: Write,
    rows: Rows,
    table: str,
    tmp_path: Path,
) -> None:
    topic, switch, stop = new_topic(partitions=1), tmp_path / "switch", Event()
    write(topic, [b"good", b"good", b"bad"])
    switch.touch()

    def seen(look: int) -> None:
        if look == 2:
            switch.unlink()
        if look == 3:
            stop.set()

    planner = Watched(broker, topic, seen)
    store = delta_store(table, "job", topic, planner.topic_id())
    job = Job(broker, topic, "job", RowPipeline(transform=failing_where(switch)), max_records=2)
    outcome = run_stream(job, planner, store, lambda: nullcontext(spark), 0.0, stop)
    assert (outcome.commits, outcome.rows) == (2, 3)
    assert store.generation() == 2  # its own tasks of the failed commit are fenced
    assert rows("_kafka_offset", "_kafka_value") == [(0, b"good"), (1, b"good"), (2, b"bad")]


def test_a_stream_that_failed_does_not_take_over_from_its_successor(
    broker: str, spark: SparkSession, new_topic: Callable[..., str], write: Write, table: str, tmp_path: Path
) -> None:
    topic, switch = new_topic(partitions=1), tmp_path / "switch"
    write(topic, [b"bad"])
    switch.touch()

    def seen(look: int) -> None:
        assert look == 1
        delta_store(table, "job", topic, planner.topic_id()).open(result_schema(None))

    planner = Watched(broker, topic, seen)
    store = delta_store(table, "job", topic, planner.topic_id())
    job = Job(broker, topic, "job", RowPipeline(transform=failing_where(switch)))
    with pytest.raises(Fenced, match="has taken over"):
        run_stream(job, planner, store, lambda: nullcontext(spark), 0.0, Event())
    assert store.generation() == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("one line", "one line"),
        ("what happened\nand where\n\tat a.b.C", "what happened"),
        ("X: Traceback (most recent call last):\n  File\nOSError: no space\n\n\tat a.b.C", "OSError: no space"),
        ("in the worker.\nTraceback (most recent call last):\n  File\nKeyError: 'a'\n", "KeyError: 'a'"),
        ("", "Exception"),
    ],
)
def test_the_reason_is_one_line(text: str, reason: str) -> None:
    assert reason_of(Exception(text)) == reason


def test_of_a_tasks_error_in_several_lines_the_first_is_given() -> None:
    text = "\n".join(
        (
            "Job aborted due to stage failure: PythonException: Traceback (most recent call last):",
            '  File "worker.py", line 3, in main',
            "    process()",
            '  File "<string>", line 1, in write',
            'psycopg.errors.CheckViolation: new row for relation "bill" violates check constraint "known"',
            "DETAIL:  Failing row contains (1, 2, secret).",
            'CONTEXT:  COPY bill, line 1: "1,2,secret"',
        )
    )
    said = 'psycopg.errors.CheckViolation: new row for relation "bill" violates check constraint "known"'
    assert reason_of(RuntimeError(text)) == said


def test_there_are_errors_where_only_the_client_of_spark_connect_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py4j.protocol", None)
    assert spark_errors() == (PySparkException,)
    assert reason_of(PySparkException("it ended\nJVM stacktrace: ...")) == "it ended"
