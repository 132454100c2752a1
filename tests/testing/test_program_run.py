"""Programs over lists of records: what the worker does with them, without Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from kafka_ratchet.agents.program import App
from kafka_ratchet.errors import AgentFailed, SettingsError
from kafka_ratchet.rule.nesting import NESTING_MOST
from kafka_ratchet.testing import run


class Order(msgspec.Struct):
    user: str
    amount: int


ORDERS = [(f"key-{number}", Order(f"user-{number % 3}", number)) for number in range(100)]


def totals_app(**agent: Any) -> App:
    app = App()
    orders, totals = app.stream("orders", value_type=Order), app.Table("totals", default=int)

    @app.agent(orders, **agent)
    async def add_up(orders: Any) -> AsyncIterator[Any]:
        async for order in orders:
            totals[order.user] += order.amount
            yield {"user": order.user, "total": totals[order.user]}
            if order.amount < 0:
                raise ValueError("negative")

    return app


def expected(rows: list[tuple[str, Order]]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    totals, values = dict[str, int](), []
    for _, order in rows:
        totals[order.user] = totals.get(order.user, 0) + order.amount
        values.append({"user": order.user, "total": totals[order.user]})
    return values, totals


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_running_totals(batch: int) -> None:
    ran = run(totals_app(), {"orders": ORDERS}, batch=batch)
    assert (ran.values, ran.tables["totals"]) == expected(ORDERS)
    assert [output.key for output in ran.outputs] == [key.encode() for key, _ in ORDERS]


def test_what_raises_halts_with_its_record_and_its_line() -> None:
    rows = [*ORDERS[:5], ("bad", Order("u", -1))]
    with pytest.raises(
        AgentFailed,
        match=r"orders, partition 0, offset 5: agent add_up raised ValueError: negative \(.*test_program_run",
    ):
        run(totals_app(), {"orders": rows})


@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_or_becomes_a_dead_letter_and_is_undone(batch: int) -> None:
    bad = ("bad", Order("user-1", -5))
    rows = [bad, *ORDERS[:5], bad, bad, *ORDERS[5:20], bad]
    ran = run(totals_app(on_error="dead-letter"), {"orders": rows}, batch=batch)
    assert (ran.values, ran.tables["totals"]) == expected(ORDERS[:20])
    assert [letter.value["amount"] for letter in ran.dead_letters] == [-5] * 4
    reason = dict(ran.dead_letters[0].headers)["ratchet-reason"] or b""
    assert reason.startswith(b"agent add_up: raised ValueError: negative (")


@pytest.mark.parametrize("on_error", ["halt", "dead-letter"])
def test_a_value_that_does_not_decode_is_a_dead_letter(on_error: str) -> None:
    rows = [*ORDERS[:3], ("x", b"{"), ("y", b'{"user": 1}'), ("z", None), ("deep", b"[" * 100_000), *ORDERS[3:6]]
    ran = run(totals_app(on_error=on_error), {"orders": rows}, batch=4)
    assert (ran.values, ran.tables["totals"]) == expected(ORDERS[:6])
    assert [letter.key for letter in ran.dead_letters] == [b"x", b"y", b"z", b"deep"]
    assert b"value does not decode" in (dict(ran.dead_letters[1].headers)["ratchet-reason"] or b"")


def test_a_value_is_nested_as_deep_as_everywhere_else() -> None:
    app = App()

    @app.agent(app.stream("in"))
    async def all_of(stream: Any) -> AsyncIterator[Any]:
        async for value in stream:
            yield value

    deepest, too_deep = (b"[" * levels + b"]" * levels for levels in (NESTING_MOST, NESTING_MOST + 1))
    ran = run(app, {"in": [("a", deepest), ("b", too_deep), ("c", b"1")]})
    assert len(ran.values) == 2
    [letter] = ran.dead_letters
    assert dict(letter.headers)["ratchet-reason"] == b"value does not decode: nested deeper than 512 levels"


def test_the_event_itself_goes_on_byte_for_byte() -> None:
    app = App()

    @app.agent(app.stream("in"))
    async def some(stream: Any) -> AsyncIterator[Any]:
        async for event in stream.events():
            if event.offset % 2:
                yield event
                yield {"at": event.offset, "key": event.key.decode()}
                yield event
            else:
                yield None

    rows = [("k", b'  {"spaces":   1}'), ("l", b"[1,  2]"), ("m", b"3"), ("n", b" 4 ")]
    ran = run(app, {"in": rows})
    assert [output.key for output in ran.outputs] == [b"k", b"l", b"l", b"l", b"m", b"n", b"n", b"n"]
    assert [output.value for output in ran.outputs] == [
        None, [1, 2], {"at": 1, "key": "l"}, [1, 2], None, 4, {"at": 3, "key": "n"}, 4,
    ]  # fmt: skip


def test_several_agents_take_each_batch_one_after_the_other() -> None:
    app = App()
    numbers, seen = app.stream("numbers"), app.Table("seen", default=list)

    async def note(stream: Any, who: str) -> AsyncIterator[Any]:
        async for number in stream:
            seen["order"] = [*seen["order"], f"{who}{number}"]
            yield number + (0 if who == "a" else 10)

    @app.agent(numbers)
    async def first(stream: Any) -> AsyncIterator[Any]:
        async for output in note(stream, "a"):
            yield output

    @app.agent(numbers)
    async def second(stream: Any) -> AsyncIterator[Any]:
        async for output in note(stream, "b"):
            yield output

    ran = run(app, {"numbers": [1, 2, 3]}, batch=2)
    assert ran.tables["seen"]["order"] == ["a1", "a2", "b1", "b2", "a3", "b3"]
    assert ran.values == [1, 2, 11, 12, 3, 13]


def test_an_agent_without_outputs_and_one_that_ends() -> None:
    app = App()
    stream, table = app.stream("in"), app.Table("count", default=int)

    @app.agent(stream)
    async def count(values: Any) -> None:
        async for _ in values:
            table["n"] += 1

    assert run(app, {"in": [1] * 5}) == ([], {"count": {"n": 5}})

    @app.agent(stream)
    async def ends(values: Any) -> None:
        async for _ in values:
            return

    with pytest.raises(AgentFailed, match=r"agent ends returned\. An agent must not return: let it read events"):
        run(app, {"in": [1] * 5})


def test_what_cannot_be_registered() -> None:
    app = App()
    stream = app.stream("in")
    with pytest.raises(SettingsError, match="declared twice"):
        app.stream("in")
    app.Table("t")
    with pytest.raises(SettingsError, match="declared twice"):
        app.Table("t")
    with pytest.raises(SettingsError, match="does not belong to this app"):
        App().agent(stream)
    with pytest.raises(SettingsError, match="on_error is 'ignore'"):
        app.agent(stream, on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="Write `async def`"):
        app.agent(stream)(lambda values: values)
    with pytest.raises(SettingsError, match="there is no stream 'out'; the program has in"):
        run(app, {"out": []})


def test_a_value_that_was_changed_and_yielded_goes_on_as_it_was_changed() -> None:
    app = App()

    @app.agent(app.stream("in", value_type=Order))
    async def double(stream: Any) -> AsyncIterator[Any]:
        async for order in stream:
            order.amount *= 2
            yield order

    assert run(app, {"in": [Order("u", 1), Order("u", 2)]}).values == [
        {"user": "u", "amount": 2},
        {"user": "u", "amount": 4},
    ]


def two_streams(*, of_one: bool) -> App:
    """One table that the agents of both use; of_one: the program says that it is the first stream's."""
    app = App()
    one, two = app.stream("one"), app.stream("two")
    kept = app.Table("kept", stream=one if of_one else None)

    async def keep(stream: Any) -> None:
        async for value in stream:
            kept[value] = value

    app.agent(one)(keep)
    app.agent(two)(keep)
    return app


