"""Search for the clone of the repository that has this code."""

from __future__ import annotations

from pathlib import Path


def clone_root() -> Path | None:
    """Return the folder of the clone, or of the image; None where the code was installed from a wheel.

    There `kafka_ratchet/app` is a link to `app/`; a wheel has the folder itself, next to other packages.
    """
    package = Path(__file__).parent
    return package.parents[1] if package.is_symlink() else None
