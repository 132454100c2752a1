"""Fields of log lines: stream, partition, offset and transactional id of the current work.

A task registers one function, which runs when a line is written. So there is no work for each record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Final

Facts = Callable[[], Mapping[str, object]]

_facts: Final[ContextVar[Facts | None]] = ContextVar("correlation", default=None)


def correlate(facts: Facts | None) -> None:
    """Set the fields of log lines for this task and the tasks that it starts.

    facts: function that returns the fields; None: no fields.
    """
    _facts.set(facts)


def correlation() -> Mapping[str, object]:
    """Return the fields of a log line written now: any of stream, topic, changelog, partition, offset, transaction."""
    facts = _facts.get()
    return {} if facts is None else facts()
