"""Search for the agent that keeps a batch or blocks the event loop, and for its current line."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

import structlog

log = structlog.get_logger(__name__)

HOLDERS: Final[WeakKeyDictionary[asyncio.Task[Any], Callable[[], str]]] = WeakKeyDictionary()
"""Function that describes the present work of a program's task, by task."""
LOOK_EVERY_S: Final = 1.0
BLOCKED_AFTER: Final = 5
"""Number of checks in a row without progress of the event loop, after which a message is logged.

Checks are counted instead of seconds, because a suspended process has not blocked its event loop.
"""


def line_of(result: Any, function: Any) -> str:
    """Return the current line of a coroutine or async generator, in the file of its function."""
    file = function.__code__.co_filename if hasattr(function, "__code__") else None
    line: int | None = None
    while result is not None:
        frame = _first(result, "cr_frame", "ag_frame", "gi_frame")
        if frame is not None and frame.f_code.co_filename == file:
            line = frame.f_lineno
        result = _first(result, "cr_await", "ag_await", "gi_yieldfrom")
    return "" if line is None else f" ({file}:{line})"


def _first(thing: Any, *names: str) -> Any:
    """Return the first of the named attributes with a value other than None."""
    return next((found for name in names if (found := getattr(thing, name, None)) is not None), None)


class _Watch:
    """Watch of the event loop by a separate thread, which finds the code that blocks the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, every_s: float) -> None:
        self.beats, self.stop = 0, threading.Event()
        self._loop, self._every_s = loop, every_s

    def run(self) -> None:
        """Watch the event loop until stopped."""
        seen, same, say_at = -1, 0, BLOCKED_AFTER
        while not self.stop.wait(self._every_s):
            same = same + 1 if self.beats == seen else 0
            seen = self.beats
            if same == 0:
                say_at = BLOCKED_AFTER
            elif same >= say_at:
                say_at *= 2
                self._say(same * self._every_s)

    def _say(self, for_s: float) -> None:
        task = asyncio.current_task(self._loop)
        holder = None if task is None else HOLDERS.get(task)
        log.error(
            "the event loop is blocked: this worker processes no records, and its consumer group may assign its "
            "partitions to other workers. Let agents run long computations and waits with "
            "`await asyncio.to_thread(...)`",
            held_by=holder() if holder else task.get_name() if task else "unknown",
            seconds=round(for_s, 1),
        )


async def watch_loop(every_s: float = LOOK_EVERY_S) -> None:
    """Log the code that blocks the event loop, until cancelled."""
    watch = _Watch(asyncio.get_running_loop(), every_s)
    threading.Thread(target=watch.run, name="event loop watch", daemon=True).start()
    try:
        while True:
            watch.beats += 1
            await asyncio.sleep(every_s / 2)
    finally:
        watch.stop.set()
