"""Values of a Faust program's tables, and uses of tables that its code hardly shows."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import faust
import pytest

from kafka_ratchet.errors import SendRefused, SettingsError
from kafka_ratchet.testing.program_run import Record, run
from tests.app.faust_host.test_exact_set import new_app, sent

NUMBERS = list(range(6))


def nested() -> Any:
    return defaultdict(Counter)


def last_three() -> Any:
    return deque(maxlen=3)


def add_counts(value: Any) -> None:
    value.update({"a": 1})


def add_nested(value: Any) -> None:
    value["a"].update({"b": 1})


@pytest.mark.parametrize("batch", [1, 4, 100])
@pytest.mark.parametrize(
    ("default", "change", "expected"),
    [
        (Counter, add_counts, Counter(a=6)),
        (nested, add_nested, {"a": Counter(b=6)}),
        (set, lambda value: value.update([1, (2, 3)]), {1, (2, 3)}),
        (last_three, lambda value: value.append(len(value)), deque([3, 3, 3])),
        (dict, lambda value: value.update(a=value.get("a", 0) + 1), {"a": 6}),
    ],
)
def test_a_value_has_the_type_of_the_default(
    batch: int, default: Callable[[], Any], change: Callable[[Any], None], expected: Any
) -> None:
    app = new_app()
    source, table = app.topic("source"), app.Table("table", default=default)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for _ in stream:
            value = table["x"]
            change(value)
            table["x"] = value

    ran = run(app, {"source": NUMBERS}, batch=batch)
    assert not ran.dead_letters
    assert ran.tables["table"] == {"x": expected}
    assert type(ran.tables["table"]["x"]) is type(default())


def test_keys_that_are_one_in_json_are_refused() -> None:
    app = new_app()
    source, table = app.topic("source"), app.Table("table", default=dict)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for number in stream:
            some = table["x"]
            some[number % 2] = some.get(number % 2, 0) + 1
            table["x"] = some

    ran = run(app, {"source": [0, 1, 2]})
    assert [letter.value for letter in ran.dead_letters] == [2]
    (reason,) = [value for name, value in ran.dead_letters[0].headers if name == "ratchet-reason"]
    assert b"keys '0' and 0, which are one key in JSON" in (reason or b"")
    assert ran.tables["table"] == {"x": {"0": 1, "1": 1}}


def windows_app(use: Callable[[Any, Any], Callable[[], None]]) -> Any:
    app = new_app()
    source, closed = app.topic("source"), app.topic("closed")

    async def on_close(key: Any, value: Any) -> None:
        await closed.send(value=[key[1][0], value])

    windows = app.Table("windows", default=int, on_window_close=on_close).tumbling(10, expires=5).relative_to_stream()
    count = use(app, windows)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for _ in stream:
            count()

    return app


RECORDS = [Record(number, timestamp=1000 + number * 4000) for number in range(12)]
COUNTS = [[0.0, 3], [10.0, 2], [20.0, 3], [30.0, 2]]


@pytest.mark.parametrize("kind", [dict, list])
def test_windows_close_where_a_container_of_functions_uses_them(kind: type) -> None:
    def use(app: Any, windows: Any) -> Callable[[], None]:
        def add(amount: int) -> None:
            windows["x"] += amount

        handlers = {0: partial(add, 1)} if kind is dict else [partial(add, 1)]
        return lambda: handlers[0]()

    ran = run(windows_app(use), {"source": RECORDS}, batch=5)
    assert [value for _, value in sent(ran, "closed")] == COUNTS


def test_windows_that_the_code_of_the_agent_does_not_name_are_refused() -> None:
    def use(app: Any, windows: Any) -> Callable[[], None]:
        def count() -> None:
            app.tables["windows"].using_window(faust.TumblingWindow(10, expires=5))["x"] += 1

        return count

    with pytest.raises(SettingsError, match="a use of table windows that the code of its agent does not show"):
        run(windows_app(use), {"source": RECORDS})


def test_tables_of_a_callback_are_found() -> None:
    app = new_app()
    source, other = app.topic("source"), app.topic("other")
    sums = app.Table("sums", default=int)

    async def on_close(key: Any, value: Any) -> None:
        sums["x"] += value

    windows = app.Table("windows", default=int, on_window_close=on_close).tumbling(10, expires=5).relative_to_stream()

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for _ in stream:
            windows["x"] += 1

    @app.agent(other)
    async def agent_of_the_other(stream: Any) -> None:
        async for _ in stream:
            pass

    assert run(app, {"source": RECORDS}).tables["sums"] == {"x": 10}


@pytest.mark.parametrize("kind", ["echo", "table"])
def test_what_processors_did_for_a_list_is_undone_with_it(kind: str) -> None:
    app = new_app()
    source, table = app.topic("source"), app.Table("table", default=int)
    app.topic("copies")

    def count(value: Any) -> Any:
        table["x"] += 1
        return value

    @app.agent(source)
    async def agent(stream: Any) -> None:
        if kind == "echo":
            stream.echo("copies")
        else:
            stream.add_processor(count)
        async for some in stream.take(3, within=1):
            if 4 in some:
                raise ValueError("four")

    ran = run(app, {"source": [*NUMBERS, 6]})
    assert [letter.value for letter in ran.dead_letters] == [3, 4, 5]
    if kind == "echo":
        assert [value for _, value in sent(ran, "copies")] == [0, 1, 2, 6]
    else:
        assert ran.tables["table"] == {"x": 4}


def test_a_thread_of_an_executor_reads_the_open_transaction() -> None:
    app = new_app()
    source, table, out = app.topic("source"), app.Table("table", default=int), app.topic("out")

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for _ in stream:
            table["x"] += 1
            await out.send(value=await asyncio.get_running_loop().run_in_executor(None, table.get, "x"))

    ran = run(app, {"source": NUMBERS})
    assert [value for _, value in sent(ran, "out")] == [1, 2, 3, 4, 5, 6]


def test_a_write_in_a_thread_of_an_executor_is_refused() -> None:
    app = new_app()
    source, table = app.topic("source"), app.Table("table", default=int)

    def count() -> None:
        table["x"] += 1

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for _ in stream:
            found = asyncio.get_running_loop().run_in_executor(None, count)
            await asyncio.wait([found])
            found.exception()  # which the program does not look at

    with pytest.raises(SettingsError, match="a write to table table by a task that the agent has started"):
        run(app, {"source": NUMBERS})


def test_a_header_of_a_producer_leaves_no_record_out() -> None:
    app = new_app()
    source, other, counts = app.topic("source"), app.topic("other"), app.Table("counts", default=int)

    @app.agent(source)
    async def first(stream: Any) -> None:
        async for number in stream:
            await other.send(value=number, headers={"faust-topic": b"elsewhere"})

    @app.agent(other)
    async def second(stream: Any) -> None:
        async for event in stream.events():
            counts["x"] += event.headers == {"faust-topic": b"elsewhere"}

    assert run(app, {"source": NUMBERS}).tables["counts"] == {"x": 6}


def test_a_topic_in_a_field_of_the_program_is_no_answer_to_ask() -> None:
    class Request(faust.Record):  # type: ignore[misc]
        number: int
        reply_to: str

    app = new_app()
    source = app.topic("source", value_type=Request)

    @app.agent(source)
    async def agent(stream: Any) -> None:
        async for request in stream:
            await app.topic(request.reply_to).send(value=request.number)

    with pytest.raises(SendRefused, match=r"topic answers: agent .* sends to it, but the app does not declare it"):
        run(app, {"source": [{"number": 1, "reply_to": "answers"}]})
