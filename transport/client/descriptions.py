"""What is behind topics' names, asked by many at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from kafka_ratchet.transport.client.together import Together
from kafka_ratchet.transport.client.topic_id import MetadataResponse_v12, TopicsRequest, TopicState, topics_of

DESCRIPTIONS: Final = 8
"""Sets of topics whose last answer is kept; a worker asks for few different ones, again and again."""


class Descriptions:
    """Asks for the topics of all who ask at a time, and reads an answer anew only where it is another."""

    def __init__(self, send: Callable[[TopicsRequest], Awaitable[MetadataResponse_v12]]) -> None:
        """send: asks any broker."""
        self._send = send
        self._together = Together(self._describe)
        self._known: dict[tuple[str, ...], tuple[bytes, dict[str, TopicState]]] = {}
        """The last answers, by the names that were asked for, and what they say."""

    async def ask(self, names: set[str]) -> dict[str, TopicState]:
        """The topics that exist of these, and of those that others ask for meanwhile. Raises what sending raises."""
        return await self._together.ask(names)

    async def _describe(self, names: set[str]) -> dict[str, TopicState]:
        asked = tuple(sorted(names))
        response = await self._send(TopicsRequest(list(asked)))
        before, states = self._known.get(asked, (b"", {}))
        if response.body != before:  # mostly it is the same, and of thousands of partitions
            states = topics_of(response)
            if len(self._known) >= DESCRIPTIONS:
                self._known.clear()
            self._known[asked] = response.body, states
        return states
