"""Time as a test says it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Clock:
    """A clock that stands still, or goes on by `step` seconds each time somebody looks at it."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 1_000.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


SAVES_AT_ONCE = 100.0
"""A step with which a partition makes a snapshot at every commit: `SNAPSHOT_EVERY_S` * `SNAPSHOT_LATER`, and more."""


class Skipping:
    """A clock that can be put forward."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self.ahead_s = clock, 0.0

    def __call__(self) -> float:
        return self._clock() + self.ahead_s


def let_skip() -> Skipping:
    """The running event loop's clock, which `skip` can put forward, also for those who keep `loop.time` from now on."""
    loop = asyncio.get_running_loop()
    found = loop.time if isinstance(loop.time, Skipping) else Skipping(loop.time)
    loop.time = found  # type: ignore[method-assign]
    return found


def skip(seconds: float) -> None:
    """Put the running event loop's clock forward: what was to wait so long waits no more."""
    let_skip().ahead_s += seconds
