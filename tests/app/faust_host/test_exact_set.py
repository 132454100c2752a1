"""Exact parts of a Faust program, in memory: each test runs an app over records, by transaction."""

from __future__ import annotations

import asyncio
import json
import operator
import re
from functools import partial
from typing import Any

import faust
import pytest

from kafka_ratchet.errors import AgentFailed, RatchetError, SettingsError
from kafka_ratchet.testing.program_run import Record, run

BROKER = "ratchet://127.0.0.1:9"  # nothing answers there


def new_app(**options: Any) -> faust.App:
    return faust.App("set", broker=BROKER, store="ratchet://", autodiscover=False, **options)


class Order(faust.Record, coerce=True):  # type: ignore[misc, call-arg]
    user: str
    amount: int
    at: float = 0.0


def orders(*amounts: int, user: str = "ann") -> list[tuple[str, dict[str, Any]]]:
    return [(user, {"user": user, "amount": amount}) for amount in amounts]


def sent(ran: Any, topic: str) -> list[tuple[Any, Any]]:
    return [
        (None if each.key is None else each.key.decode(), each.value) for each in ran.outputs if each.topic == topic
    ]


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_agents_send_cast_and_have_sinks(batch: int) -> None:
    app = new_app()
    source, out, sunk = app.topic("source", value_type=Order), app.topic("out"), app.topic("sunk")

    async def noted(value: Any) -> None:
        seen.append(value)

    seen: list[Any] = []

    @app.agent(source, sink=[sunk, noted])
    async def first(stream: Any) -> Any:
        async for order in stream:
            await out.send(key=order.user, value=order.amount, headers={"a": b"1"})
            await second.cast(order.amount, key=order.user)
            await second.send(value=order.amount + 1)
            yield order.amount * 10

    @app.agent(value_type=int)
    async def second(stream: Any) -> None:
        async for key, amount in stream.items():
            await out.send(key=key, value=-amount)

    ran = run(app, {"source": orders(1, 2)}, batch=batch)
    assert [pair for pair in sent(ran, "out") if pair[1] > 0] == [("ann", 1), ("ann", 2)]
    assert sorted(value for _, value in sent(ran, "out") if value < 0) == [-3, -2, -2, -1]
    assert sent(ran, "sunk") == [(None, 10), (None, 20)]
    assert seen == [10, 20]
    assert not ran.dead_letters


def test_a_program_with_another_broker_runs_without_kafka_as_well() -> None:
    app = faust.App("set", broker="kafka://127.0.0.1:9", store="memory://", autodiscover=False)
    source, out = app.topic("source", value_type=Order), app.topic("out")
    totals = app.Table("totals", default=int)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            totals[order.user] += order.amount
            await out.send(value=totals[order.user])

    ran = run(app, {"source": orders(1, 2)})
    assert [value for _, value in sent(ran, "out")] == [1, 3]
    assert ran.tables == {"totals": {"ann": 3}}


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_tables_and_sets(batch: int) -> None:
    app = new_app()
    source = app.topic("source", value_type=Order)
    totals = app.Table("totals", default=int, key_type=str, value_type=int)
    last = app.Table("last", value_type=Order)
    amounts = app.SetTable("amounts", key_type=str, value_type=int)
    lists = app.Table("lists", default=list)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            totals[order.user] += order.amount
            last[order.user] = order
            amounts[order.user].add(order.amount)
            if order.amount > 4:
                amounts[order.user].discard(order.amount - 4)
            mine = lists[order.user]
            mine.append(order.amount)
            lists[order.user] = mine
            if order.amount == 7:
                del totals["bob"]

    ran = run(app, {"source": [*orders(1, 5, 5), *orders(2, user="bob"), *orders(7)]}, batch=batch)
    assert not ran.dead_letters
    assert ran.tables["totals"] == {"ann": 18}
    assert {user: set(found) for user, found in ran.tables["amounts"].items()} == {"ann": {5, 7}, "bob": {2}}
    assert ran.tables["last"]["ann"].amount == 7
    assert ran.tables["lists"] == {"ann": [1, 5, 5, 7], "bob": [2]}


