"""A new version of a program that joins the old one: its code is told apart, and its tables say where they begin."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafka_ratchet.app.worker.program import digest_of, functions_of, load_program
from kafka_ratchet.testing import Worker

OLD, NEW = "tests.app.worker.version_1:app", "tests.app.worker.version_2:app"
MakeWorker = Callable[..., Worker]
ROWS = [(f"u{number % 13}", {"user": f"u{number % 13}", "amount": number % 4}) for number in range(60)]


def digest(program: str) -> str:
    return digest_of(functions_of(load_program(program)))


def ratchet(*arguments: str) -> tuple[int, Any]:
    """What a command says as JSON."""
    ran = subprocess.run(
        [sys.executable, "-m", "kafka_ratchet", *arguments, "--json"], capture_output=True, text=True, timeout=120
    )
    assert ran.stdout, ran.stderr
    return ran.returncode, json.loads(ran.stdout.splitlines()[-1])


@pytest.fixture
def both(ratchet_worker: MakeWorker) -> tuple[Worker, Worker]:
    """Workers of both versions in one group, the old one at work."""
    old = ratchet_worker(OLD, partitions=2)
    old.publish("orders", ROWS[:54], times=2)
    old.start()
    old.wait_until_read()
    new = ratchet_worker(NEW, name="new", beside=old)
    return old, new


@pytest.mark.matrix
def test_the_code_of_members_and_the_beginning_of_a_table(both: tuple[Worker, Worker], tmp_path: Path) -> None:
    old, new = both
    config = str(tmp_path / "worker.toml")
    assert digest(OLD) != digest(NEW)
    _, alone = ratchet("doctor", "--config", config)
    assert f"program {digest(OLD)}: on 1 worker" in [each["sentence"] for each in alone["checks"]]
    new.start()
    new.wait_for("lane runs")

    def is_told() -> bool:
        _, found = ratchet("tables", "--config", config)
        programs = {worker["program"] for worker in found["workers"]}
        return programs == {digest(OLD), digest(NEW)} and any("different code" in each for each in found["problems"])

    new.wait_for(is_told)
    _, found = ratchet("doctor", "--config", config)
    (said,) = [each["sentence"] for each in found["checks"] if "different code" in each["sentence"]]
    assert digest(OLD) in said
    assert digest(NEW) in said
    assert f"program={digest(NEW)}" in new.text() or f'"{digest(NEW)}"' in new.text()
    old.stop()
    old.publish("orders", ROWS[54:], times=2)
    new.wait_until_read()
    new.stop()
    begins = re.findall(r"table by_size is new: it begins at offset (\d+) of partition (\d)", new.text())
    assert "table totals is new" not in new.text() + old.text()
    assert sum(int(offset) for offset, _ in begins) == 2 * 54
    assert sorted(partition for _, partition in begins) == ["0", "1"]
    sizes: Counter[str] = Counter()
    for part in new.tables():
        sizes.update(part["by_size"])
    assert sizes == Counter(str(row["amount"]) for _, row in ROWS[54:])
    code, proof = ratchet("verify", "--replay", "--app", NEW, "--config", config)
    assert (code, proof["replay"]["not_compared"]) == (0, []), proof
    (note,) = [each for each in proof["replay"]["notes"] if "by_size" in each]
    assert note.startswith("table by_size begins at offset ")
