"""Topic descriptions, requested together for many callers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, TypeVar

from kafka_ratchet.transport.client.topic_id import MetadataResponse_v12, TopicsRequest, TopicState, topics_of

K = TypeVar("K")
A = TypeVar("A")

DESCRIPTIONS: Final = 8
"""Maximum number of cached answers, one for each set of topic names; a worker asks for few different sets."""


class BundledRequests(Generic[K, A]):
    """Bundler of equal requests: calls made during a request share the next request.

    An answer is therefore never older than the call.
    """

    def __init__(self, request: Callable[[set[K]], Awaitable[A]]) -> None:
        """Start without a request. request: function that asks for a set of keys; runs one at a time."""
        self._request = request
        self._waiting: set[K] = set()
        self._next: asyncio.Task[A] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def ask(self, about: Iterable[K]) -> A:
        """Return the answer to the next joint request, which asks about `about` and the keys of other callers.

        An error of the request is raised to all callers.
        """
        self._waiting.update(about)
        if self._next is None:
            self._next = asyncio.create_task(self._run())
            self._next.add_done_callback(_retrieve_error)
        return await asyncio.shield(self._next)

    async def _run(self) -> A:
        async with self._one_at_a_time:
            waiting, self._waiting, self._next = self._waiting, set(), None
            return await self._request(waiting)


def _retrieve_error(task: asyncio.Task[A]) -> None:
    """Retrieve the exception so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


class Descriptions:
    """Topic descriptions, fetched with one request for all simultaneous callers.

    An answer identical to the last is not parsed again.
    """

    def __init__(self, send: Callable[[TopicsRequest], Awaitable[MetadataResponse_v12]]) -> None:
        """Start without descriptions. send: function that sends a request to any broker."""
        self._send = send
        self._together = BundledRequests(self._describe)
        self._known: dict[tuple[str, ...], tuple[bytes, dict[str, TopicState]]] = {}
        """Last answers by requested names, with their topics."""

    async def ask(self, names: set[str]) -> dict[str, TopicState]:
        """Return the descriptions of the existing topics among `names` and the names of simultaneous callers.

        Raises the errors of sending.
        """
        return await self._together.ask(names)

    async def _describe(self, names: set[str]) -> dict[str, TopicState]:
        ordered = tuple(sorted(names))
        response = await self._send(TopicsRequest(list(ordered)))
        before, states = self._known.get(ordered, (b"", {}))
        if response.body != before:  # usually it is equal; parsing thousands of partitions takes long
            states = topics_of(response)
            if len(self._known) >= DESCRIPTIONS:
                self._known.clear()
            self._known[ordered] = response.body, states
        return states
