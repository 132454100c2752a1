"""Folder of the repository's clone, for code that runs from a clone."""

from __future__ import annotations

from pathlib import Path


def clone_root() -> Path | None:
    """Return the folder of the repository's clone or of the container image; None for an installed wheel.

    In a clone, `kafka_ratchet/app` is a link to `app/`. A wheel has the folder itself, next to other packages.
    """
    package = Path(__file__).parent
    return package.parents[1] if package.is_symlink() else None
