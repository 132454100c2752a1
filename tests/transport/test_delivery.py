"""The limit of a processor's time, at the moment a lane is stopped."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_ratchet.transport import delivery as module
from kafka_ratchet.transport.delivery import Patience


async def test_a_stop_amid_the_end_of_a_call_reaches_nothing_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio queues the callback of a future that is done; taking it off does not take it out of the queue."""
    monkeypatch.setattr(module, "AGENT_WAIT_S", 0.0)
    failures: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    stop: asyncio.Future[Any] = loop.create_future()
    batch = SimpleNamespace(topic="orders", partition=0, start=7, count=1)
    async with Patience(SimpleNamespace(batch=batch, held_by=None), stop, None):  # type: ignore[arg-type]
        stop.set_result(True)
    await asyncio.sleep(0.05)
    assert failures == []
