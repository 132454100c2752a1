"""Findings from a program's source: exact, by a rule, or refused at a line. Nothing of it is imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import faust
import pytest
from typer.testing import CliRunner

from kafka_ratchet.app.cli import cli
from kafka_ratchet.app.faust_host.check import check_program, in_memory, modules_of, refuse_shown
from kafka_ratchet.app.faust_host.program import switch_off
from kafka_ratchet.errors import SettingsError

PROGRAM = """import asyncio
import faust
from helpers import shared, other
raise RuntimeError("it is not run")
app = faust.App("shop", broker="ratchet://", producer_partitioner=hash, processing_guarantee="exactly_once")
orders = app.topic("orders")
everything = app.topic(pattern=".*")
memory = app.channel()
counts = app.Table("counts", default=int)
rates = app.GlobalTable("rates")
members = app.SetGlobalTable("members")
windows = app.Table("w", on_window_close=print).tumbling(10, expires=10)
by_stream = windows.relative_to_stream()
log = app.Table("log", changelog_topic=orders)
@app.agent(orders)
async def exact(stream):
    async for order in stream.group_by(lambda order: order["user"], name="user"):
        counts[order["user"]] += 1
        await helped.send(value=order)
@app.agent()
async def helped(stream):
    async for order in stream:
        ",".join(["a"])
        yield order
@app.agent(orders, sink=[print])
async def wrong(stream):
    stream.add_processor(print)
    async for order in stream.noack().through(orders):
        await helped.ask(order)
        await other.cast(order)
        await memory.send(value=order)
        await orders.send(value=order)
        rates["x"] = 1
        asyncio.create_task(asyncio.sleep(1))
    async for orders_ in stream & orders.stream():
        pass
    async for taken in stream.take(10, within=1):
        pass
@app.agent(memory)
async def fed(stream):
    pass
@app.agent(orders)
async def one(stream):
    async for _ in stream:
        by_stream["x"] += 1
@app.agent(app.topic("b"))
async def two(stream):
    async for _ in stream:
        by_stream["x"] += 1
        shared["x"] = 1
@app.timer(1.0)
async def timed():
    counts["x"] = 2
@app.task
async def read():
    async for _ in orders.stream():
        pass
@app.crontab("* * * * *")
async def fine():
    await orders.send(value=counts["x"])
"""
HELPERS = """import faust
shared = app.SetTable("shared")
@app.agent()
async def other(stream):
    async for _ in stream:
        shared["x"].add(1)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shop.py").write_text(PROGRAM, "utf-8")
    (tmp_path / "helpers.py").write_text(HELPERS, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(PROGRAM.splitlines(), 1) if text in line)


def test_every_statement_has_its_verdict(folder: Path) -> None:
    found = check_program("shop:app")
    refused = {each.line for each in found if each.verdict == "refused" and each.file.endswith("shop.py")}
    lines = (
        "producer_partitioner",
        "pattern=",
        "stream.add_processor(print)",
        "noack",
        "helped.ask",
        "memory.send",
        "    await orders.send(value=order)",
        'rates["x"] = 1',
        "SetGlobalTable",
        "stream & orders",
        "@app.agent(memory)",
        'counts["x"] = 2',
        "in orders.stream()",
        "async def two",
    )
    assert refused == {line_of(text) for text in lines}
    exact = {each.what for each in found if each.verdict == "exact"}
    assert exact >= {"agent exact", "agent helped", "agent other", "Table 'counts'", "SetTable 'shared'"}
    rules = {each.line for each in found if each.verdict == "rule"}
    assert rules >= {line_of(text) for text in ("GlobalTable", "tumbling", "changelog_topic", ".take(", "def fine")}
    assert rules >= {line_of("producer_partitioner"), line_of("create_task")}


def test_a_table_that_two_modules_use_is_one(folder: Path) -> None:
    found = [each for each in check_program("shop:app") if "shared in agents" in each.what]
    assert [each.verdict for each in found] == ["rule"]


