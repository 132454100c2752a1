"""CPU time and memory are those of a process and of all that it has started."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.process import cpu_seconds, named, peak_bytes, tree

BUSY_S = 0.3
WASTE = 200 << 20
CHILD = f"""
import sys, time
waste = bytearray({WASTE})
began = time.process_time()
while time.process_time() - began < {BUSY_S}:
    pass
print("done", flush=True)
sys.stdin.read()
"""
PARENT = f"import subprocess, sys; c = subprocess.Popen([sys.executable, '-c', {CHILD!r}]); c.wait()"


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PARENT]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    yield process
    process.communicate()


def test_what_a_child_does_is_its_parents(parent: subprocess.Popen[str]) -> None:
    assert len(tree(parent.pid)) == 2
    assert cpu_seconds(parent.pid) >= BUSY_S
    assert peak_bytes(parent.pid) >= WASTE


def test_a_process_is_found_by_its_name_among_descendants(parent: subprocess.Popen[str]) -> None:
    name = Path(f"/proc/{parent.pid}/comm").read_text().strip()
    assert named(parent.pid, name) == tree(parent.pid)[1]
    assert named(parent.pid, "nobody") is None
    assert named(tree(parent.pid)[1], name) is None


def test_a_process_that_is_gone_has_used_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert (cpu_seconds(gone.pid), peak_bytes(gone.pid)) == (0, 0)


def test_one_that_waits_uses_nothing() -> None:
    # A process of its own: this one's tree has the Kafka and the Spark of other tests.
    command = [sys.executable, "-c", "print('up', flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as idle:
        assert idle.stdout is not None
        assert idle.stdout.readline() == "up\n"
        before = cpu_seconds(idle.pid)
        time.sleep(0.2)
        assert cpu_seconds(idle.pid) - before < 0.2
        idle.communicate("\n")
