"""The history that a worker keeps: rings, what is taken from the lanes, what is answered, what pages make of it."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka import Producer
from numpy.typing import NDArray

from kafka_ratchet.app.status.cluster_view import ClusterView
from kafka_ratchet.app.status.history import (
    EVERY_S,
    LAG_ROWS,
    ROWS,
    HistoryAnswer,
    HistoryQuery,
    StreamPoints,
    merge_history,
    parse_history_query,
)
from kafka_ratchet.app.status.lookup import QueryError
from kafka_ratchet.app.status.past_view import PastView
from kafka_ratchet.app.worker.journal.history import FIELDS, WorkerHistory
from kafka_ratchet.app.worker.journal.ring import RingFile
from kafka_ratchet.transport.lane_spec import LaneStatus
from tests.app.worker_process import Site, WorkerProcess

NOW = 1_800_000_000


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[RingFile]:
    made = RingFile(tmp_path / "ring", 10, 6, 2)
    made.open()
    yield made
    made.close()


def rows(ring: RingFile, first: int = 0, last: int = 10**9) -> dict[int, list[int]]:
    slots, values = ring.read(first, last)
    return dict(zip(slots.tolist(), values.tolist(), strict=True))


def test_the_newest_rows_take_the_place_of_the_oldest(ring: RingFile) -> None:
    size = ring.path.stat().st_size
    for slot in range(100, 109):
        ring.write(slot, [slot, -slot])
    assert rows(ring) == {slot: [slot, -slot] for slot in range(103, 109)}
    assert list(rows(ring, 105, 106)) == [105, 106]
    ring.close()
    ring.open()
    assert len(rows(ring)) == 6
    assert ring.path.stat().st_size == size == ring.size


def test_a_torn_row_is_left_out(ring: RingFile) -> None:
    for slot in (100, 101, 106):
        ring.write(slot, [7, 8])
    before = ring.path.read_bytes()
    ring.write(107, [9, 10])
    after = ring.path.read_bytes()
    changed = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    # Only the first or the last half of what has changed reached the disk.
    for kept in (changed[: len(changed) // 2], changed[len(changed) // 2 :]):
        torn = bytearray(before)
        for at in kept:
            torn[at] = after[at]
        ring.path.write_bytes(torn)
        assert rows(ring).keys() <= {100, 106}
        assert 106 in rows(ring)


@pytest.mark.parametrize("content", [b"x", b"", b"\0" * 64, os.urandom(4096)])
def test_a_file_of_another_version_or_shape_is_put_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ring"
    path.write_bytes(content)
    ring = RingFile(path, 10, 6, 2)
    ring.open()
    ring.write(5, [1, 2])
    assert rows(ring) == {5: [1, 2]}
    ring.close()
    if content:
        assert path.with_name("ring.aside").read_bytes() == content
    other = RingFile(path, 10, 6, 3)
    other.open()
    assert rows(other) == {}
    other.close()


@dataclass
class Stream:
    """A stream of four partitions whose counts and lanes the tests set."""

    partitions: int = 4
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(6, np.int64))
    lanes: dict[int, LaneStatus] = field(default_factory=dict)

    def counted(self) -> NDArray[np.int64]:
        return self.counts

    def served(self) -> dict[int, LaneStatus]:
        return self.lanes


def lane(position: int | None, end: int | None, since_s: int | None = None) -> LaneStatus:
    return LaneStatus(position=position, end=end, unread_since_ms=None if since_s is None else since_s * 1000)


async def test_counts_are_those_of_this_worker_and_go_on_after_a_restart(tmp_path: Path) -> None:
    stream = Stream(lanes={0: lane(5, 9, NOW - 7), 1: lane(4, 4)})
    history = WorkerHistory(tmp_path / "history", {"events": stream}, lambda: NOW)
    history.open()
    slot = NOW // EVERY_S
    stream.counts += [5, 1, 0, 0, 0, 0]
    await history.write(slot)
    stream.counts += [2, 2, 1, 0, 0, 3]
    stream.lanes = {0: lane(9, 19, NOW)}
    await history.write(slot + 1)
    history.close()

    stream = Stream(lanes={2: lane(None, None)})
    history = WorkerHistory(tmp_path / "history", {"events": stream}, lambda: NOW)
    history.open()
    stream.counts += [100, 0, 0, 0, 0, 0]
    await history.write(slot + 1)
    told = await history.answer(HistoryQuery("events", NOW, NOW + 60))
    assert told is not None
    points = told.points
    assert points.times == [NOW, NOW + 10]
    assert points.covered == [20, 10]
    assert points.counts["fresh"] == [5, 102]
    assert points.counts["duplicate"] == [1, 2]
    assert points.counts["unjudged"] == [0, 3]
    assert points.arrived == [0, 10]
    assert points.lag == [4, None]
    assert points.lag_ms == [7000, None]
    assert await history.answer(HistoryQuery("another", NOW, NOW)) is None
    whole = await history.answer(HistoryQuery("events", NOW, NOW + 60, 20))
    assert whole is not None
    assert (whole.points.times, whole.points.counts["fresh"], whole.points.covered) == ([NOW], [107], [30])
    history.close()


async def test_the_lag_of_each_partition_is_kept_once_a_minute(tmp_path: Path) -> None:
    stream = Stream(lanes={0: lane(5, 9), 3: lane(5, 5)})
    history = WorkerHistory(tmp_path, {"events": stream}, lambda: NOW)
    history.open()
    for slot in range(NOW // EVERY_S, NOW // EVERY_S + 12):
        await history.write(slot)
    told = await history.answer(HistoryQuery("events", NOW, NOW + 120, partitions=(0, 1, 3, 9)))
    history.close()
    assert told is not None
    assert told.lags == {0: [(NOW, 4), (NOW + 60, 4)], 1: [], 3: [(NOW, 0), (NOW + 60, 0)]}


def test_the_sizes_are_those_of_the_documentation(tmp_path: Path) -> None:
    assert RingFile(tmp_path / "a", 10, ROWS, len(FIELDS)).size == 829_504
    assert RingFile(tmp_path / "a", 60, LAG_ROWS, 1_000).size == 11_543_104


async def test_a_folder_that_cannot_be_used_is_no_history_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = WorkerHistory(tmp_path / "file" / "history", {"events": Stream()})
    await history.run()
    assert await history.answer(HistoryQuery("events", 0, NOW)) is None


def told(
    lag: int | None, covered: int, fresh: int, moments: int = 2, lags: dict[int, int] | None = None
) -> HistoryAnswer:
    times = [NOW + 10 * each for each in range(moments)]
    counts = {name: [0] * moments for name in ("duplicate", "invalid", "late", "conflict", "unjudged")}
    points = StreamPoints(
        times,
        [covered] * moments,
        {"fresh": [fresh] * moments, **counts},
        [1] * moments,
        [lag] * moments,
        [5] * moments,
    )
    return HistoryAnswer("events", 10, points, {number: [(NOW, each)] for number, each in (lags or {}).items()})


def test_a_partition_that_moved_counts_once_and_what_is_missing_is_told() -> None:
    query = HistoryQuery("events", NOW, NOW + 20)
    merged = merge_history(query, [told(4, 20, 3), told(6, 20, 4, 1)], 4)
    assert merged.points.counts["fresh"] == [7, 3]
    assert merged.points.lag == [10, None]
    assert merged.missing_s == [0, 20]
    assert merged.covered == 0.75
    # Both had it in that moment: the lag would count twice, the records do not.
    moved = merge_history(query, [told(4, 30, 3, lags={0: 4}), told(6, 20, 4, lags={0: 6})], 4)
    assert (moved.points.lag, moved.points.counts["fresh"], moved.covered) == ([None, None], [7, 7], 1.0)
    assert moved.lags == {0: [(NOW, 6)]}
    assert merge_history(query, [], 4).covered is None


@pytest.mark.long
async def test_partitions_that_move_to_another_worker_count_once(
    tmp_path: Path, broker: str, new_topic: Callable[..., str]
) -> None:
    topics = [new_topic(4) for _ in range(3)]
    toml = '[streams.events]\ninput = "{}"\noutput = "{}"\ndead_letters = "{}"\n'.format(*topics)
    site = Site(tmp_path, broker, f"moves-{uuid.uuid4().hex[:8]}", toml)
    first, second = WorkerProcess(site, "first"), WorkerProcess(site, "second")
    producer, sent = Producer({"bootstrap.servers": broker}), 0

    def load() -> None:
        """Send 100 records to each partition, each twice, and wait until they are judged."""
        nonlocal sent
        for number in range(sent, sent + 100):
            for partition in range(4):
                headers: list[tuple[str, str | bytes | None]] = [
                    ("ratchet-producer", b"till-%d" % partition),
                    ("ratchet-sequence", number.to_bytes(8)),
                ]
                for _ in range(2):
                    producer.produce(topics[0], b"x", partition=partition, headers=headers)
        sent += 100
        assert producer.flush(60) == 0
        first.wait_for(lambda: site.position(topics[0]) >= 8 * sent, "all that was sent")

    try:
        first.start()
        await asyncio.to_thread(load)
        second.start()
        await asyncio.to_thread(second.wait_for, lambda: "lane runs" in second.text(), "its partitions")
        await asyncio.to_thread(load)
        async with ClusterView(broker, site.settings) as view:
            async with asyncio.timeout(90):
                while True:
                    found = await PastView(view).history("events", "1h", 4)
                    if found.total("fresh") + found.total("duplicate") >= 8 * sent:
                        break
                    await asyncio.sleep(1)
            assert (found.total("fresh"), found.total("duplicate")) == (4 * sent, 4 * sent)
            end = found.points.times[-1]
            query = HistoryQuery("events", end - 3_000, end + 100)
            answers, _ = await view.ask_workers("/status/history", query.parameters(), HistoryAnswer)
            shares = sorted(sum(each.points.counts["fresh"]) for each in answers.values())
            assert (len(shares), sum(shares)) == (2, 4 * sent)
            assert shares[0] > 0
        for worker in (first, second):
            worker.stop()
    finally:
        first.end()
        second.end()


@pytest.mark.parametrize(
    "query",
    [
        {"step": "7"},
        {"step": "0"},
        {"from": "x"},
        {"from": "10", "to": "5"},
        {"from": "1", "to": "100000"},
        {"partitions": "a"},
        {"partitions": ",".join(map(str, range(201)))},
        {"to": "9" * 13},
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(QueryError):
        parse_history_query({"stream": "events", **query})
