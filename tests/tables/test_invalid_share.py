"""Jumps in the share of invalid records."""

from __future__ import annotations

from kafka_ratchet.tables.invalid_share import InvalidShare, RecentShare
from kafka_ratchet.tables.totals import Progress


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def after(fresh: int, invalid: int) -> Progress:
    return Progress(0, fresh, 0, invalid)


def test_the_last_minute_is_held_against_all_before_it() -> None:
    clock = Clock()
    recent = RecentShare(clock)
    recent.note(after(9_000, 90), after(10_000, 100))
    clock.now += 61
    recent.note(after(10_000, 100), after(10_100, 100))
    clock.now += 30
    recent.note(after(10_100, 100), after(10_100, 120))
    assert recent.share() == InvalidShare(120, 20, 10_100, 100)
    assert recent.share().has_jumped
    clock.now += 61  # nothing came since
    assert recent.share() == InvalidShare(0, 0, 10_220, 120)
    assert not recent.share().has_jumped


def test_what_no_jump_is() -> None:
    assert not InvalidShare(1_000, 9, 1_000, 0).has_jumped  # too few to say
    assert not InvalidShare(9, 9, 0, 0).has_jumped
    assert not InvalidShare(1_000, 100, 1_000, 90).has_jumped  # it was so before
    assert InvalidShare(10, 10, 0, 0).has_jumped  # a stream that begins with nothing else
    assert InvalidShare(1_000, 50, 1_000_000, 0).has_jumped
