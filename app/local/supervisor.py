"""Supervisor program: runs one command, and stops the command when the supervisor's owner ends.

    python supervisor.py COMMAND ARGUMENT...

The owner is the process that starts the supervisor. It holds the write end of the supervisor's stdin, and never writes
to it. When the owner ends for any reason, the kernel closes that end, and the supervisor stops the command: by SIGTERM,
and by SIGKILL after `GRACE_S`. If the supervisor itself is killed, Linux kills the command (PR_SET_PDEATHSIG).

Linux would also kill the command when the *thread* that started the command ends. An owner may have several threads,
and one of them may end early. So the owner starts the supervisor, and the supervisor's main thread starts the command
and waits for its end.

The first line on stdout is the command's process id; the command's own output goes to the supervisor's stderr. The
supervisor passes SIGTERM and SIGINT to the command as SIGTERM, and SIGUSR1 as SIGKILL. The supervisor's exit code is
the command's, or 128 + the number of the signal that ended the command.

The supervisor runs as a plain file that imports nothing of the package, so that it starts in a few milliseconds.
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
"""Seconds from SIGTERM to SIGKILL. A broker shuts down in one or two; a busy one gets ten times that."""

_PR_SET_PDEATHSIG = 1


WAKE_S = 1.0
"""Seconds after which the main thread looks for signals. One that arrives just before a blocking wait does not end the
wait, and Python would run its handler only after the command's end.
"""


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait until the command ends, and return its code."""
    while True:
        try:
            return process.wait(WAKE_S)
        except subprocess.TimeoutExpired:
            continue


def main(command: list[str]) -> int:
    """Run the command until it ends; return the exit code of this process."""
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
    code = _wait(process)
    ended.set()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
