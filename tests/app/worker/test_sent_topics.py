"""Topics that a program may not send to, and streams whose records agents write."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_ratchet.agents.program import App
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.worker.sent_topics import check_topics
from kafka_ratchet.errors import SettingsError

ORDERS = {"input": "orders.in", "output": "orders.out", "dead_letters": "orders.dead"}
SECOND = {"input": "alerts", "output": "second.out", "dead_letters": "second.dead"}


def settings(second: dict[str, Any] | None = None, **options: Any) -> Settings:
    streams = {"orders": ORDERS} | ({} if second is None else {"second": SECOND | second})
    return Settings(app="shop", streams=streams, **options)  # type: ignore[arg-type]


def program(topic: str | None, *streams: str) -> App:
    app = App()
    if topic is not None:
        app.topic(topic)

    async def agent(stream: Any) -> None:
        async for _ in stream:
            pass

    for stream in streams:
        app.agent(app.stream(stream))(agent)
    return app


@pytest.mark.parametrize(
    ("topic", "says"),
    [
        ("al erts", "is not a Kafka topic name"),
        ("ratchet-owners", "is an internal topic of Ratchet or Kafka"),
        ("shop-changelog.orders", "is an internal topic of Ratchet or Kafka"),
        ("shop-policy", "is an internal topic of Ratchet or Kafka"),
        ("__consumer_offsets", "is an internal topic of Ratchet or Kafka"),
        ("orders.out", "is the output of stream orders. Do not send to it: an agent of orders writes to it"),
        ("orders.dead", "has the dead letters of stream orders"),
        ("orders.in", "is the input of stream orders, the only one with agents"),
    ],
)
def test_where_a_program_may_not_send(topic: str, says: str) -> None:
    with pytest.raises(SettingsError, match=f"topic '?{topic}'? of the program:? {says}"):
        check_topics(program(topic, "orders"), settings())
    check_topics(program("alerts", "orders"), settings())


@pytest.mark.parametrize(
    ("second", "topic", "by"),
    [({}, "alerts", r"app.topic\('alerts'\)"), ({"input": "orders.out"}, None, "the output of stream orders")],
)
def test_who_reads_what_agents_write_says_whether_it_judges(second: dict[str, Any], topic: str | None, by: str) -> None:
    app = program(topic, "orders")
    for options in ({}, {"deduplicate": True}):
        with pytest.raises(SettingsError, match=f"streams.second: its input .* is written by agents .{by}.*= false"):
            check_topics(app, settings(second, **options))
    check_topics(app, settings(second, deduplicate=False))
    for said in (True, False):
        check_topics(app, settings({**second, "deduplicate": said}))


def test_workers_of_a_group_share_the_topics() -> None:
    assert program("alerts", "orders").rules() == {"agents of orders": "agent", "topics of agents": "alerts"}
