"""The producer for asyncio: the same one, whose waiting is awaited."""

from __future__ import annotations

import asyncio
from functools import partial
from types import TracebackType
from typing import Any

from kafka_ratchet.producers.metrics import ProducerMetrics
from kafka_ratchet.producers.producer import Producer

ASK_EVERY_S = 0.005
"""How often the client is asked for news while somebody waits, in seconds."""


class AsyncProducer:
    """Sends records under a name from an event loop, by the rules and with the errors of `Producer`.

    ::

        async with AsyncProducer("orders.raw", "shop", options={"bootstrap.servers": "..."}) as producer:
            sequence = await producer.send(b"...", b"customer-1")  # accepted: on its way, in its order
            await producer.persisted(sequence)                     # in Kafka, with everything before it

    Awaiting `send` means that the record is accepted, not that it is in Kafka: it returns at once while the local queue
    has room, and waits, without blocking the loop, while it has not. So a program that sends faster than Kafka takes is
    slowed down, and its memory stays bounded. Records that several tasks send are numbered and sent in the order in
    which they asked.

    Args:
        arguments: those of `Producer`.
        options: likewise.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._make = partial(Producer, *arguments, **options)
        self._made: Producer | None = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> AsyncProducer:
        """Connect, and take over the name. Raises what `Producer` raises when it is made."""
        self._made = await asyncio.to_thread(self._make)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; after an exception without waiting for what is in flight."""
        await asyncio.to_thread(self._producer.__exit__, kind, error, trace)

    @property
    def _producer(self) -> Producer:
        if self._made is None:
            raise RuntimeError("an AsyncProducer is used within 'async with'")
        return self._made

    @property
    def name(self) -> str:
        """The name that was given, or the unique one that was made."""
        return self._producer.name

    async def send(self, value: bytes | None, key: bytes | None = None, *, sequence: int | None = None) -> int:
        """Send one record; it is accepted when this returns. Raises as `Producer.send`.

        Returns:
            its sequence
        """
        async with self._turn:
            while (number := self._producer.offer(value, key, sequence=sequence)) is None:
                await asyncio.sleep(ASK_EVERY_S)
                self._producer.has_persisted(0)  # takes the news, which makes room
            return number

    async def persisted(self, sequence: int) -> None:
        """Wait until Kafka has this record and all before it, on all partitions. Raises as `Producer.flush`."""
        # The client has no event to wait for: its news come when it is asked.
        while not self._producer.has_persisted(sequence):  # noqa: ASYNC110
            await asyncio.sleep(ASK_EVERY_S)

    async def flush(self) -> None:
        """Wait until Kafka has everything, and store the progress. Raises as `Producer.flush`."""
        await asyncio.to_thread(self._producer.flush)

    def metrics(self) -> ProducerMetrics:
        """The producer's figures as of now."""
        return self._producer.metrics()

    def last_sequence_id(self) -> int:
        """The highest sequence known to be persisted for the name on any partition; -1 for a new name."""
        return self._producer.last_sequence_id()

    def resume_from(self) -> int:
        """The highest sequence up to which everything is persisted on all partitions; -1 for a new name."""
        return self._producer.resume_from()
