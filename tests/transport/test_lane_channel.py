"""Deliveries reach the agent whatever the group does: lanes outlive its generations, and so must what they deliver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import faust
import pytest

from kafka_ratchet.errors import Aborted
from kafka_ratchet.transport.assignment import LaneChannel
from kafka_ratchet.transport.delivery import AgentCalls


@pytest.fixture
async def channel() -> AsyncIterator[LaneChannel]:
    app = faust.App("lane-channel", broker="kafka://127.0.0.1:1", autodiscover=False, web_enabled=False)
    yield LaneChannel(app)
    app.consumer._thread.thread_loop.close()  # made by the stream; only a consumer that has run closes it


async def test_a_delivery_passes_while_the_group_rebalances(channel: LaneChannel) -> None:
    stream = channel.app.stream(channel.clone(is_iterator=True))
    waiting = asyncio.ensure_future(anext(aiter(stream)))
    await asyncio.sleep(0)
    # As between two generations of the group: a stream then drops the events it is given, without a word.
    channel.app.flow_control.suspend()
    delivery: Any = object()
    calling = asyncio.create_task(AgentCalls("changelog", channel, lambda delivery: None).call(delivery))
    assert (await asyncio.wait_for(waiting, 60)).delivery is delivery
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    await stream.stop()


async def test_a_delivery_that_nobody_would_take_is_given_back(channel: LaneChannel) -> None:
    delivery: Any = object()
    with pytest.raises(Aborted, match="changelog: no agent reads"):
        await AgentCalls("changelog", channel, lambda delivery: None).call(delivery)
