"""Detector of batches that librdkafka fetches again and again without reading them to their end.

Kafka accepts a gzip batch of several members. librdkafka gives the records of the first member, then requests the
rest without end and reports no error. Its statistics show that, as requests without progress.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

INTERVAL_MS: Final = 2_500
"""Milliseconds between two reports of librdkafka's statistics."""
REQUESTS: Final = 8
"""Minimum number of fetch requests without a record, in at least `STANDSTILL_S`, before a partition counts as stuck.

librdkafka sends the next request after an answer, so slow or throttled requests do not add up.
"""
STANDSTILL_S: Final = 12.0


class Standstill(NamedTuple):
    """Position where librdkafka makes no progress, although committed records follow.

    Args:
        offset: the position.
        end: last stable offset of the partition.
        requests: number of fetch requests to the leader until `since`.
        since: time of the first report with this position, in seconds of librdkafka's clock.
    """

    offset: int
    end: int
    requests: int
    since: float


class StuckPartitions:
    """Finder of a topic's partitions where librdkafka makes no progress, although committed records follow."""

    def __init__(self, topic: str) -> None:
        """Start without any stuck partition."""
        self._topic = topic
        self._seen: dict[int, Standstill] = {}
        self._stuck: dict[int, Standstill] = {}

    def take(self, statistics: str) -> None:
        """Find stuck partitions by comparing a report with the earlier ones. statistics: the report, as JSON."""
        found = json.loads(statistics)
        now = found["ts"] / 1e6
        leaders = {each["nodeid"]: each for each in found["brokers"].values()}
        partitions = found["topics"].get(self._topic, {}).get("partitions", {})
        seen = {}
        for name, each in partitions.items():
            leader = leaders.get(each["leader"])
            if leader is None or not _waits(each):
                continue
            requests = int(leader["req"].get("Fetch", 0))
            known = self._seen.get(int(name))
            if known is None or known.offset != each["next_offset"] or known.requests > requests:
                known = Standstill(each["next_offset"], each["ls_offset"], requests, now)
            seen[int(name)] = known
            if requests - known.requests >= REQUESTS and now - known.since >= STANDSTILL_S:
                self._stuck[int(name)] = known
        self._seen = seen
        self._stuck = {number: each for number, each in self._stuck.items() if seen.get(number) == each}

    def at(self, positions: Mapping[int, int]) -> tuple[int, Standstill] | None:
        """Return a partition stuck at one of these positions, with its standstill; None: there is none."""
        return next((each for each in self._stuck.items() if positions.get(each[0]) == each[1].offset), None)


def _waits(partition: Mapping[str, Any]) -> bool:
    """Return True if committed records follow the position but librdkafka holds none of them."""
    return (
        partition["fetch_state"] == "active"
        and not partition["fetchq_cnt"]
        and 0 <= partition["next_offset"] < partition["ls_offset"]
    )
