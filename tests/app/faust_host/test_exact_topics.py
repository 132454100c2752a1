"""Steps, topics, sets and windows of a Faust program, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from kafka_ratchet.agents.run import PartitionProgram
from kafka_ratchet.app.faust_host.program import ConvertedProgram, host, switch_off
from kafka_ratchet.testing import program_run
from kafka_ratchet.testing.program_run import Output, Record, run
from tests.app.faust_host.test_exact_set import Order, _reasons, new_app, orders, refused, sent


@pytest.mark.parametrize("step", ["group_by", "through"])
def test_a_filter_before_a_step_is_applied_once(step: str) -> None:
    """A filter with a memory would leave out each record as its own duplicate."""
    app = new_app()
    source, out, middle = app.topic("source", value_type=Order), app.topic("out"), app.topic("middle", value_type=Order)
    first: list[int] = []
    second: list[int] = []

    def is_new(seen: list[int], amount: int) -> bool:
        seen.append(amount)
        return seen.count(amount) == 1

    @app.agent(source)
    async def agent(stream: Any) -> None:
        some = stream.filter(lambda order: is_new(first, order.amount))
        some = some.group_by(Order.user) if step == "group_by" else some.through(middle)
        some = some.filter(lambda order: is_new(second, order.amount))
        async for order in some.group_by(Order.amount).filter(lambda order: order.amount != 3):
            await out.send(value=order.amount)

    ran = run(app, {"source": orders(1, 2, 3, 4)})
    assert (first, second) == ([1, 2, 3, 4], [1, 2, 3, 4])
    assert [value for _, value in sent(ran, "out")] == [1, 2, 4]


def test_a_group_by_with_a_topic_writes_that_topic() -> None:
    app = new_app()
    source, out = app.topic("source", value_type=Order), app.topic("out")
    by_user = app.topic("by-user", value_type=Order)
    totals = app.Table("totals", default=int)

    @app.agent(source)
    async def grouped(stream: Any) -> None:
        async for key, order in stream.group_by(Order.user, topic=by_user).items():
            totals[order.user] += order.amount
            await out.send(key=key, value=totals[order.user])

    @app.agent(by_user)
    async def reader(stream: Any) -> None:
        async for key, order in stream.items():
            await out.send(key=key, value=-order.amount)

    rows = [(None, value) for _, value in orders(1, 2)]
    ran = run(app, {"source": rows, "by-user": orders(7)})
    assert not ran.dead_letters, _reasons(ran)
    assert sorted(value for _, value in sent(ran, "out")) == [-7, -2, -1, 7, 8, 10]
    assert ran.tables["totals"] == {"ann": 10}


@pytest.mark.parametrize("step", ["group_by", "through"])
def test_a_step_to_the_topic_that_the_agent_reads_is_refused(step: str) -> None:
    app = new_app()
    source = app.topic("source", value_type=Order)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        own = stream.through(source) if step == "through" else stream.group_by(Order.user, topic=source)
        async for _ in own:
            pass

    assert "forwards its records to source, a topic that it reads" in refused(app)


@pytest.mark.parametrize("step", ["group_by", "through"])
def test_a_step_in_another_function_is_refused_with_its_line(step: str) -> None:
    """The probe run is of agents whose own code has a step: the agent would count by the keys of its input."""
    app = new_app()
    source, middle = app.topic("source", value_type=Order), app.topic("middle", value_type=Order)
    totals = app.Table("totals", default=int)

    def regrouped(stream: Any) -> Any:
        return stream.group_by(Order.user) if step == "group_by" else stream.through(middle)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in regrouped(stream):
            totals[order.user] += order.amount

    text = refused(app)
    assert "test_exact_topics.py:" in text
    assert f"{step}() that the agent's function does not show before its first event cannot be exact" in text
    assert "Call it in the agent's own function" in text


@pytest.mark.parametrize("step", ["group_by", "through"])
def test_a_step_after_the_first_event_is_refused(step: str) -> None:
    app = new_app()
    source, middle = app.topic("source", value_type=Order), app.topic("middle", value_type=Order)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for _ in stream:
            if step == "group_by":
                stream.group_by(Order.user)
            else:
                stream.through(middle)

    assert f"{step}() that the agent's function does not show before its first event" in refused(app)


def test_a_topic_given_by_name_has_the_types_of_the_stream() -> None:
    app = new_app()
    source, out = app.topic("source", value_type=Order, key_type=bytes, key_serializer="raw"), app.topic("out")

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for key, order in stream.through("named").echo("copies").items():
            await out.send(key=key, value=order.amount)

    @app.agent(source)
    async def echoing(stream: Any) -> None:
        async for _ in stream.echo("copies", "more-copies"):
            pass

    ran = run(app, {"source": [("ann smith", {"user": "ann", "amount": 3})]})
    assert not ran.dead_letters, _reasons(ran)
    assert sent(ran, "out") == [("ann smith", 3)]
    assert [value["amount"] for _, value in sent(ran, "copies")] == [3, 3]
    assert [value["amount"] for _, value in sent(ran, "more-copies")] == [3]


@pytest.mark.parametrize("reader", ["none", "agent", "global table"])
def test_internal_topics_of_the_program_are_written(reader: str) -> None:
    """reader: reader of the changelog that Faust makes for a table."""
    app = new_app()
    source, out = app.topic("source", value_type=Order), app.topic("out", internal=True)
    logged = app.Table("logged", default=int, changelog_topic=app.topic("log", internal=True, partitions=1))
    totals = app.Table("totals", default=int)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            logged[order.user] += order.amount
            totals[order.user] += order.amount
            await out.send(value=order.amount)

    if reader == "agent":

        @app.agent(totals.changelog_topic)
        async def follow(stream: Any) -> None:
            async for total in stream:
                await out.send(value=-total)

    elif reader == "global table":
        app.GlobalTable("view", changelog_topic=totals.changelog_topic)
    ran = run(app, {"source": orders(1, 2)})
    assert not ran.dead_letters, _reasons(ran)
    assert [value for _, value in sent(ran, "log")] == [1, 3]
    assert [value for _, value in sent(ran, "out")] == [1, 2, *([-1, -3] if reader == "agent" else [])]
    written = [value for _, value in sent(ran, "set-totals-changelog")]
    assert written == ([1, 3] if reader == "global table" else [])
    assert ran.tables == {"logged": {"ann": 3}, "totals": {"ann": 3}}


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize("bad", [None, 115])
def test_windows_of_sets_close_with_and_without_a_new_run(batch: int, bad: int | None) -> None:
    """bad: time of a record that the agent refuses, so that its function begins again."""
    app = new_app()
    source, closed = app.topic("source", value_type=Order), app.topic("closed")

    async def on_close(key: Any, value: Any) -> None:
        await closed.send(value=[key[0], key[1][0], sorted(value), type(value).__name__])

    seen = app.SetTable("seen", on_window_close=on_close).tumbling(10, expires=10)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            if stream.current_event.message.timestamp == bad:
                raise ValueError("bad")
            seen[order.user].add(order.amount)

    times = [100, 105, 111, *([bad] if bad else []), 125, 205]
    rows = [Record({"user": "ann", "amount": at}, "ann", at * 1000) for at in times]
    ran = run(app, {"source": rows}, batch=batch)
    assert len(ran.dead_letters) == (bad is not None), _reasons(ran)
    assert [value for _, value in sent(ran, "closed")] == [
        ["ann", 100.0, [100, 105], "set"],
        ["ann", 110.0, [111], "set"],
        ["ann", 120.0, [125], "set"],
    ]
    assert len(ran.tables["seen"]) == 1


def test_an_element_that_is_stored_as_another_value_is_refused() -> None:
    app = new_app()
    source, out = app.topic("source"), app.topic("out")
    seen = app.SetTable("seen")

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for text in stream:
            kept: Any = UUID(text) if len(text) > 9 else (text, 1)
            await out.send(value=kept in seen["x"])
            seen["x"].add(kept)
            seen["y"].update({kept})

    one = "12345678-1234-1234-1234-123456789012"
    ran = run(app, {"source": ["a", "a", one]}, batch=1)
    assert [value for _, value in sent(ran, "out")] == [False, True]
    (reason,) = _reasons(ran)
    assert f"table seen: element UUID('{one}') of key 'x' is a UUID" in reason
    assert "Add str(element)" in reason


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize("kind", [int, Decimal, Order])
def test_windows_close_with_keys_of_a_type(kind: Any, batch: int) -> None:
    app = new_app()
    source, closed = app.topic("source", value_type=Order), app.topic("closed")

    async def on_close(key: Any, value: Any) -> None:
        await closed.send(value=[type(key[0]).__name__, key[1][0], value])

    counts = app.Table("counts", key_type=kind, default=int, on_window_close=on_close).tumbling(10, expires=10)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            counts[order if kind is Order else kind(order.amount)] += 1

    rows = [Record({"user": "ann", "amount": 7}, "ann", at * 1000) for at in (100, 105, 125)]
    ran = run(app, {"source": rows}, batch=batch)
    assert not ran.dead_letters, _reasons(ran)
    assert [value for _, value in sent(ran, "closed")] == [[kind.__name__, 100.0, 2]]


def version(expires: float | None) -> ConvertedProgram:
    """Return a version of a program whose windows of ten seconds are sent when they close."""
    app = new_app()
    source, closed = app.topic("source", value_type=Order), app.topic("closed")

    async def on_close(key: Any, value: Any) -> None:
        await closed.send(value=[key[1][0], value])

    table = app.Table("windows", default=int, on_window_close=on_close).tumbling(10, expires=expires)
    totals = table.relative_to_stream()

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            totals[order.user] += order.amount

    switch_off(app)
    return host(app)


def run_versions(*given: tuple[ConvertedProgram, Sequence[int]]) -> list[Output]:
    """Run versions of a program one after the other on the same partition. given: each with the seconds of records."""
    outputs: list[Output] = []

    async def go() -> None:
        partition: Any = None
        for hosted, times in given:
            stream = program_run._StreamRun(hosted.engine, "source", outputs, {})
            if partition is not None:
                stream._partition = partition
                stream.program = PartitionProgram(hosted.engine.of("source"), stream._tables, partition)
            partition = stream._partition
            rows = [Record({"user": "ann", "amount": 1}, "ann", at * 1000) for at in times]
            await stream.take(program_run._rows(rows))
            stream.program.abandon()

    asyncio.run(go())
    return outputs


@pytest.mark.parametrize("before", [3600, None])
@pytest.mark.parametrize("first", [310, 205, 105])
def test_windows_that_another_version_left_open_close_at_the_first_record(before: float | None, first: int) -> None:
    """first: time of the version's first record; at 105 and 205 s it is added to a window that is still open."""
    outputs = run_versions((version(before), [100, 200, 300]), (version(20), [first, 500]))
    assert [each.topic for each in outputs] == ["closed"] * len(outputs), _reasons(program_run.Ran(outputs, {}))
    values = {100.0: 1, 200.0: 1, 300.0: 1}
    start = first // 10 * 10.0
    values[start] = values.get(start, 0) + 1
    assert [each.value for each in outputs] == [list(each) for each in sorted(values.items())]


