"""What an agent does while its lane does not wait for it, or in a task beside its own: it is refused, not lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import numpy as np
import pytest

from kafka_ratchet.agents.program import App
from kafka_ratchet.agents.run import PartitionProgram
from kafka_ratchet.errors import AgentFailed, SendRefused, TableError
from kafka_ratchet.tables.values.partition import PartitionTables
from kafka_ratchet.tables.values.table_partition import nothing, nowhere
from kafka_ratchet.testing import run
from kafka_ratchet.testing.program_run import fetched, lane_spec
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.delivery import REASON_MOST, Delivery
from kafka_ratchet.transport.policy import Policy

LIMIT = 1 << 20


class Program:
    """An app with one stream, one table and one topic; its partition is taken through transactions by hand."""

    def __init__(self) -> None:
        self.app = App()
        self.numbers, self.alerts = self.app.stream("numbers"), self.app.topic("alerts")
        self.seen = self.app.Table("seen", default=int)
        self.tables = PartitionTables(nowhere, nothing)
        self.tables.add(self.seen.codec, self.seen.default)
        self.began, self.offset = False, 0

    def take(self, *numbers: int) -> tuple[Delivery, asyncio.Task[None]]:
        if not self.began:
            self.began, self.program = True, PartitionProgram(self.numbers.agents, [self.seen], self.tables)
        batch = fetched("numbers", self.offset, [(None, b"%d" % number) for number in numbers])
        self.offset += len(numbers)
        delivery = Delivery(lane_spec("numbers", ["alerts"]), Policy(), batch)
        return delivery, asyncio.create_task(self.program.take(delivery, np.ones(len(numbers), np.bool_)))

    async def commit(self, *numbers: int) -> list[Any]:
        """What is yielded and sent."""
        delivery, taking = self.take(*numbers)
        await asyncio.wait_for(taking, 60)
        written = [read_chunk("numbers", 0, 0, bytes(each[-1].seal(1, 0, 0)), []) for each in delivery.outputs]
        self.tables.encode(LIMIT)
        self.tables.commit()
        return [msgspec.json.decode(part.value(index) or b"") for part in written for index in range(part.count)]

    def contents(self) -> dict[Any, Any]:
        return dict(self.tables.of("seen").values)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("many", [False, True])
async def test_a_table_is_not_written_while_a_commit_is_under_way(known: bool, many: bool) -> None:
    program, late = Program(), asyncio.Event()
    timeout: Any = None

    @program.app.agent(program.numbers)
    async def note(stream: Any) -> None:
        nonlocal timeout
        try:
            async with asyncio.timeout(None) as timeout:
                async for _ in stream:
                    program.seen["known"] += 1
        except TimeoutError:
            late.set()
            key = "known" if known else "new"
            program.seen.update({key: 7}) if many else program.seen.__setitem__(key, 7)

    _, taking = program.take(1)
    await taking
    assert program.tables.encode(LIMIT)
    timeout.reschedule(0)  # while the lane produces, and waits for Kafka
    await late.wait()
    await settled()
    program.tables.commit()
    assert program.contents() == {"known": 1}
    with pytest.raises(AgentFailed, match="partition 0, after offset 0: agent note wrote to a table without a current"):
        await program.commit(2)
    program.tables.rollback()
    assert (program.contents(), program.tables.encode(LIMIT)) == ({"known": 1}, [])


@pytest.mark.parametrize("on_error", ["halt", "dead-letter"])
async def test_what_is_raised_between_two_batches_undoes_nothing_and_halts_the_next(on_error: Any) -> None:
    program = Program()
    timeout: Any = None

    @program.app.agent(program.numbers, on_error=on_error)
    async def note(stream: Any) -> None:
        nonlocal timeout
        async with asyncio.timeout(None) as timeout:
            async for number in stream:
                program.seen[number] += 1

    await program.commit(1, 1)
    timeout.reschedule(0)
    await settled()
    assert program.contents() == {1: 2}
    for _ in range(2):
        with pytest.raises(AgentFailed, match=r"after offset 1: agent note raised TimeoutError"):
            await program.commit(2)
    program.tables.rollback()
    assert program.contents() == {1: 2}
    await program.commit(1)
    assert program.contents() == {1: 3}


async def test_a_yield_between_two_batches_halts_the_next() -> None:
    program = Program()
    timeout: Any = None

    @program.app.agent(program.numbers)
    async def note(stream: Any) -> AsyncIterator[Any]:
        nonlocal timeout
        while True:
            try:
                async with asyncio.timeout(None) as timeout:
                    async for number in stream:
                        yield number
            except TimeoutError:
                yield "idle"

    assert await program.commit(1, 2) == [1, 2]
    timeout.reschedule(0)
    await settled()
    with pytest.raises(AgentFailed, match="raised TypeError: yielded without a current event"):
        await program.commit(3)


async def test_a_time_out_between_two_batches_loses_nothing() -> None:
    program, taken = Program(), list[list[int]]()
    timeout: Any = None

    @program.app.agent(program.numbers)
    async def take(stream: Any) -> None:
        nonlocal timeout
        while True:
            taken.append([])
            try:
                async with asyncio.timeout(None) as timeout:
                    async for number in stream:
                        taken[-1].append(number)
            except TimeoutError:
                pass

    await program.commit(1, 2)
    timeout.reschedule(0)
    await settled()
    _, taking = program.take(3)
    timeout.reschedule(0)  # and one that comes together with a batch
    await taking
    await program.commit(4)
    assert [number for each in taken for number in each] == [1, 2, 3, 4]
    assert len(taken) > 1


@pytest.mark.parametrize("on_error", ["halt", "dead-letter"])
@pytest.mark.parametrize("first", [False, True])
def test_events_are_not_read_ahead_in_another_task(on_error: Any, first: bool) -> None:
    app = App()

    @app.agent(app.stream("numbers"), on_error=on_error)
    async def ahead(stream: Any) -> AsyncIterator[Any]:
        numbers = aiter(stream.events())
        if not first:
            yield (await anext(numbers)).value
        following = asyncio.ensure_future(anext(numbers))
        while True:
            number = await following
            following = asyncio.ensure_future(anext(numbers))
            yield number.value

    with pytest.raises(AgentFailed, match="only the agent's own task may read events, not a task that it has"):
        run(app, {"numbers": [1, 2, 3]}, batch=2)


async def test_a_task_that_an_agent_has_started_neither_sends_nor_writes() -> None:
    program, refused = Program(), list[str]()

    async def beside(number: int) -> None:
        try:
            await program.alerts.send(value=number)
        except SendRefused as error:
            refused.append(str(error))
        try:
            program.seen["beside"] = number
        except TableError as error:
            refused.append(str(error))

    @program.app.agent(program.numbers)
    async def note(stream: Any) -> AsyncIterator[Any]:
        async for number in stream:
            program.seen[number] += 1
            await asyncio.gather(beside(number))
            await asyncio.to_thread(lambda: None)
            program.seen[number] += 1
            await program.alerts.send(value=-number)
            yield number

    assert await program.commit(5) == [5, -5]
    assert program.contents() == {5: 2}
    first, second = refused
    assert first == (
        "topic alerts: agent note sent a record while it had no event, or in a task that it has started. Send only in "
        "the agent's own task"
    )
    assert second.startswith(
        "wrote to a table without a current event (for example after a time-out between two events), or in a task that"
    )


def test_a_task_that_a_timer_has_started_sends_nothing() -> None:
    app, refused = App(), list[type[BaseException]]()
    numbers, alerts = app.stream("numbers"), app.topic("alerts")
    told = asyncio.Event()

    async def late() -> None:
        try:
            await told.wait()
            await alerts.send(value=1)
        except SendRefused as error:
            refused.append(type(error))

    @app.agent(numbers)
    async def note(stream: Any) -> None:
        async for _ in stream:
            told.set()
            await settled()

    @app.timer(1.0, stream=numbers)
    async def tick() -> None:
        app.late = asyncio.create_task(late())  # type: ignore[attr-defined]

    assert run(app, {"numbers": [1, tick, 2]}, batch=1).outputs == []
    assert refused == [SendRefused]


def test_a_cancellation_of_its_own_is_the_records_fault() -> None:
    def app_of(on_error: Any) -> App:
        app = App()

        @app.agent(app.stream("numbers"), on_error=on_error)
        async def cancels(stream: Any) -> AsyncIterator[Any]:
            async for number in stream:
                waits = asyncio.ensure_future(asyncio.sleep(60))
                if number == 2:
                    waits.cancel()
                    await waits
                waits.cancel()
                yield number

        return app

    ran = run(app_of("dead-letter"), {"numbers": [1, 2, 3]})
    assert (ran.values, [each.value for each in ran.dead_letters]) == ([1, 3], [2])
    with pytest.raises(AgentFailed, match="numbers, partition 0, offset 1: agent cancels raised CancelledError"):
        run(app_of("halt"), {"numbers": [1, 2, 3]})


async def test_an_agent_that_is_cancelled_from_outside_halts_its_partition() -> None:
    program, begun = Program(), asyncio.Event()
    task: Any = None

    @program.app.agent(program.numbers, on_error="dead-letter")
    async def waits(stream: Any) -> None:
        nonlocal task
        task = asyncio.current_task()
        async for _ in stream:
            begun.set()
            await asyncio.sleep(60)

    _, taking = program.take(1)
    await begun.wait()
    task.cancel()
    with pytest.raises(AgentFailed, match="offset 0: agent waits was ended by CancelledError"):
        await asyncio.wait_for(taking, 60)


@pytest.mark.parametrize("text", ["\ud800", "ü" * 3_000_000])
def test_a_reason_that_cannot_be_a_header_as_it_is_still_makes_a_dead_letter(text: str) -> None:
    app = App()

    @app.agent(app.stream("numbers"), on_error="dead-letter")
    async def refuses(stream: Any) -> AsyncIterator[Any]:
        async for number in stream:
            if number == 1:
                raise ValueError(text)
            yield number

    ran = run(app, {"numbers": [1, 2]})
    assert ran.values == [2]
    reason = dict(ran.dead_letters[0].headers)["ratchet-reason"] or b""
    assert len(reason) <= REASON_MOST
    assert ("\\ud800" if text == "\ud800" else "üüü") in reason.decode()


def test_a_value_that_several_agents_cannot_decode_is_one_dead_letter() -> None:
    app = App()
    numbers = app.stream("numbers", value_type=int)
    by_value = numbers.group_by("by-value", key=str)

    @app.agent(numbers)
    async def one(stream: Any) -> None:
        async for _ in stream:
            pass

    @app.agent(numbers)
    async def two(stream: Any) -> None:
        async for _ in stream:
            pass

    @app.agent(by_value)
    async def grouped(stream: Any) -> None:
        async for _ in stream:
            pass

    assert [each.value for each in run(app, {"numbers": [1, "x", 2, "y"]}).dead_letters] == ["x", "y"]
