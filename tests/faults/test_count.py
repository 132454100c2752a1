"""The count notices whatever may go wrong, or its zeros would mean nothing."""

from __future__ import annotations

import itertools

import pytest

from faults.count import Difference, compare, expected
from faults.events import IDENTITIES, PARTITIONS, Event, events

A, B = (0, "a"), (1, "b")


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        ({A: [1, 2, 5], B: [3]}, Difference()),
        ({A: [1, 5], B: [3]}, Difference(lost=1)),
        ({A: [1, 2, 5]}, Difference(lost=1)),
        ({A: [1, 2, 2, 5], B: [3]}, Difference(doubled=1)),
        ({A: [1, 2, 5], B: [3], (2, "c"): [1]}, Difference(doubled=1)),
        ({A: [2, 1, 5], B: [3]}, Difference(reordered=1)),
        ({A: [1, 2, 5, 1, 2, 5], B: []}, Difference(lost=1, doubled=3, reordered=1)),
    ],
)
def test_every_difference_is_counted(found: dict[tuple[int, str], list[int]], difference: Difference) -> None:
    assert compare({A: [1, 2, 5], B: [3]}, found) == difference


def test_only_what_moves_a_sequence_forward_is_expected() -> None:
    sent = [Event(0, "k", "p", 5), Event(0, "j", "p", 4), Event(0, "k", "p", 5), Event(1, "k", "p", 1)]
    assert expected(sent, "key") == {(0, "k"): [5], (0, "j"): [4], (1, "k"): [1]}
    assert expected(sent, "producer") == expected(sent, "producer") == {(0, "p"): [5], (1, "p"): [1]}
    assert expected(sent, "partition") == {(0, ""): [5], (1, ""): [1]}


def test_events_are_the_same_for_a_seed_and_bring_repeats_for_every_kind_of_identity() -> None:
    sent = list(itertools.islice(events(7), 20_000))
    assert sent == list(itertools.islice(events(7), 20_000))
    assert sent != list(itertools.islice(events(8), 20_000))
    assert {event.partition for event in sent} == set(range(PARTITIONS))
    for kind in IDENTITIES:
        kept = sum(map(len, expected(sent, kind).values()))
        assert 0.7 * len(sent) < kept < 0.9 * len(sent)
