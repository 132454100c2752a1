"""How old the records are that the table does not have yet."""

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
"""Between two questions about age, in seconds: each costs one record of each partition."""
HIGH_EVERY_S = 10.0
"""Between two questions about high watermarks, in seconds."""


class LagWatch:
    """Tells the state of a running stream how far the table is behind the topic.

    Args:
        planner: of the job's topic.
        run: is told.
    """

    def __init__(self, planner: TopicPlanner, run: RunState) -> None:
        self._planner, self._run = planner, run
        self._next_at = self._high_at = float("-inf")
        self._high: dict[int, int] = {}

    def look(self, offset_range: OffsetRange, offsets: Mapping[int, int]) -> None:
        """Compare the store's offsets with the topic's; if it is time, ask how old the first missing records are."""
        ages_s, now = None, time.monotonic()
        if now >= self._high_at:
            self._high_at = now + HIGH_EVERY_S
            try:
                high = self._planner.high_watermarks()
                stable = self._planner.stable_offsets()  # asked second: records of the moment between are not held
                self._high = {partition: end for partition, end in high.items() if end > stable.get(partition, end)}
            except KafkaUnavailable as error:
                log.warning("open transactions are not known: %s", error)
        if now >= self._next_at:
            self._next_at = now + LAG_EVERY_S
            try:
                ages_s = waiting_s(self._planner, replace(offset_range, high=self._high), offsets)
            except KafkaUnavailable as error:
                log.warning("the lag is not known: %s", error)
        self._run.looked(replace(offset_range, high=self._high), offsets, ages_s)


def waiting_s(planner: TopicPlanner, offset_range: OffsetRange, stored: Mapping[int, int]) -> dict[int, float]:
    """Age of each partition's first record that is not stored, by its own timestamp and this machine's clock, in s.

    Markers and aborted records do not count: a partition that has nothing else left is missing, as is one that is
    read to its end. A timestamp of the future counts as now.

    Raises:
        KafkaUnavailable: Kafka did not answer.
    """
    found = planner.first_unread_timestamps(offset_range, stored)
    now_ms = time.time() * 1000
    return {partition: max(0.0, (now_ms - timestamp) / 1000) for partition, timestamp in found.items()}
