"""Errors about statements of a Faust program with effects that cannot happen exactly once.

Each error has file and line of the user's program.
"""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import threading
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextvars import copy_context
from pathlib import Path
from types import FrameType
from typing import Any, Final

import faust
import mode
import structlog

from kafka_ratchet.errors import SettingsError, TableError
from kafka_ratchet.tables.values.partition import AT_WORK

log = structlog.get_logger(__name__)

SITES: Final = ("site-packages", "dist-packages")
"""Names of the folders of installed packages."""
_LIBRARIES: Final = tuple(
    f"{folder}/"
    for folder in (
        *(Path(found).parent for found in (faust.__file__, mode.__file__) if found is not None),
        Path(__file__).parents[2],
        Path(str(sys.modules["asyncio"].__file__)).parents[1],
        *(each for each in sys.path if Path(each).name in SITES),
        *(sysconfig.get_path(name) for name in ("purelib", "platlib")),
    )
)
_PROGRAMS: Final[set[str]] = set()
"""Installed packages and modules of hosted programs."""


def add_program(paths: Iterable[Path]) -> None:
    """Mark installed packages as parts of the user's program, for error messages.

    Args:
        paths: files of the program
    """
    for path in paths:
        for parent in path.parents:
            if parent.name in SITES:
                first = parent / path.relative_to(parent).parts[0]
                _PROGRAMS.add(str(path) if first == path else f"{first}/")
                break


def user_line() -> str:
    """Return the innermost line of the user's program on the stack, as "file.py:12: "; "" without one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not is_library(name):
            return f"{Path(name).name}:{frame.f_lineno}: "
        frame = frame.f_back
    return ""


def is_library(path: str) -> bool:
    """Return True if a file belongs to a library instead of the user's program."""
    return path.startswith(("<", *_LIBRARIES)) and not path.startswith(tuple(_PROGRAMS))


def not_exact(what: str, way: str) -> SettingsError:
    """Return the error about a call with effects that cannot happen exactly once.

    The open transaction will not commit, even if the program catches the error.

    Args:
        what: the call, such as `stream.noack()`
        way: the reason, and the remedy
    """
    error = SettingsError(f"{user_line()}{what} cannot be exact: {way}")
    if (partition := AT_WORK.get()) is not None:
        partition.fail(error)
    return error


def not_named(table: str) -> SettingsError:
    """Return the error about a table that the code of the running agent does not name."""
    return not_exact(
        f"a use of table {table} that the code of its agent does not show",
        "the transactions of the agent do not include the table. Name it in the agent's function, or in a function "
        "called by name",
    )


def carry_context(loop: asyncio.AbstractEventLoop) -> None:
    """Make `run_in_executor` of a loop carry an agent's context into its thread, as `asyncio.to_thread` does.

    Otherwise a function there would read only committed entries, and an error about its writes would halt nothing.
    """
    usual = loop.run_in_executor
    if getattr(usual, "carries_context", False):
        return

    def run_in_executor(executor: Any, function: Any, *arguments: Any) -> Any:
        if AT_WORK.get() is None or isinstance(executor, ProcessPoolExecutor):
            return usual(executor, function, *arguments)
        return usual(executor, copy_context().run, function, *arguments)

    run_in_executor.carries_context = True  # type: ignore[attr-defined]
    loop.run_in_executor = run_in_executor  # type: ignore[method-assign,assignment]


def no_partition(table: str) -> TableError:
    """Return the error for a write to a table outside an agent's event."""
    error = TableError(
        f"{user_line()}table {table}: only an agent may write it, while it processes an event. From a timer, task, "
        "command or page, send a record to an agent that writes the table"
    )
    if threading.current_thread() is not threading.main_thread():
        log.error(str(error))  # the program may never read the thread's error
    return error
