"""A command and its page show the same headings and sentences about one question."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import aiohttp_jinja2
import jinja2
import pytest
from aiohttp import web
from markupsafe import Markup
from rich.console import Console, RenderableType
from rich.table import Table

from kafka_ratchet.app.cli import own_tables as tables_command
from kafka_ratchet.app.cli.dead_letters import lines_of, table_of
from kafka_ratchet.app.cli.sink import show_status
from kafka_ratchet.app.dead_letters.letters import Letter, LetterOrigin
from kafka_ratchet.app.dead_letters.reading import LetterCounts, LetterView, ReasonCount
from kafka_ratchet.app.inspect import own_tables, policy, proof, sinks
from kafka_ratchet.app.inspect.dead_letters import DroppedPage, LetterRecord, letters_document
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.status.own_tables import AskedPartition, TableEntry, TablePage, TableQuery, TableValue
from kafka_ratchet.app.status.result_view import ResultPartition, Results, standstill_sentence
from kafka_ratchet.app.verify.findings import ResultsReport, SourceFinding, SourceReport
from kafka_ratchet.app.verify.proofs import proof_of
from kafka_ratchet.app.verify.report import Report, counts_sentence
from kafka_ratchet.app.web.paging import paged
from kafka_ratchet.app.web.render import set_up_templates
from kafka_ratchet.app.why.dropped import Count, DroppedCopy, NewestRecords
from kafka_ratchet.app.why.origin import OriginHeaders
from kafka_ratchet.app.worker.policy import Policies, StoredPolicy
from kafka_ratchet.spark_sink.job.plan import OffsetRange
from kafka_ratchet.spark_sink.job.status import SinkStatus

AT_MS = 1_700_000_000_000


@pytest.fixture
def templates() -> jinja2.Environment:
    application = web.Application()
    set_up_templates(application, [], lambda said: Markup.escape(str(said)))
    return aiohttp_jinja2.get_env(application)


def page(templates: jinja2.Environment, template: str, **context: Any) -> str:
    return templates.get_template(template).render(
        problem=None,
        asked={},
        path="/",
        settings=SimpleNamespace(app="a", streams={}),
        access=SimpleNamespace(may_write=False, session=False, form_mark=""),
        **context,
    )


def headings(html: str) -> list[str]:
    return re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', html)


def printed(*parts: RenderableType) -> str:
    console = Console(markup=False, highlight=False, width=200)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return capture.get()


def is_in(words: list[str], text: str) -> bool:
    """Whether these words come in this order."""
    return re.search(r"\s+".join(map(re.escape, words)), text) is not None


def test_sinks(templates: jinja2.Environment, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [ResultPartition(0, None, 5_000, 5_000, 12.5), ResultPartition(1, 7, 7, 0, 0.0)]
    results = Results("job", "delta", "/t", "out", 3, rows, 5_000, 12.5, name="job", error=standstill_sentence("gone"))
    shown = page(
        templates,
        "sink.html",
        found={"sink": results, "commits": [], "problem": None},
        name="job",
        paged=paged,
    )
    known = SinkStatus(3, {1: 7}, OffsetRange("out", {0: 0, 1: 0}, {0: 5_000, 1: 7}), {0: 12.5})
    progress = sinks.SinkProgress("delta", "job", "out", known, [])
    show_status(progress)
    text = capsys.readouterr().out
    assert headings(shown)[:5] == [column.heading for column in sinks.COLUMNS]
    assert is_in(headings(shown)[:5], text)
    assert sinks.NO_RECORDS in shown
    assert sinks.NO_RECORDS in " ".join(text.split())
    for value in ("5,000", "12.5"):
        assert value in shown
        assert value in text
    assert list(progress.as_dict()) == [
        "store",
        "job",
        "topic",
        "generation",
        "partitions",
        "lag",
        "lag_s",
        "trouble",
    ]
    assert progress.as_dict()["partitions"]["0"] == {"offset": None, "end": 5_000, "lag": 5_000, "lag_s": 12.5}
    show_status(sinks.SinkProgress("delta", "job", "out", SinkStatus(3, {}, known.offset_range, {}, "gone"), []))
    assert standstill_sentence("gone") in capsys.readouterr().out
    assert standstill_sentence("gone") in shown


def test_policy(templates: jinja2.Environment) -> None:
    streams = {
        name: StreamSettings(input=f"{name}.in", output=name, dead_letters=f"{name}.dead", deduplicate=setting)
        for name, setting in (("a", None), ("b", False))
    }
    policies = Policies(Settings(app="app", streams=streams))
    policies.stored["a"] = StoredPolicy(True, 4)
    found = policy.stream_policies(policies, streams)
    shown = page(
        templates,
        "policy.html",
        found=policy.PolicyPage("app-policy", [policy.PolicyRow(each) for each in found], [], 0),
    )
    for each in found:
        for words in (each.switch, str(each.origin)):
            assert words in policy.policy_sentence(each)
            assert words in shown
    assert policy.policy_sentence(found[0]) == "a: on (stream policy); policy on, setting unset"
    assert headings(shown) == [*(column.heading for column in policy.COLUMNS), "Command"]
    assert [each.change for each in found] == ["ratchet policy set off --stream a", ""]
    assert policy.policy_state(policies, ["a"], 0).as_dict() == {
        "global": {"policy": None, "setting": None},
        "streams": {"a": {"deduplicate": True, "origin": "stream policy", "policy": True, "setting": None}},
        "offset": 0,
    }
    assert "offset" not in policy.policy_state(policies, ["a"]).as_dict()


def dropped_page(reason: str) -> DroppedPage:
    record = DroppedCopy(
        0, 4, AT_MS, reason, b"id", OriginHeaders("in", 1, 7_000, reason, None, None), [("h", b"x")], b"key", None
    )
    counts = [Count(reason, 1, AT_MS, AT_MS)]
    sample = NewestRecords("dead", 5, 5, 1, [record], counts, counts)
    return letters_document(sample, "events", values=False, replayed=None)


def test_dead_letters(templates: jinja2.Environment) -> None:
    found = dropped_page("bad")
    shown = page(templates, "dropped.html", found=found, kind="dead-letters")
    counts = LetterCounts("events", "dead", 1, 0, [ReasonCount("bad", 1, 0, {0: 1}, AT_MS, AT_MS)])
    table = table_of(counts)
    own = {"Replayed", "Partitions"}
    assert headings(shown)[:4] == [str(each.header) for each in table.columns if each.header not in own]
    assert "2023-11-14 22:13:20" in shown
    assert "2023-11-14 22:13:20" in printed(table)
    letter = Letter(0, 4, AT_MS, LetterOrigin("bad", "in", 1, 7_000), 0, [])
    lines = list(lines_of(LetterRecord(LetterView(letter, b"key", None, False), False)))
    for words in ("in partition 1 offset 7,000", "3 bytes", "null"):
        assert words in shown
        assert any(words in line for line in lines)
    assert found.as_dict()["records"][0]["headers"] == [{"name": "h", "bytes": 1}]
    assert list(found.as_dict()["reasons"][0]) == ["name", "records", "first", "last", "replay"]


def test_tables_of_a_program(templates: jinja2.Environment) -> None:
    entries = [TableEntry("k", "6b", [TableValue(2, None, 3_000, "[1, 2")], (0.0, 60.0))]
    found = TablePage("counts", "events", entries, [AskedPartition(2, 9)], [0, 1], None, [])
    shown = page(templates, "table.html", found=found, table="counts")
    *said, table = tables_command.render(found, TableQuery(limit=9))
    assert isinstance(table, Table)
    assert headings(shown) == [str(each.header) for each in table.columns if each.header != own_tables.WINDOW.heading]
    text = printed(*said, table)
    for words in ("o worker can answer now for partitions 0, 1: what is in them is not in this answer", "[1, 2"):
        assert words in shown
        assert words in text
    for words in ("… 3,000 bytes", "1970-01-01 00:00:00 to 00:01:00"):
        assert words in shown
        assert words in text
    none = TablePage("counts", "events", [], [AskedPartition(2, 9)], [], None, [])
    (line,) = printed(*tables_command.render(none, TableQuery(limit=9))).splitlines()
    assert line == "None of the 1 partitions that answered has any key."
    assert line in page(templates, "table.html", found=none, table="counts")


def test_proof(templates: jinja2.Environment) -> None:
    report = Report("events", fresh=4_000, pending=3, compared_to={0: (10, 9)})
    report.counts["lost"] = 2
    found = proof.stream_proof("events", proof_of(report), {0: 12})
    shown = page(templates, "proof.html", found=proof.ProofPage([found]), rows_most=100)
    names = re.findall(r"<dt>([^<]*)</dt>", shown)
    assert counts_sentence(report.counts.items()) == "lost 2, doubled 0, reordered 0, altered 0, unexpected 0"
    assert re.findall(r"[a-z]+", counts_sentence(report.counts.items())) == [name.lower() for name in names[:5]]
    assert headings(shown) == [column.heading for column in proof.PARTITION_COLUMNS]
    assert proof.unproven_sentence(report.unproven()) == "not all proven: 3 pending"
    assert "ot all proven: 3 pending" in shown
    assert (found.since, found.as_dict()["partitions"]) == (
        2,
        [{"partition": 0, "input": 10, "output": 9, "input_end": 12, "since": 2}],
    )


def test_a_proof_counts_the_findings_of_the_table_too(templates: jinja2.Environment) -> None:
    report = Report("events", fresh=4_000, compared_to={0: (10, 9)})
    assert proof_of(report).compared == ["topics"]
    report.results = ResultsReport("delta /lake/orders", "orders", "append", 1, "rows")
    report.results.find("lost", "has no row", 0, 5)
    made = proof_of(report)
    assert (made.verdict, made.counts["lost"], made.compared) == ("wrong", 1, ["topics", "delta /lake/orders"])
    shown = page(
        templates, "proof.html", found=proof.ProofPage([proof.stream_proof("events", made, {0: 10})]), rows_most=100
    )
    assert "Compared: topics, delta /lake/orders." in shown
    assert "has no row" in shown


def test_a_proof_counts_a_missing_record_of_the_files_as_lost() -> None:
    report = Report("events", fresh=4_000, compared_to={0: (10, 9)}, source=SourceReport("tills"))
    assert report.source is not None
    report.source.add(SourceFinding("missing", "a.jsonl", 7, 7, "is in no topic"))
    made = proof_of(report)
    assert (made.verdict, made.counts["lost"], made.compared) == ("wrong", 1, ["topics", "files of producer tills"])
