"""Runs one command that must not outlive its owner, the process that asked for it.

    python supervisor.py COMMAND ARGUMENT...

The owner holds the write end of this process's stdin and never writes to it. When the owner dies, however it dies, the
kernel closes that end and the supervisor stops the command: SIGTERM, and SIGKILL after `GRACE_S`. If the supervisor
itself is killed, Linux kills the command with it (PR_SET_PDEATHSIG). That signal is tied to the *thread* that started
the command. An owner with several threads therefore does not start it directly; the supervisor has one thread.

The first line on stdout is the command's process id; its own output goes to the supervisor's stderr. SIGTERM and SIGINT
are passed on as SIGTERM, SIGUSR1 as SIGKILL. The exit code is the command's, or 128 + the signal that ended it.

Runs as a plain file, without the rest of the package, so that it is up in a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from types import FrameType

GRACE_S = 20.0
"""A broker that shuts down cleanly needs one or two seconds; a busy one gets ten times that before SIGKILL."""

_PR_SET_PDEATHSIG = 1


def main(command: list[str]) -> int:
    """Run the command to its end; return the exit code for the supervisor."""
    supervisor = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def die_with_supervisor() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != supervisor:  # it died before the line above took effect
                os._exit(1)

    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        preexec_fn=die_with_supervisor,
    )

    def send(number: signal.Signals) -> None:
        # Not reaped before main's wait() returns, so the id cannot mean another process.
        if process.returncode is None:
            os.kill(process.pid, number)

    def terminate(_number: int, _frame: FrameType | None) -> None:
        send(signal.SIGTERM)

    def kill(_number: int, _frame: FrameType | None) -> None:
        send(signal.SIGKILL)

    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGINT, terminate)
    signal.signal(signal.SIGUSR1, kill)

    ended = threading.Event()

    def stop_with_owner() -> None:
        while os.read(0, 4096):
            pass
        send(signal.SIGTERM)
        if not ended.wait(GRACE_S):
            send(signal.SIGKILL)

    threading.Thread(target=stop_with_owner, daemon=True).start()
    print(process.pid, flush=True)
    code = process.wait()
    ended.set()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
