"""The wheel, and environments that have it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path


def built(target: str, source: Path, folder: Path) -> Path:
    """Build a wheel or an sdist of a folder with the backend itself: an isolated build would fetch it."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(build, cwd=source, check=True, capture_output=True, timeout=120)
    (file,) = folder.iterdir()
    return file


def environment_with(wheel: Path, venv: Path) -> Path:
    """Return `bin` of a fresh environment with the wheel; what that depends on is found through a .pth file."""
    subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=120)
    python = venv / "bin" / "python"
    (packages,) = venv.glob("lib/python*/site-packages")
    before = set(packages.iterdir())
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", str(wheel)]
    subprocess.run(install, check=True, timeout=120)
    version = wheel.name.split("-")[1]
    added = {path.name for path in set(packages.iterdir()) - before}
    assert added == {"kafka_ratchet", f"kafka_ratchet-{version}.dist-info"}
    # More than one where another pyspark stands in front of the tests' packages.
    places = dict.fromkeys([sysconfig.get_path("purelib"), *(each for each in sys.path if "site-packages" in each)])
    (packages / "dependencies.pth").write_text("\n".join(places))
    return venv / "bin"
