"""Owner of a store, read in several threads at once, also by the first readers."""

from __future__ import annotations

import subprocess
import sys

READ_AT_ONCE = """
import importlib, sys, threading
module = importlib.import_module(sys.argv[1])
sys.setswitchinterval(1e-6)
for _ in range(40):
    importlib.reload(module)  # new types, which nobody has read yet
    read, barrier = eval(sys.argv[2], vars(module)), threading.Barrier(6)

    def first() -> None:
        barrier.wait()
        read()

    threads = [threading.Thread(target=first) for _ in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
"""
OWNER = b'{"app":"a","stream":"s","rule":{},"topics":{"input":{"name":"n","id":"i"}},"format":2}'


def test_stores_that_are_opened_at_once_do_not_end_the_process() -> None:
    read = f"lambda: Owner.unpack({OWNER!r})"
    command = [sys.executable, "-c", READ_AT_ONCE, "kafka_ratchet.transport.owner", read]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
