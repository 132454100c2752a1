"""State of one run of the job.

The run reports each step to a `RunState`, which alone keeps count. Log lines (`run_log`), Prometheus (`metrics`) and
the last line of JSON only read this object.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from kafka_ratchet.spark_sink.errors import KafkaUnavailable, RegistryUnavailable, SparkFailed
from kafka_ratchet.spark_sink.job.plan import OffsetRange

BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0)
"""Upper bounds of the histogram of commits, in seconds: small commits take some tenths, a million rows some seconds."""

STALLED_AFTER_S = 15.0
"""Seconds without a commit after which the run reports a standstill."""
Repeatable = KafkaUnavailable | RegistryUnavailable | SparkFailed
"""Errors after which a job tries again; every other one, of the store too, ends it."""
CAUSES: dict[type[Exception], str] = {
    KafkaUnavailable: "no-answer",
    RegistryUnavailable: "registry",
    SparkFailed: "spark",
}
"""Causes of a standstill by error; see docs/reference/stalls.md."""

Step = Literal["starting", "opened", "looked", "sampled", "committed", "failed", "finished"]


@dataclass(frozen=True)
class Commit:
    """Successful commit: its number, rows, offsets and duration."""

    number: int
    """Number of the commit within this run, from 1."""
    rows: int
    start: Mapping[int, int]
    end: Mapping[int, int]
    seconds: float
    """Seconds from reading the records to the store's answer."""
    rejects: int = 0


@dataclass(frozen=True)
class RunSummary:
    """Summary of a run: commits, rows, offsets, rejects."""

    commits: int
    rows: int
    offsets: dict[int, int]
    """Next offset to read of each partition, as the store now has it."""
    rejects: int = 0


