"""`--start` and `--until`: where a first run begins and where a run ends, on a real topic."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.job.control import read_place
from kafka_ratchet.spark_sink.job.job import run_batch, run_stream
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.run_state import RunSummary
from kafka_ratchet.spark_sink.job.spec import JobSpec
from kafka_ratchet.spark_sink.job.structured import run_structured
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from tests.spark_sink.sites import Site

NewTopic = Callable[..., str]
Start = Callable[..., RunSummary]

DAY_MS = 86_400_000
NOON_MS = 1_780_000_000_000
NOON = "2026-05-28T20:26:40Z"


@pytest.fixture
def timed(broker: str, new_topic: NewTopic) -> Callable[..., str]:
    """timed({partition: [timestamp in ms, ...]}) makes a topic of such records; values are their offsets."""

    def make(records: dict[int, list[int]], topic: str = "") -> str:
        topic = topic or new_topic(partitions=len(records), retention_ms=-1)  # the times are old
        producer = Producer({"bootstrap.servers": broker})
        for partition, timestamps in records.items():
            for number, timestamp in enumerate(timestamps):
                producer.produce(topic, b"%d" % number, None, partition, timestamp=timestamp)
        assert producer.flush(60) == 0
        return topic

    return make


@pytest.fixture
def start(broker: str, spark: SparkSession, site: Site) -> Start:
    """start(topic, start=None, until=None) runs the batch job into the site."""

    def run(topic: str, begin: str | None = None, until: str | None = None, **more: Any) -> RunSummary:
        planner = TopicPlanner(broker, topic, {})
        pipeline = RowPipeline()
        store = site.make("job", topic, planner.topic_id(), pipeline.write_mode)
        job = replace(Job(broker, topic, "job", pipeline, **more), **places(begin, until))
        return run_batch(job, planner, store, lambda: nullcontext(spark))

    return run


def places(begin: str | None, until: str | None) -> dict[str, Any]:
    return {
        "start": None if begin is None else read_place("--start", begin, "earliest", "latest"),
        "until": None if until is None else read_place("--until", until),
    }


def there(site: Site) -> list[tuple[int, int]]:
    return sorted((row["_kafka_partition"], row["_kafka_offset"]) for row in site.rows())


def times(*hours: int) -> list[int]:
    return [NOON_MS + hour * 3_600_000 for hour in hours]


@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        ("earliest", [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]),
        pytest.param("latest", [], marks=pytest.mark.matrix),
        ("0:2", [(0, 2), (1, 0), (1, 1)]),
        (NOON, [(0, 1), (0, 2)]),
        pytest.param(str(NOON_MS + 1), [(0, 2)], marks=pytest.mark.matrix),
        pytest.param("2026-05-28T22:26:40+02:00", [(0, 1), (0, 2)], marks=pytest.mark.matrix),
    ],
)
def test_a_first_run_begins_where_it_is_told_and_later_ones_go_on(
    site: Site, timed: Callable[..., str], start: Start, begin: str, expected: list[tuple[int, int]]
) -> None:
    topic = timed({0: times(-1, 0, 1), 1: times(-3, -2)})
    start(topic, begin)
    assert there(site) == expected
    # The offsets are stored also where nothing was read: the next run does not begin at the topic's beginning.
    timed({0: times(2), 1: times(2)}, topic)
    start(topic)
    assert there(site) == sorted([*expected, (0, 3), (1, 2)])


def test_a_start_is_refused_where_the_table_has_offsets(site: Site, timed: Callable[..., str], start: Start) -> None:
    topic = timed({0: times(0, 1)})
    start(topic, "0:1")
    with pytest.raises(
        OptionRefused, match=r"--start earliest: the table already has offsets of topic .* \(\{0: 2\}\)"
    ):
        start(topic, "earliest")
    assert there(site) == [(0, 1)]


def test_places_that_are_not_in_the_topic_change_nothing(site: Site, timed: Callable[..., str], start: Start) -> None:
    topic = timed({0: times(0, 1), 1: []})
    for begin, until, sentence in [
        ("0:3", None, r"--start 0:3: offset 3 of .*/0 is not in the topic, which holds 0 to 2"),
        ("2:0", None, r"has no partition 2"),
        (None, "0:1", r"--until 0:1 names no offset for partition 1 of topic"),
        (None, "0:1,1:0,4:0", r"has no partition 4"),
    ]:
        with pytest.raises(OptionRefused, match=sentence):
            start(topic, begin, until)
    start(topic)
    assert there(site) == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        ("0:2,1:0", [(0, 0), (0, 1)]),
        (NOON, [(0, 0), (1, 0), (1, 1)]),
        pytest.param(str(NOON_MS + DAY_MS), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)], marks=pytest.mark.matrix),
        pytest.param("0:9,1:9", [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)], marks=pytest.mark.matrix),
    ],
)
def test_a_batch_ends_where_it_is_told_and_the_next_goes_on_from_there(
    site: Site, timed: Callable[..., str], start: Start, until: str, expected: list[tuple[int, int]]
) -> None:
    topic = timed({0: times(-1, 0, 1), 1: times(-3, -2)})
    assert start(topic, until=until, max_records=2).rows == len(expected)
    assert there(site) == expected
    assert start(topic, until=until).rows == 0
    assert start(topic, until="0:1,1:0").rows == 0  # before the stored offsets: nothing is taken back
    start(topic)
    assert there(site) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


@pytest.mark.parametrize("site", ["delta"], indirect=True)
@pytest.mark.parametrize("until", ["0:3,1:1", pytest.param(str(NOON_MS + DAY_MS), marks=pytest.mark.matrix)])
def test_a_stream_ends_by_itself_once_every_partition_is_there(
    broker: str, spark: SparkSession, site: Site, timed: Callable[..., str], until: str
) -> None:
    topic = timed({0: times(0), 1: []})
    planner = TopicPlanner(broker, topic, {})
    store, stop = site.make("job", topic, planner.topic_id()), threading.Event()
    job = replace(Job(broker, topic, "job"), **places(None, until))
    found: list[RunSummary] = []
    thread = threading.Thread(
        target=lambda: found.append(run_stream(job, planner, store, lambda: nullcontext(spark), 0.1, stop))
    )
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while site.make("job", topic, planner.topic_id()).offsets().get(0) != 1:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert not found
        timed({0: times(1, 2, 30), 1: times(3, 30)}, topic)
        thread.join(60)
    finally:
        stop.set()
        thread.join(60)
    assert found
    assert found[0].offsets == {0: 3, 1: 1}
    assert there(site) == [(0, 0), (0, 1), (0, 2), (1, 0)]


@pytest.mark.parametrize("site", ["delta"], indirect=True)
def test_a_streaming_query_begins_there_too(
    broker: str, spark: SparkSession, site: Site, timed: Callable[..., str]
) -> None:
    topic = timed({0: times(0, 1, 2)})
    planner, stop = TopicPlanner(broker, topic, {}), threading.Event()
    store = site.make("job", topic, planner.topic_id())
    job = replace(Job(broker, topic, "job"), **places("0:2", None))
    thread = threading.Thread(target=run_structured, args=(job, planner, store, lambda: nullcontext(spark), 0.1, stop))
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while site.make("job", topic, planner.topic_id()).offsets().get(0) != 3:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        stop.set()
        thread.join(60)
    assert there(site) == [(0, 2)]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"start": "yesterday"},
            "--start 'yesterday' is not a position in the topic: write earliest, latest, PARTITION:OFFSET",
        ),
        ({"start": "2026-05-28T20:26:40"}, "with its zone"),
        ({"start": "0:1,0:2"}, "a partition is named twice"),
        ({"until": "latest"}, "--until 'latest' is not a position in the topic: write PARTITION:OFFSET"),
        ({"until": NOON, "mode": "structured"}, "has no end. Choose mode batch or stream"),
        ({"start": NOON, "from_input": True}, "recognises a duplicate by the records before it"),
        ({"start": "latest", "columns": "infer"}, "Name the columns"),
    ],
)
def test_places_that_a_job_cannot_have(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionRefused, match=sentence):
        JobSpec("localhost:9", "topic", "job", path="x", **more)