def test_what_a_worker_would_refuse_is_refused() -> None:
    with pytest.raises(SettingsError, match="table kept: streams one, two have agents"):
        run(two_streams(of_one=False), {"one": [1]})
    app = two_streams(of_one=True)
    assert run(app, {"one": [1]}).tables == {"kept": {1: 1}}
    with pytest.raises(AgentFailed, match="table kept: only an agent of the table's stream may read or write it"):
        run(app, {"two": [1]})


def test_an_output_without_an_event_is_refused() -> None:
    app = App()

    @app.agent(app.stream("in"))
    async def hasty(stream: Any) -> AsyncIterator[Any]:
        yield "hello"
        async for value in stream:
            yield value

    with pytest.raises(AgentFailed, match="yielded without a current event"):
        run(app, {"in": [1, 2]})


def test_global_tables_have_what_they_are_given() -> None:
    app = App()
    orders, countries = app.stream("orders"), app.GlobalTable("countries", topic="countries", value_type=dict[str, int])
    app.Table("totals", default=int)

    @app.agent(orders, on_error="dead-letter")
    async def tax(orders: Any) -> AsyncIterator[Any]:
        async for order in orders:
            yield countries[order["country"]]["tax"]

    rows = [{"country": "de"}, {"country": "xx"}]
    ran = run(app, {"orders": rows}, tables={"countries": {"de": {"tax": 19}}})
    assert (ran.values, len(ran.dead_letters), countries.contents) == ([19], 1, None)
    assert len(run(app, {"orders": rows}).dead_letters) == 2
    with pytest.raises(SettingsError, match="'totals' is one of agents, which begins empty"):
        run(app, {"orders": rows}, tables={"totals": {"a": 1}})
    with pytest.raises(SettingsError, match="table countries is declared twice"):
        app.Table("countries")


