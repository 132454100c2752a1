"""Totals are read as they were written."""

from __future__ import annotations

import pytest

from kafka_ratchet.tables.totals import Progress


@pytest.mark.parametrize("number", [0, 1, 2**63 - 1])
def test_progress_is_read_as_it_was_packed(number: int) -> None:
    progress = Progress(number, number, number, number)
    assert Progress.unpack(progress.pack()) == progress


def test_records_of_every_verdict_were_judged() -> None:
    assert Progress(99, 1, 20, 300, late=4_000, conflict=50_000).judged == 54_321
