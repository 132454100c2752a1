"""A Python environment for each release of Spark: that of the tests, with another pyspark in front of it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from kafka_ratchet.app.local.jars import cache_folder

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
