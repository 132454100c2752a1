"""The programs of agents/examples/, over records whose results can be told by eye."""

from __future__ import annotations

from itertools import permutations

import pytest

from kafka_ratchet.agents.examples import enrichment, late_events, running_totals, shared_table_join, three_in_a_minute
from kafka_ratchet.testing import Record, run

MINUTE_MS = 60_000


def test_running_totals() -> None:
    orders = [{"user": "ann", "amount": 3}, {"user": "bob", "amount": 1}, {"user": "ann", "amount": 4}]
    ran = run(running_totals.app, {"orders": orders})
    assert ran.values == [{"user": "ann", "total": 3}, {"user": "bob", "total": 1}, {"user": "ann", "total": 7}]
    assert ran.tables == {"totals": {"ann": 7, "bob": 1}}


@pytest.mark.parametrize("batch", [1, 100])
def test_late_events(batch: int) -> None:
    minutes = [1.0, 1.5, 2.0, 1.9, 12.5, 1.99, 2.5]  # 12.5: windows that end at or before 2.5 are over
    views = [Record({"page": "/"}, timestamp=int(minute * MINUTE_MS)) for minute in minutes]
    ran = run(late_events.app, {"views": views}, batch=batch)
    assert [value["views"] for value in ran.values] == [1, 2, 1, 3, 1, 2]
    (letter,) = ran.dead_letters
    assert b"more than ten minutes late" in (dict(letter.headers)["ratchet-reason"] or b"")


def test_enrichment() -> None:
    orders = [{"order": "1", "country": "de", "amount": 200}, {"order": "2", "country": "xx", "amount": 1}]
    germany = {"name": "Germany", "tax_percent": 19}
    ran = run(enrichment.app, {"orders": orders}, tables={"countries": {"de": germany}})
    assert ran.values == [{"order": "1", "country": "Germany", "amount": 200, "tax": 38}]
    assert [letter.value["order"] for letter in ran.dead_letters] == ["2"]


@pytest.mark.parametrize(
    ("seconds", "alerts"),
    [
        ([0, 30, 59], [3]),
        ([0, 30, 60], []),
        ([50, 59, 61], [3]),  # around the end of a minute of the clock
        ([0, 1, 2, 3, 63], [3, 4]),
        ([0, 59, 30], [3]),
        ([100, 101, 0, 102], [3]),  # the third is from a minute that is over
    ],
)
def test_three_in_a_minute(seconds: list[int], alerts: list[int]) -> None:
    rows = [Record({"card": "c", "amount": 1}, "c", 1_700_000_000_000 + at * 1000) for at in seconds]
    others = [Record({"card": f"other-{at}", "amount": 1}, "o", 1_700_000_000_000 + at * 1000) for at in seconds]
    mixed = [row for pair in zip(rows, others, strict=True) for row in pair]
    assert [value["payments"] for value in run(three_in_a_minute.app, {"payments": mixed}).values] == alerts


def test_shared_table_join() -> None:
    app = shared_table_join.app
    orders = [{"number": "1", "amount": 10}, {"number": "2", "amount": 20}, {"number": "3", "amount": 30}]
    payments = [{"order": "2", "paid": 20}, {"order": "1", "paid": 4}, {"order": "4", "paid": 1}]
    joined = [{"number": "1", "amount": 10, "open": 6}, {"number": "2", "amount": 20, "open": 0}]
    ran = run(app, {"orders": orders, "payments": payments})
    assert sorted(ran.values, key=str) == sorted(joined, key=str)
    assert ran.tables["waiting"].keys() == {"3", "4"}


def test_it_joins_whichever_half_comes_first() -> None:
    halves = [{"number": "1", "amount": 10}, {"number": "2", "amount": 20}, {"number": "2", "paid": 20}]
    for order in permutations([*halves, {"number": "1", "paid": 4}]):
        ran = run(shared_table_join.app, {"halves": order})
        assert sorted((value["number"], value["open"]) for value in ran.values) == [("1", 6), ("2", 0)]
        assert ran.tables == {"waiting": {}}
