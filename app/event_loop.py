"""Event loop of this package's own processes, and threads for blocking work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar


def loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop for `asyncio.Runner`; None where uvloop does not exist (Windows)."""
    try:
        import uvloop
    except ImportError:
        return None
    loop: type[asyncio.AbstractEventLoop] = uvloop.Loop
    return loop


Found = TypeVar("Found")


def in_thread(work: Callable[[], Found]) -> asyncio.Future[Found]:
    """Run a function in a daemon thread, and return the future of its result.

    The process can end while the function still runs. With a thread of asyncio's own pool, the process would first
    wait for the function, and a function that reads a store may never return.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Found] = loop.create_future()

    def deliver(found: list[Found], failure: BaseException | None) -> None:
        if answer.done():
            return
        if failure is not None:
            answer.set_exception(failure)
        else:
            answer.set_result(found[0])

    def run() -> None:
        found: list[Found] = []
        failure: BaseException | None = None
        try:
            found.append(work())
        except BaseException as error:  # it belongs to who asked
            failure = error
        with suppress(RuntimeError):  # the page may be closed by now
            loop.call_soon_threadsafe(deliver, found, failure)

    threading.Thread(target=run, name="reading", daemon=True).start()
    return answer
