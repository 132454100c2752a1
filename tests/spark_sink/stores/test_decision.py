"""First offsets of a table's records after a decision."""

from __future__ import annotations

import pytest

from kafka_ratchet.spark_sink.stores.decision import first_after


@pytest.mark.parametrize(
    ("first", "before", "after", "expected"),
    [
        ({}, {}, {0: 7, 1: 9}, {0: 7, 1: 9}),
        ({0: 5, 1: 9}, {0: 6, 1: 10}, {0: 3, 1: 20}, {0: 3, 1: 9}),
        ({0: 5}, {0: 6, 1: 8}, {1: 4}, {0: 5}),
    ],
    ids=["start", "back and on", "one partition"],
)
def test_records_begin_with_the_start_or_further_back(
    first: dict[int, int], before: dict[int, int], after: dict[int, int], expected: dict[int, int]
) -> None:
    assert first_after(first, before, after) == expected
