"""Faust's producer: inside an agent it writes to the lane's transaction, elsewhere it is Faust's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Final
from weakref import WeakKeyDictionary

import structlog
from faust.agents.models import ReqRepRequest
from faust.streams import current_event
from faust.transport.drivers.aiokafka import Producer
from faust.types import TP
from faust.types.tuples import RecordMetadata

from kafka_ratchet.agents.topic import Sender, at_hand
from kafka_ratchet.app.faust_host.check import ASK
from kafka_ratchet.app.faust_host.refusals import not_exact, user_line
from kafka_ratchet.errors import SendRefused
from kafka_ratchet.tables.values.partition import AT_WORK, PartitionTables

log = structlog.get_logger(__name__)

REPLY_TO: Final = "Faust-Ag-ReplyTo"
"""Name of the header with the topic that an agent's result goes to."""


class Replies:
    """Answers to `ask`, sent after the transaction of their event has committed."""

    def __init__(self) -> None:
        self._waiting: WeakKeyDictionary[PartitionTables, list[tuple[int, Callable[[], Any]]]] = WeakKeyDictionary()
        self._sending: set[asyncio.Task[Any]] = set()

    def add(self, partition: PartitionTables, offset: int, send: Callable[[], Any]) -> None:
        """Send an answer after the commit.

        offset: offset of the event; send: function that makes the sending coroutine.
        """
        waiting = self._waiting.get(partition)
        if waiting is None:
            waiting = self._waiting[partition] = []
            partition.committed.append(lambda: self._send(waiting))
            partition.rolled_back.append(waiting.clear)
        waiting.append((offset, send))

    def drop(self, partition: PartitionTables | None, offset: int) -> None:
        """Drop the answers to an event after a rollback of its transaction."""
        waiting = self._waiting.get(partition) if partition is not None else None
        if waiting:
            waiting[:] = [each for each in waiting if each[0] != offset]

    def _send(self, waiting: list[tuple[int, Callable[[], Any]]]) -> None:
        for _, send in waiting:
            task = asyncio.get_running_loop().create_task(send())
            self._sending.add(task)
            task.add_done_callback(self._sent)
        waiting.clear()

    def _sent(self, task: asyncio.Task[Any]) -> None:
        self._sending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("an answer to `ask` was not sent; its caller runs into its time-out", reason=str(error))


