"""A lane with a program behind it, and Kafka in memory: timers in its transaction, and an agent that hangs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kafka_ratchet.agents.deduplicate import Deduplicator
from kafka_ratchet.agents.program import App
from kafka_ratchet.agents.run import StreamProgram
from kafka_ratchet.agents.stream_timers import PartitionTimers
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.tables.table import Sequences
from kafka_ratchet.transport.batch.chunk import ALL_RECORDS
from kafka_ratchet.transport.batch.rows import encode_pairs
from kafka_ratchet.transport.lane import Lane
from kafka_ratchet.transport.lane_spec import LaneSpec, LaneState
from tests.agent_queue import AgentQueue
from tests.transport.memory_kafka import MemoryKafka
from tests.transport.memory_link import Link
from tests.transport.modelled_worker import (
    CHANGELOG,
    GROUP,
    INPUT,
    OUTPUT,
    READ,
    SPEC,
    WITH_AGENTS,
    ReadPolicies,
    VirtualLoop,
)


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    yield loop
    asyncio.set_event_loop(None)
    loop.close()


class Partition:
    """The worker's parts for one partition, and what it reads and writes."""

    def __init__(
        self,
        loop: VirtualLoop,
        app: App,
        folder: Path,
        kafka: MemoryKafka | None = None,
        at_first: int = ALL_RECORDS,
        spec: LaneSpec = SPEC,
    ) -> None:
        self.said = ""
        self.loop, self.kafka = loop, kafka or MemoryKafka(ends_raise_epoch=True)
        tables = app.tables_of(INPUT)
        self.sequences = Sequences(folder, CHANGELOG, Identity.KEY, 1_000_000, clock=loop.time, tables=tables)
        state = self.sequences.partition(0)
        self.program = StreamProgram(app.of(INPUT), tables, lambda number: state.tables)
        timers = app.streams[INPUT].timers
        ticks = PartitionTimers(timers, tables, state.tables, loop.time) if timers else None
        self.processor = Deduplicator(self.sequences, READ, self.program.take)
        link: Any = Link(self.kafka)
        policies: Any = ReadPolicies([False])
        self.lane = Lane(link, replace(spec, records_at_first=at_first), state, self.processor, policies, None, ticks)

    def append(self, *values: Any, times: list[int] | None = None) -> None:
        pairs = [(b"k", msgspec.json.encode(value)) for value in values]
        (encoded,) = encode_pairs(pairs, 1 << 20, times=times)
        self.kafka.logs[INPUT, 0].append(bytes(encoded.seal(-1, -1, -1)))

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)

    def run(self, *conditions: Callable[[], bool] | float) -> None:
        """Run until each of these in turn holds, or that many seconds have passed; then end."""

        async def go() -> None:
            queue = AgentQueue()
            agent = asyncio.create_task(self.processor.connect(queue).agent(queue.each()))
            self.lane.start()
            for each in conditions:
                await (asyncio.sleep(each) if isinstance(each, float) else self._until(each))
            await self.lane.stop()
            agent.cancel()
            await asyncio.gather(agent, return_exceptions=True)

        self.loop.run_until_complete(go())

    def has_halted(self) -> bool:
        self.said = self.lane.status.error or ""
        return self.lane.status.state is LaneState.HALTED

    def outputs(self) -> list[Any]:
        return [json.loads(record.value or b"") for record in self.kafka.logs[OUTPUT, 0].committed()]

    def position(self) -> int:
        committed = self.kafka.offsets.get((GROUP, INPUT, 0))
        return committed.offset if committed else 0


def test_a_timer_commits_without_records_and_with_them(loop: VirtualLoop, tmp_path: Path) -> None:
    app = App()
    stream, sums = app.stream(INPUT), app.Table("sums", default=int)

    @app.agent(stream)
    async def add(numbers: Any) -> None:
        async for number in numbers:
            sums["all"] += number

    @app.timer(10, stream=stream)
    async def report() -> AsyncIterator[Any]:
        yield sums["all"]
        sums["reports"] += 1

    partition = Partition(loop, app, tmp_path)
    partition.append(1, 2, 3)
    partition.run(25.0)
    assert (partition.outputs(), partition.position()) == ([6, 6], 3)
    assert partition.kafka.logs[CHANGELOG, 0].committed()[-1].value == b"2"


def test_an_output_of_timers_does_not_get_records_as_they_came(loop: VirtualLoop, tmp_path: Path) -> None:
    app = App()
    stream = app.stream(INPUT)

    @app.agent(stream)
    async def look(numbers: Any) -> None:
        async for _ in numbers:
            pass

    @app.timer(10, stream=stream)
    async def report() -> AsyncIterator[Any]:
        yield "now"

    first = Partition(loop, app, tmp_path / "first", spec=WITH_AGENTS)
    first.run(lambda: first.outputs() == ["now"])
    without = Partition(loop, app, tmp_path / "second", first.kafka)
    without.append(1)
    without.run(without.has_halted)
    assert "its output topic contains what agents yield" in without.said
    assert without.outputs() == ["now"]


