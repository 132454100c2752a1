"""The version before this one, as this repository's history has it: tests/upgrade/previous.txt names its commit."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMIT = (Path(__file__).parent / "previous.txt").read_text("ascii").strip()


def extract(folder: Path) -> Path:
    """Put its files into a folder, and return that."""
    done = subprocess.run(["git", "-C", str(ROOT), "archive", COMMIT], capture_output=True, timeout=120)
    assert done.returncode == 0, (
        f"the previous version, commit {COMMIT}, is not in this clone's history ({done.stderr.decode().strip()}). Run "
        "this test in a whole clone of the repository (git fetch --unshallow), or leave out tests/upgrade"
    )
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="tar")
    return folder


def run(root: Path, code: str, *arguments: object) -> str:
    """Return the output of a program that imports the package from there."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
