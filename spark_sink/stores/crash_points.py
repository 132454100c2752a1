"""Named points at which a fault test kills the whole job. Off unless the variable is set before the start."""

from __future__ import annotations

import os
import signal

VARIABLE = "SPARK_SINK_CRASH_AT"
"""Text `POINT` or `POINT:N`, for the N-th passing of the point, from 1; calls of `passing` are the points."""

_point, _, _count = os.environ.get(VARIABLE, "").partition(":")
_left = int(_count or 1)


def passing(point: str) -> None:
    """Kill this process group (driver and JVM) with SIGKILL if the test asked for it."""
    global _left
    if point != _point:
        return
    _left -= 1
    if _left == 0:
        os.killpg(os.getpgid(0), signal.SIGKILL)
