"""Which version of Ratchet this is."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path


def ratchet_version() -> str:
    """The version: of the clone (or the image) that the code lies in, else of the installed package."""
    # The clone first: beside it, another version may be installed in the same environment.
    project = Path(__file__).parents[2] / "pyproject.toml"
    if project.is_file():
        return str(tomllib.loads(project.read_text("utf-8"))["project"]["version"])
    return version("kafka-ratchet")
