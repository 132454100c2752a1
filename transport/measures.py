"""Measures of lanes: by batch and by transaction, never by record."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

COMMIT_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds in seconds. An undisturbed commit takes some 5 to 50 ms; one that waits for a broker takes seconds."""
FETCH_S: Final = COMMIT_S
RESTORE_S: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""A tail takes less than a second; a million identities without a local store some seconds, or minutes."""


class Histogram:
    """Durations by upper bound.

    Attributes:
        bounds: seconds, rising
        counts: durations by bound, each in the first that it fits; the last is for longer ones
        seconds: all of them together
    """

    __slots__ = ("bounds", "counts", "seconds")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.seconds = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
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

    commit: from the changelog entries of a transaction until its state is persisted.
    fetch: from the request for present records to their arrival; waiting for new ones does not count.
    restore: from fencing the former owner to the lane's first fetch.
    restored: changelog entries applied.
    committed, aborted: transactions; aborted are those that this worker gave up. One without an answer to its end is
        among them, though Kafka may have committed it.
    halts: by class of the error; a try with the same end as the one before does not count again.
    """

    commit: Histogram = field(default_factory=_commits)
    fetch: Histogram = field(default_factory=_fetches)
    restore: Histogram = field(default_factory=_restores)
    restored: int = 0
    committed: int = 0
    aborted: int = 0
    halts: Counter[str] = field(default_factory=Counter)
