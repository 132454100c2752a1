"""The folders of the clone, for every test that goes through them: one list, made of what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = tuple(
    sorted(
        link.name
        for link in (ROOT / "kafka_ratchet").iterdir()
        if link.is_symlink() and (link / "__init__.py").is_file()
    )
)
"""Folders that are imported as `kafka_ratchet.…`."""
TOOLS: Final = ("bench", "faults")
"""Folders with programs that the package leaves out."""


def python_files(*folders: str) -> list[Path]:
    """Return the Python files of folders, of each in its order."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def package_files() -> list[Path]:
    """Return the Python files of the package."""
    return [*python_files(*PACKAGES), ROOT / "errors.py"]
