"""`ratchet sink` is killed: nothing of its job outlives it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_ratchet.app.local.ports import free_port
from tests.spark_sink.sites import delta_store

ROOT = Path(__file__).parents[2]


def descendants(pid: int) -> set[int]:
    """Every process that this one has started, and what those have started."""
    found: set[int] = set()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            started = {int(child) for child in children.read_text().split()}
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
        found |= started.union(*map(descendants, started))
    return found


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until(what: str, is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 240
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.matrix
@pytest.mark.timeout(800)
def test_a_killed_command_leaves_no_job_that_goes_on_committing(
    broker: str, new_topic: Callable[..., str], write: Callable[..., None], table: str, tmp_path: Path
) -> None:
    topic, port = new_topic(partitions=1), free_port()
    write(topic, [b'{"n":1}'] * 10)
    settings = tmp_path / "ratchet.toml"
    settings.write_text(
        f"""
        bootstrap = "{broker}"
        [streams.events]
        input = "in"
        output = "{topic}"
        dead_letters = "dead"
        [sink]
        path = {json.dumps(table, ensure_ascii=False)}
        columns = "n long"
        metrics_port = {port}
        """,
        "utf-8",
    )
    store = delta_store(table, "results", topic)
    command = [
        sys.executable,
        "-m",
        "kafka_ratchet",
        "sink",
        "--config",
        str(settings),
        "--mode",
        "stream",
        "--interval",
        "0",
    ]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log) as sink:
        started: set[int] = set()
        try:
            wait_until("the first commit", lambda: sink.poll() is not None or store.offsets().get(0, 0) >= 10)
            started = descendants(sink.pid)
            assert {"java", "python"} <= {Path(f"/proc/{pid}/comm").read_text().strip()[:6] for pid in started}
            sink.send_signal(signal.SIGKILL)
            sink.wait()
            wait_until("an end of the whole job", lambda: not any(map(is_alive, started)))
        finally:
            sink.kill()
            for pid in filter(is_alive, started):
                os.kill(pid, signal.SIGKILL)
    committed = store.offsets()
    write(topic, [b'{"n":2}'])
    assert store.offsets() == committed
    with socket.create_server(("127.0.0.1", port)):
        pass  # nobody holds the metrics' port
