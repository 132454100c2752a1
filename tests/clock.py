"""Time as a test says it is."""

from __future__ import annotations

import asyncio


class Clock:
    """A clock that stands still, or goes on by `step` seconds each time somebody looks at it."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 1_000.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


SAVES_AT_ONCE = 100.0
"""A step with which a partition makes a snapshot at every commit: `SNAPSHOT_EVERY_S` * `SNAPSHOT_LATER`, and more."""


def skip(seconds: float) -> None:
    """Put the running event loop's clock forward: what was to wait so long waits no more."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]
