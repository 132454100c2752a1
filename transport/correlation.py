"""What a log line belongs to: the stream, partition, offset and transactional id at work where it is written.

A task says once who knows; it is asked when a line is written, so that nothing is to be done for each record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Final

Facts = Callable[[], Mapping[str, object]]

_facts: Final[ContextVar[Facts | None]] = ContextVar("correlation", default=None)


def correlate(facts: Facts | None) -> None:
    """Lines of this task, and of those that it starts from now on, belong to this. None: to nothing in particular."""
    _facts.set(facts)


def correlation() -> Mapping[str, object]:
    """What a line written now belongs to: any of stream, topic, changelog, partition, offset, transaction."""
    facts = _facts.get()
    return {} if facts is None else facts()
