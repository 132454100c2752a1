"""Free ports of this machine."""

from __future__ import annotations

import random
import socket
from typing import Final

_DRAW: Final = random.SystemRandom()
"""Random generator for ports alone. Processes that seed Python's shared generator alike would draw the same ports."""
_drawn: set[int] = set()


def free_port() -> int:
    """Return an unused port of 127.0.0.1; each call returns another port.

    The port is below the range of ephemeral ports, so that no outgoing connection takes it before a broker listens
    there.
    """
    while True:
        port = _DRAW.randrange(15_000, 32_768)
        if port not in _drawn and is_free(port):
            _drawn.add(port)
            return port


def is_free(port: int) -> bool:
    """Return True if a broker could listen on this port of 127.0.0.1."""
    with socket.socket() as probe:
        # As Kafka binds: connections that linger from the last run do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
