"""Questions of many that become one request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K")
A = TypeVar("A")


class Together(Generic[K, A]):
    """Asks for all together: whoever asks while a request is under way waits for the next one.

    So the answer is never older than the question.
    """

    def __init__(self, request: Callable[[set[K]], Awaitable[A]]) -> None:
        """Nothing is asked. request: asks for all of a set at once; it is called for one set at a time."""
        self._request = request
        self._waiting: set[K] = set()
        self._next: asyncio.Task[A] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def ask(self, about: Iterable[K]) -> A:
        """The answer to a request that is sent from now on, for these and for what others ask meanwhile.

        Raises what the request raises, to all of them.
        """
        self._waiting.update(about)
        if self._next is None:
            self._next = asyncio.create_task(self._run())
            self._next.add_done_callback(_heard)
        return await asyncio.shield(self._next)

    async def _run(self) -> A:
        async with self._one_at_a_time:
            waiting, self._waiting, self._next = self._waiting, set(), None
            return await self._request(waiting)


def _heard(task: asyncio.Task[A]) -> None:
    """Or asyncio would log an error that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
