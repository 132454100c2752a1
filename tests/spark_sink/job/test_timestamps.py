"""Timestamps of records at the edges of Kafka's, Spark's and the stores' types: the right value or null."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from threading import Event
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kafka_ratchet.spark_sink.errors import SparkFailed
from kafka_ratchet.spark_sink.job.job import run_batch, run_stream
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job, records
from kafka_ratchet.spark_sink.job.recount import recount
from kafka_ratchet.spark_sink.job.run_state import RunState, RunSummary
from kafka_ratchet.spark_sink.job.structured import run_structured
from kafka_ratchet.spark_sink.job.unreadable import UnreadableRanges, pieces
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.rows.timestamps import END_MS, FIRST_MS, MOST_MS, is_representable, with_exact_timestamps
from kafka_ratchet.spark_sink.rows.windows import Windows
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.results import read_rows
from tests.spark_sink.sites import Site, delta_store

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
NANOSECONDS = 1_790_000_000_000_000_000
JULIAN_LEAP_DAY = round((datetime.datetime(1500, 3, 10, tzinfo=datetime.UTC) - EPOCH).total_seconds() * 1000)
"""29 February 1500 of the Julian calendar, which Spark's source makes the same moment as the next day."""

EDGES = [
    FIRST_MS,  # .NET's unset date
    FIRST_MS - 1,
    -12_219_292_800_001,  # the last moment before Java's Gregorian calendar
    -12_219_292_800_000,
    -11_644_473_600_000,  # 1601-01-01, where Windows begins
    -6_847_804_800_000,  # 1753-01-01, where SQL Server begins
    -1,  # Kafka's own for none
    -2,
    1,
    END_MS - 1,
    END_MS,
    1_790_000_000_000_000,  # microseconds
    NANOSECONDS,
    -NANOSECONDS,
    2**63 - 1,
    -(2**63),
]


def exact(timestamp_ms: int) -> datetime.datetime | None:
    known = is_representable(timestamp_ms)
    return EPOCH + datetime.timedelta(milliseconds=timestamp_ms) if known else None


@pytest.fixture
def stamped(broker: str, new_topic: Callable[..., str]) -> Callable[..., str]:
    """stamped(timestamps, partitions=1) is a topic with a JSON record for each, numbered by their places."""

    def make(timestamps: list[int], partitions: int = 1) -> str:
        topic = new_topic(partitions, message_timestamp_after_max_ms=2**63 - 1, retention_ms=-1)
        producer = Producer({"bootstrap.servers": broker})
        for n, timestamp in enumerate(timestamps):
            producer.produce(topic, b'{"n": %d}' % n, b"k%d" % n, n % partitions, timestamp=timestamp)
        assert producer.flush(30) == 0
        return topic

    return make


def test_the_table_has_kafkas_own_timestamps(
    site: Site, stamped: Callable[..., str], ingest: Callable[..., RunSummary]
) -> None:
    topic = stamped(EDGES)
    assert ingest(topic, RowPipeline("n int")).rows == len(EDGES)
    assert ingest(topic, RowPipeline("n int")).rows == 0
    found = {row["n"]: row["_kafka_timestamp"] for row in site.rows()}
    assert {EDGES[n]: at for n, at in found.items()} == {each: exact(each) for each in EDGES}


def test_a_day_that_spark_mixes_up_is_null(spark: SparkSession) -> None:
    calendars: Any = spark.sparkContext._jvm.org.apache.spark.sql.catalyst.util.RebaseDateTime  # type: ignore[union-attr]
    day_ms = 86_400_000
    days = [JULIAN_LEAP_DAY + n * day_ms for n in (-1, 0, 1, 2)]
    read = [(calendars.rebaseJulianToGregorianMicros(each * 1000), each) for each in days]
    frame = spark.createDataFrame(read, "us long, ms long").select(F.timestamp_micros("us").alias("timestamp"), "ms")
    found = with_exact_timestamps(frame).select("ms", F.unix_millis("timestamp").alias("at")).collect()
    assert [row.at for row in found] == [days[0], None, None, days[3]]


def delta_batch(
    broker: str, spark: SparkSession, table: str, topic: str, pipeline: RowPipeline, most: int
) -> RunSummary:
    planner = TopicPlanner(broker, topic, {})
    store = delta_store(table, "job", topic, planner.topic_id(), pipeline.write_mode)
    return run_batch(Job(broker, topic, "job", pipeline, most), planner, store, lambda: nullcontext(spark))


def test_unreadable_records_stand_among_others(
    broker: str, spark: SparkSession, stamped: Callable[..., str], table: str, caplog: pytest.LogCaptureFixture
) -> None:
    stamps = [1_000 + n for n in range(800)]
    for n in (0, 1, 300, 302, 799):
        stamps[n] = NANOSECONDS
    topic = stamped(stamps, partitions=2)
    outcome = delta_batch(broker, spark, table, topic, RowPipeline("n int"), most=500)
    assert outcome.rows == 800
    rows = read_rows(TableLocation("delta", table), ["n", "_kafka_timestamp"])
    assert sorted(n for n, _ in rows) == list(range(800))
    assert all(at == exact(stamps[n]) for n, at in rows)
    assert f"{topic}/0: 3 records from offset 0 on have timestamps that no table holds" in caplog.text


