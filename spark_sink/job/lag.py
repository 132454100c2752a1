"""How far a running stream is behind, said now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from kafka_ratchet.spark_sink.errors import KafkaUnavailable
from kafka_ratchet.spark_sink.job.plan import Extent, TopicPlanner
from kafka_ratchet.spark_sink.job.run_state import Figures
from kafka_ratchet.spark_sink.job.status import lag_of, waiting_s

log = logging.getLogger("spark_sink")

LAG_EVERY_S = 30.0
"""Between two lines about the lag of a stream, in seconds; its age in seconds costs one record of each partition."""


class LagLog:
    """Says now and then how far the table is behind.

    Args:
        planner: of the job's topic.
        figures: gets what was found.
    """

    def __init__(self, planner: TopicPlanner, figures: Figures) -> None:
        self._planner, self._figures = planner, figures
        self._next_at = float("-inf")

    def look(self, extent: Extent, offsets: Mapping[int, int]) -> None:
        """Note it, and look how old what is missing is, if it is time."""
        found = None
        if time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + LAG_EVERY_S
            try:
                found = waiting_s(self._planner, extent, offsets)
            except KafkaUnavailable as error:
                log.warning("the lag is not known: %s", error)
        self._figures.stand(extent, offsets, found)
        if found is not None:
            left, oldest = sum(lag_of(extent.earliest, extent.end, offsets).values()), max(found.values(), default=0.0)
            log.info("lag: %d offsets, the oldest record among them is %.1f s old", left, oldest)
