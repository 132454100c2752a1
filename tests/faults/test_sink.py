"""`ratchet faults sink --short`, as a person runs it: every store, every fault once, every record a row once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 3_000
"""A run that takes so long has hung: it starts Spark some eighty times."""


@pytest.mark.long
@pytest.mark.timeout(PATIENCE_S + 60)
def test_every_fault_once_over_every_store(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "app", "faults", "sink", "--short", "--json", "--folder", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    stores = json.loads(done.stdout.splitlines()[-1])["stores"]
    assert {"delta", "duckdb", "iceberg"} <= set(stores)
    for name, told in stores.items():
        assert (told["lost"], told["doubled"]) == (0, 0), name
        assert told["rows"] > 0, name
        assert told["kills"] >= 8, name
        assert (told["frozen"], told["pairs"]) == (2, 1), name


def test_a_store_that_does_not_exist_is_named() -> None:
    command = [sys.executable, "-m", "app", "faults", "sink", "--store", "shelf"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "no store 'shelf'" in done.stderr
