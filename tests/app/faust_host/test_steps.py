"""Steps of Faust agents as agents of Ratchet: each has a name of its own on its stream."""

from __future__ import annotations

from typing import Any

import faust

from kafka_ratchet.app.faust_host.program import host


def test_the_same_step_of_two_agents_has_two_names() -> None:
    """A re-sent dead letter names its agents, and goes to no other."""
    app = faust.App("shop", broker="kafka://", store="memory://")
    orders = app.topic("orders", value_type=str)

    async def first(stream: Any) -> None:
        async for _ in stream.group_by(lambda user: user, name="user"):
            pass

    async def second(stream: Any) -> None:
        async for _ in stream.group_by(lambda user: user, name="user"):
            pass

    for function in (first, second):
        app.agent(orders, name=function.__name__)(function)
    names = [agent.name for agent in host(app).engine.streams["orders"].agents]
    assert names == ["group_by user of first", "group_by user of second"]


def test_a_topic_merged_for_two_agents_has_two_names() -> None:
    app = faust.App("shop", broker="kafka://", store="memory://")
    both = app.topic("orders", "refunds", value_type=str)

    async def first(stream: Any) -> None:
        async for _ in stream:
            pass

    async def second(stream: Any) -> None:
        async for _ in stream:
            pass

    for function in (first, second):
        app.agent(both, name=function.__name__)(function)
    names = [agent.name for agent in host(app).engine.streams["orders"].agents]
    assert names == ["merge orders into merged-first", "merge orders into merged-second"]
