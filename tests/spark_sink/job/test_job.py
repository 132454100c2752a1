"""The loop over real topics: exactly the committed records, once, and no step over a hole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from threading import Event

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from kafka_ratchet.spark_sink.errors import OffsetsLost, TopicMissing, TopicRecreated
from kafka_ratchet.spark_sink.job.job import run_batch, run_stream
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.run_state import RunState, RunSummary
from kafka_ratchet.spark_sink.job.structured import run_structured
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.results import count
from tests.spark_sink.sites import delta_store
from tests.topic_config import recreate_topic, wait_for_partitions

Run = Callable[..., RunSummary]
Write = Callable[..., None]
Rows = Callable[..., list[tuple[object, ...]]]


def test_rows_are_the_topic_and_a_second_run_adds_only_what_is_new(
    new_topic: Callable[..., str], write: Write, run: Run, rows: Rows, table: str
) -> None:
    topic = new_topic(partitions=3)
    for partition in (0, 2):
        write(topic, [f"{partition}:{n}".encode() for n in range(40)], partition)
    first = run(topic, max_records=25)
    expected = [(p, n, f"{p}:{n}".encode()) for p in (0, 2) for n in range(40)]
    assert rows("_kafka_partition", "_kafka_offset", "_kafka_value") == expected
    assert first.rows == 80
    assert first.commits == 4  # 2 x 40 records and 2 markers are 82 offsets
    assert first.offsets == {0: 41, 1: 0, 2: 41}

    version = DeltaTable(table).version()
    assert run(topic) == RunSummary(0, 0, {0: 41, 1: 0, 2: 41})
    assert DeltaTable(table).version() == version  # an empty run leaves the table alone

    write(topic, [b"later"], 1)
    assert run(topic).rows == 1
    assert sorted(rows("_kafka_partition", "_kafka_offset", "_kafka_value")) == sorted([*expected, (1, 0, b"later")])


def test_aborted_records_are_not_read_and_markers_do_not_stop_the_job(
    new_topic: Callable[..., str], write: Write, run: Run, rows: Rows
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [b"a", b"b"])
    write(topic, [b"never"] * 20, commit=False)
    write(topic, [b"c"])
    write(topic, [b"never"] * 20, commit=False)
    outcome = run(topic, max_records=5)  # several commits consist of aborted records only
    assert rows("_kafka_offset", "_kafka_value") == [(0, b"a"), (1, b"b"), (24, b"c")]
    assert outcome.offsets == {0: 47}
    assert run(topic).commits == 0


def test_an_empty_topic_needs_no_table(new_topic: Callable[..., str], run: Run, table: str) -> None:
    assert run(new_topic()) == RunSummary(0, 0, {})
    assert not Path(table).exists()


def test_a_topic_that_does_not_exist_is_named(run: Run) -> None:
    with pytest.raises(TopicMissing, match="no-such-topic"):
        run("no-such-topic")


def test_a_partition_added_later_is_read_from_its_beginning(
    broker: str, new_topic: Callable[..., str], write: Write, run: Run, rows: Rows
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [b"old"])
    run(topic)
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    wait_for_partitions(broker, topic, 3)
    write(topic, [b"new"], 2)
    assert run(topic).offsets == {0: 2, 1: 0, 2: 2}
    assert rows("_kafka_partition", "_kafka_value") == [(0, b"old"), (2, b"new")]


def test_refuses_when_retention_has_passed_the_stored_offset(
    broker: str, new_topic: Callable[..., str], write: Write, run: Run, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [b"x"] * 10)
    run(topic)
    write(topic, [b"y"] * 10)
    admin = AdminClient({"bootstrap.servers": broker})
    admin.delete_records([TopicPartition(topic, 0, 15)])[TopicPartition(topic, 0)].result(30)
    with pytest.raises(
        OffsetsLost, match=rf"{topic}/0: the table needs offset 11 next, but the topic begins at 15.*sink resume"
    ):
        run(topic)
    assert count(TableLocation("delta", table)) == 10
    assert "any more" not in caplog.text
    assert run(topic, name="again", second_job=True).rows == 6  # a job of another name has offsets of its own
    assert "does not begin at offset 0 any more (partition 0 at 15)" in caplog.text


def test_refuses_a_topic_that_was_created_again(
    broker: str, new_topic: Callable[..., str], write: Write, run: Run, table: str
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [b"x"] * 10)
    run(topic)
    recreate_topic(broker, topic)
    planner = TopicPlanner(broker, topic, {})
    with pytest.raises(
        TopicRecreated, match=rf"{topic}/0: the table has read up to offset 11, but the topic ends at 0"
    ):
        _run_without_identity(planner, table, topic)
    # Longer than the old one was, only the topic's id tells them apart.
    write(topic, [b"z"] * 30)
    with pytest.raises(TopicRecreated, match="not the one that"):
        run(topic)
    assert count(TableLocation("delta", table)) == 10


@pytest.mark.parametrize("mode", ["batch", "stream", "structured"])
def test_refuses_a_topic_that_is_created_again_while_spark_starts(
    broker: str, new_topic: Callable[..., str], write: Write, spark: SparkSession, table: str, mode: str
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [b"x"] * 10)

    @contextmanager
    def session() -> Iterator[SparkSession]:
        recreate_topic(broker, topic)
        write(topic, [b"z"] * 30)
        yield spark

    planner = TopicPlanner(broker, topic, {})
    store = delta_store(table, "job", topic, planner.topic_id())
    job = Job(broker, topic, "job")
    start = {
        "batch": run_batch,
        "stream": partial(run_stream, interval_s=0.0, stop=Event()),
        "structured": partial(run_structured, interval_s=0.0, stop=Event()),
    }[mode]
    with pytest.raises(TopicRecreated, match="was deleted and created again while the job read it"):
        start(job, planner, store, session)  # type: ignore[operator]
    assert count(TableLocation("delta", table)) == 0


def test_says_that_a_topic_was_created_again_between_two_commits(
    broker: str, new_topic: Callable[..., str], write: Write, spark: SparkSession, table: str
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [b"x"] * 10)

    def create_again(run: RunState) -> None:
        if run.step == "committed" and run.commits == 1:
            recreate_topic(broker, topic)
            write(topic, [b"z"] * 30)

    planner = TopicPlanner(broker, topic, {})
    store = delta_store(table, "job", topic, planner.topic_id())
    with pytest.raises(TopicRecreated, match=r"while the job read it \(up to \{0: 4\}\)"):
        run_batch(
            Job(broker, topic, "job", max_records=4), planner, store, lambda: nullcontext(spark), RunState(create_again)
        )
    assert count(TableLocation("delta", table)) == 4


def _run_without_identity(planner: TopicPlanner, table: str, topic: str) -> None:
    from kafka_ratchet.spark_sink.job.plan import resume

    resume(planner.offset_range(), delta_store(table, "job", topic).offsets())
