"""The agent behind `group_by`: it forwards each event to an internal topic, in the transaction at hand."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from operator import attrgetter
from typing import Any

from kafka_ratchet.agents.topic import Topic
from kafka_ratchet.errors import SettingsError

Key = Callable[[Any], Any]


def regroup(name: str, topic: Topic, key: Any) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """The agent that forwards each event of a stream to an internal one, under another key.

    Args:
        name: of the internal stream
        topic: of the same
        key: from a value to the new key; or a field of the value's class, as `Order.user`

    Raises:
        SettingsError: it is neither.
    """
    if not callable(key):
        field = getattr(key, "__name__", None)
        if field is None or not hasattr(key, "__get__"):
            raise SettingsError(
                f"group_by {name}: key is {key!r:.100}: give a function of the value, or a field of its class"
            )
        key = attrgetter(field)
    key_of: Key = key

    async def forward(stream: Any) -> None:
        async for value in stream:
            topic.send_event(key_of(value))

    forward.__name__ = f"group_by {name}"
    return forward
