"""What a program raised, in words that name its line."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final

from kafka_ratchet.errors import TableError

OURS: Final = str(Path(__file__).parents[1])
"""Lines of files in there are no lines of the program."""


def said_of(error: Exception) -> str:
    """What was raised, and in which line of the program."""
    if isinstance(error, TableError):
        what = str(error)
    else:
        what = f"raised {type(error).__name__}: {error}" if str(error) else f"raised {type(error).__name__}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(OURS)]
    return f"{what} ({frames[-1].filename}:{frames[-1].lineno})" if frames else what