MEMORY = """import faust
from collections import Counter
app = faust.App("memory")
orders = app.topic("orders")
totals = app.Table("totals", default=int)
seen, names, number = Counter(), {"a": 1}, 0
@app.agent(orders)
async def buffers(stream):
    taken, last, last_name = [], None, None
    async for order in stream.filter(bool):
        taken.append(order)
        if len(taken) > 9:
            await totals.send(value=taken)
            taken = []
        if order != last:
            last = order
        last_name = order["name"]
        print(last_name)
@app.agent(orders)
async def counts(stream):
    global number
    async for key, order in stream.items():
        number = number + 1
        seen[key] += 1
@app.agent(orders)
async def exact(stream):
    limit, seen = 3, {}
    async for order in stream:
        some, names = [], {}
        some.append(order)
        names["x"] = order
        if order["n"] > limit:
            totals["x"] += names["x"]
            totals.update({"a": seen.get("a")})
"""


def test_a_variable_kept_between_events_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.py").write_text(MEMORY, "utf-8")
    monkeypatch.chdir(tmp_path)
    found = check_program("memory:app")
    lines = dict(enumerate(MEMORY.splitlines(), 1))
    assert {(each.what, lines[each.line].strip()) for each in found if each.verdict == "rule"} == {
        ("variable taken of agent buffers", "taken.append(order)"),
        ("variable last of agent buffers", "last = order"),
        ("variable number of agent counts", "number = number + 1"),
        ("variable seen of agent counts", "seen[key] += 1"),
    }
    assert {each.what for each in found if each.verdict == "exact"} == {"Table 'totals'", "agent exact"}
    said = in_memory([tmp_path / "memory.py"])
    assert len(said) == 4
    assert said[0].startswith("memory.py:11: variable taken of agent buffers is kept in memory between events")


HIDDEN = """import asyncio, heapq, itertools
import faust
app = faust.App("hidden")
orders, out = app.topic("orders"), app.topic("out")
totals = app.Table("totals", default=list)
heap, numbers, queue, count, buffer = [], itertools.count(), asyncio.Queue(), 0, []
class State:
    def __init__(self):
        self.seen = 0
    def handle(self, order):
        self.seen += 1
    def pure(self, order):
        mine = []
        mine.append(order)
        return mine
state = State()
async def pairs(stream):
    last = None
    async for order in stream:
        yield last, order
        last = order
def add(order):
    global count
    count += 1
def remember(order):
    if order:
        buffer.append(order)
    return len(buffer) > 9
def pure(order):
    buffer, total = [], 0
    buffer.append(order)
    total += 1
    return buffer
async def work(stream):
    async for order in stream:
        state.last = (state.last, order)
@app.agent(orders)
async def helped(stream):
    async for before, order in pairs(stream):
        await out.send(value=[before, order])
@app.agent(orders)
async def functions(stream):
    number = 0
    def bump():
        nonlocal number
        number += 1
    kept = totals["x"]
    async for order in stream:
        add(order)
        bump()
        if remember(order):
            await out.send(value=next(numbers))
        heapq.heappush(heap, order)
        await queue.put(order)
        state.handle(order)
        app.total += 1
        kept.append(order)
        app.loop.run_in_executor(None, add, order)
@app.agent(orders)
async def counted(stream):
    n = 0
    async for number, order in stream.enumerate():
        if (n := n + 1) > 9:
            await out.send(value=number)
@app.agent(orders)
async def all_of_it(stream):
    await work(stream)
@app.agent(orders)
async def exact(stream):
    async for order in stream:
        pure(order)
        state.pure(order)
        found = totals["x"]
        found.total += 1
        found.items.append(order)
        totals["x"] = found
        totals.pop("y")
"""


def test_what_helpers_functions_and_objects_keep_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hidden.py").write_text(HIDDEN, "utf-8")
    monkeypatch.chdir(tmp_path)
    found = [each for each in check_program("hidden:app") if "agent" in each.what]
    assert {each.what for each in found if each.verdict == "rule"} == {
        "variable last of agent helped",
        *(
            f"variable {name} of agent functions"
            for name in ("count", "number", "buffer", "numbers", "heap", "queue", "state.seen", "app.total", "kept")
        ),
        "run_in_executor() within agent functions",
        "variable n of agent counted",
        "variable stream.enumerate() of agent counted",
        "variable state.last of agent all_of_it",
    }
    assert {each.what for each in found if each.verdict == "exact"} == {"agent exact"}


