"""A topic that a program sends to."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from contextvars import ContextVar
from typing import Any, Final, Protocol

from kafka_ratchet.agents.sends import Headers
from kafka_ratchet.errors import SendRefused


class Sender(Protocol):
    """Sender for the running agent."""

    def send(
        self,
        topic: str,
        key: Any,
        value: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp: int | None,
    ) -> None:
        """See `Topic.send`."""

    def send_event(
        self, topic: str, key: Any, partition: int | None = None, header: tuple[str, bytes] | None = None
    ) -> None:
        """See `Topic.send_event`."""


at_hand: Final = ContextVar[Sender | None]("sender", default=None)
"""Each run of an agent sets its own."""


class _Sent:
    """Nothing is left to wait for. The record was taken when `send` was called: also where `await` was forgotten."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_SENT: Final = _Sent()


class Topic:
    """Topic for sends of agents, as `App.topic` declares it.

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
            key: bytes as they are, text in UTF-8, None null, all else as JSON.
            value: bytes as they are, None null, all else as JSON.
            headers: names with bytes, text or None.
            partition: of this topic; None: that of the key, as Java's producers choose it (murmur2). Without a key it
                is the number of the input's partition, modulo the count.
            timestamp: ms since the epoch; None: that of the current event.

        Raises:
            SendRefused: there is no current event, or the topic may not be written to.
            TypeError, ValueError: one of the arguments cannot be sent.
        """
        self._sender().send(self.name, key, value, headers, partition, timestamp)
        return _SENT

    def send_event(self, key: Any, *, partition: int | None = None, header: tuple[str, bytes] | None = None) -> None:
        """Send the current event under another key; value, headers and timestamp stay, byte for byte.

        Args:
            key: as in `send`
            partition: as in `send`
            header: one more, after those of the event

        Raises:
            SendRefused: there is no current event, or the topic may not be written to.
        """
        self._sender().send_event(self.name, key, partition, header)

    def _sender(self) -> Sender:
        sender = at_hand.get()
        if sender is None:
            raise SendRefused(f"topic {self.name}: records are sent inside an agent only, while it has an event")
        return sender

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"