@pytest.mark.matrix
def test_columns_are_inferred_and_windows_counted_of_such_records(
    broker: str, spark: SparkSession, stamped: Callable[..., str], table: str
) -> None:
    stamps = [FIRST_MS, FIRST_MS + 3_600_000, NANOSECONDS, 1, -1]
    topic = stamped(stamps)
    assert delta_batch(broker, spark, f"{table} 1", topic, RowPipeline("infer"), 3).rows == 5
    windows = Windows("_kafka_timestamp", 3600, 3600)
    pipeline = RowPipeline("n int", WriteMode("totals", ("_kafka_partition",), ("n",), windows), rejects=True)
    planner = TopicPlanner(broker, topic, {})
    job = Job(broker, topic, "job", pipeline)
    counted = recount(spark, job, {0: 0}, planner.offset_range().end, restricted_values=True).keys.to_pylist()
    assert {(row["_window"], int(row["n"])) for row in counted} == {
        (exact(FIRST_MS), 0),
        (exact(FIRST_MS + 3_600_000), 1),
        (EPOCH, 3),
        (None, 2 + 4),
    }


@pytest.mark.matrix
@pytest.mark.parametrize("mode", ["stream", "structured"])
def test_a_stream_passes_such_a_record(
    mode: str, broker: str, spark: SparkSession, stamped: Callable[..., str], table: str
) -> None:
    topic = stamped([5, NANOSECONDS, FIRST_MS, 6])
    planner, stop = TopicPlanner(broker, topic, {}), Event()
    store = delta_store(table, "job", topic, planner.topic_id())

    def observer(run: RunState) -> None:
        if run.offsets == {0: 4}:
            stop.set()

    job, run = Job(broker, topic, "job", RowPipeline("n int")), RunState(observer)
    run_mode = run_stream if mode == "stream" else run_structured
    run_mode(job, planner, store, lambda: nullcontext(spark), 0.1, stop, run)
    found = read_rows(TableLocation("delta", table), ["_kafka_offset", "_kafka_timestamp"])
    assert sorted(found) == [(0, exact(5)), (1, None), (2, exact(FIRST_MS)), (3, exact(6))]


@pytest.mark.matrix
def test_a_streaming_pipeline_that_cannot_pass_it_says_so(
    broker: str, spark: SparkSession, stamped: Callable[..., str], table: str
) -> None:
    topic = stamped([5, NANOSECONDS])
    pipeline = RowPipeline("n int", transform=lambda frame: frame)
    planner = TopicPlanner(broker, topic, {})
    store = delta_store(table, "job", topic, planner.topic_id())
    job, run = Job(broker, topic, "job", pipeline), RunState(lambda _: None)
    with pytest.raises(SparkFailed, match=r"cannot read the timestamps of some records .* cannot skip them"):
        run_structured(job, planner, store, lambda: nullcontext(spark), 0.1, Event(), run)
    assert delta_batch(broker, spark, table, topic, pipeline, 10).rows == 2


def test_headers_and_keys_are_those_that_spark_reads(broker: str, spark: SparkSession, new_topic: Any) -> None:
    """Records read by the driver have the columns and values of those read by Spark."""
    topic = new_topic(1)
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(topic, None, None, headers=[("a", b"1"), ("a", None), ("b", b"")], timestamp=FIRST_MS)
    producer.produce(topic, b"", b"\x00", timestamp=7)
    assert producer.flush(30) == 0
    by_spark = Job(broker, topic, "job", _with_headers())
    by_driver = Job(broker, topic, "job", _with_headers(), unreadable=UnreadableRanges({0: [(0, 2)]}))
    one, other = (records(spark, job, {0: 0}, {0: 2}) for job in (by_spark, by_driver))
    assert one.columns == other.columns
    types = [[each.dataType.simpleString() for each in frame.schema] for frame in (one, other)]
    assert types[0] == types[1]
    # pyspark's own way to a datetime ends at the year 1.
    found = [frame.withColumn("timestamp", F.unix_millis("timestamp")).collect() for frame in (one, other)]
    assert found[0] == found[1]
    assert [row.timestamp for row in found[0]] == [FIRST_MS, 7]


def _with_headers() -> Any:
    class Headers(RowPipeline):
        registry = object()  # type: ignore[assignment]

    return Headers()


def test_pieces_are_read_by_one_side_each() -> None:
    unreadable = UnreadableRanges()
    assert list(pieces(unreadable, {0: 0, 1: 5}, {0: 9, 1: 7})) == [({0: 0, 1: 5}, {0: 9, 1: 7})]
    unreadable.add(0, [(3, 5), (8, 9)])
    unreadable.add(0, [(4, 6), (20, 30)])
    assert unreadable.known == {0: [(3, 5), (8, 9), (20, 30)]}
    cut = list(pieces(unreadable, {0: 4, 1: 5}, {0: 25, 1: 7}))
    assert [begin[0] for begin, _ in cut] == [4, 5, 8, 9, 20, 25]
    assert [until[0] for _, until in cut] == [5, 8, 9, 20, 25, 25]
    assert [until[1] for _, until in cut] == [5, 5, 5, 5, 5, 7]
    assert all(until == begin for (_, until), (begin, _) in pairwise(cut))
    assert MOST_MS < 2**63 // 1000
