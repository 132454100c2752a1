"""Two programs that count: one in a table, one in a variable, which is gone with each rollback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from kafka_ratchet import App

app = App()
counts = app.Table("counts", default=int)


@app.agent(app.stream("numbers"))
async def count(stream: Any) -> AsyncIterator[Any]:
    async for event in stream.events():
        key = event.key.decode()
        counts[key] += 1
        yield {"key": key, "count": counts[key]}


forgetful = App()


@forgetful.agent(forgetful.stream("numbers"))
async def count_in_a_variable(stream: Any) -> AsyncIterator[Any]:
    counted = 0
    async for _ in stream:
        counted += 1
        yield counted
