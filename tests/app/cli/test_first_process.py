"""SIGTERM during the start of a command that is process 1, as in a container without an init."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_ratchet.app.local.ports import free_port

ROOT = Path(__file__).parents[3]
FIRST = "import os; os.getpid = lambda: 1\n"
"""The kernel keeps SIGTERM from process 1 unless it has a handler. Here no process is 1: the code only sees it so."""
RUN = "from kafka_ratchet.app.cli import main\nmain()\n"


@pytest.mark.parametrize(
    ("code", "ended"),
    [(FIRST + RUN, 128 + signal.SIGTERM), (RUN, -signal.SIGTERM)],
    ids=["process 1", "another"],
)
def test_a_worker_that_waits_for_kafka_ends_at_sigterm(code: str, ended: int, tmp_path: Path) -> None:
    stream = "RATCHET_STREAMS__EVENTS__"
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RATCHET_")}
    settings = {f"{stream}{part}": part.lower() for part in ("INPUT", "OUTPUT", "DEAD_LETTERS")}
    settings |= {"RATCHET_BOOTSTRAP": f"127.0.0.1:{free_port()}", "RATCHET_STATE_FOLDER": str(tmp_path / "state")}
    command = [sys.executable, "-c", code, "worker"]
    with subprocess.Popen(
        command, env=kept | settings | {"PYTHONPATH": str(ROOT)}, cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stderr is not None
        said = worker.stderr.readline()  # it waits, for kafka_timeout_s
        worker.terminate()
        assert worker.wait(60) == ended, said + worker.stderr.read()
    assert "127.0.0.1" in said
