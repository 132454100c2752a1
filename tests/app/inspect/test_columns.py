"""The terminal and the page draw a table from the same columns."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import aiohttp_jinja2
import jinja2
import pytest
from aiohttp import web
from markupsafe import Markup
from rich.console import Console

from kafka_ratchet.app.inspect.columns import shown_columns, terminal_table
from kafka_ratchet.app.inspect.event import EventTrace, judgement, row_phrase
from kafka_ratchet.app.inspect.streams import TERMINAL_COLUMNS, partition_notices
from kafka_ratchet.app.status.model import PartitionView, Totals
from kafka_ratchet.app.web.render import set_up_templates
from kafka_ratchet.app.why.answer import Answer, InputRecord, RecordPosition, Result
from kafka_ratchet.rule.verdicts import PHRASES
from kafka_ratchet.transport.stalls import Stall, StallCause

ROW = PartitionView(
    3, "worker <a>", "running", 5, 1_000, None, None, 9, 12, 7, 1_234, 2, also_reported_by=["b"], unjudged=4
)
TOTALS = Totals(5, None, 7, 1_234, 2, None, 0)


@pytest.fixture
def templates() -> jinja2.Environment:
    application = web.Application()
    set_up_templates(application, [], lambda said: Markup.escape(str(said)))
    return aiohttp_jinja2.get_env(application)


@pytest.fixture
def macros(templates: jinja2.Environment) -> Any:
    return templates.get_template("_macros.html").module


def test_terminal_and_page_have_the_same_headings_and_values(macros: Any) -> None:
    columns = shown_columns(TERMINAL_COLUMNS, TOTALS)
    headings = re.findall(r"<th[^>]*>([^<]*)</th>", macros.headings(columns))
    table = terminal_table("t", columns, [ROW], TOTALS)
    assert headings == [str(column.header) for column in table.columns]
    assert headings[:5] == ["Partition", "State", "Fresh", "Duplicate", "Invalid"]
    html = str(macros.cells(columns, ROW))
    for text in ("1,234", "1,000", "<small>and 4 unjudged</small>", "<small>of 12</small>", "worker &lt;a&gt;"):
        assert text in html
    assert html.count("not known") == 2  # end and lag
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table)
    assert "1,234" in capture.get()
    assert "worker <a> (also b)" in capture.get()


def test_a_halted_partition_has_one_sentence() -> None:
    row = replace(ROW, state="halted", error="corrupt", stalled=Stall(StallCause.HALTED, "corrupt", 0.0))
    assert partition_notices(row) == ["Partition 3: corrupt"]
    row = replace(row, state="running", error=None, stalled=Stall(StallCause.NO_LEADER, "no leader", 0.0))
    assert partition_notices(row) == ["Partition 3 stands still (no-leader): no leader"]


def test_a_record_that_a_job_has_not_read_yet(templates: jinja2.Environment) -> None:
    arrival = InputRecord(
        RecordPosition("in", 0, 4), "2026-01-01T00:00:00.000Z", 7, "fresh", forwarded=RecordPosition("out", 0, 9)
    )
    assert judgement(arrival) == f"{PHRASES['fresh']}; the first of its identity"
    assert row_phrase(arrival, Result("t", "j", 2)) == "not yet in t: job j has read up to offset 2"
    arrival.results = [Result("t", "j", 2)]
    found = EventTrace(Answer("events", "key 'a'", b"a", 7, [arrival]), "ratchet why")
    assert list(found.as_dict())[-3:] == ["asked", "identity_hex", "command"]
    html = templates.get_template("event.html").render(
        found=found,
        problem=None,
        asked={},
        most=20,
        path="/event",
        settings=SimpleNamespace(app="a", streams={"events": None}),
        access=SimpleNamespace(may_write=False, session=False, form_mark=""),
    )
    assert "Fresh; the first of its identity." in html
    assert "Not yet in t: job j has read up to offset 2." in html
