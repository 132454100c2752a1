"""Supervisor of a command: a signal that the main thread does not notice at once ends the command too."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from pathlib import Path

from kafka_ratchet.app.local import supervisor


def threads_of(pid: int) -> list[int]:
    return sorted(int(folder.name) for folder in Path(f"/proc/{pid}/task").iterdir())


def test_a_signal_that_does_not_interrupt_the_wait_ends_the_command() -> None:
    """A signal just before the wait, too, leaves the main thread waiting; here another thread gets it."""
    program = [sys.executable, supervisor.__file__, sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            command = int(process.stdout.readline())
            while len(threads := threads_of(process.pid)) < 2:
                time.sleep(0.01)
            other = next(thread for thread in threads if thread != process.pid)
            assert ctypes.CDLL(None).tgkill(process.pid, other, signal.SIGUSR1) == 0
            assert process.wait(60) == 128 + signal.SIGKILL
            assert not Path(f"/proc/{command}").exists()
        finally:
            process.kill()
