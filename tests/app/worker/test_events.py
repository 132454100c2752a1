"""Events of a worker, and the file with them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kafka_ratchet.app.status.history import Event
from kafka_ratchet.app.worker.journal.events import ANSWER_MOST, FILE_MOST, EventLog, LaneWatch
from kafka_ratchet.transport.lane_spec import LaneState, LaneStatus
from tests.clock import Clock


def lane(**status: Any) -> Any:
    return SimpleNamespace(status=LaneStatus(**status))


def told(events: list[Event]) -> list[tuple[str, str | None, list[int]]]:
    return [(event.kind, event.stream, event.partitions) for event in events]


def test_what_changes_between_two_looks_is_an_event() -> None:
    clock = Clock()
    watch = LaneWatch(clock)
    lanes = {("events", number): lane() for number in (0, 1, 2)}
    assert told(watch.look(lanes)) == [("assigned", "events", [0, 1, 2])]
    for each in lanes.values():
        each.status.state, each.status.restored = LaneState.RUNNING, 10
    [restored] = watch.look(lanes)
    assert (restored.kind, restored.partitions, restored.text) == (
        "restored",
        [0, 1, 2],
        "30 changelog records, within 1 s",
    )
    assert watch.look(lanes) == []
    first = lanes["events", 0].status
    for _ in range(3):
        first.state, first.error = LaneState.HALTED, "offset 7: <b>corrupt</b>"
        first.restarts += 1
        events = watch.look(lanes)
    assert events == []  # said once a minute
    clock.now += 61
    first.restarts += 1
    assert told(watch.look(lanes)) == [("halted", "events", [0])]
    first.state = LaneState.RUNNING
    assert told(watch.look(lanes)) == [("running", "events", [0])]
    del lanes["events", 1]
    lanes["events", 2] = lane()  # gone and back between two looks
    assert told(watch.look(lanes)) == [("assigned", "events", [2]), ("assigned", "events", [1])]


def test_a_torn_line_is_left_out_and_the_file_is_bounded(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "fresh volume" / "events")
    assert log.read(0) == []
    log.append([Event(1.0, "started", "x"), Event(2.0, "assigned", "y", "events", [1])])
    with log.path.open("ab") as file:
        file.write(b'{"at": 3.0, "kind": "rest')
    log.append([Event(4.0, "stopped", "z")])
    assert [event.at for event in log.read(0)] == [1.0, 2.0, 4.0]
    assert [event.at for event in log.read(2)] == [2.0, 4.0]
    for number in range(300):
        log.append([Event(float(number), "restarted", "e" * 1_000, "events", [number])] * 2)
    assert log.path.stat().st_size <= FILE_MOST
    assert log.read(0)[-1].partitions == [299]
    assert len(log.read(0)) <= ANSWER_MOST
