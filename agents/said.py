"""Error formatting: errors of a program, with the line."""

from __future__ import annotations

import asyncio
import traceback
from pathlib import Path
from typing import Final

from kafka_ratchet.errors import TableError

OURS: Final = str(Path(__file__).parents[1])
"""Lines of files in there are no lines of the program."""

TEXT_MOST: Final = 3000
"""characters: a program may raise with a whole record in its text."""

RAISED: Final = (Exception, asyncio.CancelledError, SystemExit, KeyboardInterrupt)
"""Exceptions that a program may raise.

asyncio would end the worker for the last two, with all its partitions. A signal raises neither here, for the
worker has handlers of its own.
"""


def is_ended_by(error: BaseException) -> bool:
    """Return True if the error is the cancellation of the running task itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def said_of(error: BaseException) -> str:
    """Return an error's text, with the line of the program."""
    text = str(error)
    if len(text) > TEXT_MOST:
        text = f"{text[:TEXT_MOST]}..."
    text = text.encode(errors="backslashreplace").decode()  # text of a record may be unprintable
    if isinstance(error, TableError):
        what = text
    else:
        what = f"raised {type(error).__name__}: {text}" if text else f"raised {type(error).__name__}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(OURS)]
    return f"{what} ({frames[-1].filename}:{frames[-1].lineno})" if frames else what
