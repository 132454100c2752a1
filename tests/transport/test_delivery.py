"""The limit of a processor's time, at the moment a lane is stopped."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_ratchet.transport import delivery as module
from kafka_ratchet.transport.batch.chunk import ALL_RECORDS
from kafka_ratchet.transport.delivery import SHARE_AT_FIRST, BatchLimit, ProcessingLimit


async def test_a_stop_amid_the_end_of_a_call_reaches_nothing_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio queues the callback of a future that is done; taking it off does not take it out of the queue."""
    monkeypatch.setattr(module, "AGENT_WAIT_S", 0.0)
    failures: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    stop: asyncio.Future[Any] = loop.create_future()
    batch = SimpleNamespace(topic="orders", partition=0, start=7, count=1)
    async with ProcessingLimit(SimpleNamespace(batch=batch, held_by=None), stop, None):  # type: ignore[arg-type]
        stop.set_result(True)
    await asyncio.sleep(0.05)
    assert failures == []


async def test_a_call_that_has_ended_is_not_watched_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    batch = SimpleNamespace(topic="orders", partition=0, start=7, count=1)
    delivery = SimpleNamespace(batch=batch, held_by=None, spec=SimpleNamespace(transaction_timeout_ms=60_000))
    patience = ProcessingLimit(delivery, asyncio.get_running_loop().create_future(), None)  # type: ignore[arg-type]
    async with patience:
        pass
    assert patience._next.cancelled()


def test_quick_agents_soon_get_all_that_is_fetched() -> None:
    share = BatchLimit(SHARE_AT_FIRST, 60_000)
    for _ in range(10):
        share.took(share.most, 0.01, failed=False)
    assert share.most == ALL_RECORDS


def test_a_share_grows_as_far_as_half_of_the_time_lets_it() -> None:
    share = BatchLimit(100, 60_000)
    share.took(100, 6.0, failed=False)
    assert share.most == 400
    share.took(400, 24.0, failed=False)
    assert share.most == 400
    share.took(7, 0.1, failed=False)  # there were no more: that says little of 400
    assert share.most == 400


def test_a_share_shrinks_after_a_transaction_that_took_too_long() -> None:
    share = BatchLimit(800, 60_000)
    share.took(800, 5.0, failed=True)  # for another reason
    assert share.most == 800
    share.took(800, 48.0, failed=True)
    assert share.most == 100
    share.took(100, 50.0, failed=False)  # an agent blocked the event loop, and the commit is refused
    assert share.most == 12
    share.took(1, 60.0, failed=True)
    assert share.most == 1