def test_a_timer_that_raises_halts_and_comes_again(loop: VirtualLoop, tmp_path: Path) -> None:
    app, tries = App(), list[float]()
    stream, sums = app.stream(INPUT), app.Table("sums", default=int)

    @app.agent(stream)
    async def add(numbers: Any) -> None:
        async for number in numbers:
            sums["all"] += number

    @app.timer(10, stream=stream)
    async def report() -> AsyncIterator[Any]:
        tries.append(loop.time())
        sums["tries"] += 1
        yield sums["tries"]
        if len(tries) < 3:
            raise ValueError("not yet")

    partition = Partition(loop, app, tmp_path)
    partition.append(1)
    partition.run(partition.has_halted, lambda: partition.outputs() == [1], 1.0)
    assert partition.said.startswith(f"{INPUT}, partition 0: timer report raised ValueError: not yet ({__file__}:")
    assert (len(tries), partition.lane.status.restarts, partition.position()) == (3, 2, 1)


def test_an_agent_that_holds_its_transaction_is_rolled_back_with_its_name(loop: VirtualLoop, tmp_path: Path) -> None:
    app, begun = App(), list[int]()
    stream = app.stream(INPUT)

    @app.agent(stream)
    async def hang(numbers: Any) -> AsyncIterator[Any]:
        async for number in numbers:
            begun.append(number)
            await asyncio.sleep(3600 if begun == [1, 2] else 0)
            yield number

    partition = Partition(loop, app, tmp_path)
    partition.append(1, 2)
    partition.run(partition.has_halted, lambda: partition.position() == 2)
    assert partition.said.startswith(f"{INPUT}, partition 0, offset 1: agent hang ({__file__}:")
    assert "has held its transaction for 48 s, and Kafka ends it after transaction_timeout_ms = 60000" in partition.said
    assert partition.outputs() == [1, 2]


@pytest.mark.parametrize("at_first", [ALL_RECORDS, 8])
def test_agents_too_slow_for_all_that_was_fetched_get_fewer_records(
    loop: VirtualLoop, tmp_path: Path, at_first: int
) -> None:
    app = App()
    stream, sums = app.stream(INPUT), app.Table("sums", default=int)

    @app.agent(stream)
    async def call(numbers: Any) -> AsyncIterator[Any]:
        async for number in numbers:
            await asyncio.sleep(1)
            sums["all"] += number
            yield sums["all"]

    partition = Partition(loop, app, tmp_path, at_first=at_first)
    partition.append(*[1] * 300)
    partition.append(*[1] * 100)
    partition.run(lambda: partition.position() == 400)
    assert partition.outputs() == list(range(1, 401))
    assert (partition.lane.status.restarts > 0) is (at_first == ALL_RECORDS)


@pytest.mark.parametrize("loses_its_store", [False, True])
def test_windows_go_on_where_the_last_worker_stopped(loop: VirtualLoop, tmp_path: Path, loses_its_store: bool) -> None:
    def program() -> App:
        app = App()
        stream, counts = app.stream(INPUT), app.Table("counts", default=int).tumbling(10, expires=10)

        @app.agent(stream)
        async def count(pages: Any) -> AsyncIterator[Any]:
            async for page in pages:
                counts[page] += 1
                yield [page, counts[page].value(), counts.late, [window.start for window in counts.windows(page)]]

        return app

    kafka = None
    views = [[("a", 1), ("b", 2), ("a", 12)], [("a", 3)], [("b", 21), ("a", 4)], [("a", 25), ("b", 13)], [("a", 90)]]
    for number, batch in enumerate(views):
        folder = tmp_path / (str(number) if loses_its_store else "state")
        partition = Partition(loop, program(), folder, kafka)
        partition.append(*(page for page, _ in batch), times=[1000 * at for _, at in batch])
        kafka, end = partition.kafka, sum(map(len, views[: number + 1]))
        partition.run(lambda end=end, at=partition: at.position() == end, 3.0)  # type: ignore[misc]
    assert partition.outputs() == [
        ["a", 1, 0, [0]], ["b", 1, 0, [0]], ["a", 1, 0, [0, 10]], ["a", 2, 0, [0, 10]], ["b", 1, 0, [20]],
        ["a", 0, 1, [10]], ["a", 1, 1, [10, 20]], ["b", 1, 1, [10, 20]], ["a", 1, 1, [90]],
    ]  # fmt: skip
    table = partition.sequences.partition(0)
    table.open()
    kept = [key for key, _ in table.known.opened().scan_from(b"t\6counts", b"t\6counts")]
    table.close()
    assert [key[-3:] for key in kept] == [b'"a"']