@pytest.mark.parametrize("followed", ["its own topic", "the changelog of a set table", "a changelog with a name"])
def test_a_global_table_over_operations_of_sets_is_refused(followed: str) -> None:
    app = new_app()
    log = app.topic("log") if followed == "a changelog with a name" else None
    source, members = app.topic("source", value_type=Order), app.SetTable("members", changelog_topic=log)
    if followed == "its own topic":
        app.SetGlobalTable("view")
    else:
        app.GlobalTable("view", changelog_topic=members.changelog_topic)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for order in stream:
            members[order.user].add(order.amount)

    topic = {"its own topic": "set-view-changelog", "a changelog with a name": "log"}
    text = refused(app)
    assert f"global table view: topic {topic.get(followed, 'set-members-changelog')} has operations on sets" in text
    assert "app.GlobalTable" in text


def test_receivers_of_on_produce_message_see_each_send_and_may_add_headers() -> None:
    app = new_app()
    source, out, sunk = app.topic("source", value_type=Order), app.topic("out"), app.topic("sunk")
    seen: list[tuple[Any, Any]] = []

    @app.on_produce_message.connect
    def trace(sender: Any, key: Any = None, value: Any = None, headers: Any = None, **options: Any) -> None:
        seen.append((key, value))
        headers.append(("trace", b"7"))

    @app.agent(source, sink=[sunk])
    async def agent(stream: Any) -> Any:
        async for order in stream:
            await out.send(key="a", value=1, headers={"own": b"1"})
            await out.send(key="b", value=2, callback=lambda sent: None)
            out.send_soon(key="c", value=3)
            yield order.amount

    ran = run(app, {"source": orders(4)})
    assert not ran.dead_letters, _reasons(ran)
    assert seen == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (None, b"4")]
    assert [dict(each.headers)["trace"] for each in ran.outputs] == [b"7"] * 4
    assert dict(ran.outputs[0].headers)["own"] == b"1"
