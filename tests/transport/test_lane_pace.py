"""Times for which a transaction stays open."""

from __future__ import annotations

import pytest

from kafka_ratchet.transport.lane import BEHIND_S, WORTH_A_COMMIT, open_s


@pytest.mark.parametrize("left", [None, 0, 1, WORTH_A_COMMIT])
@pytest.mark.parametrize("records", [0, 1, WORTH_A_COMMIT - 1, WORTH_A_COMMIT, 1_000_000])
def test_a_long_interval_is_kept_always(records: int, left: int | None) -> None:
    assert open_s(BEHIND_S, records, left=left) == BEHIND_S
    assert open_s(3.0, records, left=left) == 3.0


@pytest.mark.parametrize(
    ("records", "left", "seconds"),
    [
        (1, 0, 0.01),  # results are not held back where records come one by one
        (1, WORTH_A_COMMIT - 1, 0.01),  # and not where some have come since it looked
        (WORTH_A_COMMIT, 0, 0.01),
        (WORTH_A_COMMIT, 1_000_000, 0.01),
        (WORTH_A_COMMIT, None, 0.01),
        (WORTH_A_COMMIT - 1, WORTH_A_COMMIT, BEHIND_S),
        (0, 1_000_000, BEHIND_S),
        (0, None, BEHIND_S),
    ],
)
def test_a_short_one_waits_for_more_only_where_much_is_to_be_read(
    records: int, left: int | None, seconds: float
) -> None:
    assert open_s(0.01, records, left=left) == seconds
