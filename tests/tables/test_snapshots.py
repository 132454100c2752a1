"""Due times of a partition's snapshots."""

from __future__ import annotations

from kafka_ratchet.tables.snapshots import SNAPSHOT_EVERY_S, SNAPSHOT_LATER, SNAPSHOT_TAKES_S, SnapshotTimer
from tests.clock import Clock


def due_after(timer: SnapshotTimer, clock: Clock, seconds: float) -> tuple[bool, bool]:
    """Return whether it would be due then, with records to judge and without."""
    before, clock.now = clock.now, clock.now + seconds
    due = timer.is_due, timer.is_due_at_rest
    clock.now = before
    return due


def written(timer: SnapshotTimer, clock: Clock, takes_s: float) -> None:
    timer.begin()
    clock.now += takes_s
    timer.end()


def test_a_snapshot_is_due_once_a_second() -> None:
    timer = SnapshotTimer(clock := Clock())
    timer.restart()
    written(timer, clock, SNAPSHOT_TAKES_S / 2)
    assert due_after(timer, clock, SNAPSHOT_EVERY_S * 0.99) == (False, False)
    assert due_after(timer, clock, SNAPSHOT_EVERY_S) == (True, True)


def test_one_that_takes_long_comes_later_while_there_are_records() -> None:
    timer = SnapshotTimer(clock := Clock())
    written(timer, clock, SNAPSHOT_TAKES_S * 5)
    assert due_after(timer, clock, SNAPSHOT_EVERY_S * 4.9) == (False, True)
    assert due_after(timer, clock, SNAPSHOT_EVERY_S * 5.1) == (True, True)
    written(timer, clock, SNAPSHOT_TAKES_S * 1_000)
    assert due_after(timer, clock, SNAPSHOT_EVERY_S * (SNAPSHOT_LATER - 0.1)) == (False, True)
    assert due_after(timer, clock, SNAPSHOT_EVERY_S * (SNAPSHOT_LATER + 0.1)) == (True, True)


def test_a_store_that_was_opened_begins_anew() -> None:
    timer = SnapshotTimer(clock := Clock())
    written(timer, clock, SNAPSHOT_TAKES_S * 1_000)
    timer.restart()
    assert due_after(timer, clock, SNAPSHOT_EVERY_S) == (True, True)
