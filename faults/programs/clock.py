"""`ratchet` command with a wrong clock: python -m faults.programs.clock SECONDS COMMAND ARGUMENT...

The process sees a shifted wall clock through `time`, while its monotonic clock is unchanged, as on a machine where the
administrator or NTP daemon sets the time. At SIGHUP the shift changes its sign: a fast clock becomes slow by as much.
"""

from __future__ import annotations

import signal
import sys
import time


def shift(seconds: float) -> None:
    """Shift the wall clock by a number of seconds, and reverse the shift at each SIGHUP."""
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
