"""Several steps: internal streams, filled by group_by and by send."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from kafka_ratchet.agents.program import App, StreamDefinition
from kafka_ratchet.errors import AgentFailed, SettingsError
from kafka_ratchet.testing import run


class Order(msgspec.Struct):
    user: str
    amount: int


def counting(app: App, stream: StreamDefinition) -> None:
    """Totals per key of a stream, whose values are orders."""
    totals = app.Table("totals", default=int, stream=stream)

    @app.agent(stream)
    async def add_up(stream: Any) -> AsyncIterator[Any]:
        async for event in stream.events():
            assert event.key == event.value.user.encode()
            totals[event.value.user] += event.value.amount
            yield totals[event.value.user]


ROWS = [(f"order-{number}", Order(f"user-{number % 3}", number)) for number in range(20)]
TOTALS = {f"user-{user}": sum(number for number in range(20) if number % 3 == user) for user in range(3)}


@pytest.mark.parametrize("batch", [1, 7, 100])
@pytest.mark.parametrize("key", [lambda order: order.user, Order.user])
def test_group_by_gives_each_event_its_new_key(batch: int, key: Any) -> None:
    app = App()
    counting(app, app.stream("orders", value_type=Order).group_by("by-user", key))
    ran = run(app, {"orders": ROWS}, batch=batch)
    assert ran.tables == {"totals": TOTALS}
    assert [(output.topic, output.key) for output in ran.outputs] == [
        ("by-user", order.user.encode()) for _, order in ROWS
    ]


def test_several_steps_and_agents_beside_them() -> None:
    app = App()
    orders = app.stream("orders", value_type=Order)
    by_user = orders.group_by("by-user", Order.user)
    by_size = by_user.group_by("by-size", lambda order: order.amount // 10)
    seen = app.Table("seen", default=list, stream=by_size)

    @app.agent(orders)
    async def echo(stream: Any) -> AsyncIterator[Any]:
        async for order in stream:
            yield order.amount

    @app.agent(by_size)
    async def note(stream: Any) -> None:
        async for event in stream.events():
            seen[event.key.decode()] = [*seen[event.key.decode()], event.value.amount]

    ran = run(app, {"orders": ROWS})
    assert ran.values == list(range(20))
    assert ran.tables["seen"] == {"0": list(range(10)), "1": list(range(10, 20))}


def test_two_inputs_meet_in_one_table() -> None:
    app = App()
    orders, payments = app.stream("orders"), app.stream("payments")
    both = orders.group_by("both", lambda order: order["id"])
    assert payments.group_by("both", lambda payment: payment["of"]) is both
    open_, paid = app.Table("open", default=dict, stream=both), app.Table("paid", default=int, stream=both)

    @app.agent(both)
    async def join(stream: Any) -> AsyncIterator[Any]:
        async for event in stream.events():
            key, value = event.key.decode(), event.value
            if "of" in value:
                paid[key] += value["amount"]
            else:
                open_[key] = value
            if key in open_ and paid[key] >= open_[key]["amount"]:
                yield {"paid": open_.pop(key)["id"]}

    ran = run(
        app,
        {
            "orders": [{"id": "a", "amount": 5}, {"id": "b", "amount": 7}],
            "payments": [{"of": "b", "amount": 7}, {"of": "a", "amount": 2}, {"of": "a", "amount": 3}],
        },
    )
    assert ran.values == [{"paid": "b"}, {"paid": "a"}]
    assert ran.tables == {"open": {}, "paid": {"a": 5, "b": 7}}


def test_an_internal_stream_takes_what_is_sent_to_it() -> None:
    app = App()
    orders = app.stream("orders", value_type=Order)
    halves = app.stream("halves", internal=True)
    sums = app.Table("sums", default=int, stream=halves)

    @app.agent(orders, on_error="dead-letter")
    async def split(stream: Any) -> None:
        async for order in stream:
            for part in (order.amount // 2, order.amount - order.amount // 2):
                await halves.send(key=order.user, value=part, headers={"of": order.user})
            if order.amount == 4:
                raise ValueError("no")

    @app.agent(halves)
    async def add_up(stream: Any) -> None:
        async for event in stream.events():
            sums[dict(event.headers)["of"].decode()] += event.value

    ran = run(app, {"orders": ROWS})
    assert ran.tables["sums"] == TOTALS | {"user-1": TOTALS["user-1"] - 4}
    assert len(ran.dead_letters) == 1


def test_a_key_that_cannot_be_computed() -> None:
    def app(**options: Any) -> App:
        app = App()
        app.stream("orders").group_by("by-user", lambda order: order["user"], **options)
        return app

    rows = [{"user": "a"}, {}, {"user": "b"}]
    with pytest.raises(AgentFailed, match=r"orders, partition 0, offset 1: agent group_by by-user raised KeyError"):
        run(app(), {"orders": rows})
    ran = run(app(on_error="dead-letter"), {"orders": rows})
    assert [letter.value for letter in ran.dead_letters] == [{}]


def test_what_cannot_be_grouped() -> None:
    app = App()
    orders, others = app.stream("orders", value_type=Order), app.stream("others")
    by_user = orders.group_by("by-user", Order.user)
    with pytest.raises(SettingsError, match="stream orders is already grouped into it"):
        orders.group_by("by-user", Order.user)
    with pytest.raises(SettingsError, match="a stream of that name exists"):
        orders.group_by("others", Order.user)
    with pytest.raises(SettingsError, match=r"its values would have two types, .*Order.* and None"):
        others.group_by("by-user", lambda value: value)
    with pytest.raises(SettingsError, match=r"key is 'user'\. Give a function"):
        orders.group_by("by-name", "user")
    with pytest.raises(SettingsError, match="needs the name of the internal stream"):
        orders.group_by(Order.user, None)
    by_size = by_user.group_by("by-size", lambda order: order.amount)
    with pytest.raises(SettingsError, match="events of by-size come from that stream"):
        by_size.group_by("by-user", Order.user)
    with pytest.raises(SettingsError, match=r"stream orders reads a topic of the settings\. Send to app\.topic"):
        orders.send(value=1)
