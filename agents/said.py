"""What a program raised, in words that name its line."""

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
"""What a program may raise. Of these, asyncio would end the worker for the last two, with all its partitions; a signal
raises neither here, for the worker has handlers of its own."""


def is_ended_by(error: BaseException) -> bool:
    """Whether it is the cancellation of the task that runs, and not one that a program has met by itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def said_of(error: BaseException) -> str:
    """What was raised, and in which line of the program."""
    text = str(error)
    if len(text) > TEXT_MOST:
        text = f"{text[:TEXT_MOST]}..."
    text = text.encode(errors="backslashreplace").decode()  # what a record holds may be text that nobody can print
    if isinstance(error, TableError):
        what = text
    else:
        what = f"raised {type(error).__name__}: {text}" if text else f"raised {type(error).__name__}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(OURS)]
    return f"{what} ({frames[-1].filename}:{frames[-1].lineno})" if frames else what