def viewing_app(look: Any, **agent: Any) -> App:
    app = App()
    orders, clicks = app.stream("orders", value_type=Order), app.stream("clicks", value_type=str)
    totals = app.Table("totals", default=int, stream=orders)
    lists = app.Table("lists", value_type=list[int], stream=orders)
    views = totals.view(), lists.view()

    @app.agent(orders)
    async def add_up(orders: Any) -> None:
        async for order in orders:
            totals[order.user] += order.amount
            lists[order.user] = [*lists.get(order.user, []), order.amount]

    @app.agent(clicks, **agent)
    async def click(clicks: Any) -> AsyncIterator[Any]:
        async for user in clicks:
            yield look(*views, user)

    return app


def test_a_view_has_what_the_table_of_another_stream_has_committed() -> None:
    app = viewing_app(lambda totals, lists, user: [totals[user], lists.get(user), user in lists])
    orders = [Order("ann", 1), Order("bob", 2), Order("ann", 3)]
    ran = run(app, {"orders": orders, "clicks": ["ann", "eve"]})
    assert ran.values == [[4, [1, 3], True], [0, None, False]]
    assert run(app, {"clicks": ["ann"]}).values == [[0, None, False]]


@pytest.mark.parametrize(
    ("look", "said"),
    [
        (lambda totals, lists, user: lists[user], "raised KeyError: 'ann'"),
        (lambda totals, lists, user: totals.__setitem__(user, 1), "the view of table totals is read-only"),
        (lambda totals, lists, user: list(totals), "the view of table totals cannot be listed"),
        (lambda totals, lists, user: totals[1.5], "table totals: key 1.5 is float"),
    ],
)
def test_what_a_view_refuses(look: Any, said: str) -> None:
    with pytest.raises(AgentFailed, match=said):
        run(viewing_app(look), {"clicks": ["ann"]})


def test_what_is_changed_in_a_viewed_value_changes_nothing() -> None:
    def look(totals: Any, lists: Any, user: str) -> Any:
        lists[user].append(7)
        return lists[user]

    assert run(viewing_app(look), {"orders": [Order("ann", 1)], "clicks": ["ann"]}).values == [[1]]
