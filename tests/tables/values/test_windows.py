"""Windows as a program has them: which ones an event counts into, and what of them can be read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
import structlog

from kafka_ratchet.agents.program import App
from kafka_ratchet.errors import AgentFailed, SettingsError, TableError
from kafka_ratchet.tables.values.table import Table
from kafka_ratchet.tables.values.windowed_partition import LateReport
from kafka_ratchet.tables.values.windowed_table import WindowedTable
from kafka_ratchet.tables.values.windows import window_of
from kafka_ratchet.testing import Ran, Record, run
from tests.clock import Clock


class Late(NamedTuple):
    """Event of an expired window, without its program."""

    timestamp: int | None
    stream_time: int
    place: str


def clicks(*stamps: float) -> list[Record]:
    return [Record("page", timestamp=round(stamp * 1000)) for stamp in stamps]


def counted(
    records: list[Record],
    windows: Callable[[Table], WindowedTable],
    each: Callable[[WindowedTable, Any], Any] = lambda table, event: table[event.value].value(),
    batch: int = 100,
    **agent: Any,
) -> Ran:
    """Run a program that counts each record in `windows`, and yields the results of `each`."""
    app = App()
    stream, table = app.stream("clicks"), windows(app.Table("counts", default=int))

    @app.agent(stream, **agent)
    async def count(events: Any) -> AsyncIterator[Any]:
        async for event in events.events():
            table[event.value] += 1
            yield each(table, event)

    return run(app, {"clicks": records}, batch=batch)


def test_tumbling_windows_end_where_the_next_begins() -> None:
    ran = counted(clicks(0, 59.999, 60, 61, 125), lambda table: table.tumbling(60))
    assert ran.values == [1, 2, 1, 2, 1]
    assert ran.tables["counts"] == {("page", (0, 60)): 2, ("page", (60, 120)): 2, ("page", (120, 180)): 1}


YEAR_1 = -62_135_596_800
"""Seconds since 1970."""


@pytest.mark.parametrize("batch", [1, 100])
def test_windows_before_1970(batch: int) -> None:
    ran = counted(clicks(YEAR_1, -61, -60, -5, 0), lambda table: table.tumbling(60), batch=batch)
    assert ran.values == [1, 1, 1, 2, 1]
    assert ran.tables["counts"] == {
        ("page", (YEAR_1, YEAR_1 + 60)): 1,
        ("page", (-120, -60)): 1,
        ("page", (-60, 0)): 2,
        ("page", (0, 60)): 1,
    }


def test_hopping_windows_around_1970() -> None:
    ran = counted(clicks(-1, 1), lambda table: table.hopping(10, 5))
    assert ran.tables["counts"] == {("page", (-10, 0)): 1, ("page", (-5, 5)): 2, ("page", (0, 10)): 1}


@pytest.mark.parametrize("batch", [1, 100])
def test_windows_before_1970_expire(batch: int) -> None:
    def state(table: WindowedTable, _: Any) -> Any:
        return [table.is_late, table.late, table["page"].now(), table.stream_time, table.windows()]

    ran = counted(clicks(-1000, -200, -990), lambda table: table.tumbling(60, expires=60), state, batch)
    assert ran.values == [
        [False, 0, 1, -1_000_000, [[-1020, -960]]],
        [False, 0, 1, -200_000, [[-240, -180]]],
        [True, 1, 1, -200_000, [[-240, -180]]],
    ]
    assert ran.tables["counts"] == {("page", (-240, -180)): 1}


@pytest.mark.parametrize("batch", [1, 100])
def test_an_event_without_a_timestamp_falls_into_no_window(batch: int) -> None:
    records = [Record("page", timestamp=-90_000), Record("page", timestamp=-1), Record("page", timestamp=-80_000)]
    with pytest.raises(AgentFailed, match=r"clicks, partition 0, offset 1: .*the event has no timestamp \(-1\)"):
        counted(records, lambda table: table.tumbling(60), batch=batch)
    ran = counted(records, lambda table: table.tumbling(60, expires=5), batch=batch, on_error="dead-letter")
    assert (ran.values, len(ran.dead_letters)) == ([1, 2], 1)
    assert "has no timestamp" in str(ran.dead_letters[0])


def test_a_program_may_look_for_the_timestamp() -> None:
    app = App()
    stream, table = app.stream("clicks"), app.Table("counts", default=int).tumbling(60)

    @app.agent(stream)
    async def count(pages: Any) -> AsyncIterator[Any]:
        async for page in pages:
            if table.has_time:
                table[page] += 1
            yield [table.has_time, table.stream_time]

    ran = run(app, {"clicks": [Record("page", timestamp=stamp) for stamp in (-1, -5_000, -1)]})
    assert ran.values == [[False, -(2**63)], [True, -5_000], [False, -5_000]]
    assert ran.tables["counts"] == {("page", (-60, 0)): 1}


def test_there_is_no_newest_window_before_the_first_timestamp() -> None:
    app = App()
    stream, table = app.stream("clicks"), app.Table("counts", default=int).tumbling(60)

    @app.agent(stream)
    async def count(pages: Any) -> AsyncIterator[Any]:
        async for page in pages:
            yield table[page].now()

    with pytest.raises(AgentFailed, match="table counts: there is no current event with a timestamp"):
        run(app, {"clicks": [Record("page", timestamp=-1)]})


def test_a_timestamp_before_all_windows_is_refused() -> None:
    with pytest.raises(AgentFailed, match=r"timestamp -9223372036854775808 ms is before -9007199254740992 ms"):
        counted([Record("page", timestamp=-(2**63))], lambda table: table.tumbling(60))


def test_hopping_windows_overlap() -> None:
    ran = counted(clicks(5, 12), lambda table: table.hopping(timedelta(seconds=10), 5))
    assert ran.tables["counts"] == {("page", (0, 10)): 1, ("page", (5, 15)): 2, ("page", (10, 20)): 1}


def test_hopping_windows_are_those_of_faust() -> None:
    windows = pytest.importorskip("faust.windows")
    for size, step in ((10, 5), (10, 3), (7, 7), (10, 4)):
        ours, theirs = window_of("t", size, step, None), windows.HoppingWindow(size, step)
        for second in range(60):
            assert [start / 1000 for start in ours.starts(second * 1000)] == [s for s, _ in theirs.ranges(second)]
            assert ours.latest(second * 1000) / 1000 == theirs.current(second)[0]


def test_what_faust_users_ask_of_a_key() -> None:
    def asked(table: WindowedTable, event: Any) -> Any:
        key = table["page"]
        return [key.value(), key.current(), key.current(event), key.now(), key.delta(60), key.delta(timedelta(hours=1))]

    ran = counted(clicks(0, 61, 62, 10), lambda table: table.tumbling(60), asked)
    assert ran.values == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [2, 2, 2, 2, 1, 0], [2, 2, 2, 2, 0, 0]]


def test_windows_and_their_items_in_order() -> None:
    def asked(table: WindowedTable, event: Any) -> Any:
        return [
            table.windows(),
            table.windows("b"),
            list(table.items()),
            [list(table.keys(w)) for w in table.windows()],
        ]

    records = [Record(key, timestamp=1000 * at) for key, at in (("b", 0), ("a", 1), ("c", 70), ("b", 130))]
    ran = counted(records, lambda table: table.tumbling(60), asked)
    first, second, third = [0, 60], [60, 120], [120, 180]
    assert ran.values[-1] == [
        [first, second, third], [first, third], [["b", 1]], [["a", "b"], ["c"], ["b"]],
    ]  # fmt: skip


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_a_late_event_is_left_out_counted_and_named(batch: int) -> None:
    def asked(table: WindowedTable, event: Any) -> Any:
        return [table["page"].value(), table.is_late, table.late]

    ran = counted(clicks(0, 79, 5, 80, 5, 81), lambda table: table.tumbling(60, expires=20), asked, batch)
    assert ran.values == [[1, False, 0], [1, False, 0], [2, False, 0], [2, False, 0], [0, True, 1], [3, False, 1]]
    assert ran.tables["counts"] == {("page", (60, 120)): 3}


def test_an_event_may_be_late_for_some_of_its_windows() -> None:
    ran = counted(
        clicks(0, 24, 9), lambda table: table.hopping(10, 5, expires=10), lambda table, _: [table.is_late, table.late]
    )
    assert ran.values == [[False, 0], [False, 0], [True, 1]]
    assert ran.tables["counts"] == {("page", window): 1 for window in ((15, 25), (20, 30))} | {("page", (5, 15)): 1}


def test_a_late_event_can_be_a_dead_letter() -> None:
    def refuse(table: WindowedTable, event: Any) -> Any:
        if table.is_late:
            raise ValueError("too late")
        return table.late

    ran = counted(clicks(0, 200, 1, 201), lambda table: table.tumbling(60, expires=60), refuse, on_error="dead-letter")
    assert (ran.values, len(ran.dead_letters)) == ([0, 0, 0], 1)


@pytest.mark.parametrize("batch", [1, 100])
def test_an_event_far_ahead_is_named(batch: int) -> None:
    with structlog.testing.capture_logs() as logs:
        ran = counted(clicks(0, 5000, 10, 5001), lambda table: table.tumbling(60, expires=60), batch=batch)
    assert ran.values == [1, 1, 0, 2]
    (far,) = [each for each in logs if "far ahead of all earlier ones" in each["event"]]
    assert (far["offset"], far["event_timestamp"], far["stream_time"]) == (1, 5_000_000, 0)
    (late,) = [each for each in logs if "a late event is left out" in each["event"]]
    assert (late["at"], late["windows"]) == ("clicks, partition 0, offset 2", 1)


def test_late_events_are_logged_together_every_ten_seconds() -> None:
    clock = Clock()
    report, began = LateReport(clock), clock.now
    with structlog.testing.capture_logs() as logs:
        for passed_s in (0, 1, 9.5, 10, 19.5, 20):
            clock.now = began + passed_s
            report.note("counts", 2, Late(1_000, 9_000, "clicks, partition 0, offset 2"))
    assert [each["windows"] for each in logs] == [2, 6, 4]


def test_values_are_set_deleted_and_looked_for() -> None:
    app = App()
    stream, table = app.stream("in"), app.Table("t").hopping(10, 5)

    @app.agent(stream)
    async def use(events: Any) -> AsyncIterator[Any]:
        async for value in events:
            if value == "delete":
                del table["k"]
            elif value == "look":
                yield ["k" in table, "x" in table, table["k"].value() if "k" in table else None]
            else:
                table["k"] = value

    steps = [("a", 7), ("look", 8), ("b", 12), ("look", 12), ("delete", 12), ("look", 12), ("look", 3)]
    ran = run(app, {"in": [Record(what, timestamp=1000 * at) for what, at in steps]}, batch=2)
    assert ran.values == [[True, False, "a"], [True, False, "b"], [False, False, None], [True, False, "a"]]
    assert ran.tables["t"] == {("k", (0, 10)): "a"}


def test_lists_grow_window_by_window() -> None:
    app = App()
    stream, table = app.stream("in"), app.Table("t", default=list).hopping(10, 5)

    @app.agent(stream)
    async def collect(events: Any) -> None:
        async for value in events:
            table["k"] += [value]

    ran = run(app, {"in": [Record(at, timestamp=1000 * at) for at in (5, 7, 12)]})
    assert ran.tables["t"] == {("k", (0, 10)): [5, 7], ("k", (5, 15)): [5, 7, 12], ("k", (10, 20)): [12]}


def raised(use: Callable[[Table, WindowedTable], Any], **table: Any) -> str:
    app = App()
    stream, plain = app.stream("in"), app.Table("t", **table)
    windowed = plain.tumbling(60)

    @app.agent(stream)
    async def wrong(events: Any) -> None:
        async for _ in events:
            use(plain, windowed)

    with pytest.raises(AgentFailed) as found:
        run(app, {"in": [1]})
    return str(found.value)


def test_what_cannot_be_done_says_what_to_do() -> None:
    assert "write to the object that its tumbling()" in raised(lambda plain, _: plain.__setitem__(("k", (0, 60)), 1))
    assert "a key must be (key, (start, end))" in raised(lambda plain, _: plain["k"])
    assert "raised KeyError: 'k'" in raised(lambda _, windowed: windowed["k"].value())
    assert "is a set of windows, not a value" in raised(lambda _, windowed: windowed.__setitem__("k", windowed["l"]))
    assert "not str or int" in raised(lambda _, windowed: windowed.__setitem__(1.5, 1))
    with pytest.raises(TableError, match="only an agent of the table's stream"):
        _ = Table("t").tumbling(60).late


@pytest.mark.parametrize(
    ("windows", "what"),
    [
        (lambda table: table.tumbling(0), "size of windows is 0"),
        (lambda table: table.tumbling(float("nan")), "size of windows is nan"),
        (lambda table: table.hopping(10, 0), "step of windows is 0"),
        (lambda table: table.hopping(10, 11), "between two windows would be counted in none"),
        (lambda table: table.tumbling(10, expires=0), "Leave it out to keep every window"),
        (lambda table: (table.tumbling(10), table.tumbling(10)), "has windows already"),
    ],
)
def test_windows_that_cannot_be(windows: Callable[[Table], Any], what: str) -> None:
    with pytest.raises(SettingsError, match=what):
        windows(Table("t"))


@pytest.mark.parametrize(
    ("windows", "is_rolling"),
    [
        (lambda table: table.tumbling(60, expires=600), True),
        (lambda table: table.tumbling(60, expires=60), True),
        (lambda table: table.tumbling(30), False),
        (lambda table: table.hopping(60, 30), False),
    ],
)
def test_workers_of_a_group_may_differ_in_when_windows_expire_only(
    windows: Callable[[Table], Any], is_rolling: bool
) -> None:
    before, after = App(), App()
    before.Table("counts").tumbling(60)
    windows(after.Table("counts"))
    assert (before.rules() == after.rules()) == is_rolling
    assert before.rules() == {"table counts": "tumbling 60 s"}
