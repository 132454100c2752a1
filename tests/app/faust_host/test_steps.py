"""Steps of Faust agents as agents of Ratchet: each has a name of its own on its stream."""

from __future__ import annotations

from typing import Any

import faust
import pytest

from kafka_ratchet.app.faust_host import transport
from kafka_ratchet.app.faust_host.program import host
from kafka_ratchet.app.faust_host.transport import hosted_app, prepare_changelogs, refuse_other_partitions
from kafka_ratchet.errors import PartitionsDiffer


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


def grouped(**options: Any) -> faust.App:
    """Return a program with a `group_by` into one partition, whose table has a changelog topic."""
    app = faust.App("shop", broker="ratchet://127.0.0.1:9", store="ratchet://", autodiscover=False)
    orders, refunds = app.topic("orders", value_type=str), app.topic("refunds", value_type=str, partitions=1)
    totals = app.Table("totals", default=int, changelog_topic=app.topic("totals-log"))

    @app.agent(orders, name="all-orders")
    async def all_orders(stream: Any) -> None:
        async for _ in stream.group_by(lambda user: "all", name="all", **options):
            totals["all"] += 1

    @app.agent(refunds, name="all-refunds")
    async def all_refunds(stream: Any) -> None:
        async for _ in stream:
            totals["all"] -= 1

    return app


def test_a_group_by_with_a_number_of_partitions_makes_its_topic_with_as_many() -> None:
    hosted, settings = hosted_app(grouped(partitions=1))
    (step,) = hosted.regrouped
    assert settings.streams[step].partitions == 1
    assert "partitions" in settings.streams[step].model_fields_set
    refuse_other_partitions(hosted, settings, {"orders": 8})
    hosted, settings = hosted_app(grouped())
    with pytest.raises(PartitionsDiffer, match="all-orders-all has 8"):
        refuse_other_partitions(hosted, settings, {"orders": 8})


def test_a_changelog_has_as_many_partitions_as_the_step_before_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, int] = {}
    monkeypatch.setattr(transport, "partition_counts", lambda admin, topics: {"orders": 8})
    monkeypatch.setattr(transport, "create", lambda admin, topic, count, *rest: made.update({topic: count}))
    hosted, settings = hosted_app(grouped(partitions=1))
    prepare_changelogs(hosted, settings, "127.0.0.1:9")
    assert made == {"totals-log": 1}
