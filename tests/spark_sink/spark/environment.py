"""A Python environment for each release of Spark: that of the tests, with another pyspark in front of it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from kafka_ratchet.app.local.jars import cache_folder
from tests.folders import ROOT

LOCKS = Path(__file__).with_name("releases")


def python_with(release: str) -> Path:
    """The interpreter of the environment, which is made where it is not there; some 500 MB, beside the jars."""
    lock = LOCKS / f"{release}.lock"
    behind = sysconfig.get_path("purelib")
    content = hashlib.sha256(f"{sys.version}{behind}{lock.read_text()}".encode()).hexdigest()
    folder = cache_folder() / f"tests-spark-{release}-{content[:12]}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        venv.EnvBuilder(clear=True, with_pip=True).create(folder)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
        subprocess.run([python, *install, "-r", lock], check=True)
        # Last: pip would take what is there for its own.
        packages = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
        Path(packages, "tests.pth").write_text(f"{behind}\n")
        complete.touch()
    return python


def require_checks_pass(python: str | Path, checks: str, broker: str) -> None:
    """Run a file of tests by another interpreter, with this broker, and fail with its output if one fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [python, "-m", "pytest", "-p", "no:cacheprovider", checks],
        cwd=ROOT,
        env={**kept, "RATCHET_BOOTSTRAP": broker},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
