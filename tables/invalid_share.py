"""Two shares of invalid records in a partition: in the last minute, and in the time before it.

An invalid record is no error of the worker: it becomes a dead letter, and the partition continues. But if the share of
invalid records jumps, a producer or a setting has changed, and an operator should check it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kafka_ratchet.tables.totals import Progress

WINDOW_S: Final = 60.0
STEP_S: Final = 5.0
"""Seconds of commits to count together; there are up to ten commits in a second."""

JUMP_SHARE: Final = 0.05
JUMP_LEAST: Final = 10
"""Minimum number of invalid records in the last minute for a jump; `JUMP_SHARE` is the minimum rise of their share.

Fewer records prove nothing: a single invalid record among three is already a share of a third.
"""


@dataclass(frozen=True, slots=True)
class InvalidShare:
    """Numbers of judged and invalid records of a partition in the last minute, and before that minute."""

    judged: int = 0
    invalid: int = 0
    judged_before: int = 0
    invalid_before: int = 0

    @property
    def now(self) -> float:
        """Return the share of invalid records in the last minute, 0 to 1."""
        return self.invalid / self.judged if self.judged else 0.0

    @property
    def before(self) -> float:
        """Return the share of invalid records before the last minute, 0 to 1; 0 if none was judged."""
        return self.invalid_before / self.judged_before if self.judged_before else 0.0

    @property
    def has_jumped(self) -> bool:
        """Return True if the share has jumped, so that an operator should check the cause."""
        return self.invalid >= JUMP_LEAST and self.now - self.before >= JUMP_SHARE


class RecentShare:
    """Counter of judged and invalid records that compares the last minute with the time before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps: deque[tuple[float, int, int]] = deque()
        """Start of each step by the clock, with the totals (judged, invalid) at that time."""
        self._totals = 0, 0

    def note(self, before: Progress | None, after: Progress) -> None:
        """Record a commit that changed a partition's totals."""
        now = self._clock()
        self._forget(now)
        if not self._steps or now - self._steps[-1][0] >= STEP_S:
            self._steps.append((now, *_totals(before)))
        self._totals = _totals(after)

    def share(self) -> InvalidShare:
        """Return the shares of invalid records as of now."""
        self._forget(self._clock())
        judged, invalid = self._totals
        judged_before, invalid_before = self._steps[0][1:] if self._steps else self._totals
        return InvalidShare(judged - judged_before, invalid - invalid_before, judged_before, invalid_before)

    def _forget(self, now: float) -> None:
        while self._steps and self._steps[0][0] < now - WINDOW_S:
            self._steps.popleft()


def _totals(progress: Progress | None) -> tuple[int, int]:
    if progress is None:
        return 0, 0
    return progress.judged, progress.invalid
