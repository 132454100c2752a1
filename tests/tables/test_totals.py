"""Totals are read as they were written."""

from __future__ import annotations

import pytest

from kafka_ratchet.tables.totals import Progress


@pytest.mark.parametrize("number", [0, 1, 2**63 - 1])
def test_progress_is_read_as_it_was_packed(number: int) -> None:
    progress = Progress(number, number, number, number)
    assert Progress.unpack(progress.pack()) == progress
