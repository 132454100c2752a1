"""Rows next to records, without a table: what a commit that comes in meanwhile may look like."""

from __future__ import annotations

import numpy as np
import pytest

from kafka_ratchet.app.verify.rows import StoredOffsets, match

RECORDS = np.array([0, 1, 2, 5, 6, 9], np.int64)  # between them are markers and aborted records


def numbers(*offsets: int) -> np.ndarray:
    return np.array(offsets, np.int64)


@pytest.mark.parametrize(
    ("rows", "rejects", "ahead", "lost", "waiting", "early", "unmatched"),
    [
        ((2, 0, 1), (5,), False, [], [6, 9], [], []),
        # A commit up to 9 came in while the table was read: its rows may be there or not.
        ((2, 0, 1, 6), (5,), False, [], [9], [], []),
        ((0, 1), (5,), False, [2], [6, 9], [], []),
        ((0, 1, 2, 5, 9), (), False, [], [6], [9], []),
        ((0, 1, 2, 5), (9,), False, [], [6], [9], []),
        ((0, 1, 2, 5), (9,), True, [], [6], [], []),
        ((0, 1, 2, 5, 9), (), True, [], [6], [9], []),
        ((0, 1, 2, 5, 3, -1), (3, 77), False, [], [6, 9], [], [-1, 3, 77]),
        ((), (), False, [0, 1, 2, 5], [6, 9], [], []),
    ],
)
def test_rows_and_records(
    rows: tuple[int, ...],
    rejects: tuple[int, ...],
    ahead: bool,
    lost: list[int],
    waiting: list[int],
    early: list[int],
    unmatched: list[int],
) -> None:
    found = match(RECORDS, numbers(*rows), numbers(*rejects), StoredOffsets(6, 9), rejects_ahead=ahead)
    assert RECORDS[found.steps.lost].tolist() == lost
    assert RECORDS[found.steps.waiting].tolist() == waiting
    assert RECORDS[found.early].tolist() == early
    assert found.unmatched.tolist() == unmatched
    assert found.unmatched_times.sum() == sum(offset in unmatched for offset in (*rows, *rejects))


def test_an_empty_output() -> None:
    found = match(numbers(), numbers(3, 3), numbers(4), StoredOffsets(0, 0))
    assert (found.unmatched.tolist(), found.unmatched_times.tolist()) == ([3, 4], [2, 1])


def test_records_before_the_start_of_the_first_run() -> None:
    found = match(RECORDS, numbers(1, 5), numbers(), StoredOffsets(6, 9, first=2))
    assert RECORDS[found.left_out].tolist() == [0]  # a replay may have made a row of offset 1
    assert RECORDS[found.steps.lost].tolist() == [2]
    assert RECORDS[found.steps.waiting].tolist() == [6, 9]
