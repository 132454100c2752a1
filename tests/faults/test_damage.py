"""Damage to files, and to a clock."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faults.damage import WAYS, Damage
from faults.disk import SmallDisk
from kafka_ratchet.tables.store import Store

ROOT = Path(__file__).parents[2]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder with a store of one entry."""
    state = tmp_path / "worker-state"
    store = Store(state / "app" / "stream" / "0")
    store.write([(b"ia", bytes(8))], 1, 1)
    store.close()
    return state


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_changes_the_store(state: Path, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    damage = Damage(tmp_path / "copies", random.Random(1))
    damage.strike(state)  # takes the copy that is older afterwards
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "copies" / "worker-state", state)
    store = Store(state / "app" / "stream" / "0")
    store.write([(b"ib", bytes(8))], 2, 1)
    store.close()
    monkeypatch.setattr("faults.damage.WAYS", (way,))
    before = contents(state)
    (told,) = damage.strike(state)
    assert way in told
    assert contents(state) != before


def test_a_folder_without_stores_is_left_alone(tmp_path: Path) -> None:
    assert Damage(tmp_path / "copies", random.Random(1)).strike(tmp_path) == []


def test_a_full_disk_takes_nothing_until_it_is_freed(tmp_path: Path) -> None:
    write = (
        "import sys; open(sys.argv[1], 'wb', 0).write(bytes(100_000));"
        "input(); open(sys.argv[2], 'wb', 0).write(bytes(10))"
    )
    with SmallDisk(tmp_path / "disk", 1 << 20) as disk:
        command = [sys.executable, "-c", write, str(disk.folder / "one"), str(disk.folder / "two")]
        for full in (True, False):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
            while not (disk.folder / "one").exists() or (disk.folder / "one").stat().st_size < 100_000:
                assert process.poll() is None
                time.sleep(0.01)
            if full:
                disk.fill(process.pid)
            _, said = process.communicate(b"\n")
            assert (process.returncode != 0) is full, said
            if full:
                assert b"Errno 2" in said  # 28 (ENOSPC) or 27 (EFBIG)
                disk.free(process.pid) if disk.is_mounted else None


def test_a_command_runs_with_its_clock_shifted_and_jumps_when_told() -> None:
    program = (
        "import os, signal, time; from faults.programs.clock import shift; true = time.time(); shift(4000);"
        "a = time.time() - true; os.kill(os.getpid(), signal.SIGHUP); b = time.time_ns() / 1e9 - true;"
        "print(round(a / 100), round(b / 100))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["40", "-40"]
