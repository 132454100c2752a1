"""Errors about what cannot be exact in a Faust program, with the user's file and line."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Final

import faust
import mode

from kafka_ratchet.errors import SettingsError, TableError
from kafka_ratchet.tables.values.partition import AT_WORK

_LIBRARIES: Final = tuple(
    str(Path(found).parent) for found in (faust.__file__, mode.__file__, __file__) if found is not None
)
_STANDARD: Final = str(Path(str(sys.modules["asyncio"].__file__)).parents[1])


def user_line() -> str:
    """Return "file.py:12: " of the innermost frame of the user's program; "" where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not is_library(name):
            return f"{Path(name).name}:{frame.f_lineno}: "
        frame = frame.f_back
    return ""


def is_library(path: str) -> bool:
    """Return whether a file belongs to a library and not to the user's program."""
    if path.startswith(("<", *_LIBRARIES)) or "site-packages" in path or "kafka_ratchet" in path:
        return True
    return path.startswith(_STANDARD)


def not_exact(what: str, way: str) -> SettingsError:
    """Return the error about a call that cannot be exact. The open transaction does not commit, if the program goes on.

    Args:
        what: the call, as `stream.noack()`
        way: the reason, and what to write in its place
    """
    error = SettingsError(f"{user_line()}{what} cannot be exact: {way}")
    if (partition := AT_WORK.get()) is not None:
        partition.fail(error)
    return error


def no_partition(table: str) -> TableError:
    """Return the error about a write to a table with no event at hand."""
    return TableError(
        f"{user_line()}table {table}: is written by an agent only, while it has an event. A timer, task, command or "
        "page reads what is committed, and sends a record to an agent that writes"
    )