def test_a_value_changed_in_place_and_not_assigned_is_refused() -> None:
    app = new_app()
    source = app.topic("source", value_type=Order)
    lists = app.Table("lists", default=list)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            lists[order.user].append(order.amount)

    ran = run(app, {"source": orders(1, 2)})
    assert ran.tables["lists"] == {}
    assert [str(letter) for letter in ran.dead_letters]
    assert "changed in place" in _reasons(ran)[0]


@pytest.mark.parametrize("batch", [1, 100])
def test_a_value_is_one_object_within_an_event(batch: int) -> None:
    """Two look-ups, or the values of a scan: the change of one is in what is assigned, or refused."""
    app = new_app()
    source = app.topic("source", value_type=Order)
    twice, scanned, missing = (app.Table(name, default=list) for name in ("twice", "scanned", "missing"))

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            twice[order.user].append(order.amount)
            twice[order.user] = twice[order.user]
            first, second = missing["all"], missing["all"]
            first.append(order.amount)
            missing["all"] = second
            scanned["sum"] = scanned["sum"]
            for key, found in scanned.items():
                found.append(order.amount)
                scanned[key] = found

    ran = run(app, {"source": orders(1, 2, 3)}, batch=batch)
    assert not _reasons(ran)
    assert ran.tables == {"twice": {"ann": [1, 2, 3]}, "missing": {"all": [1, 2, 3]}, "scanned": {"sum": [1, 2, 3]}}


@pytest.mark.parametrize("view", ["items", "values"])
def test_a_value_of_a_scan_changed_in_place_is_refused(view: str) -> None:
    app = new_app()
    source = app.topic("source", value_type=Order)
    totals = app.Table("totals", default=list)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            if order.amount == 1:
                totals[order.user] = [0]
            for found in getattr(totals, view)():
                (found[1] if view == "items" else found).append(order.amount)

    ran = run(app, {"source": orders(1, 2)})
    assert ["was changed in place" in reason for reason in _reasons(ran)] == [True]


def test_update_setdefault_pop_and_clear() -> None:
    app = new_app()
    source, log = app.topic("source", value_type=Order), app.topic("log")
    plain, logged = app.Table("plain", default=int), app.Table("logged", default=int, changelog_topic=log)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            for table in (plain, logged):
                if order.amount == 2:
                    table.clear()
                table.update({"a": order.amount}, b=order.amount * 10)
                table.setdefault("a", 5)
                assert table.pop("b") == order.amount * 10

    ran = run(app, {"source": orders(1, 2)})
    assert not _reasons(ran)
    assert ran.tables == {"plain": {"a": 2}, "logged": {"a": 2}}
    assert [key for key, _ in sent(ran, "log")] == ['"a"', '"b"', '"b"', '"a"', '"a"', '"b"', '"b"']


def test_a_table_write_of_a_task_is_refused() -> None:
    """The error of a task is nobody's to see, and the event would commit without the write."""
    app = new_app()
    source = app.topic("source", value_type=Order)
    totals, seen = app.Table("totals", default=int), app.Table("seen", default=int)

    async def later(user: str) -> None:
        totals[user] += 1

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            seen[order.user] += 1
            task = asyncio.create_task(later(order.user))
            await asyncio.wait([task])

    text = refused(app)
    assert "test_exact_set.py:" in text
    assert "a write to table totals by a task" in text


