"""Records at the edges of a fault run of the sink: each is told by its value, and its timestamp is known."""

from __future__ import annotations

import datetime
import json

from faults import edges


def test_a_record_is_told_by_its_value() -> None:
    for n in range(1_000):
        assert edges.number(edges.value(n).encode()) == n
        assert json.loads(edges.value(n))["n"] == n
        assert edges.number(edges.rejected_value(n).encode()) == n
        assert edges.number(b"%d is no JSON" % n) == n


def test_timestamps_are_right_or_null() -> None:
    first, nanoseconds = 7, 7 + edges.EVERY
    assert edges.is_right(first, datetime.datetime(1, 1, 1, tzinfo=datetime.UTC))
    assert not edges.is_right(first, datetime.datetime(1, 1, 3, tzinfo=datetime.UTC))  # by the Julian calendar
    assert not edges.is_right(first, None)
    assert edges.is_right(nanoseconds, None)
    assert not edges.is_right(nanoseconds, datetime.datetime(2026, 9, 21, tzinfo=datetime.UTC))
    assert edges.is_right(8, datetime.datetime(2026, 9, 21, tzinfo=datetime.UTC))
    assert not edges.is_right(8, None)
