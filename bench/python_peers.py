"""The subjects in Python that cannot share Ratchet's environment: each has one of its own in the cache folder."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from kafka_ratchet.app.local.jars import cache_folder
from kafka_ratchet.errors import BenchFailed

PEERS: Final = Path(__file__).with_name("peers")


def quix() -> list[str]:
    """The command of Quix Streams, but for its argument."""
    return _command("quix", "quix")


def quix_totals() -> list[str]:
    """The same for totals."""
    return _command("quix", "quix_totals")


def _command(name: str, program: str) -> list[str]:
    # Isolated: what is importable here, by PYTHONPATH or from the working folder, belongs to another environment.
    return [str(_environment(name) / "bin" / "python"), "-I", "-u", str(PEERS / f"{program}.py")]


def _environment(name: str) -> Path:
    requirements = PEERS / f"{name}.requirements"
    version = "{}.{}.{}".format(*sys.version_info)
    digest = hashlib.sha256(requirements.read_bytes() + version.encode()).hexdigest()[:12]
    folder = cache_folder() / f"bench-{name}-{digest}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        target = Path(scratch) / "environment"
        _run([sys.executable, "-m", "venv", str(target)], name)
        python = str(target / "bin" / "python")
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "--only-binary=:all:"]
        _run([python, "-m", "pip", "install", *options, "--requirement", str(requirements)], name)
        # Moved, it still runs: only the scripts in bin/ hold the old path, and none of them is used.
        target.rename(folder)
    return folder


def _run(command: list[str], name: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise BenchFailed(f"the environment of {name} cannot be made: {error}") from None
    if done.returncode:
        raise BenchFailed(f"the environment of {name} cannot be made:\n{done.stdout}{done.stderr}")
