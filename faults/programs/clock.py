"""`ratchet` command with a wrong clock: python -m faults.programs.clock SECONDS COMMAND ARGUMENT...

The wall clock of the process is moved, as seen through `time`; the monotonic clock goes on, as on a machine where the
administrator or NTP daemon sets the time. SIGHUP makes it jump: a fast clock is then as slow.
"""

from __future__ import annotations

import signal
import sys
import time


def shift(seconds: float) -> None:
    """Move the wall clock, and let it jump to the other side of the truth at SIGHUP."""
    true_time, true_ns = time.time, time.time_ns
    ahead = [seconds]

    def jump(*_: object) -> None:
        ahead[0] = -ahead[0]

    time.time = lambda: true_time() + ahead[0]
    time.time_ns = lambda: true_ns() + int(ahead[0] * 1e9)
    signal.signal(signal.SIGHUP, jump)


if __name__ == "__main__":
    shift(float(sys.argv[1]))
    sys.argv = ["ratchet", *sys.argv[2:]]
    from kafka_ratchet.app.cli import main

    main()
