"""Mode structured: the same commits from a query of Structured Streaming, for pipelines with streaming operators.

The query starts at the store's offsets with a new checkpoint folder, which is removed at the end. Spark needs the
folder while the query runs. No run resumes from a checkpoint, so a checkpoint cannot disagree with the store.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Literal

from kafka_ratchet.spark_sink.errors import OptionRefused, RegistryUnavailable, SinkError, SparkFailed
from kafka_ratchet.spark_sink.job.commit import commit_records, commit_slices
from kafka_ratchet.spark_sink.job.lag import LagWatch
from kafka_ratchet.spark_sink.job.plan import OffsetRange, TopicPlanner, resume, warn_of_missing_beginning
from kafka_ratchet.spark_sink.job.reading import Job, kafka_reader
from kafka_ratchet.spark_sink.job.run_log import log_run
from kafka_ratchet.spark_sink.job.run_state import Commit, RunState, RunSummary
from kafka_ratchet.spark_sink.job.start import Session, opened, require_startable, take_over_again, wait_for_registry
from kafka_ratchet.spark_sink.job.unreadable import TimestampsUnreadable, unreadable_named
from kafka_ratchet.spark_sink.rows.timestamps import with_exact_timestamps
from kafka_ratchet.spark_sink.rows.undeclared import report_undeclared
from kafka_ratchet.spark_sink.spark.dialect import keeps_state
from kafka_ratchet.spark_sink.spark.errors import ranges, reason_of, spark_errors
from kafka_ratchet.spark_sink.spark.session import is_connect
from kafka_ratchet.spark_sink.stores import optimistic
from kafka_ratchet.spark_sink.stores.store import ResultStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("spark_sink")

LOOK_EVERY_S = 0.2
"""Seconds between two checks that the query still runs; a stop takes effect at once."""

WITHOUT_RECORDS = "spark.sql.streaming.noDataMicroBatches.enabled"
"""Spark's setting for micro-batches without new records. Such micro-batches move no offset, so that the job could not
commit their rows. The job switches them off: a streaming operator then emits its rows with the next records."""

OFFSET_LOG_VERSION = "v1"
"""First line of an entry of Spark's offset log. One line of settings and one line for each source follow."""

OutputMode = Literal["append", "update"]


def run_structured(
    job: Job,
    planner: TopicPlanner,
    store: ResultStore,
    session: Session,
    interval_s: float,
    stop: Event,
    run: RunState | None = None,
    *,
    state_is_lost: bool = False,
    scratch: Path | None = None,
    output_mode: OutputMode = "append",
) -> RunSummary:
    """Take the table over, then commit a streaming query's micro-batches until `stop` is set.

    The pipeline's transform is applied to the stream itself, so that it may use streaming operators. Without a
    transform, each micro-batch is treated like a slice of `run_stream`.

    Args:
        job: topic and pipeline.
        planner: planner of the job's topic.
        store: target of the rows.
        session: starts Spark, and stops it at the end.
        interval_s: seconds from the start of one micro-batch to the next; 0: at once.
        stop: set it to end the run; a running commit is finished first.
        run: state of the run, updated at each step; None: steps are only logged.
        state_is_lost: True allows stateful operators, although every start discards their state.
        scratch: existing folder for the checkpoint; None: the system's folder for temporary files. Executors write the
            state of operators there, so they must share the folder with the driver.
        output_mode: Spark's output mode, which decides the rows that an aggregation returns in each micro-batch.

    Raises:
        OptionRefused: the pipeline cannot run as a streaming query, `scratch` is not a folder, or the session is one of
            Spark Connect. A pipeline cannot if it keeps state, reads another stream, or has rejects and a transform.
        SinkError: see `ResultStore`, `TopicPlanner` and `resume`.
    """
    _require_driver_here()
    if job.pipeline.rejects and job.pipeline.transform is not None:
        raise OptionRefused(
            "rejects are separated before sql or transform, but a streaming query has a single result. Remove "
            "rejects, or sql and transform, or use --mode stream"
        )
    run = run or RunState(log_run)
    require_startable(job, store)
    root = Path(tempfile.gettempdir()) if scratch is None else scratch.absolute()
    if not root.is_dir():
        raise OptionRefused(
            f"{root} is not a folder, so that the checkpoint cannot be written there. Make the folder, or name another"
        )
    with (
        opened(job, planner, store, session, interval_s, stop, run) as found,
        tempfile.TemporaryDirectory(prefix="spark-sink-checkpoint-", dir=root, ignore_cleanup_errors=True) as folder,
    ):
        if found is not None:
            query = _Query(found.job, planner, store, Path(folder), stop, run, state_is_lost)
            query.run(found.spark, interval_s, output_mode)
    return run.outcome()


