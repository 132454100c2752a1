"""What a run has done so far: for its last log line, for scripts, and for Prometheus."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kafka_ratchet.spark_sink.job.plan import Extent
from kafka_ratchet.spark_sink.job.status import lag_of
from kafka_ratchet.spark_sink.spark.progress import Committed

BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0)
"""Upper bounds of the histogram of commits, in seconds: small ones take some tenths, a million rows some seconds."""


class Figures:
    """Counts of one run, and where it stands. Read by the thread that serves metrics while the job writes.

    Dictionaries are replaced and never changed, because a snapshot hands them out.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.commits = 0
        self.rows = 0
        self.rejects = 0
        self.undeclared: tuple[str, ...] = ()
        """Fields of the first values that the columns do not name, so that they are not kept."""
        self.commit_s = 0.0
        """All commits together, from reading the records to what the store said, in seconds."""
        self.longest_commit_s = 0.0
        self.in_buckets = [0] * (len(BUCKETS_S) + 1)
        """Commits by `BUCKETS_S`, each in the first bucket that it fits; the last is for longer ones."""
        self.generation = 0
        self.offsets: dict[int, int] = {}
        self.end: dict[int, int] = {}
        self.lag: dict[int, int] = {}
        self.lag_s: dict[int, float] = {}
        self.committed_at: float | None = None
        """Seconds since 1970; None: not in this run."""
        self.finished_at: float | None = None

    def stand(self, extent: Extent, offsets: Mapping[int, int], waiting_s: Mapping[int, float] | None = None) -> None:
        """How far the store is, next to the topic.

        Args:
            extent: the topic.
            offsets: the store.
            waiting_s: see `status.waiting_s`; None: not asked this time.
        """
        with self._lock:
            self.offsets, self.end = dict(offsets), dict(extent.end)
            self.lag = lag_of(extent.earliest, extent.end, offsets)
            if waiting_s is not None:
                self.lag_s = {partition: waiting_s.get(partition, 0.0) for partition in extent.end}
            # Known without asking: nothing is left to wait there.
            self.lag_s = self.lag_s | {partition: 0.0 for partition, lag in self.lag.items() if lag == 0}

    def add(self, committed: Committed) -> None:
        """One commit that went through."""
        with self._lock:
            self.commits += 1
            self.rows += committed.rows
            self.rejects += committed.rejects
            self.commit_s += committed.seconds
            self.longest_commit_s = max(self.longest_commit_s, committed.seconds)
            self.in_buckets[sum(committed.seconds > bound for bound in BUCKETS_S)] += 1
            self.committed_at = time.time()

    def finish(self, generation: int, offsets: Mapping[int, int]) -> None:
        """The run has ended as it should."""
        with self._lock:
            self.generation, self.offsets, self.finished_at = generation, dict(offsets), time.time()

    def snapshot(self) -> dict[str, Any]:
        """All of it, as of one moment."""
        with self._lock:
            return {name: value for name, value in vars(self).items() if not name.startswith("_")} | {
                "in_buckets": list(self.in_buckets)
            }

    def as_dict(self) -> dict[str, Any]:
        """For one line of JSON."""
        found = self.snapshot()
        at = found["committed_at"]
        return {
            "rows": found["rows"],
            "commits": found["commits"],
            "offsets": found["offsets"],
            "rejects": found["rejects"],
            "undeclared_fields": list(found["undeclared"]),
            "generation": found["generation"],
            "lag": sum(found["lag"].values()),
            "commit_seconds": {"sum": round(found["commit_s"], 3), "max": round(found["longest_commit_s"], 3)},
            "last_commit": None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds"),
        }