class RunState:
    """State of one run: counts, offsets and errors, for logs, metrics and status.

    Each method `note_...` records a step, and calls the observers afterwards. Other threads read by `snapshot`, so
    dictionaries are replaced and never changed in place.

    Args:
        observers: functions called with this object after each step, in the run's thread; they must not change the
            object.
    """

    def __init__(self, *observers: Callable[[RunState], None]) -> None:
        self._lock = threading.Lock()
        self._observers = list(observers)
        self._began = self._fails_since = time.monotonic()
        self._commits_fail = False
        self._offset_range: OffsetRange | None = None
        self._stalls_since: float | None = None
        """Start of a standstill by `time.monotonic`, see `stalled_s`; None: nothing waits."""
        self._blocked_since: dict[int, tuple[int, float]] = {}
        """Last stable offset of each partition with an open transaction, and the time of its first reading."""
        self.failures = 0
        """Number of failed attempts."""
        self.step: Step = "starting"
        self.error: Repeatable | None = None
        """Reason why the newest attempt failed; None if it succeeded."""
        self.last_commit: Commit | None = None
        self.commits = 0
        self.rows = 0
        self.rejects = 0
        self.undeclared: tuple[str, ...] = ()
        """Fields of the first values without a column in the table, so that the contents are lost."""
        self.commit_s = 0.0
        """Seconds of all commits together."""
        self.longest_commit_s = 0.0
        self.in_buckets = [0] * (len(BUCKETS_S) + 1)
        """Number of commits in each bucket of `BUCKETS_S` by duration; the last number counts all longer commits."""
        self.generation = 0
        self.offsets: dict[int, int] = {}
        """Next offset to read of each partition, as the store has it."""
        self.end: dict[int, int] = {}
        """High watermarks at the last check of the topic, if known, or else last stable offsets."""
        self.blocked: dict[int, int] = {}
        """Number of offsets that an open transaction holds back, by partition."""
        self.lag: dict[int, int] = {}
        self.lag_s: dict[int, float] = {}
        self.age_s: float | None = None
        """Age of the oldest missing record in seconds; None: the last check of the topic did not read it."""
        self.started_at = time.time()
        """Time of the run's start in seconds since 1970."""
        self.committed_at: float | None = None
        """Time of the last commit in seconds since 1970; None: none in this run."""
        self.finished_at: float | None = None

    # -- steps

    def note_take_over(self, generation: int, offsets: Mapping[int, int]) -> None:
        """Record that the job has taken the table over, with the take-over's number and the stored offsets."""
        with self._lock:
            if self.generation == 0:  # later ones only follow a failure
                self.error, self._commits_fail = None, False
            self.step, self.generation, self.offsets = "opened", generation, dict(offsets)
        self._show()

    def note_offsets(
        self, offset_range: OffsetRange, offsets: Mapping[int, int], ages_s: Mapping[int, float] | None = None
    ) -> None:
        """Record the topic's present offsets, and compute the lag.

        Args:
            offset_range: range of the topic.
            offsets: the stored offsets.
            ages_s: see `lag.waiting_s`; None: not read this time.
        """
        with self._lock:
            self.step, self._offset_range, self.end = "looked", offset_range, offset_range.top
            self.blocked = {partition: offset_range.blocked.get(partition, 0) for partition in offset_range.end}
            self._blocked_since = {
                partition: self._first_seen(partition, offset_range.end[partition])
                for partition in offset_range.blocked
            }
            if ages_s is not None:
                self.lag_s = {partition: ages_s.get(partition, 0.0) for partition in offset_range.end}
            self.age_s = None if ages_s is None else max(ages_s.values(), default=0.0)
            self._store_is_at(offsets)
            if not self._commits_fail:
                self.error, self._fails_since = None, time.monotonic()
        self._show()

    def note_undeclared(self, undeclared: tuple[str, ...]) -> None:
        """Record the fields of the first values that no column of the table keeps."""
        with self._lock:
            self.step, self.undeclared = "sampled", undeclared
        self._show()

    def note_commit(self, commit: Commit) -> None:
        """Record a successful commit."""
        with self._lock:
            self.step, self.last_commit, self.error = "committed", commit, None
            self._commits_fail, self._fails_since = False, time.monotonic()
            self._stalls_since = None
            self._store_is_at(commit.end)
            self.commits += 1
            self.rows += commit.rows
            self.rejects += commit.rejects
            self.commit_s += commit.seconds
            self.longest_commit_s = max(self.longest_commit_s, commit.seconds)
            self.in_buckets[sum(commit.seconds > bound for bound in BUCKETS_S)] += 1
            self.committed_at = time.time()
        self._show()

    def note_failure(self, error: Repeatable) -> None:
        """Record a failed attempt, which the job repeats."""
        with self._lock:
            self.step, self.error = "failed", error
            self.failures += 1
            if self._stalls_since is None:
                self._stalls_since = time.monotonic()
            self._commits_fail = self._commits_fail or isinstance(error, SparkFailed | RegistryUnavailable)
        self._show()

    def note_end(self, generation: int, offsets: Mapping[int, int]) -> None:
        """Record the successful end of the run."""
        with self._lock:
            self.step, self.generation, self.finished_at = "finished", generation, time.time()
            self.offsets = dict(offsets)
        self._show()

    def _first_seen(self, partition: int, end: int) -> tuple[int, float]:
        before = self._blocked_since.get(partition)
        return before if before is not None and before[0] == end else (end, time.monotonic())

    def _store_is_at(self, offsets: Mapping[int, int]) -> None:
        self.offsets = dict(offsets)
        if self._offset_range is not None:
            self.lag = self._offset_range.lag(offsets)
            if all(self.lag[each] <= self.blocked.get(each, 0) for each in self.lag):
                self._stalls_since = None
            elif self._stalls_since is None:
                self._stalls_since = time.monotonic()
            # Known without a request: nothing is left to wait there.
            self.lag_s = self.lag_s | {partition: 0.0 for partition, lag in self.lag.items() if lag == 0}

    def _show(self) -> None:
        for observer in self._observers:
            observer(self)

    @contextmanager
    def observed(self, observer: Callable[[RunState], None]) -> Iterator[None]:
        """Add an observer, and remove it when the block ends."""
        self._observers.append(observer)
        try:
            yield
        finally:
            self._observers.remove(observer)

    # -- readings

    def seconds(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self._began

    def failing_s(self) -> float:
        """Return the seconds since the last success: a commit, or a check of the topic that Kafka answered.

        After a failed commit, only the next commit counts as a success.
        """
        return time.monotonic() - self._fails_since

    def stalled_s(self) -> float:
        """Return the seconds that records have waited without a commit; 0 if no record waits.

        A failed attempt counts as a waiting record, because Kafka may have records that the run does not know.
        """
        since = self._stalls_since
        return 0.0 if since is None else time.monotonic() - since

    def standstill(self) -> str:
        """Return the cause of a standstill; "" if the job progresses, or has nothing to commit."""
        if self.stalled_s() >= STALLED_AFTER_S:
            found = (cause for kind, cause in CAUSES.items() if isinstance(self.error, kind))
            return next(found, "commit")
        now = time.monotonic()
        waits = any(
            now - since >= STALLED_AFTER_S and self.offsets.get(partition, 0) >= end
            for partition, (end, since) in self._blocked_since.items()
        )
        return "open-transaction" if waits else ""

    def outcome(self) -> RunSummary:
        """Return the summary of the run."""
        return RunSummary(self.commits, self.rows, self.offsets, self.rejects)

    def snapshot(self) -> dict[str, Any]:
        """Return a copy of the whole state at one moment."""
        with self._lock:
            return {name: value for name, value in vars(self).items() if not name.startswith("_")} | {
                "in_buckets": list(self.in_buckets)
            }

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of the line that `--json` prints."""
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
