"""Helpers for work that may last as long as Kafka is unreachable, while its caller must be able to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


async def in_thread(work: Callable[[], object]) -> None:
    """Run a function in a thread to its end, even if the caller is cancelled.

    A thread cannot be stopped, and the caller may close its resources only afterwards.

    Raises the function's errors.
    """
    doing = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait((doing,))
        doing.exception()  # the stop comes first; retrieve the exception so that asyncio does not log it
        raise


async def done_before(stop: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Run a coroutine until it ends or the stop event comes; return True if it ended.

    After the stop event, cancel the coroutine and wait for its end. Raises the coroutine's errors.
    """
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        return task.done()
    finally:
        for either in (task, stopped):
            either.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
