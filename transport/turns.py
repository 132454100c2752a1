"""Semaphore for the start of lanes: a few at a time.

A thousand lanes that start at once would all finish late, at the same time. Each would pause for so long between two
requests that Kafka might count the lane as dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from kafka_ratchet.transport.client.cluster import SHARED

AT_ONCE: Final = SHARED
TURN_S: Final = 5.0
"""Maximum seconds of a lane's turn. A lane may need longer, because it waits or reads a long changelog."""


class StartLimit:
    """Semaphore that lets a few lanes start at a time."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._free = asyncio.Semaphore(at_once)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn to start. The turn lasts as long as the block, but TURN_S at most."""
        await self._free.acquire()
        held = [self._free]

        def give_back() -> None:
            if held:
                held.pop().release()

        timer = asyncio.get_running_loop().call_later(TURN_S, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()
