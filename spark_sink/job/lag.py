"""Age of the records that the table does not have yet."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from kafka_ratchet.spark_sink.errors import KafkaUnavailable
from kafka_ratchet.spark_sink.job.plan import OffsetRange, TopicPlanner
from kafka_ratchet.spark_sink.job.run_state import RunState

log = logging.getLogger("spark_sink")

LAG_EVERY_S = 30.0
"""Seconds between two reads of ages: each read fetches one record of each partition."""
HIGH_EVERY_S = 10.0
"""Seconds between two reads of high watermarks."""


class LagWatch:
    """Measurement of the table's lag, stored in the state of a running stream.

    Args:
        planner: planner of the job's topic.
        run: state of the run, which receives the lag.
    """

    def __init__(self, planner: TopicPlanner, run: RunState) -> None:
        self._planner, self._run = planner, run
        self._next_at = self._high_at = float("-inf")
        self._high: dict[int, int] = {}

    def look(self, offset_range: OffsetRange, offsets: Mapping[int, int]) -> None:
        """Compute the lag from the offsets of store and topic.

        At intervals, read the age of missing records and the high watermarks too.
        """
        ages_s, now = None, time.monotonic()
        if now >= self._high_at:
            self._high_at = now + HIGH_EVERY_S
            try:
                high = self._planner.high_watermarks()
                stable = self._planner.stable_offsets()  # second, so that records of the moment between are not held
                self._high = {partition: end for partition, end in high.items() if end > stable.get(partition, end)}
            except KafkaUnavailable as error:
                log.warning("the number of offsets in open transactions is unknown: %s", error)
        if now >= self._next_at:
            self._next_at = now + LAG_EVERY_S
            try:
                ages_s = waiting_s(self._planner, replace(offset_range, high=self._high), offsets)
            except KafkaUnavailable as error:
                log.warning("the age of the records that the table does not have yet is unknown: %s", error)
        self._run.note_offsets(replace(offset_range, high=self._high), offsets, ages_s)


def waiting_s(planner: TopicPlanner, offset_range: OffsetRange, stored: Mapping[int, int]) -> dict[int, float]:
    """Return the age in seconds of each partition's first missing record.

    The age is this machine's time minus the record's timestamp; a timestamp in the future counts as the present time.
    Transaction markers and aborted records do not count. Records of an open transaction count only if the partition has
    no other missing records. A partition without a missing record has no entry.

    Raises:
        KafkaUnavailable: Kafka did not answer.
    """
    found = planner.first_unread_timestamps(offset_range, stored)
    now_ms = time.time() * 1000
    return {partition: max(0.0, (now_ms - timestamp) / 1000) for partition, timestamp in found.items()}
