"""How long a transaction stays open."""

from __future__ import annotations

import pytest

from kafka_ratchet.transport.pace import BEHIND_S, WORTH_A_COMMIT, open_s


@pytest.mark.parametrize("caught_up", [True, False])
@pytest.mark.parametrize("records", [0, 1, WORTH_A_COMMIT - 1, WORTH_A_COMMIT, 1_000_000])
def test_a_long_interval_is_kept_always(records: int, caught_up: bool) -> None:
    assert open_s(BEHIND_S, records, caught_up=caught_up) == BEHIND_S
    assert open_s(3.0, records, caught_up=caught_up) == 3.0


@pytest.mark.parametrize(
    ("records", "caught_up", "seconds"),
    [
        (1, True, 0.01),  # results are not held back where records come one by one
        (WORTH_A_COMMIT, True, 0.01),
        (WORTH_A_COMMIT, False, 0.01),
        (WORTH_A_COMMIT - 1, False, BEHIND_S),
        (0, False, BEHIND_S),
    ],
)
def test_a_short_one_waits_for_more_only_where_more_is_to_be_read(
    records: int, caught_up: bool, seconds: float
) -> None:
    assert open_s(0.01, records, caught_up=caught_up) == seconds
