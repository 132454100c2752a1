"""Since when a lane's first uncommitted record has been there."""

from __future__ import annotations

import numpy as np

from kafka_ratchet.transport.batch import kernels
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.lane_spec import LaneStatus
from kafka_ratchet.transport.unread import Unread


def batch(start: int, *timestamps: int) -> RecordBatch:
    columns = np.zeros((kernels.COLUMNS, len(timestamps)), np.int64)
    columns[kernels.TIMESTAMP] = timestamps
    return RecordBatch("in", 0, start, start + max(1, len(timestamps)), np.empty(0, np.uint8), columns)


def test_the_first_uncommitted_record_tells() -> None:
    unread = Unread()
    assert unread.since_ms is None
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
