"""Judged intervals of the input: from policies to entries, and from entries to intervals again."""

from __future__ import annotations

import pytest

from kafka_ratchet.errors import StateError
from kafka_ratchet.tables.policy_intervals import PolicyInterval, PolicyIntervals
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.policy import Policy
from tests.tables.fetched_records import Sent, fetched, named, stored

ON, OFF = Policy(True, 5), Policy(False, 6)


def batch(start: int, count: int = 2) -> RecordBatch:
    return fetched(named(b"a", *range(count)), start)


def committed(*steps: tuple[Policy, int]) -> list[PolicyInterval]:
    intervals = PolicyIntervals()
    for policy, start in steps:
        intervals.push(policy, batch(start))
        intervals.commit()
    return list(intervals)


def test_where_nothing_was_ever_said_there_is_nothing() -> None:
    intervals = PolicyIntervals()
    intervals.push(Policy(), batch(0))
    assert (intervals.encode(), intervals.last) == ([], None)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([(Policy(), 0), (ON, 2), (ON, 4)], [(0, True, 2, 2, 5, 0)]),
        ([(Policy(), 0), (OFF, 2), (OFF, 4)], [(0, False, 2, 6, 6, 4)]),
        # A record was compacted away: what was once known is still demanded of whoever comes next.
        ([(Policy(False, 6), 0), (Policy(False, 3), 2)], [(0, False, 0, 4, 6, 4)]),
        ([(OFF, 0), (Policy(False, 9), 2)], [(0, False, 0, 4, 9, 4)]),
        ([(OFF, 0), (Policy(True, 7), 2), (Policy(True, 8), 4)], [(0, False, 0, 2, 6, 2), (1, True, 2, 2, 8, 0)]),
        # Offsets without records that count lie between.
        ([(OFF, 0), (OFF, 9)], [(0, False, 0, 11, 6, 4)]),
        # A person has set the position back.
        ([(OFF, 10), (OFF, 4)], [(0, False, 10, 12, 6, 2), (1, False, 4, 6, 6, 2)]),
        ([(Policy(False, 0), 0)], [(0, False, 0, 2, 0, 2)]),  # by the settings alone
    ],
)
def test_policies_become_intervals(steps: list[tuple[Policy, int]], expected: list[tuple[object, ...]]) -> None:
    assert committed(*steps) == expected


def test_entries_are_what_was_pushed_and_lost_with_the_transaction() -> None:
    intervals, again = PolicyIntervals(), PolicyIntervals()
    intervals.push(OFF, batch(0))
    intervals.rollback()
    assert intervals.encode() == []
    intervals.push(OFF, batch(0))
    intervals.push(Policy(True, 7), batch(2))
    log = read_chunk("changelog", 0, 0, stored(intervals.encode(), 0), [])
    intervals.commit()
    others = [Sent(b"p", b"1"), Sent(None, b"2"), Sent(b"is", b"3"), Sent(b"", b"4")]
    mixed = fetched([*others, *(Sent(log.key(i), log.value(i)) for i in range(log.count))], 40)
    rest = again.apply(mixed)
    assert [rest.key(i) for i in range(rest.count)] == [b"p", None, b"is", b""]
    assert (rest.start, rest.next) == (40, 46)
    assert list(again) == list(intervals)
    assert again.unjudged == intervals.unjudged == 2


@pytest.mark.parametrize("damage", ["short", "long", "version", "key", "tombstone"])
def test_an_entry_that_ratchet_did_not_write(damage: str) -> None:
    key, value = PolicyInterval(0, False, 1, 2, 3, 4).pack()
    entries = {
        "short": (key, value[:-1]),
        "long": (key, value + b"\0"),
        "version": (key, b"\2" + value[1:]),
        "key": (key + b"\0", value),
        "tombstone": (key, None),
    }
    with pytest.raises(StateError, match=r"events, partition 0, offset 9: a policy entry"):
        PolicyIntervals().apply(fetched([Sent(*entries[damage])], 9))
