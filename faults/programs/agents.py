"""Agents of `ratchet faults --agent`: each counts its stream's events by key, and yields the count.

Separate module: workers import it by name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from faults.events import IDENTITIES
from kafka_ratchet import App
from kafka_ratchet.producers import PRODUCER_HEADER

NAME = "faults.programs.agents:app"
"""Name of the program for `ratchet worker --app`."""

app = App()


def table_of(kind: str) -> str:
    """Return the name of the counting table for a kind of identity."""
    return f"counts-{kind}"


def _count(kind: str) -> None:
    stream = app.stream(f"by-{kind}")
    counts = app.Table(table_of(kind), default=int, stream=stream)

    @app.agent(stream)
    async def count(events: Any) -> AsyncIterator[Any]:
        async for event in events.events():
            key = event.value["key"]
            counts[key] += 1
            producer = dict(event.headers)[PRODUCER_HEADER].decode()
            yield {**event.value, "producer": producer, "count": counts[key]}


for _kind in IDENTITIES:
    _count(_kind)
