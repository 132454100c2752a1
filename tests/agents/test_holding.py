"""What is said of an agent that takes long: which one, at which record, in which line."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import structlog

from kafka_ratchet.agents.holding import BLOCKED_AFTER, _Watch, watch_loop
from kafka_ratchet.agents.program import App
from kafka_ratchet.agents.run import PartitionProgram
from kafka_ratchet.agents.timers import WorkerTimers
from kafka_ratchet.errors import Aborted
from kafka_ratchet.tables.values.partition import PartitionTables
from kafka_ratchet.tables.values.table_partition import nothing, nowhere
from kafka_ratchet.testing.program_run import fetched, lane_spec
from kafka_ratchet.transport.delivery import Delivery
from kafka_ratchet.transport.policy import Policy


def line(function: Any, text: str) -> str:
    """Where a function of this file has this text."""
    lines, first = inspect.getsourcelines(function)
    return f"test_holding.py:{first + next(number for number, each in enumerate(lines) if text in each)})"


def given(program: Any) -> tuple[PartitionProgram, Delivery]:
    """A program over one stream, and three records for it."""
    app = App()
    app.agent(app.stream("in"))(program)
    delivery = Delivery(lane_spec("in"), Policy(), fetched("in", 7, [(None, b"%d" % number) for number in range(3)]))
    return PartitionProgram(app.of("in"), [], PartitionTables(nowhere, nothing)), delivery


async def deeper(number: int) -> None:
    await asyncio.sleep(3600 if number == 1 else 0)


async def yields(numbers: Any) -> AsyncIterator[Any]:
    async for number in numbers:
        await deeper(number)
        yield number


async def waits(numbers: Any) -> None:
    async for number in numbers:
        await deeper(number)


@pytest.mark.parametrize("program", [yields, waits])
async def test_an_agent_that_waits_is_named_with_its_record_and_its_line(program: Any) -> None:
    running, delivery = given(program)
    taking = asyncio.create_task(running.take(delivery, np.ones(3, np.bool_)))
    await asyncio.sleep(0.01)
    said = delivery.held_by() if delivery.held_by else ""
    assert said.startswith(f"in, partition 0, offset 8: agent {program.__name__} (")
    assert said.endswith(line(deeper, "asyncio.sleep"))
    running.abandon()
    with pytest.raises(Aborted):
        await taking


LOGGED: list[Any] = []


def known_holders() -> list[Any]:
    """Return log lines that name a holder; a busy machine holds the event loop up too, which names none."""
    lines = [each for each in LOGGED if "the event loop is blocked" in each["event"]]
    return [each for each in lines if each["held_by"] != "unknown"]


async def blocks(numbers: Any) -> None:
    async for _ in numbers:
        while not known_holders():
            time.sleep(0.3)  # noqa: ASYNC251 - which is the mistake


async def blocked(work: Any) -> list[Any]:
    """Return the lines of the log about an event loop that is blocked by this until it is named."""
    global LOGGED
    with structlog.testing.capture_logs() as LOGGED:
        watching = asyncio.create_task(watch_loop(every_s=0.02))
        await asyncio.sleep(0.1)
        await work
        watching.cancel()
    return known_holders()


async def test_an_agent_that_blocks_the_event_loop_is_named_with_its_line() -> None:
    running, delivery = given(blocks)
    taking = asyncio.create_task(running.take(delivery, np.ones(3, np.bool_)))
    said = [each["held_by"] for each in await blocked(taking)]
    assert said[0].startswith("in, partition 0, offset 7: agent blocks (")
    assert said[0].endswith(line(blocks, "time.sleep"))
    running.abandon()


async def test_so_is_a_task() -> None:
    async def counts() -> None:
        while not known_holders():
            time.sleep(0.3)  # noqa: ASYNC251 - which is the mistake

    (said, *_) = await blocked(asyncio.create_task(WorkerTimers([], [counts]).run()))
    assert said["held_by"].startswith("task counts (")


class Looks(threading.Event):
    """So many looks, without waiting; the event loop goes on before every few of them."""

    def __init__(self, watch: _Watch, looks: int, goes_on_every: int) -> None:
        super().__init__()
        self.watch, self.looks, self.goes_on_every = watch, looks, goes_on_every

    def wait(self, timeout: float | None = None) -> bool:
        self.looks -= 1
        self.watch.beats += self.looks % self.goes_on_every == 0
        return self.looks < 0


@pytest.mark.parametrize(("goes_on_every", "is_named"), [(1, False), (BLOCKED_AFTER, False), (BLOCKED_AFTER + 1, True)])
async def test_an_event_loop_that_goes_on_between_the_looks_is_not_named(goes_on_every: int, is_named: bool) -> None:
    watch = _Watch(asyncio.get_running_loop(), 1.0)
    watch.stop = Looks(watch, 10 * goes_on_every, goes_on_every)
    with structlog.testing.capture_logs() as logs:
        watch.run()
    assert bool(logs) == is_named
