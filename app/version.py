"""Version of Ratchet."""

from __future__ import annotations

import tomllib
from importlib.metadata import version

from kafka_ratchet.app.clone import clone_root


def ratchet_version() -> str:
    """Return Ratchet's version, from the clone or image that this code runs from, else from the installed package."""
    # The clone first: another version may be installed in the same environment.
    if (clone := clone_root()) is not None:
        return str(tomllib.loads((clone / "pyproject.toml").read_text("utf-8"))["project"]["version"])
    return version("kafka-ratchet")
