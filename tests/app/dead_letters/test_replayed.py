"""The set of replayed letters, as bitmaps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ratchet.app.dead_letters.reading import LetterTopic
from kafka_ratchet.app.dead_letters.replayed import BYTES, WINDOW, ReplayedLetters

PLACES = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3 * WINDOW) | st.integers(2**62, 2**62 + 9)), max_size=30)


@settings(deadline=None)
@given(PLACES, PLACES, PLACES)
def test_it_has_what_was_accepted_and_nothing_else(
    first: set[tuple[int, int]], second: set[tuple[int, int]], others: set[tuple[int, int]]
) -> None:
    one, copy = ReplayedLetters("topic-id"), ReplayedLetters("topic-id")
    for places in (first, second):
        changed = one.with_(places)
        for key, value in one.entries(changed):
            assert copy.take(key, value)
        one.accept(changed)
    one.with_(others)  # of a transaction that was not committed
    for found in (one, copy):
        assert len(found) == len(first | second)
        assert {place for place in first | second | others if place in found} == first | second


def test_entries_of_another_topic_and_strange_ones_change_nothing() -> None:
    one = ReplayedLetters("a")
    assert one.take(b"b/0/0", b"\xff" * BYTES)
    for key in (None, b"", b"a/0", b"a/0/-1", b"a/x/0", b"a/0/0/0", b"\xff/0/0", b"a/0/" + b"9" * 30):
        assert not one.take(key, b"\xff" * BYTES)
    assert not one.take(b"a/0/0", b"\xff")
    assert len(one) == 0
    assert one.take(b"a/0/1", b"\1" + bytes(BYTES - 1))
    assert (0, WINDOW) in one
    assert one.take(b"a/0/1", None)
    assert len(one) == 0


def test_the_set_of_a_former_application_counts_as_well() -> None:
    own, former = ReplayedLetters("a"), ReplayedLetters("a")
    own.accept(own.with_([(0, 1), (1, 9)]))
    former.accept(former.with_([(0, 1), (0, 2), (0, WINDOW)]))
    own.add_all(former)
    assert len(own) == 4
    assert all(place in own for place in [(0, 1), (1, 9), (0, 2), (0, WINDOW)])
    assert own.entries(own.with_([(0, 3)])) == [(b"a/0/0", bytes([0b1110]) + bytes(BYTES - 1))]


async def test_replays_under_a_former_name_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def replayed_by(self: LetterTopic, app: str) -> ReplayedLetters:
        found = ReplayedLetters("a")
        found.accept(found.with_([(0, {"new": 1, "old": 2}[app])]))
        return found

    monkeypatch.setattr(LetterTopic, "_replayed_by", replayed_by)
    letters = LetterTopic(None, SimpleNamespace(app="new"), "events", None, {})  # type: ignore[arg-type]
    for former, expected in (("", 1), ("new", 1), ("old", 2)):
        assert len(await letters.replayed(former)) == expected