def _require_driver_here() -> None:
    """Refuse Spark Connect, before Spark starts and before the store is read."""
    if is_connect():
        raise OptionRefused(
            "Spark Connect runs the commit of a micro-batch in its server, which has no access to the store. Use "
            "--mode stream"
        )


class _Query:
    """Streaming query from its start to its end, with the commits of its micro-batches."""

    def __init__(
        self,
        job: Job,
        planner: TopicPlanner,
        store: ResultStore,
        folder: Path,
        stop: Event,
        run: RunState,
        state_is_lost: bool,
    ) -> None:
        self._job, self._planner, self._store, self._folder, self._stop = job, planner, store, folder, stop
        self._run, self._state_is_lost = run, state_is_lost
        self._lag = LagWatch(planner, run)
        offset_range = planner.offset_range()
        planner.require_first_topic(offset_range.topic_id, run.offsets)
        warn_of_missing_beginning(offset_range, run.offsets)
        run.note_offsets(offset_range, resume(offset_range, run.offsets))
        self._committing = Lock()
        self._failure: BaseException | None = None

    def run(self, spark: SparkSession, interval_s: float, output_mode: OutputMode) -> None:
        """Start the query, and wait for its end."""
        reader = kafka_reader(spark.readStream, self._job).option("subscribe", self._job.topic)
        reader = reader.option("startingOffsets", json.dumps({self._job.topic: self._run.offsets}))
        if self._job.splits:
            # Not minPartitions, which would cut micro-batches of few records as well. Spark 3.5 passes it over.
            reader = reader.option("maxRecordsPerPartition", optimistic.TASK_OFFSETS)
        records = with_exact_timestamps(reader.option("maxOffsetsPerTrigger", self._job.max_records).load())
        pipeline = self._job.pipeline
        rows = (
            records
            if pipeline.transform is None
            else pipeline.streamed(records, restricted_values=self._store.restricted_values)
        )
        before = spark.conf.get(WITHOUT_RECORDS)
        spark.conf.set(WITHOUT_RECORDS, "false")  # a query has the settings of its start
        try:
            query = (
                rows.writeStream.foreachBatch(self._commit)
                .outputMode(output_mode)
                .option("checkpointLocation", f"file://{self._folder}")  # Hadoop takes a path as it is, and no %20
                .trigger(processingTime=f"{round(interval_s * 1000)} milliseconds")
                .start()
            )
        finally:
            spark.conf.set(WITHOUT_RECORDS, str(before))
        try:
            while query.isActive and not self._stop.wait(LOOK_EVERY_S):
                continue
            with self._committing:
                pass  # none is running now; after a stop, none begins
        finally:
            query.stop()
        self._require_no_failure(query)

    def _commit(self, batch: DataFrame, number: int) -> None:
        """Commit one micro-batch; store an error for `run`, because Spark calls this method in another thread."""
        try:
            with self._committing:
                if not self._stop.is_set():
                    self._commit_batch(batch, number)
        except BaseException as error:
            self._failure = error
            raise

    def _commit_batch(self, batch: DataFrame, number: int) -> None:
        if not self._state_is_lost and keeps_state(batch, self._folder):
            raise OptionRefused(
                "the pipeline keeps state from one micro-batch to the next (an aggregation, deduplication, a join "
                "of streams, a limit), but every start begins without this state: results would be lost or "
                "doubled. Use a kind of result that the store keeps (upsert, totals), or give --state-is-lost"
            )
        end, stored, offset_range = self._end(number), self._run.offsets, self._planner.offset_range()
        self._planner.require_first_topic(offset_range.topic_id, stored)
        self._lag.look(offset_range, stored)  # otherwise a hanging commit would leave the lag of the one before
        # A new partition begins at 0; Spark takes another start for a loss, and ends the query.
        start = {partition: stored.get(partition, 0) for partition in end}
        pipeline, run = self._job.pipeline, self._run
        if pipeline.transform is None:
            while not self._stop.is_set():
                try:
                    self._commit_records(batch, start, end)
                    break
                except RegistryUnavailable as error:
                    wait_for_registry(run, error)
                    self._stop.wait(LOOK_EVERY_S)
        else:
            began = time.monotonic()
            try:
                with unreadable_named(self._job, start, end):
                    count = self._store.commit(pipeline.reduced(batch), start, end)
            except TimestampsUnreadable as error:
                raise SparkFailed(
                    f"topic {self._job.topic}: Spark cannot read the timestamps of some records of offsets "
                    f"{ranges(start, end)}, and a streaming query with sql or transform cannot skip them. Commit "
                    "these offsets by a run with mode batch, then start the stream again"
                ) from error
            run.note_commit(Commit(run.commits + 1, count, start, end, time.monotonic() - began))
        self._lag.look(offset_range, end)

    def _commit_records(self, batch: DataFrame, start: dict[int, int], end: dict[int, int]) -> None:
        """Commit a micro-batch; librdkafka reads the records with timestamps that Spark cannot read."""
        job, store, run = self._job, self._store, self._run
        if not any(job.unreadable.within(partition, start[partition], end[partition]) for partition in end):
            try:
                with unreadable_named(job, start, end):
                    if run.commits == 0:
                        run.note_undeclared(report_undeclared(job.pipeline, job.topic, batch))
                    commit_records(batch, start, end, job, store, run)
                return
            except TimestampsUnreadable as error:
                log.warning("%s", error)
                take_over_again(store, job.pipeline.schema(batch.sparkSession), run)
        at = {partition: run.offsets.get(partition, offset) for partition, offset in start.items()}
        for _ in commit_slices(OffsetRange(job.topic, start, end), at, job, store, batch.sparkSession, run):
            continue

    def _end(self, number: int) -> dict[int, int]:
        """Return the end offsets of a micro-batch, which Spark records before running the batch.

        The rows do not show the end: transaction markers and aborted records may follow the last row.
        """
        lines = (self._folder / "offsets" / str(number)).read_text("utf-8").splitlines()
        if lines[0] != OFFSET_LOG_VERSION or len(lines) != 3:
            raise OptionRefused(
                f"the pipeline reads {len(lines) - 2} streams (offset log {lines[0]}), but the store keeps the "
                f"offsets of topic {self._job.topic} only. Read other streams as tables, or use a job for each topic"
            )
        return {int(partition): offset for partition, offset in json.loads(lines[2])[self._job.topic].items()}

    def _require_no_failure(self, query: StreamingQuery) -> None:
        """Raise the error that ended the query, if there is one.

        If Kafka does not answer, or the topic no longer fits the stored offsets, raise an error with that reason.
        """
        failed = self._failure or query.exception()
        if failed is None:
            return
        if not isinstance(failed, SinkError):
            offset_range = self._planner.offset_range()
            self._planner.require_first_topic(offset_range.topic_id, self._run.offsets)
            resume(offset_range, self._run.offsets)
        if isinstance(failed, spark_errors()):
            raise SparkFailed(
                f"topic {self._job.topic}: the streaming query ended after offsets {self._run.offsets} "
                f"({reason_of(failed)}). Correct the cause; the next start goes on from there"
            ) from failed
        raise failed
