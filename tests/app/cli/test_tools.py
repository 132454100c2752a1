"""`ratchet bench` and `ratchet faults` are the clone's, whatever else is called so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kafka_ratchet.app.clone import clone_root

ROOT = Path(__file__).parents[3]


def listed(*before: Path) -> list[str]:
    """First words of the lines of --help, with these folders in front on the path."""
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(map(str, [*before, ROOT]))}
    command = [sys.executable, "-m", "kafka_ratchet", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [line.strip("│ ").partition(" ")[0] for line in done.stdout.splitlines()]


def test_a_clone_has_its_tools() -> None:
    assert clone_root() == ROOT
    assert {"worker", "bench", "faults"} <= {*listed()}


def test_a_package_of_somebody_elses_that_is_called_so_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    for name in ("__init__.py", "cli.py"):
        (tmp_path / "bench" / name).write_text("raise RuntimeError('not asked for')")
    words = listed(tmp_path)
    assert {"worker", "faults"} <= {*words}
    assert "bench" not in words
