"""`ratchet faults producer`, as a person runs it: the output is the file, however often its sender is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EVENTS = ROOT / "app" / "demo" / "data" / "aio-libs_aiokafka.ndjson.gz"


def run(*arguments: object, timeout: float = 840) -> tuple[dict[str, int], str]:
    command = [sys.executable, "-m", "kafka_ratchet", "faults", "producer", "--json", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_killed_four_times_on_real_events(tmp_path: Path) -> None:
    told, said = run("--kills", 4, "--folder", tmp_path / "run", EVENTS)
    assert f"seed {told['seed']}; logs and data in {tmp_path / 'run'}" in said
    assert (told["lost"], told["doubled"], told["reordered"]) == (0, 0, 0)
    assert told["producer_kills"] == 4
    assert told["broker_restarts"] == 1
    assert told["delivered"] == 3_000


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_killed_fifty_times_on_a_hundred_thousand(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    path.write_text("".join(f'{{"number":{n},"text":"{"x" * (n % 90)}"}}\n' for n in range(100_000)))
    told, _ = run("--kills", 50, path, timeout=1700)
    assert (told["lost"], told["doubled"], told["reordered"]) == (0, 0, 0)
    assert (told["producer_kills"], told["delivered"]) == (50, 100_000)
    assert told["sent_again"] > 0
