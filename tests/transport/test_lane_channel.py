"""Deliveries reach the agent whatever the group does: lanes outlive its generations, and so must what they deliver."""

from __future__ import annotations

import asyncio
from typing import Any

import faust
import pytest

from kafka_ratchet.errors import Aborted
from kafka_ratchet.transport.assignment import Lanes


@pytest.fixture
async def lanes() -> Lanes:
    app = faust.App("lane-channel", broker="kafka://127.0.0.1:1", autodiscover=False, web_enabled=False)
    return Lanes(
        app,
        {"changelog": 1},
        {"changelog": lambda number, deliver: pytest.fail("no lane is wanted")},
        {"changelog": lambda number: pytest.fail("no standby is wanted")},
    )


async def test_a_delivery_passes_while_the_group_rebalances(lanes: Lanes) -> None:
    stream = lanes.app.stream(lanes.channels["changelog"].clone(is_iterator=True))
    waiting = asyncio.ensure_future(anext(aiter(stream)))
    await asyncio.sleep(0)
    # As between two generations of the group: a stream then drops the events it is given, without a word.
    lanes.app.flow_control.suspend()
    delivery: Any = object()
    await lanes._deliver_to("changelog")(delivery)
    assert await asyncio.wait_for(waiting, 60) is delivery
    await stream.stop()


async def test_a_delivery_that_nobody_would_take_is_given_back(lanes: Lanes) -> None:
    delivery: Any = object()
    with pytest.raises(Aborted, match="changelog: no agent reads"):
        await lanes._deliver_to("changelog")(delivery)
