"""A queue in the place of Faust's channel, and the agent at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from kafka_ratchet.agents.deduplicate import Deduplicator
from kafka_ratchet.transport.delivery import Delivery


class AgentQueue(asyncio.Queue[Any]):
    """Calls on their way to an agent."""

    subscriber_count = 1

    async def each(self) -> AsyncIterator[Any]:
        while True:
            yield await self.get()


async def process_all(processor: Deduplicator, *deliveries: Delivery) -> list[Exception | None]:
    """Process each of these by one agent, and return the error of each."""
    queue = AgentQueue()
    agent = asyncio.create_task(processor.connect(queue).agent(queue.each()))
    found = await asyncio.gather(*map(processor.process, deliveries), return_exceptions=True)
    agent.cancel()
    await asyncio.gather(agent, return_exceptions=True)
    assert not any(isinstance(each, BaseException) and not isinstance(each, Exception) for each in found)
    return [each if isinstance(each, Exception) else None for each in found]
