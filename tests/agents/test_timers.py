"""Timers and tasks: when they are called, what they may do, and what becomes of one that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import structlog

from kafka_ratchet.agents.program import App
from kafka_ratchet.agents.stream_timers import PartitionTimers
from kafka_ratchet.agents.timers import Timer, WorkerTimers
from kafka_ratchet.errors import AgentFailed, SendRefused, SettingsError, TableError
from kafka_ratchet.tables.values.partition import PartitionTables
from kafka_ratchet.tables.values.table_partition import nothing, nowhere
from kafka_ratchet.testing import Record, run
from kafka_ratchet.testing.program_run import lane_spec
from kafka_ratchet.transport.delivery import Delivery, tick
from kafka_ratchet.transport.policy import Policy


def shop() -> tuple[App, Any, Any]:
    """(app that keeps totals, a timer that yields and empties them, its table)."""
    app = App()
    orders, totals, reports = app.stream("orders"), app.Table("totals", default=int), app.topic("reports")

    @app.agent(orders)
    async def add_up(amounts: Any) -> None:
        async for amount in amounts:
            totals["all"] += amount

    @app.timer(interval=10.0, stream=orders)
    async def report() -> AsyncIterator[Any]:
        yield {"total": totals["all"]}
        await reports.send(key="total", value=totals["all"])
        if totals["all"] < 0:
            raise ValueError("negative")
        totals["all"] = 0

    return app, report, totals


def test_a_timer_of_a_stream_yields_sends_and_writes_in_the_transaction() -> None:
    app, report, _ = shop()
    ran = run(app, {"orders": [1, 2, report, 3, report, report, 4]}, batch=2)
    assert [(each.topic, each.key, each.value) for each in ran.outputs] == [
        ("orders", None, {"total": 3}), ("reports", b"total", 3),
        ("orders", None, {"total": 3}), ("reports", b"total", 3),
        ("orders", None, {"total": 0}), ("reports", b"total", 0),
    ]  # fmt: skip
    assert ran.tables["totals"] == {"all": 4}


def test_what_a_timer_of_a_stream_raises_halts_the_partition_with_its_line() -> None:
    app, report, _ = shop()
    with pytest.raises(
        AgentFailed, match=r"orders, partition 0: timer report raised ValueError: negative \(.*test_timers"
    ):
        run(app, {"orders": [-1, report]})
    with pytest.raises(SettingsError, match="is not a timer of stream orders"):
        run(app, {"orders": [shop]})


def test_a_timer_reads_windows_without_an_event() -> None:
    app = App()
    views = app.stream("views")
    clicks = app.Table("clicks", default=int).tumbling(60, expires=600)

    @app.agent(views)
    async def count(pages: Any) -> None:
        async for page in pages:
            clicks[page] += 1

    @app.timer(10, stream=views)
    async def report() -> AsyncIterator[Any]:
        for window in clicks.windows():
            if window.end * 1000 <= clicks.stream_time:
                yield [window, dict(clicks.items(window))]

    @app.timer(10, stream=views)
    async def wrong() -> None:
        clicks["a"] += 1

    records = [Record(page, timestamp=1000 * at) for page, at in (("b", 1), ("a", 2), ("b", 3), ("a", 61))]
    assert run(app, {"views": [*records, report]}).values == [[[0, 60], {"a": 1, "b": 2}]]
    with pytest.raises(AgentFailed, match="timer wrong table clicks: there is no current event"):
        run(app, {"views": [*records, wrong]})


class Partition:
    """Timers on one partition, and a clock that is set by hand."""

    def __init__(self) -> None:
        self.app, _, self.totals = shop()
        self.tables, self.now = PartitionTables(nowhere, nothing), 0.0
        self.tables.add(self.totals.codec, self.totals.default)
        self.timers = PartitionTimers(
            self.app.streams["orders"].timers, [self.totals], self.tables, clock=lambda: self.now
        )

    async def tick(self) -> int:
        """How many records it gives."""
        delivery = Delivery(lane_spec("orders", ["reports"]), Policy(), tick("orders", 0, 7))
        await self.timers.process(delivery)
        return len(delivery.outputs)


async def test_a_timer_is_due_when_its_interval_has_passed_and_at_once_when_it_was_rolled_back() -> None:
    partition = Partition()
    assert (partition.timers.wait_s(), await partition.tick()) == (10, 0)
    partition.now = 12.0
    assert (partition.timers.wait_s(), await partition.tick(), partition.timers.wait_s()) == (0, 2, 8)
    partition.tables.rollback()
    assert (partition.timers.wait_s(), await partition.tick(), partition.timers.wait_s()) == (0, 2, 8)
    partition.tables.encode(1 << 20)
    partition.tables.commit()
    partition.tables.rollback()
    assert partition.timers.wait_s() == 8
    partition.now = 45.0  # three times have passed: it is called once
    assert (await partition.tick(), partition.timers.wait_s()) == (2, 5)
    partition.timers.restart()
    assert partition.timers.wait_s() == 10


async def test_a_timer_that_catches_its_cancellation_was_not_called() -> None:
    partition, begun = Partition(), asyncio.Event()

    async def stubborn() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            with pytest.raises(TableError, match="the agent's transaction was rolled back"):
                partition.totals["all"] = 1

    partition.timers = PartitionTimers([Timer(stubborn, 10)], [partition.totals], partition.tables, lambda: 10.0)
    delivery = Delivery(lane_spec("orders"), Policy(), tick("orders", 0, 0))
    calling = asyncio.create_task(partition.timers.call(partition.timers.timers, delivery))
    await begun.wait()
    partition.tables.rollback()
    await asyncio.sleep(0.01)
    assert partition.timers.wait_s() == 0
    await calling


async def test_a_timer_of_a_worker_goes_on_after_an_error_that_is_logged_with_its_line() -> None:
    app, called, now = App(), list[str](), 0.0
    table, topic = app.Table("t", default=int), app.topic("out")

    @app.timer(timedelta(seconds=2))
    async def every_two() -> None:
        called.append(f"two at {now:g}")
        if now == 2:
            raise ValueError("wrong")

    @app.timer(interval=3)
    async def every_three() -> None:
        with pytest.raises(TableError, match="only an agent of the table's stream may read or write it"):
            table["a"] += 1
        with pytest.raises(SendRefused, match="only inside an agent"):
            await topic.send(value=1)
        called.append(f"three at {now:g}")

    @app.on_started
    async def begin() -> None:
        called.append("started")
        raise ValueError("too early")

    waits: list[tuple[float, asyncio.Future[None]]] = []

    async def sleep(seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        waits.append((now + seconds, future))
        await future

    with structlog.testing.capture_logs() as logs:
        running = asyncio.create_task(WorkerTimers(app.timers, app.tasks, lambda: now, sleep).run())
        for _ in range(5):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            now = min(due for due, _ in waits)
            for due, future in list(waits):
                if due == now:
                    waits.remove((due, future))
                    future.set_result(None)
        await asyncio.sleep(0.01)
        running.cancel()
    assert called[:4] == ["started", "two at 2", "three at 3", "two at 4"]
    assert sorted(called[4:]) == ["three at 6", "two at 6", "two at 8"]
    assert [(each["event"], each["name"]) for each in logs] == [
        ("a task failed", "begin"), ("a timer failed", "every_two"),
    ]  # fmt: skip
    assert "raised ValueError: wrong (" in logs[1]["reason"]
    assert "test_timers.py:" in logs[1]["reason"]


async def test_a_timer_that_waits_for_something_cancelled_says_so_as_for_any_other_error() -> None:
    async def waits() -> None:
        other = asyncio.get_running_loop().create_future()
        other.cancel()
        await other

    partition = Partition()
    partition.timers = PartitionTimers([Timer(waits, 10)], [partition.totals], partition.tables, lambda: 10.0)
    delivery = Delivery(lane_spec("orders"), Policy(), tick("orders", 0, 0))
    with pytest.raises(AgentFailed, match=r"timer waits raised CancelledError \(.*test_timers"):
        await partition.timers.call(partition.timers.timers, delivery)

    calls = asyncio.Semaphore(0)

    async def of_the_worker() -> None:
        calls.release()
        await waits()

    with structlog.testing.capture_logs() as logs:
        running = asyncio.create_task(WorkerTimers([Timer(of_the_worker, 0.001)], [waits]).run())
        for _ in range(3):
            await asyncio.wait_for(calls.acquire(), 60)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert {(each["event"], each["name"]) for each in logs} == {
        ("a task failed", "waits"), ("a timer failed", "of_the_worker"),
    }  # fmt: skip


async def test_a_timer_that_exits_does_not_end_the_worker() -> None:
    async def leave() -> None:
        raise SystemExit("enough")

    partition = Partition()
    partition.timers = PartitionTimers([Timer(leave, 10)], [partition.totals], partition.tables, lambda: 10.0)
    delivery = Delivery(lane_spec("orders"), Policy(), tick("orders", 0, 0))
    with pytest.raises(AgentFailed, match=r"timer leave raised SystemExit: enough \(.*test_timers"):
        await partition.timers.call(partition.timers.timers, delivery)
    with structlog.testing.capture_logs() as logs:
        await WorkerTimers([], [leave]).run()
    assert [(each["event"], each["name"]) for each in logs] == [("a task failed", "leave")]


def test_what_cannot_be_a_timer() -> None:
    app = App()
    stream = app.stream("in")

    async def yields() -> AsyncIterator[Any]:
        yield 1

    async def takes(value: Any) -> None: ...

    with pytest.raises(SettingsError, match=r"interval is 0\. Give seconds, more than 0"):
        app.timer(0)
    with pytest.raises(SettingsError, match="Only a timer of a stream yields"):
        app.timer(1)(yields)
    with pytest.raises(SettingsError, match="without parameters"):
        app.timer(1, stream=stream)(takes)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="without parameters"):
        app.task(takes)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="does not belong to this app"):
        app.timer(1, stream=App().stream("in"))
    app.timer(1, stream=stream)(yields)
    app.agent(app.stream("other"))(takes)
    with pytest.raises(SettingsError, match=r"streams.in: has a timer \(yields\) but no agent"):
        app.check(["in", "other"])
    assert app.rules() == {"agents of other": "takes", "timers of in": "yields"}
