import asyncio
from dataclasses import replace

import pytest

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status import cluster_view
from kafka_ratchet.app.status.cluster_view import ClusterView
from kafka_ratchet.app.status.model import Overview

ANSWER = Overview(app="shop", taken_at="", group=None, workers=[], streams=[], problems=[])


async def test_a_group_that_takes_long_to_ask_is_shown_as_it_was_while_it_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_view, "FRESH_FOR_S", 0.0)
    monkeypatch.setattr(cluster_view, "SLOW_S", -1.0)
    asked, goes_on = 0, asyncio.Event()

    async def ask() -> Overview:
        nonlocal asked
        asked += 1
        if asked > 1:
            await goes_on.wait()
        return replace(ANSWER, taken_at=str(asked))

    async with ClusterView("127.0.0.1:1", Settings(streams={})) as view:
        monkeypatch.setattr(view, "_ask", ask)
        assert (await view.overview()).taken_at == "1"
        await asyncio.sleep(0.01)
        assert [(await view.overview()).taken_at for _ in range(3)] == ["1"] * 3
        await asyncio.sleep(0.01)
        assert asked == 2  # one question at a time, whoever looks
        goes_on.set()
        await asyncio.sleep(0.01)
        assert (await view.overview()).taken_at == "2"

        goes_on.clear()
        monkeypatch.setattr(cluster_view, "STALE_MOST_S", -1.0)
        waits = asyncio.create_task(view.overview())
        await asyncio.sleep(0.05)
        assert not waits.done()
        goes_on.set()
        assert int((await waits).taken_at) > 2


async def test_a_group_that_answers_quickly_is_asked_again_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_view, "FRESH_FOR_S", 0.0)
    asked = 0

    async def ask() -> Overview:
        nonlocal asked
        asked += 1
        return replace(ANSWER, taken_at=str(asked))

    async with ClusterView("127.0.0.1:1", Settings(streams={})) as view:
        monkeypatch.setattr(view, "_ask", ask)
        found = []
        for _ in range(3):
            found.append((await view.overview()).taken_at)
            await asyncio.sleep(0.001)
    assert found == ["1", "2", "3"]
