"""Answers to `ask` of timers, tasks and pages: read from the app's reply topic, in no group and no transaction."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from faust.types.tuples import Message

from kafka_ratchet.transport.client.security import client_options

log = structlog.get_logger(__name__)


class Answers:
    """Reader of an app's reply topic, from the topic's end on."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._channels: list[Any] = []
        self._early: list[Message] = []
        """Answers received before Faust listens. Faust begins to listen some seconds after the first request."""
        self._task: asyncio.Task[None] | None = None

    def read(self, topic: Any) -> None:
        """Deliver the reply topic's records to a Faust topic object. The first call starts reading."""
        if topic.is_iterator:
            self._channels.append(topic)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._read(topic.topics[0]))
            self._task.add_done_callback(_ended)

    async def _read(self, name: str) -> None:
        transport = self._app.transport
        servers = ",".join(f"{url.host}:{url.port}" for url in transport.url)
        options = client_options(servers, transport.client_settings)
        consumer = AIOKafkaConsumer(**options, isolation_level="read_committed", enable_auto_commit=False)
        await consumer.start()
        try:
            place = TopicPartition(name, 0)
            consumer.assign([place])
            await consumer.seek_to_end(place)
            while True:
                found = await consumer.getmany(timeout_ms=500)
                for messages in found.values():
                    for message in messages:
                        self._early.append(self._message(message))
                while self._channels and self._early:
                    await self._put(self._early.pop(0))
        finally:
            await consumer.stop()

    def _message(self, found: Any) -> Message:
        return Message(
            found.topic,
            found.partition,
            found.offset,
            found.timestamp / 1000,
            0,
            dict(found.headers),
            found.key,
            found.value,
            None,
            generation_id=self._app.consumer_generation_id,
        )

    async def _put(self, message: Message) -> None:
        for channel in self._channels:
            await channel.queue.put(await channel.decode(message, propagate=True))


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning(
            "the worker reads no more answers to `ask`; its callers run into their time-outs", reason=str(error)
        )
