"""The way through the input, where operators have moved a partition."""

from __future__ import annotations

import pytest

from kafka_ratchet.app.verify.legs import Leg, UnknownOrder, legs_of
from kafka_ratchet.transport.owner import Decision


def moved(before: int | None, after: int | None, at: str = "2026-01-01", what: str = "resume") -> Decision:
    return Decision(at, "ann", what, "because", before, after)


@pytest.mark.parametrize(
    ("decisions", "expected"),
    [
        ([], [Leg(0, 100)]),
        ([moved(10, 20)], [Leg(0, 10), Leg(20, 100)]),
        ([moved(50, 20)], [Leg(0, 50), Leg(20, 100)]),
        ([moved(50, 20, what="resume --forget")], [Leg(0, 50), Leg(20, 100, True)]),
        ([moved(50, 20), moved(70, 80)], [Leg(0, 50), Leg(20, 70), Leg(80, 100)]),
        ([moved(None, None)], [Leg(0, 100)]),
    ],
)
def test_legs(decisions: list[Decision], expected: list[Leg]) -> None:
    assert legs_of(decisions, 0, 100, 0) == expected


def test_decisions_that_an_earlier_run_has_followed_are_done_with() -> None:
    decisions = [moved(10, 20), moved(50, 60, "2026-02-01")]
    assert legs_of(decisions, 40, 100, 30, "2026-01-01") == [Leg(40, 50), Leg(60, 100)]


@pytest.mark.parametrize(
    ("decisions", "held", "says"),
    [
        ([], 5, "input offsets 0 to 4 are deleted"),
        ([moved(None, 20)], 0, "ann set the partition's position to offset 20 at 2026-01-01"),
        ([moved(50, 20), moved(10, 30)], 0, "is unknown"),
        ([moved(10, 10)] * 100, 0, "the newest 100 decisions"),
    ],
)
def test_where_nobody_knows_what_was_read(decisions: list[Decision], held: int, says: str) -> None:
    with pytest.raises(UnknownOrder, match=says):
        legs_of(decisions, 0, 100, held)


def test_what_was_skipped_may_be_deleted() -> None:
    assert legs_of([moved(0, 20)], 0, 100, 20) == [Leg(0, 0), Leg(20, 100)]
