"""Errors of a program: their text, with the line that raised them."""

from __future__ import annotations

import asyncio
import sysconfig
import traceback
from pathlib import Path
from typing import Final

from kafka_ratchet.errors import TableError

OURS: Final = f"{Path(__file__).parents[1]}/"
"""Folder of the package kafka_ratchet; a line in it is not a line of the program."""

STANDARD: Final = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")})
"""Folders of Python's own library."""
INSTALLED: Final = tuple({f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib")})
"""Folders of installed packages; a program may be one of these packages."""

TEXT_MOST: Final = 3000
"""Maximum number of characters of an error's text; a program may raise an error that quotes a whole record."""

RAISED: Final = (Exception, asyncio.CancelledError, SystemExit, KeyboardInterrupt)
"""Exceptions that a program may raise.

After SystemExit or KeyboardInterrupt, asyncio would end the worker with all its partitions. In a program these two do
not come from a signal, because the worker handles signals itself.
"""


def is_ended_by(error: BaseException) -> bool:
    """Return True if the error is a cancellation of the running task, not of a task that it awaits."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def describe_error(error: BaseException) -> str:
    """Return an error's text, with the line of the program."""
    text = str(error)
    if len(text) > TEXT_MOST:
        text = f"{text[:TEXT_MOST]}..."
    text = text.encode(errors="backslashreplace").decode()  # text of a record may be unprintable
    if isinstance(error, TableError):
        what = text
    else:
        what = f"raised {type(error).__name__}: {text}" if text else f"raised {type(error).__name__}"
    line = _line_of_program(error)
    return what if line is None else f"{what} ({line})"


def _line_of_program(error: BaseException) -> str | None:
    """Return file:line of the innermost call outside libraries.

    If every call is in a library, as with an installed program, return the innermost one outside Python's own
    library.
    """
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(OURS)]
    not_python = [
        each for each in frames if not each.filename.startswith((*STANDARD, "<frozen")) or _is_installed(each)
    ]
    own = [each for each in not_python if not _is_installed(each)]
    nearest = own or not_python or frames
    return f"{nearest[-1].filename}:{nearest[-1].lineno}" if nearest else None


def _is_installed(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(INSTALLED)
