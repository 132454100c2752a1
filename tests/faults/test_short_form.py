"""`ratchet faults --short`, as a person runs it: every fault at least once, and every event counts exactly once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 1_200
"""A run that takes so long has hung. It takes about four minutes."""


@pytest.mark.timeout(PATIENCE_S + 60)
def test_every_fault_once_and_every_event_exactly_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "app", "faults", "--short", "--json", "--folder", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    # On failure this shows the seed, every fault up to then, and the ends of the logs.
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert f"seed {told['seed']}; logs and data in {folder}" in done.stderr
    assert (told["lost"], told["doubled"], told["reordered"]) == (0, 0, 0)
    assert told["events"] >= 20_000
    struck = ("worker_kills", "zombies", "broker_restarts", "rebalances", "network_faults", "damaged_stores")
    for fault in (*struck, "clock_jumps", "full_disks", "refused_partitions"):
        assert told[fault] >= 1, fault
