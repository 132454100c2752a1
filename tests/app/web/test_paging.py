"""Long tables, a page at a time."""

import pytest

from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.status.lookup import QueryError
from kafka_ratchet.app.web.pages.dropped import wanted_of
from kafka_ratchet.app.web.paging import Paged, paged
from kafka_ratchet.app.why.dropped import LOOK_MOST, READ_MOST


def test_each_row_is_on_one_page() -> None:
    rows = [*range(120)]
    found = [paged(rows, {"page": str(number)}) for number in (1, 2, 3)]
    assert [row for each in found for row in each.rows] == rows
    assert [len(each.rows) for each in found] == [50, 50, 20]
    assert {each.pages for each in found} == {3}
    assert paged(rows, {}) == paged(rows, {"page": ""}) == found[0]
    assert paged([], {}) == Paged([], 1, 1)


@pytest.mark.parametrize("page", ["0", "4", "-1", "1.0", "x", "\u0661", "9" * 50])
def test_a_page_that_is_not_there_is_refused(page: str) -> None:
    with pytest.raises(QueryError, match="from 1 to 3"):
        paged([*range(120)], {"page": page})


def test_a_look_reads_less_than_a_question() -> None:
    stream = StreamSettings(input="in", output="out", dead_letters="dead")
    settings = Settings(streams={"events": stream})
    assert wanted_of(settings, "events", {"limit": "7", "values": "1"}, 200, 20).most == LOOK_MOST
    for name, value in (("reason", "x"), ("identity", "x"), ("hex", "00"), ("partition", "1"), ("since", "2026-01-01")):
        assert wanted_of(settings, "events", {name: value}, 200, 20).most == READ_MOST
    assert wanted_of(settings, "events", {}, 10_000, 10_000).most == READ_MOST  # a file
