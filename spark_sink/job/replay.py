"""Command `ratchet sink replay`: compute the rows of a range of offsets again, and replace the table's rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.job.commit import replace_records
from kafka_ratchet.spark_sink.job.control import TopicPosition, require_partitions, require_within
from kafka_ratchet.spark_sink.job.plan import OffsetRange, TopicPlanner, resume
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.run_log import log_run
from kafka_ratchet.spark_sink.job.run_state import Commit, RunState, RunSummary
from kafka_ratchet.spark_sink.job.start import Session, require_startable, with_columns
from kafka_ratchet.spark_sink.job.unreadable import read_again
from kafka_ratchet.spark_sink.rows.columns import RECORD
from kafka_ratchet.spark_sink.spark.errors import spark_errors_named
from kafka_ratchet.spark_sink.stores.decision import STORED
from kafka_ratchet.spark_sink.stores.store import ResultStore, require_local_master

log = logging.getLogger("spark_sink")


def run_replay(
    job: Job, planner: TopicPlanner, store: ResultStore, session: Session, run: RunState | None = None
) -> RunSummary:
    """Replace the rows from `job.start` up to, not including, `job.until`, in one commit.

    The stored offsets do not change. Another run of the job's name is fenced at its next commit.

    Args:
        job: topic, range and pipeline. `until` may be the stored offsets.
        planner: planner of the job's topic.
        store: store of the rows.
        session: starts Spark, and stops it at the end.
        run: state of the run, updated at each step; None: steps are only logged.

    Raises:
        OptionRefused: the table or the topic does not allow a replay, or lacks the range; the message names the reason.
        SinkError: see `ResultStore`, `TopicPlanner` and `resume`.
    """
    run = run or RunState(log_run)
    stored, first, last = _range(job, planner, store)
    run.note_offsets(OffsetRange(job.topic, first, last), stored)
    if not last:
        log.info("job %s: the range has no offsets that the table has read; nothing is replaced", job.name)
        run.note_end(store.generation(), stored)
        return run.outcome()
    with session() as spark:
        require_local_master(store, spark.conf.get("spark.master", None))
        found = with_columns(job, planner, store, spark, grow=False)
        schema = (found or job).pipeline.schema(spark)
        missing = [name for name in RECORD if name not in schema.names]
        if found is None or missing:
            raise OptionRefused(
                f"job {job.name}: its rows lack {' and '.join(missing or RECORD)}, by which a replay finds the rows of "
                f"a record. Let sql or transform keep {' and '.join(RECORD)}, or fill another table from the topic"
            )
        held = store.open(schema)
        store.check_before_commit(lambda: planner.require_still_first_topic(held))
        try:
            run.note_take_over(store.generation(), held)
            if held != stored:
                raise OptionRefused(
                    f"job {job.name}: another run has committed in the meantime. Stop that run, then start the "
                    "replay again"
                )
            began = time.monotonic()
            with spark_errors_named(job.topic, first, last):
                rows, rejects = read_again(job, first, last, lambda: replace_records(spark, found, first, last, store))
            run.note_commit(Commit(1, rows, first, last, time.monotonic() - began, rejects))
        finally:
            store.close()
    run.note_end(run.generation, stored)
    return run.outcome()


def _refuse_compaction(job: Job, planner: TopicPlanner) -> None:
    """Refuse a compacted topic, because Kafka may have removed some records of the range.

    Raises:
        OptionRefused: the topic is compacted.
    """
    if "compact" in (policy := planner.cleanup_policy()):
        raise OptionRefused(
            f"job {job.name}: topic {job.topic} has cleanup.policy={policy}, so Kafka may have removed some of the "
            "range's records, and a replay would remove their rows. Fill another table from the topic; or set "
            "cleanup.policy=delete if Kafka has not compacted the topic yet"
        )


def _range(
    job: Job, planner: TopicPlanner, store: ResultStore
) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
    """Return the stored offsets, the first offsets to replay, and the ends of the range, by partition."""
    if job.start is None or job.until is None:
        raise OptionRefused("a replay needs both --from and --to")
    mode = job.pipeline.write_mode
    if mode.kind != "append" or mode.judged is not None:
        reason = (
            f"a table of kind {mode.kind} makes one row of many records, so the rows of a range of offsets cannot be "
            "replaced"
            if mode.judged is None
            else "with from_input, whether a record is a duplicate depends on records before the range, so a range "
            "cannot be replayed"
        )
        raise OptionRefused(f"job {job.name}: {reason}. Fill another table from the topic")
    plain = replace(job, start=None, until=None)
    require_startable(plain, store)
    stored = store.offsets()
    if not stored:
        raise OptionRefused(f"job {job.name}: the table has no records of topic {job.topic} yet. Run the job first")
    if others := store.other_sources():
        raise OptionRefused(
            f"job {job.name}: the table also has rows of {', '.join(others)}, and a row does not show its job or "
            "topic. Only a table of one job and topic can be replayed"
        )
    _refuse_compaction(job, planner)
    offset_range = planner.offset_range()
    resume(offset_range, stored)
    first, last = (_offsets(place, offset_range, stored, planner) for place in (job.start, job.until))
    for one, other, place in ((first, last, job.until), (last, first, job.start)):
        if missing := sorted(one.keys() - other.keys()):
            raise OptionRefused(
                f"{place} names no offset for partition {missing[0]}. Name the same partitions in --from and --to"
            )
    require_within(job.start, offset_range, first)
    for partition in sorted(last):
        if last[partition] > stored.get(partition, 0):
            raise OptionRefused(
                f"{job.until}: the table has read {job.topic}/{partition} only up to offset "
                f"{stored.get(partition, 0)}. Later records belong to the next run; name an earlier end"
            )
        if first[partition] > last[partition]:
            raise OptionRefused(
                f"{job.start}: in partition {partition} this start lies after the end, {job.until}. Name an earlier "
                "start"
            )
    moved = [partition for partition in last if first[partition] < last[partition]]
    return stored, {each: first[each] for each in moved}, {each: last[each] for each in moved}


def _offsets(
    place: TopicPosition, offset_range: OffsetRange, stored: Mapping[int, int], planner: TopicPlanner
) -> dict[int, int]:
    """Return the offset of each partition at a position.

    An offset found by a time is never above the stored offset.
    """
    require_partitions(place, offset_range)
    if place.offsets is not None:
        return dict(place.offsets)
    if place.timestamp_ms is None:
        return dict(stored) if place.text == STORED else {each: offset_range.earliest[each] for each in stored}
    at = planner.offsets_at(place.timestamp_ms)
    return {each: offset if (found := at.get(each)) is None else min(found, offset) for each, offset in stored.items()}
