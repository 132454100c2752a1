"""Faust's recovery of tables of one's own, beside the lanes."""

from __future__ import annotations

import asyncio

import faust
import pytest
from faust.tables.recovery import RebalanceAgain, ServiceStopped

from kafka_ratchet.transport.assignment import LaneTableManager


async def test_it_begins_again_where_kafka_does_not_answer_unless_it_is_to_stop() -> None:
    app = faust.App("recovery", broker="kafka://127.0.0.1:1", autodiscover=False, web_enabled=False)
    recovery = LaneTableManager(app).recovery
    with pytest.raises(RebalanceAgain):
        await recovery._wait(asyncio.Event().wait(), timeout=0.01)
    assert recovery.signal_recovery_start.is_set()
    recovery.signal_recovery_start.clear()
    recovery._stopped.set()
    with pytest.raises(ServiceStopped):
        await recovery._wait(asyncio.Event().wait(), timeout=0.01)


async def test_only_tables_that_faust_restores_are_waited_for() -> None:
    app = faust.App("recovery", broker="kafka://127.0.0.1:1", autodiscover=False, web_enabled=False)
    tables = LaneTableManager(app)
    tables.recovery._started.set()
    assert await tables.wait_until_recovery_completed() is False
    tables.add(app.Table("own", default=int))
    waiting = asyncio.ensure_future(tables.wait_until_recovery_completed())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    tables.recovery.completed.set()
    assert await waiting is False
