"""Reading of exactly the committed records of a range of offsets, by Spark's Kafka source."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from kafka_ratchet.spark_sink.job.control import TopicPosition
from kafka_ratchet.spark_sink.job.unreadable import UnreadableRanges, read_around
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.rows.timestamps import with_exact_timestamps
from kafka_ratchet.spark_sink.stores.optimistic import least_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

    Reader = TypeVar("Reader", DataFrameReader, DataStreamReader)

MAX_RECORDS = 1_000_000
"""Default maximum of offsets per commit. Reading so many offsets takes some seconds, far longer than the commit itself.
After a kill, the next run repeats this reading at little cost."""


FETCH_WAIT_MS = 50
"""Milliseconds that Kafka delays the answer to a fetch without records. Only existing records are read, so there is
never anything to wait for. But Spark has a consumer for each range and partition, which fetches ahead, and closing the
consumer waits for that answer. At Kafka's default of 500 ms, commits of few records took 1.8 s instead of 0.4 s from
the 22nd on, when Spark's pool of 64 consumers is full. Commits of ranges that end in aborted records took as long."""


@dataclass(frozen=True)
class Job:
    """Kafka, topic and pipeline of a job, for Spark to read records and make rows."""

    bootstrap: str
    topic: str
    name: str
    pipeline: RowPipeline = field(default_factory=RowPipeline)
    """Pipeline from records to rows."""
    max_records: int = MAX_RECORDS
    """Maximum offsets per commit."""
    client_options: Mapping[str, str] = field(default_factory=dict)
    """Kafka options in librdkafka's names, for planning in the driver."""
    reader_options: Mapping[str, str] = field(default_factory=dict)
    """Kafka options in Java's names, for reading in the executors."""
    second_job: bool = False
    """True: start even if a job of another name has committed the topic to the table."""
    jobs_of_other_topic: Callable[[], list[str]] = list
    """Function that lists the other jobs with committed records of `JobSpec.other_topic` in the table."""
    with_headers: bool = False
    """True: headers are read, even if no step of the pipeline needs them."""
    splits: bool = False
    """True: several tasks may read one Kafka partition."""
    start: TopicPosition | None = None
    """Position where a first run starts; None: the topic's beginning."""
    until: TopicPosition | None = None
    """Position where a run ends; None: mode batch ends at the topic's present end, other modes when stopped."""
    unreadable: UnreadableRanges = field(default_factory=UnreadableRanges, compare=False, repr=False)
    """Known ranges that Spark cannot read."""

    @property
    def reads_headers(self) -> bool:
        """Return True if record headers must be read: for the caller, or for sequences or schemas in them."""
        return self.with_headers or self.pipeline.write_mode.judged is not None or self.pipeline.registry is not None


def slices(
    start: Mapping[int, int], end: Mapping[int, int], max_records: int
) -> Iterator[tuple[dict[int, int], dict[int, int]]]:
    """Split the range into consecutive slices of at most `max_records` offsets over all partitions.

    Partitions advance in proportion to their remaining offsets, so that they finish together. Transaction markers and
    aborted records have offsets too, so a slice may have fewer rows.
    """
    at = dict(start)
    while left := sum(end[partition] - at[partition] for partition in at):
        budget = min(max_records, left)
        step = {partition: (end[partition] - at[partition]) * budget // left for partition in at}
        spare = budget - sum(step.values())
        for partition in at:
            more = min(spare, end[partition] - at[partition] - step[partition])
            step[partition] += more
            spare -= more
        until = {partition: at[partition] + step[partition] for partition in at}
        yield at, until
        at = until


def records(spark: SparkSession, job: Job, start: Mapping[int, int], end: Mapping[int, int]) -> DataFrame:
    """Return exactly the committed records from `start` up to, not including, `end`.

    `failOnDataLoss` stays at its default, true: with false, Spark skipped rows silently in our tests.
    """

    def load(start: Mapping[int, int], end: Mapping[int, int]) -> DataFrame:
        # assign, not subscribe: Spark demands an offset for every partition it sees, and a new one may come any moment.
        reader = kafka_reader(spark.read, job).option("assign", json.dumps({job.topic: sorted(start)}))
        reader = reader.option("startingOffsets", json.dumps({job.topic: dict(start)}))
        moved = [end[partition] - offset for partition, offset in start.items() if end[partition] > offset]
        if job.splits and least_tasks(sum(moved)) > len(moved):
            reader = reader.option("minPartitions", least_tasks(sum(moved)))
        return with_exact_timestamps(reader.option("endingOffsets", json.dumps({job.topic: dict(end)})).load())

    return read_around(spark, job, start, end, load)


def kafka_reader(reader: Reader, job: Job) -> Reader:
    """Return a reader of committed records of the job's Kafka; the caller adds topic and offsets."""
    reader = reader.format("kafka").option("kafka.bootstrap.servers", job.bootstrap)
    reader = reader.option("kafka.isolation.level", "read_committed")
    reader = reader.option("kafka.fetch.max.wait.ms", FETCH_WAIT_MS)
    if job.reads_headers:
        reader = reader.option("includeHeaders", "true")
    for name, value in job.reader_options.items():
        reader = reader.option(f"kafka.{name}", value)
    return reader
