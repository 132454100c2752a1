"""A topic that a program sends to."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from kafka_ratchet.agents.sends import Headers
from kafka_ratchet.errors import SendRefused


class Sender(Protocol):
    """Interface for the sends of the running agent."""

    def send(
        self,
        topic: str,
        key: Any,
        value: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp: int | None,
    ) -> None:
        """Send a record; see `Topic.send`."""

    def send_event(
        self, topic: str, key: Any, partition: int | None = None, header: tuple[str, bytes] | None = None
    ) -> None:
        """Send the current event; see `Topic.send_event`."""


at_hand: Final = ContextVar[Sender | None]("sender", default=None)
"""Sender of the agent that runs in this task; each run sets its own."""


class _Sent:
    """Awaitable result of a send, which is complete at once.

    `send` adds the record when it is called, even if the caller forgets `await`.
    """

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_SENT: Final = _Sent()


class TopicOptions(NamedTuple):
    """Options of a missing topic that a worker creates for the program.

    Attributes:
        partitions: partition count; None: chosen by the worker
        replication: number of replicas; None: that of the program's streams
        config: topic configuration by Kafka's names
    """

    partitions: int | None = None
    replication: int | None = None
    config: Mapping[str, str] = MappingProxyType({})


class Topic:
    """Topic that agents send to, declared by `App.topic`.

    name: name in Kafka
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def send(
        self,
        *,
        key: Any = None,
        value: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Awaitable[None]:
        """Send a record in the transaction of the current event.

        Args:
            key: bytes unchanged, text in UTF-8, None as null, other values as JSON.
            value: bytes unchanged, None as null, other values as JSON.
            headers: names with bytes, text or None.
            partition: partition of this topic; None: chosen from the key like Java's producers (murmur2). Without a key
                it is the input's partition number modulo the topic's partition count.
            timestamp: ms since the epoch; None: the timestamp of the current event.

        Raises:
            SendRefused: no event is current, or agents must not write to the topic.
            TypeError, ValueError: an argument is invalid.
        """
        self._sender().send(self.name, key, value, headers, partition, timestamp)
        return _SENT

    def send_event(self, key: Any, *, partition: int | None = None, header: tuple[str, bytes] | None = None) -> None:
        """Send the current event under another key; value, headers and timestamp stay unchanged.

        Args:
            key: as in `send`
            partition: as in `send`
            header: a further header, after those of the event.

        Raises:
            SendRefused: no single event is current, as in a timer and in an agent with `batches()`; or agents must not
                write to the topic.
        """
        self._sender().send_event(self.name, key, partition, header)

    def _sender(self) -> Sender:
        sender = at_hand.get()
        if sender is None:
            raise SendRefused(
                f"topic {self.name}: sent outside an agent's event. Send records only inside an agent, after it has "
                "read an event, or inside a stream's timer"
            )
        return sender

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"
