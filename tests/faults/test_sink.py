"""`ratchet faults sink --short`, as a person runs it: every store, every fault once, every record a row once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 3_000
"""A run that takes so long has hung: it starts Spark some fifty times."""


@pytest.mark.long
@pytest.mark.timeout(PATIENCE_S + 60)
def test_every_fault_once_over_every_store(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "kafka_ratchet",
        "faults",
        "sink",
        "--short",
        "--json",
        "--folder",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    stores = json.loads(done.stdout.splitlines()[-1])["stores"]
    assert {"delta", "duckdb", "iceberg"} <= set(stores)
    for name, told in stores.items():
        assert (told["lost"], told["doubled"]) == (0, 0), name
        assert told["rows"] > 0, name
        assert told["kills"] >= 5, name
        assert (told["frozen"], told["pairs"]) == (1, 1), name


@pytest.mark.postgres
def test_sigterm_leaves_no_server_behind(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "kafka_ratchet",
        "faults",
        "sink",
        "--store",
        "postgres",
        "--folder",
        str(tmp_path / "run"),
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        deadline = time.monotonic() + 120
        while not (tmp_path / "run" / "kafka").exists():  # PostgreSQL runs by then, Kafka starts
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        children = [int(pid) for pid in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()]
        servers = [pid for pid in children if _command(pid).startswith("postgres")]
        assert len(servers) == 1
        run.terminate()
        _, said = run.communicate(timeout=120)
    assert run.returncode == 130, said
    assert not _command(servers[0])


def _command(pid: int) -> str:
    """Its name, or nothing once it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except FileNotFoundError:
        return ""


def test_a_store_that_does_not_exist_is_named() -> None:
    command = [sys.executable, "-m", "kafka_ratchet", "faults", "sink", "--store", "shelf"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "no store 'shelf'" in done.stderr