def _reasons(ran: Any) -> list[str]:
    return [
        value.decode()
        for each in ran.outputs
        if each.topic.endswith("-dead-letters")
        for name, value in each.headers
        if name == "ratchet-reason"
    ]


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_one_record_is_undone_alone(batch: int) -> None:
    app = new_app()
    source, out = app.topic("source", value_type=Order), app.topic("out")
    totals = app.Table("totals", default=int)
    seen = app.SetTable("seen")

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            totals[order.user] += order.amount
            totals["all"] += 1
            seen[order.user].add(order.amount)
            await out.send(value=order.amount)
            await out.send(value=-order.amount)
            if order.amount == 2:
                raise ValueError("two")

    ran = run(app, {"source": orders(1, 2, 3)}, batch=batch)
    assert [value for _, value in sent(ran, "out")] == [1, -1, 3, -3]
    assert ran.tables["totals"] == {"ann": 4, "all": 2}
    assert set(ran.tables["seen"]["ann"]) == {1, 3}
    assert len(ran.dead_letters) == 1


@pytest.mark.parametrize("batch", [1, 2, 5, 100])
def test_take_ends_with_the_batch_and_loses_nothing(batch: int) -> None:
    app = new_app()
    source, out = app.topic("source", value_type=Order), app.topic("out")

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for taken in stream.filter(lambda order: order.amount != 6).take(4, within=10):
            await out.send(value=[order.amount for order in taken])

    rows: list[Any] = [*orders(*range(10)), b"no json", *orders(10, 11)]
    ran = run(app, {"source": rows}, batch=batch)
    lists = [value for _, value in sent(ran, "out")]
    assert [amount for taken in lists for amount in taken] == [n for n in range(12) if n != 6]
    assert all(0 < len(taken) <= min(4, batch) for taken in lists)
    assert len(ran.dead_letters) == 1


def test_an_agent_that_raises_over_a_list_makes_dead_letters_of_all_of_it() -> None:
    app = new_app()
    source = app.topic("source", value_type=Order)
    totals = app.Table("totals", default=int)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for taken in stream.take(3, within=10):
            for order in taken:
                totals[order.user] += order.amount
                if order.amount == 5:
                    raise ValueError("five")

    ran = run(app, {"source": orders(*range(8))})
    assert ran.tables["totals"] == {"ann": 0 + 1 + 2 + 6 + 7}
    assert [letter.value["amount"] for letter in ran.dead_letters] == [3, 4, 5]


@pytest.mark.parametrize(
    ("filtered", "copied", "rejected"), [(99, [0, 1, 2, 6, 7], [3, 4, 5]), (4, [0, 1, 2, 7], [3, 4, 5, 6])]
)
def test_steps_before_a_list_that_is_rejected_are_undone_for_each_of_its_records(
    filtered: int, copied: list[int], rejected: list[int]
) -> None:
    """Each comes again as a dead letter, and would be copied and counted twice; one filtered out would be missing."""
    app = new_app()
    source, copy = app.topic("source", value_type=Order), app.topic("copy")
    totals = app.Table("totals", default=int)

    def counted(order: Order) -> Order:
        totals[order.user] += 1
        return order

    @app.agent(source)
    async def agent(stream: Any) -> None:
        assert totals.name
        stream.add_processor(counted)
        async for taken in stream.echo(copy).filter(lambda order: order.amount != filtered).take(3, within=10):
            for order in taken:
                if order.amount == 5:
                    raise ValueError("five")

    ran = run(app, {"source": orders(*range(8))})
    assert [value["amount"] for _, value in sent(ran, "copy")] == copied
    assert ran.tables["totals"] == {"ann": len(copied)}
    assert [letter.value["amount"] for letter in ran.dead_letters] == rejected


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_group_by_through_and_a_merge(batch: int) -> None:
    app = new_app()
    left, right = app.topic("left", value_type=Order), app.topic("right", value_type=Order)
    middle = app.topic("middle", value_type=Order)
    by_amount = app.Table("by_amount", default=int)
    shared = app.Table("shared", default=int)
    passed = app.Table("passed", default=int)

    @app.agent(left)
    async def grouped(stream: Any) -> None:
        async for order in stream.group_by(Order.amount):
            assert stream.current_event.key in (str(order.amount).encode(), order.amount)
            by_amount[order.amount] += 1

    @app.agent(left)
    async def joins(stream: Any) -> None:
        async for order in stream:
            shared[order.user] += order.amount

    @app.agent(right)
    async def leaves(stream: Any) -> None:
        async for event in stream.events():
            shared[event.value.user] -= event.value.amount

    @app.agent(right)
    async def through(stream: Any) -> None:
        async for order in stream.through(middle):
            passed[order.user] += 1

    ran = run(app, {"left": orders(5, 5, 7), "right": orders(1, 2)}, batch=batch)
    assert not ran.dead_letters, _reasons(ran)
    assert {str(key): count for key, count in ran.tables["by_amount"].items()} == {"5": 2, "7": 1}
    assert ran.tables["shared"] == {"ann": 14}
    assert ran.tables["passed"] == {"ann": 2}


