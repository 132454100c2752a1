"""End of the job as soon as its parent process has ended, for any reason."""

from __future__ import annotations

import os
import signal
import sys
import threading

VARIABLE = "SPARK_SINK_ENDS_WITH_STDIN"
"""Environment variable of a job with a parent that holds the write end of the job's standard input.

The parent never writes to that end. The kernel closes it only when the parent dies, even by SIGKILL."""


def end_with_parent() -> None:
    """Start a thread that kills the process group once standard input ends.

    The group consists of this process, Spark's JVM and its children, so that none of them commits afterwards. The next
    run continues from the last commit. The call does nothing without `VARIABLE`, or if another process leads the group.
    """
    if os.environ.pop(VARIABLE, "") and os.getpgrp() == os.getpid():
        threading.Thread(target=_watch, args=(sys.stdin.fileno(),), name="owner", daemon=True).start()


def _watch(descriptor: int) -> None:
    while os.read(descriptor, 4096):
        pass
    os.killpg(0, signal.SIGKILL)