BOUND = """import faust
from functools import partial
from helpers import work
app = faust.App("bound")
orders = app.topic("orders")
async def first(letters, stream):
    async for order in stream:
        await letters.send(value=order)
async def second(out, stream):
    async for order in stream:
        await out.send(value=order)
def main():
    memory, other = app.channel(), app.topic("other")
    letters = app.channel()
    app.agent(letters, name="a")(second)
    app.agent(orders, name="b")(partial(first, letters))
    app.agent(orders, name="c", sink=[letters])(work)
    app.agent(orders, name="d")(partial(second, other))
    app.agent(orders, name="e")(work)
"""


def test_agents_without_a_decorator_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bound.py").write_text(BOUND, "utf-8")
    monkeypatch.chdir(tmp_path)
    found = check_program("bound:app")
    numbers = {text: number for number, text in enumerate(map(str.strip, BOUND.splitlines()), 1)}
    refused = {each.line for each in found if each.verdict == "refused"}
    lines = (
        "await letters.send(value=order)",
        'app.agent(letters, name="a")(second)',
        'app.agent(orders, name="c", sink=[letters])(work)',
    )
    assert refused == {numbers[line] for line in lines}
    assert {each.what for each in found if each.verdict == "exact"} == {"agent second", "agent work"}


@pytest.mark.parametrize(("found", "agents"), [("True", ["agent book"]), ("False", [])])
def test_modules_that_the_app_discovers_are_checked(
    found: str, agents: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = tmp_path / "store" / "orders"
    orders.mkdir(parents=True)
    for each in (orders, orders.parent):
        (each / "__init__.py").write_text("", "utf-8")
    (orders.parent / "app.py").write_text(
        f'import faust\napp = faust.App("store", autodiscover={found}, origin="store")\n', "utf-8"
    )
    (orders / "agents.py").write_text(
        "from store.app import app\n@app.agent()\nasync def book(stream):\n    async for _ in stream: pass\n", "utf-8"
    )
    monkeypatch.chdir(tmp_path)
    assert [each.what for each in check_program("store.app:app")] == agents


def test_the_command_prints_the_list_and_fails_where_something_is_refused(folder: Path) -> None:
    ran = CliRunner().invoke(cli, ["doctor", "--faust", "shop:app"])
    assert ran.exit_code == 1, ran.output
    assert f"refused at line {line_of('noack')}" in ran.output
    assert "by this rule" in ran.output
    assert any(line.startswith("exact ") for line in ran.output.splitlines())
    ran = CliRunner().invoke(cli, ["doctor", "--faust", "helpers:app", "--json"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.output)["counts"] == {"exact": 2, "rule": 0, "refused": 0}


def test_what_is_shown_is_refused_with_file_and_line(folder: Path) -> None:
    with pytest.raises(SettingsError) as error:
        refuse_shown(modules_of("shop:app", folder))
    assert f"shop.py:{line_of('noack')}: stream.noack() cannot be exact" in str(error.value)


@pytest.mark.parametrize("given", ["latest", "none", "earliest"])
def test_another_beginning_than_the_first_record_is_refused(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f'import faust\napp = faust.App("later", broker="kafka://h", consumer_auto_offset_reset="{given}")\n'
    (tmp_path / "later.py").write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    found = [(each.verdict, each.line, each.what) for each in check_program("later:app")]
    app: Any = faust.App("later", broker="kafka://h", consumer_auto_offset_reset=given)
    if given == "earliest":
        assert not found
        switch_off(app)
        return
    assert found == [("refused", 2, f"consumer_auto_offset_reset='{given}'")]
    with pytest.raises(
        SettingsError, match=f"consumer_auto_offset_reset='{given}': .* group later with kafka-consumer"
    ):
        switch_off(app)


@pytest.mark.parametrize("text", ["nowhere:app", "a b:app"])
def test_a_module_that_is_not_there_is_named(folder: Path, text: str) -> None:
    with pytest.raises(SettingsError, match="--faust"):
        check_program(text)
