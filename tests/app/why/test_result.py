"""By which commit a record came into the table."""

from __future__ import annotations

import pytest

from kafka_ratchet.app.why.answer import Place
from kafka_ratchet.app.why.result import oldest_past


@pytest.mark.parametrize(
    ("offset", "commit"),
    [(0, "version 1"), (4, "version 1"), (5, "version 3"), (8, "version 3"), (9, None)],
)
def test_it_is_the_oldest_whose_offset_is_past_it(offset: int, commit: str | None) -> None:
    commits = [
        ("version 4", {0: 9}),
        ("version 3", {0: 9}),
        ("version 2", {0: 5}),
        ("version 1", {0: 5}),
        ("version 0", {}),
    ]
    assert oldest_past(commits, Place("out", 0, offset)) == commit


def test_where_older_ones_are_cleaned_up_it_is_that_or_an_older_one() -> None:
    assert oldest_past([("version 9", {0: 50})], Place("out", 0, 7)) == "version 9 at the latest"
    assert oldest_past([], Place("out", 0, 7)) is None
