"""A job that another process has started ends with that process, however that one ends."""

from __future__ import annotations

import os
import signal
import sys
import threading

VARIABLE = "SPARK_SINK_ENDS_WITH_STDIN"
"""Set by whoever starts the job, holds the write end of its standard input and never writes to it. The kernel closes
that end when the owner dies, also by SIGKILL; and nothing else does."""


def end_with_parent() -> None:
    """From now on, end the whole process group at once when standard input ends.

    The group is this process, Spark's JVM and what that has started, so that nothing of it commits any more. It has to
    be the job's own. Nothing is half-done by it: the next run goes on from the last commit.
    """
    if os.environ.pop(VARIABLE, "") and os.getpgrp() == os.getpid():
        threading.Thread(target=_watch, args=(sys.stdin.fileno(),), name="owner", daemon=True).start()


def _watch(descriptor: int) -> None:
    while os.read(descriptor, 4096):
        pass
    os.killpg(0, signal.SIGKILL)
