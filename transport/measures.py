"""Measures of lanes, which process one partition each; updated once per batch or transaction, never per record."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

COMMIT_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets for the duration of a commit, in seconds. An undisturbed commit takes some 5 to 50 ms;
one that waits for a broker takes seconds."""
FETCH_S: Final = COMMIT_S
RESTORE_S: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""Upper bounds of the buckets for the duration of a restore, in seconds. Reading the end of a changelog takes less than
a second; a million identities without a local store take some seconds or minutes.
"""


class Histogram:
    """Histogram of durations, in seconds.

    Attributes:
        bounds: upper bounds in seconds, rising
        counts: for each bound, the number of durations up to it and above the preceding bound; at the end the number of
            longer durations
        seconds: sum of all durations
    """

    __slots__ = ("bounds", "counts", "seconds")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.seconds = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration, in seconds."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.seconds += seconds


def _commits() -> Histogram:
    return Histogram(COMMIT_S)


def _fetches() -> Histogram:
    return Histogram(FETCH_S)


def _restores() -> Histogram:
    return Histogram(RESTORE_S)


@dataclass(slots=True)
class StreamMeasures:
    """Measures of all lanes of one stream in this worker, since its start.

    commit: durations of commits, from writing a transaction's changelog entries to persisting its state.
    fetch: durations of fetches of existing records; waiting for new records does not count.
    restore: durations from fencing the former owner to the lane's first fetch.
    restored: number of changelog entries replayed.
    committed, aborted: number of transactions. Aborted ones include those without an answer to the commit request,
    which Kafka may have committed.
    halts: number of halts by class of the error; a repeated halt for the same error counts once.
    """

    commit: Histogram = field(default_factory=_commits)
    fetch: Histogram = field(default_factory=_fetches)
    restore: Histogram = field(default_factory=_restores)
    restored: int = 0
    committed: int = 0
    aborted: int = 0
    halts: Counter[str] = field(default_factory=Counter)
