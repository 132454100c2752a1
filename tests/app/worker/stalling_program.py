"""The program of test_stall_causes.py: its agent keeps the first event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from kafka_ratchet import App

app = App()
kept = app.stream("agent", value_type=bytes)


@app.agent(kept)
async def keeps(events: Any) -> AsyncIterator[Any]:
    async for event in events:
        await asyncio.sleep(3_600)
        yield event
