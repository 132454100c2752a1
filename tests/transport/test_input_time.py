"""Time since which a lane's first uncommitted record waits, and the time until which its input is judged."""

from __future__ import annotations

import numpy as np

from kafka_ratchet.transport.arrivals import Arrivals
from kafka_ratchet.transport.batch import kernels
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.input_time import InputEnd, PendingTimestamps
from kafka_ratchet.transport.lane_spec import LaneStatus


def batch(start: int, *timestamps: int) -> RecordBatch:
    columns = np.zeros((kernels.COLUMNS, len(timestamps)), np.int64)
    columns[kernels.TIMESTAMP] = timestamps
    return RecordBatch("in", 0, start, start + max(1, len(timestamps)), np.empty(0, np.uint8), columns)


def test_the_first_uncommitted_record_tells() -> None:
    unread = PendingTimestamps()
    before = unread.since_ms
    assert before is None
    unread.fetched(batch(0, 10, 20))
    unread.fetched(batch(2, 30, 40))  # fetched while the first is worked on
    unread.fetched(batch(4))  # markers only
    assert unread.since_ms == 10
    unread.committed(2)
    assert unread.since_ms == 30
    unread.committed(5)
    assert unread.since_ms == 40  # the next was not fetched yet
    unread.clear()
    assert unread.since_ms is None


def test_the_lag_in_seconds_is_not_known_before_a_record_was_fetched() -> None:
    status = LaneStatus()
    assert status.lag_s(100.0) is None
    status.position, status.end = 5, 7
    assert status.lag_s(100.0) is None
    status.unread_since_ms = 40_000
    assert status.lag_s(100.0) == 60.0
    assert status.lag_s(30.0) == 0.0  # a clock that is ahead of ours
    status.position = 7
    assert status.lag_s(100.0) == 0.0


def test_offsets_after_the_last_stable_one_are_held_back() -> None:
    status = LaneStatus()
    assert status.blocked == 0
    status.saw_ends(5, 8, 100.0)
    assert (status.blocked, status.blocked_since) == (3, 100.0)
    status.saw_ends(5, 9, 101.0)
    assert (status.blocked, status.blocked_since) == (4, 100.0)
    status.saw_ends(9, 9, 102.0)
    assert (status.blocked, status.blocked_since) == (0, None)


def test_a_lane_is_behind_since_the_first_record_that_it_has_not_committed() -> None:
    status, behind = LaneStatus(), list[float | None]()

    def progressed(position: int, now_s: float) -> None:
        status.progressed(position, now_s)
        behind.append(status.behind_since)

    def saw_end(end: int, now_s: float) -> None:
        status.saw_ends(end, end, now_s)
        behind.append(status.behind_since)

    progressed(3, 50.0)  # the end of the input is unknown
    saw_end(4, 100.0)
    saw_end(5, 101.0)
    progressed(4, 102.0)
    progressed(5, 103.0)
    assert behind == [None, 100.0, 100.0, 102.0, None]


def test_an_answer_holds_as_of_its_question() -> None:
    end = InputEnd()
    assert end.judged_until_ms(0) is None  # nobody has asked
    end.record_end(7, end.known_ms)
    assert (end.judged_until_ms(6), end.judged_until_ms(7)) == (None, 0)  # nobody knows since when
    end.appended(1_000)
    asked = end.known_ms
    end.appended(5_000)
    end.appended(4_000)  # another broker's clock is behind
    assert end.known_ms == 5_000
    assert end.judged_until_ms(7) == 0  # what was appended since says nothing of the input
    end.record_end(9, 5_000)
    assert (end.judged_until_ms(8), end.judged_until_ms(9)) == (0, 5_000)
    end.record_end(8, asked)  # a fetch that was under way for longer: it says less, and of an earlier time
    assert end.judged_until_ms(9) == 5_000


def test_an_end_that_moves_faster_than_the_position_still_counts() -> None:
    end = InputEnd()
    for second in range(1, 9):  # a transaction is always open, so that the newest end is never reached
        end.record_end(10 * second + 5, 1_000 * second)
        assert not end.is_reached(10 * second)
        assert (end.judged_until_ms(10 * second) or 0) >= 1_000 * (second - 2)
    assert end.judged_until_ms(80) == 7_000
    assert (end.judged_until_ms(85), end.is_reached(85)) == (8_000, True)


class Copied(Arrivals):
    """Rounds that a test begins and proves."""

    def __init__(self) -> None:
        self.begun = self.proven = 0


def test_a_time_counts_once_what_arrived_before_it_is_copied() -> None:
    copied = Copied()
    end = InputEnd(copied)
    assert end.known_ms == 0
    end.appended(1_000)
    assert end.known_ms == 0
    copied.begun = 1
    end.appended(2_000)  # in the first round: a record before this time may have come after the ends were noted
    assert end.known_ms == 0
    copied.proven = 1
    assert end.known_ms == 1_000
    end.appended(3_000)
    assert end.known_ms == 1_000
    copied.begun = copied.proven = 2
    assert end.known_ms == 3_000
    end.appended(2_500)  # another broker's clock is behind
    end.record_end(4, end.known_ms)
    assert (end.judged_until_ms(3), end.judged_until_ms(4)) == (None, 3_000)
    copied.begun = 5  # given up: the topic was replaced
    assert end.known_ms == 3_000
