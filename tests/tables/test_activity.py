"""Activity counts by name: exact, of committed records only, and bounded."""

from __future__ import annotations

from collections import Counter
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ratchet.rule.kernels import DUPLICATE, FRESH, INVALID
from kafka_ratchet.tables.activity import MOST_IN_A_BATCH, SAMPLE, Activity, ActivityCounter
from kafka_ratchet.transport.batch import kernels as records
from tests.tables.fetched_records import fetched, named

NAMES = [b"a", b"b", b"aa", b"\xff", b"a\0", *(b"%d" % i for i in range(20))]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from([FRESH, DUPLICATE, INVALID])), max_size=60))
def test_counts_are_those_of_a_plain_counter(rows: list[tuple[bytes, int]]) -> None:
    tally = ActivityCounter(records.SECOND, lambda: 7.0)
    tally.add(fetched([each for name, _ in rows for each in named(name, 1)]), np.array([v for _, v in rows], np.uint8))
    assert all(tally.of(name) is None for name in NAMES)
    tally.commit()
    counted = Counter(rows)
    for name in NAMES:
        fresh, duplicate = counted[name, FRESH], counted[name, DUPLICATE]
        assert tally.of(name) == (Activity(7.0, fresh, duplicate) if fresh + duplicate else None)


def test_what_is_lost_with_its_transaction_is_not_counted() -> None:
    clock = count(100)
    tally = ActivityCounter(records.SECOND, lambda: float(next(clock)))
    verdicts = np.array([FRESH, DUPLICATE], np.uint8)
    for _ in range(2):
        tally.add(fetched(named(b"a", 1, 1)), verdicts)
        tally.rollback()
    tally.add(fetched(named(b"a", 1, 1)), verdicts)
    tally.commit()
    tally.add(fetched(named(b"a", 1, 1)), verdicts)
    tally.commit()
    assert tally.of(b"a") == Activity(102.0, 2, 2)
    assert tally.since == 100.0


def test_a_large_batch_is_estimated_from_a_sample_and_who_moved_was_seen_all_the_same() -> None:
    tally = ActivityCounter(records.SECOND, lambda: 7.0)
    size = 20 * SAMPLE
    verdicts = np.tile(np.array([FRESH, DUPLICATE], np.uint8), size // 2)  # each sent twice in a row
    tally.add(fetched(named(b"a", *range(size))), verdicts)
    tally.commit([b"a", b"rare"])
    seen = tally.of(b"a")
    assert seen is not None
    assert seen.fresh + seen.duplicate == pytest.approx(size)
    # 256 drawn of halves: ten standard deviations are 0.32.
    assert abs(seen.duplicate / size - 0.5) < 0.32
    assert tally.of(b"rare") == Activity(7.0, 0, 0)


def test_too_many_names_in_a_batch_are_said_and_too_many_in_all_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    tally = ActivityCounter(records.SECOND)
    for names in (MOST_IN_A_BATCH, MOST_IN_A_BATCH + 1):
        batch = fetched([each for i in range(names) for each in named(b"%d" % i, 1)])
        tally.add(batch, np.zeros(names, np.uint8))
        tally.commit()
    assert tally.not_tallied == MOST_IN_A_BATCH + 1
    assert tally.of(b"127") is not None
    monkeypatch.setattr("kafka_ratchet.tables.activity.MOST_NAMES", 2)
    for name in (b"0", b"new"):
        tally.add(fetched(named(name, 2)), np.zeros(1, np.uint8))
        tally.commit()
    assert [name for name in (b"0", b"1", b"127", b"new") if tally.of(name)] == [b"0", b"new"]
    assert tally.forgotten == MOST_IN_A_BATCH - 1