def test_a_filter_before_a_step_leaves_records_out_before_their_key_is_computed() -> None:
    app = new_app()
    source, out, echoed = app.topic("source", value_type=Order), app.topic("out"), app.topic("echoed")

    @app.agent(source)
    async def agent(stream: Any) -> None:
        some = stream.filter(lambda order: order.amount).echo(echoed)
        async for order in some.group_by(lambda order: 6 // order.amount, name="by-amount"):
            await out.send(value=order.amount)

    ran = run(app, {"source": orders(0, 1, 2)})
    assert not ran.dead_letters
    assert [value for _, value in sent(ran, "out")] == [1, 2]
    assert [value["amount"] for _, value in sent(ran, "echoed")] == [1, 2]


@pytest.mark.parametrize("step", ["group_by", "through"])
def test_another_processor_before_a_step_is_refused(step: str) -> None:
    """The step would send by the record's own value, and a key would be in several partitions."""
    app = new_app()
    source = app.topic("source", value_type=Order)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        stream.add_processor(lambda order: Order(order.user.lower(), order.amount))
        by_user = stream.group_by(Order.user) if step == "group_by" else stream.through(app.topic("other"))
        async for _ in by_user:
            pass

    text = refused(app)
    assert "test_exact_set.py:" in text
    assert f"a processor before {step}() cannot be exact" in text


def test_callbacks_of_sends_are_called() -> None:
    app = new_app()
    source, out = app.topic("source", value_type=Order), app.topic("out")
    told: list[str] = []

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for _ in stream:
            await out.send(value=1, callback=lambda sent: told.append(sent.result().topic))
            out.send_soon(value=2, callback=lambda sent: told.append(sent.result().topic))

    assert [value for _, value in sent(run(app, {"source": orders(1)}), "out")] == [1, 2]
    assert told == ["out", "out"]


def windowed(batch: int, relative: str) -> tuple[list[Any], Any]:
    app = new_app()
    source, closed = app.topic("source", value_type=Order), app.topic("closed")

    async def on_close(key: Any, value: Any) -> None:
        name, (start, _) = key
        await closed.send(key=name, value=[start, value])

    table = app.Table("windows", default=int, on_window_close=on_close).tumbling(10, expires=10)
    counts = {
        "now": table.relative_to_now,
        "stream": table.relative_to_stream,
        "field": lambda: table.relative_to_field(Order.at),
    }[relative]()
    current = app.topic("current")

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            counts[order.user] += order.amount
            await current.send(value=counts[order.user].value())

    times = [100, 105, 111, 109, 125, 131, 160, 205]
    rows = [
        Record({"user": "ann", "amount": 1, "at": float(at)}, "ann", 1_000_000 if relative == "field" else at * 1000)
        for at in times
    ]
    ran = run(app, {"source": rows}, batch=batch)
    assert not ran.dead_letters, _reasons(ran)
    return [value for _, value in sent(ran, "closed")], ran.tables


@pytest.mark.parametrize("batch", [1, 3, 100])
@pytest.mark.parametrize("relative", ["stream", "field"])
def test_windows_close_by_the_events_time_in_order(batch: int, relative: str) -> None:
    closed, tables = windowed(batch, relative)
    assert closed == [[100.0, 3], [110.0, 1], [120.0, 1], [130.0, 1], [160.0, 1]]
    assert {start: value for (_, (start, _)), value in tables["windows"].items()} == {200.0: 1}


def test_relative_to_now_is_the_streams_time() -> None:
    closed, _ = windowed(3, "now")
    assert closed == [[100.0, 2], [110.0, 2], [120.0, 1], [130.0, 1], [160.0, 1]]


def test_a_write_to_a_window_that_has_closed_is_left_out_and_counted() -> None:
    app = new_app()
    source, closed = app.topic("source", value_type=Order), app.topic("closed")

    async def on_close(key: Any, value: Any) -> None:
        await closed.send(value=[key[1][0], value])

    table = app.Table("windows", default=int, on_window_close=on_close).tumbling(10, expires=10)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            table[order.user] += order.amount

    rows = [Record({"user": "ann", "amount": 1}, "ann", at * 1000) for at in (100, 150, 101, 102, 200)]
    ran = run(app, {"source": rows})
    assert [value for _, value in sent(ran, "closed")] == [[100.0, 1], [150.0, 1]]
    assert len(ran.tables["windows"]) == 1


def closed_from_lists(batch: int, times: list[int]) -> tuple[list[int], dict[Any, Any]]:
    """Run a program with `take_events`; return the values of closed windows, and the open windows."""
    app = new_app()
    source, closed = app.topic("source", value_type=Order), app.topic("closed")

    async def on_close(key: Any, value: Any) -> None:
        await closed.send(value=value)

    windows = app.Table("windows", default=int, on_window_close=on_close).tumbling(60, expires=60)
    table = windows.relative_to_stream()

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for taken in stream.take_events(100, within=10):
            for event in taken:
                table["ann"].apply(operator.add, event.value.amount, event)

    rows = [Record({"user": "ann", "amount": 1}, "ann", at * 1000) for at in times]
    ran = run(app, {"source": rows}, batch=batch)
    assert not ran.dead_letters, _reasons(ran)
    return [value for _, value in sent(ran, "closed")], ran.tables["windows"]


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_windows_close_once_the_agent_has_processed_a_list(batch: int) -> None:
    closed, still_open = closed_from_lists(batch, [1020 + 50 * number for number in range(12)])
    assert closed == [2, 1, 1, 1, 1, 2, 1, 1]
    assert sum(still_open.values()) == 2


def test_a_record_behind_others_of_its_list_is_in_time() -> None:
    closed, _ = closed_from_lists(100, [1000, 1300, 1001])
    assert closed == [2]


def test_a_callback_that_raises_halts() -> None:
    app = new_app()
    source = app.topic("source", value_type=Order)

    async def on_close(key: Any, value: Any) -> None:
        raise KeyError("no")

    table = app.Table("windows", default=int, on_window_close=on_close).tumbling(10, expires=10)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            table[order.user] += order.amount

    rows = [Record({"user": "ann", "amount": 1}, "ann", at * 1000) for at in (100, 150)]
    with pytest.raises(AgentFailed, match="on_window_close raised KeyError"):
        run(app, {"source": rows})


def test_hopping_windows() -> None:
    app = new_app()
    source, out = app.topic("source", value_type=Order), app.topic("out")
    table = app.Table("hops", default=int, key_type=str, value_type=int).hopping(10, 5, expires=100, key_index=True)
    hops = table.relative_to_stream()

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            hops[order.user] += order.amount
            await out.send(value=[hops[order.user].current(), hops[order.user].delta(10), dict(hops.items())])

    rows = [Record({"user": "ann", "amount": 1}, "ann", at * 1000) for at in (100, 104, 106, 112)]
    ran = run(app, {"source": rows})
    assert not ran.dead_letters, _reasons(ran)
    assert [value[0] for _, value in sent(ran, "out")] == [1, 2, 1, 1]
    assert sent(ran, "out")[-1][1][1] == 3
    assert sum(ran.tables["hops"].values()) == 8


def test_an_explicit_changelog_has_each_write() -> None:
    app = new_app()
    source, log = app.topic("source", value_type=Order), app.topic("log", key_type=str, value_type=int)
    totals = app.Table("totals", default=int, changelog_topic=log)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            totals[order.user] += order.amount

    ran = run(app, {"source": [*orders(1, 2), *orders(5, user="bob")]})
    assert sent(ran, "log") == [("ann", 1), ("ann", 3), ("bob", 5)] or sent(ran, "log") == [
        ('"ann"', 1),
        ('"ann"', 3),
        ('"bob"', 5),
    ]
    assert ran.tables["totals"] == {"ann": 3, "bob": 5}


def test_models_inside_lists_are_models_again() -> None:
    app = new_app()
    source, out = app.topic("source", value_type=Order), app.topic("out")
    held = app.Table("held", default=list)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            mine = held[order.user]
            mine.append(order)
            held[order.user] = mine
            await out.send(value=sum(each.amount for each in held[order.user]))

    ran = run(app, {"source": orders(1, 2, 3)}, batch=1)
    assert not ran.dead_letters, _reasons(ran)
    assert [value for _, value in sent(ran, "out")] == [1, 3, 6]


def test_forward_echo_and_the_current_event() -> None:
    app = new_app()
    source, out, echoed = app.topic("source", value_type=Order), app.topic("out"), app.topic("echoed")

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for _ in stream.echo(echoed):
            await faust.current_event().forward(out, key="k")

    ran = run(app, {"source": orders(1)})
    assert not ran.dead_letters, _reasons(ran)
    assert [value["amount"] for _, value in sent(ran, "out")] == [1]
    assert [value["amount"] for _, value in sent(ran, "echoed")] == [1]


def test_topics_named_in_a_call_are_known() -> None:
    app = new_app()
    source = app.topic("source", value_type=Order)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for event in stream.events():
            await app.send("sent-by-name", key=event.key, value=event.value.amount)
            await app.topic("made-in-the-agent").send(value=event.value.amount)
            await event.forward("forwarded")

    ran = run(app, {"source": orders(1, 2)})
    assert sent(ran, "sent-by-name") == [("ann", 1), ("ann", 2)]
    assert sent(ran, "made-in-the-agent") == [(None, 1), (None, 2)]
    assert [value["amount"] for _, value in sent(ran, "forwarded")] == [1, 2]


def refused(app: Any, rows: Any = None) -> str:
    with pytest.raises(RatchetError) as found:
        run(app, {"source": rows or orders(1)})
    return str(found.value)


@pytest.mark.parametrize("batch", [1, 100])
def test_agents_that_are_bound_to_arguments(batch: int) -> None:
    """Faust's example bound_agent, with topics in the place of its channels."""
    app = new_app()
    source, out, problems = app.topic("source", value_type=Order), app.topic("out"), app.topic("problems")
    totals = app.Table("totals", default=int)

    async def add(table: Any, stream: Any, *, letters: Any) -> Any:
        async for order in stream:
            table[order.user] += order.amount
            if order.amount == 2:
                await letters.send(value=order.amount)
            else:
                yield order.amount

    async def ignore(stream: Any) -> None:
        async for _ in stream:
            pass

    app.agent(source, name="bound", sink=[out])(partial(add, totals, letters=problems))
    app.agent(app.topic("more"), name="another")(ignore)
    ran = run(app, {"source": orders(1, 2, 3)}, batch=batch)
    assert ran.tables == {"totals": {"ann": 6}}
    assert [value for _, value in sent(ran, "out")] == [1, 3]
    assert [value for _, value in sent(ran, "problems")] == [2]
    assert not ran.dead_letters


def test_what_cannot_be_exact_is_refused_with_its_line() -> None:
    app = new_app()
    source = app.topic("source", value_type=Order)

    @app.agent()
    async def other(stream: Any) -> Any:
        async for value in stream:
            yield value

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            await other.ask(order.amount)

    assert "test_exact_set.py:" in (text := refused(app))
    assert "ask" in text


def test_noack_is_refused() -> None:
    app = new_app()
    source = app.topic("source", value_type=Order)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for _ in stream.noack():
            pass

    assert "test_exact_set.py:" in (text := refused(app))
    assert "noack" in text


def test_a_table_of_another_stream_is_refused() -> None:
    app = new_app()
    source = app.topic("source", value_type=Order)
    app.Table("hidden", default=int)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            app.tables["hidden"][order.user] += 1

    @app.agent(app.topic("more"))
    async def other(stream: Any) -> None:
        async for _ in stream:
            pass

    assert "test_exact_set.py:" in (text := refused(app))
    assert "does not show" in text


def test_patterns_channels_and_no_agents_are_refused() -> None:
    app = new_app()
    with pytest.raises(SettingsError, match="no agent"):
        run(app, {"source": []})

    @app.agent(app.topic(pattern="a.*"))
    async def agent(stream: Any) -> None:
        async for _ in stream:
            pass

    with pytest.raises(SettingsError, match=r"test_exact_set.py:\d+.*pattern"):
        run(app, {"source": []})
    app = new_app()

    @app.agent(app.channel())
    async def channels(stream: Any) -> None:
        async for _ in stream:
            pass

    with pytest.raises(SettingsError, match=r"test_exact_set.py:\d+.*channel"):
        run(app, {"source": []})

    app = new_app()

    async def bound(limit: int, stream: Any) -> None:
        async for _ in stream:
            pass

    app.agent(app.channel(), name="bound")(partial(bound, 1))
    with pytest.raises(SettingsError, match=r"test_exact_set.py:\d+: agent bound: reads a channel"):
        run(app, {"source": []})


def test_what_an_agent_puts_into_a_channel_is_refused() -> None:
    app = new_app()
    source, held = app.topic("source", value_type=Order), {"channel": app.channel()}

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            await held["channel"].send(value=order.amount)

    assert "test_exact_set.py:" in (text := refused(app))
    assert "a send to a channel in memory within an agent" in text


def test_a_refusal_that_the_program_catches_commits_nothing() -> None:
    app = new_app()
    source = app.topic("source", value_type=Order)
    totals = app.Table("totals", default=int)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            totals[order.user] += 1
            try:
                await app.send("-".join(["made", "here"]), value=1)
            except Exception:
                totals["caught"] += 1

    assert re.search("topic made-here: agent .* sends to it, but the app does not declare it", refused(app))


def test_answers_go_out_after_the_commit_and_not_for_an_undone_event(monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app()
    source = app.topic("source")
    answered: list[tuple[str, Any]] = []

    async def send_out(self: Any, topic: str, key: Any, value: Any, *more: Any, **options: Any) -> None:
        answered.append((topic, json.loads(value)["value"]))

    monkeypatch.setattr("faust.transport.drivers.aiokafka.Producer.send", send_out)

    @app.agent(source)
    async def agent(stream: Any) -> Any:
        async for amount in stream:
            yield amount
            if amount == 2:
                raise ValueError("two")

    def asked(amount: int) -> dict[str, Any]:
        request = {"value": amount, "reply_to": "f-reply", "correlation_id": str(amount)}
        return {**request, "__faust": {"ns": "@ReqRepRequest"}}

    ran = run(app, {"source": [asked(1), asked(2), asked(3)]})
    assert len(ran.dead_letters) == 1
    assert answered == [("f-reply", 1), ("f-reply", 3)]
