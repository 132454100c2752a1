"""`ratchet faults --short`, as a person runs it: every fault at least once, and every event counts exactly once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 1_200
"""A run that takes so long has hung. Beside the other tests it takes four to five minutes."""


@pytest.mark.long
@pytest.mark.timeout(PATIENCE_S + 60)
def test_every_fault_once_and_every_event_exactly_once(tmp_path: Path) -> None:
    told = ran(tmp_path / "run")
    assert told["crash_points"] == 0


@pytest.mark.long
@pytest.mark.timeout(PATIENCE_S + 60)
def test_every_fault_once_with_an_agent_that_counts(tmp_path: Path) -> None:
    told = ran(tmp_path / "run", "--agent")
    assert (told["table_lost"], told["table_doubled"]) == (0, 0)
    assert told["crash_points"] >= 9


@pytest.mark.long
@pytest.mark.timeout(PATIENCE_S + 60)
def test_every_fault_of_the_schedule_with_a_faust_program(tmp_path: Path) -> None:
    told = ran(tmp_path / "run", "--faust", others=())
    assert told["table_wrong"] == 0
    assert told["crash_points"] >= 9


@pytest.mark.long
@pytest.mark.timeout(PATIENCE_S + 60)
def test_every_fault_of_the_schedule_with_workers_of_two_processes(tmp_path: Path) -> None:
    told = ran(tmp_path / "run", "--processes", "2", others=())
    assert told["process_kills"] >= 1 <= told["frozen_processes"]


OTHERS = ("full_disks", "refused_partitions", "refused_operations")


def ran(folder: Path, *options: str, others: tuple[str, ...] = OTHERS) -> dict[str, Any]:
    """Run the short form, assert its parts with and without agents, and return its report."""
    command = [sys.executable, "-m", "kafka_ratchet", "faults", "--short", *options, "--json", "--folder", str(folder)]
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        try:
            output, errors = run.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGABRT)  # it says where every thread stands
            output, errors = run.communicate()
    # On failure this shows the seed, every fault up to then, and the ends of the logs.
    assert run.returncode == 0, errors
    told: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert f"seed {told['seed']}; logs and data in {folder}" in errors
    assert (told["lost"], told["doubled"], told["reordered"]) == (0, 0, 0)
    assert told["events"] >= 20_000
    struck = ("worker_kills", "zombies", "broker_restarts", "rebalances", "network_faults", "damaged_stores")
    for fault in (*struck, "clock_jumps", "open_transactions", "foreign_commits", "strangers", *others):
        assert told[fault] >= 1, fault
    return told