class LaneProducer(Producer):
    """Producer of a hosted Faust app: inside an agent, sends go into the lane's transaction.

    Attributes:
        known: names of the topics that agents send to
        replies: answers that wait for their commit
    """

    known: frozenset[str] = frozenset()
    replies: Replies = Replies()

    async def maybe_start(self) -> None:
        """Start Faust's own producer, if sends outside agents need it."""
        if at_hand.get() is None:
            await super().maybe_start()

    async def send(
        self,
        topic: str,
        key: Any,
        value: Any,
        partition: int | None,
        timestamp: float | None,
        headers: Any,
        **options: Any,
    ) -> Any:
        """Add a record to the current event's transaction; outside agents, send it as Faust does."""
        sender = at_hand.get()
        if sender is None:
            return await super().send(topic, key, value, partition, timestamp, headers, **options)
        sent = asyncio.get_running_loop().create_future()
        event = current_event()
        if event is not None and topic not in self.known and _is_reply(event, topic):
            work = AT_WORK.get()
            if work is not None:
                out = super().send

                async def reply() -> Any:
                    at_hand.set(None)
                    return await out(topic, key, value, partition, timestamp, headers, **options)

                self.replies.add(work, event.message.offset, reply)
        else:
            self._take(sender, topic, key, value, partition, timestamp, headers)
        sent.set_result(_taken(topic, partition, timestamp))
        return sent

    async def send_and_wait(
        self,
        topic: str,
        key: Any,
        value: Any,
        partition: int | None,
        timestamp: float | None,
        headers: Any,
        **options: Any,
    ) -> Any:
        """Send a record; outside agents, wait for the acknowledgement. Inside an agent, return before the commit."""
        if at_hand.get() is None:
            return await super().send_and_wait(topic, key, value, partition, timestamp, headers, **options)
        return await (await self.send(topic, key, value, partition, timestamp, headers, **options))

    def send_soon(self, fut: Any) -> None:
        """Add a record to the current event's transaction; outside agents, buffer it as Faust does."""
        sender = at_hand.get()
        if sender is None:
            super().send_soon(fut)
            return
        message = fut.message
        topic = message.channel.get_topic_name()
        self._take(sender, topic, message.key, message.value, message.partition, message.timestamp, message.headers)
        fut.set_result(_taken(topic, message.partition, message.timestamp))
        if message.callback is not None:
            message.callback(fut)

    def _take(
        self,
        sender: Sender,
        topic: str,
        key: Any,
        value: Any,
        partition: int | None,
        timestamp: float | None,
        headers: Any,
    ) -> None:
        pairs = list(headers.items()) if isinstance(headers, dict) else list(headers or ())
        for name, content in pairs:
            if name == REPLY_TO and _text(content) == self.app.conf.reply_to:
                raise not_exact(
                    "agent.ask() within an agent",
                    f"{ASK}. Send the request, and have another agent take the answer from a topic",
                )
        # As Faust's producer does: receivers may append headers.
        open_list = None if headers is None else pairs
        self._send_on_produce_message(key=key, value=value, partition=partition, timestamp=timestamp, headers=open_list)
        milliseconds = None if timestamp is None else round(timestamp * 1000)
        try:
            sender.send(topic, key, value, pairs or None, partition, milliseconds)
        except SendRefused as error:
            # A program that catches it and goes on would lose the record.
            refusal = SendRefused(f"{user_line()}{error}")
            log.error(str(refusal))  # now: a task keeps its errors, and the next transaction may be far away
            if (work := AT_WORK.get()) is not None:
                work.fail(refusal)
            raise refusal from None


class SentInTransaction:
    """Awaitable result of a send inside an agent, where the record is already in the transaction."""

    def __init__(self, metadata: RecordMetadata) -> None:
        self._metadata = metadata

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        yield from ()
        return self._metadata


def send_at_once(topic: Any) -> None:
    """Make a topic's sends inside agents go to the transaction directly, without a future for each."""
    if len(topic.topics) != 1 or "send" in vars(topic):
        return
    name, usual = topic.topics[0], type(topic).send.__get__(topic)

    async def send(
        *,
        key: Any = None,
        value: Any = None,
        partition: int | None = None,
        timestamp: float | None = None,
        headers: Any = None,
        schema: Any = None,
        key_serializer: Any = None,
        value_serializer: Any = None,
        callback: Any = None,
        force: bool = False,
    ) -> Any:
        producer, sender = topic.app.producer, at_hand.get()
        if sender is None or callback is not None or not isinstance(producer, LaneProducer):
            return await usual(
                key=key,
                value=value,
                partition=partition,
                timestamp=timestamp,
                headers=headers,
                schema=schema,
                key_serializer=key_serializer,
                value_serializer=value_serializer,
                callback=callback,
                force=force,
            )
        named = topic.prepare_headers(headers)
        key_bytes, named = topic.prepare_key(key, key_serializer, schema, named)
        value_bytes, named = topic.prepare_value(value, value_serializer, schema, named)
        producer._take(sender, name, key_bytes, value_bytes, partition, timestamp, named)
        return SentInTransaction(_taken(name, partition, timestamp))

    topic.send = send


def _is_reply(event: Any, topic: str) -> bool:
    asked = event.value.reply_to if isinstance(event.value, ReqRepRequest) else None
    reply_to = asked or (event.headers or {}).get(REPLY_TO)
    return reply_to is not None and _text(reply_to) == topic


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _taken(topic: str, partition: int | None, timestamp: float | None) -> RecordMetadata:
    number = partition or 0
    return RecordMetadata(topic, number, TP(topic, number), -1, timestamp, 0)
