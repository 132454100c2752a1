"""Windows next to a plain dict: the same input gives the same, whatever the batches, rollbacks and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafka_ratchet.agents.program import App
from kafka_ratchet.agents.run import PartitionProgram
from kafka_ratchet.errors import AgentFailed, TableError
from kafka_ratchet.tables.values.own_table import OWN
from kafka_ratchet.tables.values.partition import PartitionTables
from kafka_ratchet.tables.values.table_partition import prefix_of
from kafka_ratchet.tables.values.windows import Window
from kafka_ratchet.testing.program_run import fetched, lane_spec
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.delivery import Delivery
from kafka_ratchet.transport.policy import Policy

LIMIT = 1 << 20
Event = tuple[int, str]
"""Timestamp in ms, and key."""


def program(window: Window | None) -> App:
    """Counts each value; window: None: in a table without windows."""
    app = App()
    stream, plain = app.stream("in"), app.Table("counts", default=int)
    expires = window and window.expires and window.expires / 1000
    table: Any = plain if window is None else plain.hopping(window.size / 1000, window.step / 1000, expires)

    @app.agent(stream)
    async def count(keys: Any) -> AsyncIterator[Any]:
        async for key in keys:
            table[key] += 1
            yield [table[key] if window is None else table[key].value(), 0 if window is None else table.late]

    return app


class Worker:
    """A partition with its program; its store is a dict, and its changelog a list, which outlive it."""

    def __init__(self, window: Window | None, store: dict[bytes, bytes], log: list[bytes], saved: int) -> None:
        self.store, self.log = store, log
        app = program(window)
        (self.table,) = app.tables.values()
        self.partition = PartitionTables(store.get, self.scan)
        self.partition.add(self.table.codec, self.table.default, self.table.kind)
        self.program = PartitionProgram(app.of("in"), [self.table], self.partition)
        for data in log[saved:]:
            assert self.partition.apply(read_chunk("changelog", 0, 0, data, [])).count == 0

    def scan(self, prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return ((key, self.store[key]) for key in sorted(self.store) if key.startswith(prefix) and key >= first)

    async def take(self, offset: int, events: list[Event]) -> list[Any]:
        pairs = [(None, msgspec.json.encode(key)) for _, key in events]
        batch = fetched("in", offset, list(pairs), [timestamp for timestamp, _ in events])
        delivery = Delivery(lane_spec("in"), Policy(), batch)
        await self.program.take(delivery, np.ones(batch.count, np.bool_))
        written = [read_chunk("in", 0, 0, bytes(each[-1].seal(1, 0, 0)), []) for each in delivery.outputs]
        return [msgspec.json.decode(part.value(index) or b"") for part in written for index in range(part.count)]

    def commit(self) -> None:
        self.log += [bytes(encoded.seal(1, 0, 0)) for encoded in self.partition.encode(LIMIT)]
        self.partition.commit()

    def save(self, most: int) -> None:
        for key, value in self.partition.unsaved_entries():
            if value is None:
                self.store.pop(key, None)
            else:
                self.store[key] = value
        self.partition.saved(most)

    def logged(self) -> dict[Any, Any]:
        """Return the changelog's newest entries, as compaction leaves them."""
        entries: dict[bytes, bytes | None] = {}
        for data in self.log:
            batch = read_chunk("changelog", 0, 0, data, [])
            entries |= {batch.key(index) or b"": batch.value(index) for index in range(batch.count)}
        codec, prefix = self.table.codec, prefix_of("counts")
        return {
            codec.key(codec.kept_key(key[len(prefix) :])): codec.value(value)
            for key, value in entries.items()
            if value is not None and not key.startswith(OWN)
        }


class Model:
    """Table after each event, computed from the definition."""

    def __init__(self, window: Window, events: list[Event]) -> None:
        self.window, self.time, self.late = window, -1, 0
        self.counts: dict[tuple[str, int], int] = {}
        self.outputs = [self._take(*event) for event in events]
        self.table = {
            (key, window.range_of(start)): count for (key, start), count in self.counts.items() if self._is_open(start)
        }

    def _is_open(self, start: int) -> bool:
        return self.window.expires is None or start + self.window.size + self.window.expires > self.time

    def _take(self, timestamp: int, key: str) -> Any:
        self.time, size = max(self.time, timestamp), self.window.size
        starts = [start for start in range(-3 * size, timestamp + 1) if (start + size) % self.window.step == 0]
        for start in starts:
            if start <= timestamp < start + size:
                if self._is_open(start):
                    self.counts[key, start] = self.counts.get((key, start), 0) + 1
                else:
                    self.late += 1
        newest = starts[-1]
        return [self.counts.get((key, newest), 0) if self._is_open(newest) else 0, self.late]


