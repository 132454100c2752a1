"""Work that may take for as long as Kafka is away, and somebody who may not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


async def in_thread(work: Callable[[], object]) -> None:
    """Do it in a thread, to its end: a thread cannot be stopped, and what it opens has to be closed by who is stopped.

    Raises what the work raises.
    """
    doing = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait((doing,))
        doing.exception()  # the stop comes first, and asyncio is to know that somebody has looked
        raise


async def done_before(stop: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Do the work, or give it up when the stop comes first; whether it was done. Raises what the work raises."""
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