WINDOWS = st.builds(
    lambda step, times, expires: Window(step * times, step, expires),
    st.integers(1, 8), st.integers(1, 3), st.one_of(st.none(), st.integers(1, 12)),
)  # fmt: skip
EVENTS = st.lists(st.tuples(st.integers(0, 60), st.sampled_from("abc")), max_size=40)
STEPS = st.lists(
    st.one_of(st.integers(1, 9), st.sampled_from(["commit", "fail", "rollback", "save", "forget", "restart"])),
    max_size=40,
)


@given(WINDOWS, EVENTS, STEPS)
@example(Window(1, 1, 1), [(0, "a"), (9, "a")], [1, "commit", 1, "fail", 1, "commit"])
@settings(max_examples=150, deadline=None)
def test_windows_do_not_depend_on_batches_rollbacks_and_restarts(
    window: Window, events: list[Event], steps: list[int | str]
) -> None:
    asyncio.run(_go(window, events, [*steps, 40, "commit", "restart", "commit"]))


async def _go(window: Window, events: list[Event], steps: list[int | str]) -> None:
    store, log, saved = dict[bytes, bytes](), list[bytes](), 0
    worker = Worker(window, store, log, saved)
    at = committed = 0
    outputs: list[Any] = []
    for step in steps:
        if isinstance(step, int):
            if batch := events[at : at + step]:
                outputs += await worker.take(at, batch)
                at += len(batch)
            continue
        if step == "commit":
            worker.commit()
            committed = at
        else:
            if step == "fail":  # what is written down is lost with the transaction
                worker.partition.encode(LIMIT)
            worker.partition.rollback()
            at = committed
            del outputs[committed:]
        if step in ("save", "forget"):
            worker.save(0 if step == "forget" else 1 << 30)
            saved = len(log)
            memory = worker.partition.of("counts").values
            assert not any(
                window.expires is not None and kept.start < window.first_kept(worker.partition.stream_time)
                for kept in memory
            )
        if step == "restart":
            worker = Worker(window, store, log, saved)
        model = Model(window, events[:committed])
        assert outputs[:committed] == model.outputs
        assert worker.logged() == model.table
        assert worker.partition.late.get("counts", model.late) == model.late
        kept = worker.partition.of("counts")
        assert {key: kept.get(key) for key in kept.keys()} == model.table
    worker.partition.rollback()


def edited(before: Window | None, after: Window | None, *, saved: bool) -> Worker:
    """A worker of the program with other windows, on what one with these has left."""
    store, log = dict[bytes, bytes](), list[bytes]()

    async def go() -> Worker:
        worker = Worker(before, store, log, 0)
        await worker.take(0, [(1000, "a"), (5000, "longer key")])
        worker.commit()
        if saved:
            worker.save(0)
        worker = Worker(after, store, log, len(log) if saved else 0)
        await worker.take(2, [(1000, "a")])
        worker.commit()
        return worker

    return asyncio.run(go())


TEN, FIVE = Window(10_000, 10_000, None), Window(10_000, 5_000, None)


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize(("before", "after"), [(TEN, FIVE), (TEN, None), (None, TEN)])
def test_other_windows_on_the_same_table_are_refused(before: Window | None, after: Window | None, saved: bool) -> None:
    with pytest.raises(
        (AgentFailed, TableError), match=r"table counts: .*(Give the table a new name|is not a key|the form of a key)"
    ):
        edited(before, after, saved=saved)


def test_a_longer_time_of_expiry_does_not_begin_removed_windows_anew() -> None:
    short, longer = Window(1000, 1000, 1000), Window(1000, 1000, 60_000)
    worker = edited(short, longer, saved=True)
    assert worker.logged() == {("longer key", (5, 6)): 1}
    assert worker.partition.of("counts").late == 1  # type: ignore[attr-defined]
