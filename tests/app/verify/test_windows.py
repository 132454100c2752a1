"""Windows in verify, compared with the worker's map, under changing settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ratchet.app.settings import StreamSettings
from kafka_ratchet.app.verify import RecordView, Report
from kafka_ratchet.app.verify.compare import ExpectedPartition
from kafka_ratchet.app.verify.decided import DecidedPartition, Rules, legs_now
from kafka_ratchet.app.verify.letters import Letters
from kafka_ratchet.app.verify.reading import OffsetRanges
from kafka_ratchet.app.verify.rule import Rule
from kafka_ratchet.app.verify.state import Baseline
from kafka_ratchet.rule.extraction import reader_for
from kafka_ratchet.rule.identities import in_columns
from kafka_ratchet.rule.identity import Identity, SequenceSource
from kafka_ratchet.rule.windows import StateOptions
from kafka_ratchet.tables.map.map import LastSequences
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.transport.batch.encoding import pack_entries
from kafka_ratchet.transport.owner import Decision, JudgingFrom, Mark, Owner
from kafka_ratchet.transport.policy import ForgetRequest
from tests.app.written_stream import NOW_MS, record
from tests.tables.fetched_records import Sent, fetched

SOURCE = SequenceSource.parse("header:ratchet-sequence")
RULE = Rule(Identity.PRODUCER, SOURCE)
NAMES = ("fresh", "duplicate", "invalid", "too-late", "content-differs")

numbers = st.one_of(st.integers(0, 9), st.integers(60, 72), st.integers(0, 300))
sent = st.tuples(st.sampled_from([b"a", b"b"]), numbers, st.sampled_from([b"v", b"", None]))
parts = st.tuples(
    st.fixed_dictionaries(
        {},
        optional={
            "reorder_window": st.sampled_from(["1", "5", "64", "65", "130"]),
            "conflicts": st.sampled_from(["count", "dead-letter"]),
            "late": st.just("dead-letter"),
        },
    ),
    st.lists(st.lists(sent, min_size=1, max_size=8), max_size=5),
)
Part = tuple[dict[str, str], list[list[tuple[bytes, int, bytes | None]]]]


def worked(todo: list[Part]) -> tuple[list[RecordView], list[str], list[JudgingFrom]]:
    """The input, the verdict of a map that is loaded anew with each part, and what the owner entry says."""
    changelog: dict[bytes, bytes] = {}
    given_, verdicts, judging = list[RecordView](), list[str](), list[JudgingFrom]()
    read = reader_for(SOURCE)
    for said, batches in todo:
        if said != (judging[-1].settings if judging else {}):
            judging.append(JudgingFrom(len(given_), said))
        table = LastSequences(kept=StateOptions(int(said.get("reorder_window", "0")), "conflicts" in said))
        if changelog:
            table.load(pack_entries("changelog", 0, list(changelog.items())), saved=False)
        for rows in batches:
            views = [
                replace(record(sequence, name, value=value), timestamp_ms=NOW_MS + len(given_) + at)
                for at, (name, sequence, value) in enumerate(rows)
            ]
            batch = fetched([Sent(view.key, view.value, tuple(view.headers)) for view in views])
            found = table.judge(in_columns(batch, Identity.PRODUCER), 1024, *read(batch), batch=batch)
            changelog.update({key: value for key, value in table.changed_entries() if value is not None})
            table.commit()
            given_ += views
            verdicts += [NAMES[verdict] for verdict in found]
    return given_, verdicts, judging


def proven(
    views: list[RecordView], output: list[RecordView], judging: list[JudgingFrom], begin: int = 0
) -> tuple[Report, ExpectedPartition, list[str]]:
    report = Report("events")
    baseline = Baseline.after_retention(begin, 0) if begin else Baseline()
    expected = ExpectedPartition(RULE, 0, (), baseline, judging=judging)
    verdicts = [expected.add_input(offset, views[offset], report) for offset in range(begin, len(views))]
    expected.compare("out", iter(enumerate(output)), len(views), report)
    return report, expected, verdicts


@settings(deadline=None, max_examples=150, derandomize=True)
@given(todo=st.lists(parts, min_size=1, max_size=4), data=st.data())
def test_verify_expects_what_the_worker_does(todo: list[Part], data: st.DataObject) -> None:
    views, verdicts, judging = worked(todo)
    output = [view for view, verdict in zip(views, verdicts, strict=True) if verdict == "fresh"]
    report, expected, found = proven(views, output, judging)
    assert found == verdicts
    assert (dict(report.counts), report.undecided) == ({}, 0)
    assert (report.fresh, report.duplicate) == (verdicts.count("fresh"), verdicts.count("duplicate"))
    assert (report.late, report.conflict) == (verdicts.count("too-late"), verdicts.count("content-differs"))
    lettered = {
        offset
        for each, end in zip(judging, [*(each.start for each in judging[1:]), len(views)], strict=False)
        for offset in range(each.start, end)
        if (verdicts[offset], "dead-letter")
        in {("too-late", each.settings.get("late")), ("content-differs", each.settings.get("conflicts"))}
    }
    assert set(expected.invalid) == lettered
    if output:
        at = data.draw(st.integers(0, len(output) - 1))
        assert dict(proven(views, output[:at] + output[at + 1 :], judging)[0].counts) == {"lost": 1}
        assert dict(proven(views, [*output, output[at]], judging)[0].counts) == {"doubled": 1}


@settings(deadline=None, max_examples=100, derandomize=True)
@given(todo=st.lists(parts, min_size=1, max_size=3), data=st.data())
def test_what_is_right_is_not_called_wrong_where_retention_has_deleted_input(
    todo: list[Part], data: st.DataObject
) -> None:
    views, verdicts, judging = worked(todo)
    begin = data.draw(st.integers(0, len(views)))
    output = [view for view, verdict in zip(views, verdicts, strict=True) if verdict == "fresh"]
    report, _, _ = proven(views, output, judging, begin)
    assert dict(report.counts) == {}, (begin, verdicts, report.findings, report.before)


@pytest.mark.parametrize("window", ["0", "64"])
def test_a_late_record_is_expected_from_the_offset_on_at_which_the_window_was_set(window: str) -> None:
    views = [record(5), record(3), record(9), record(7), record(7)]
    _, _, found = proven(views, [], [JudgingFrom(2, {"reorder_window": window})])
    assert found == ["fresh", "duplicate", "fresh", "fresh" if window == "64" else "duplicate", "duplicate"]


@pytest.mark.parametrize(
    "steps",
    [
        [100, 101, 103, "above 101", 102, 101, 103],
        [100, 103, "above 101", 101, 102, 101],
        [300, "above 100", 150, 120],
        [100, 40, "above 50", 45, 40, 50, 60, 41],
    ],
)
def test_after_a_forget_verify_judges_as_the_worker_does(tmp_path: Path, steps: list[int | str]) -> None:
    state = SequencePartition(tmp_path / "store", "changelog", 0, Identity.PRODUCER, 1 << 20, kept=StateOptions(64))
    state.open()
    state.restoring()
    views, verdicts, read = list[RecordView](), list[str](), reader_for(SOURCE)
    for step in steps:
        if isinstance(step, str):
            state.forget([ForgetRequest("id", b"p", int(step.split()[1]), "now", "me", "so", None)], len(views))
        else:
            view = record(step, b"p")
            batch = fetched([Sent(view.key, view.value, tuple(view.headers))], len(views))
            views.append(view)
            verdicts.append(NAMES[state.judge(batch, *read(batch))[0][0]])
        state.committed(state.position + sum(each.count for each in state.changes(len(views))))
    report, edits = Report("s"), list(state.edits)
    expected = ExpectedPartition(RULE, 0, edits=edits, judging=[JudgingFrom(0, {"reorder_window": "64"})])
    for offset, view in enumerate(views):
        expected.add_input(offset, view, report)
    fresh = [view for view, verdict in zip(views, verdicts, strict=True) if verdict == "fresh"]
    expected.compare("out", iter(enumerate(fresh)), len(views), report)
    assert report.ok, (verdicts, report.findings)
    state.close()


@pytest.mark.parametrize(
    ("said", "views", "reason"),
    [
        ({"reorder_window": "64", "late": "dead-letter"}, [record(1000), record(10), record(1001)], b"too-late"),
        (
            {"conflicts": "dead-letter"},
            [record(5, value=b"a"), record(5, value=b"b"), record(6)],
            b"content-differs",
        ),
    ],
)
def test_a_letter_whose_cause_is_deleted_is_not_unexpected(
    said: dict[str, str], views: list[RecordView], reason: bytes
) -> None:
    report, baseline = Report("s"), Baseline.after_retention(1, 0)
    expected = ExpectedPartition(RULE, 0, (), baseline, judging=[JudgingFrom(0, said)])
    for offset in (1, 2):
        expected.add_input(offset, views[offset], report)
    expected.compare("out", iter(enumerate([views[0], views[2]])), 3, report)
    own = [("ratchet-reason", reason), ("ratchet-topic", b"in"), ("ratchet-partition", b"0"), ("ratchet-offset", b"1")]
    letters = Letters("app", "in", "dead", whole=True, report=report)
    letters.read([(0, 0, replace(views[1], headers=[*views[1].headers, *own]))])
    letters.compare(0, expected.invalid, 3, baseline)
    assert report.ok, report.findings


@pytest.mark.parametrize(
    ("what", "forwarded", "found"),
    [
        ("resume", [1, 2, 3, 5, 4, 6], {}),
        ("resume", [1, 2, 3, 5, 6], {"lost": 1}),
        ("resume --forget", [1, 2, 3, 5, 4, 6], {}),
    ],
)
def test_a_window_goes_on_after_a_decision(what: str, forwarded: list[int], found: dict[str, int]) -> None:
    given_ = [record(each) for each in (1, 2, 3, 5, 10, 4, 6)]  # an operator has skipped 10
    topics = {"in": given_, "out": [record(each) for each in forwarded]}

    class Reader:
        def records(self, topic: str, _: int, end: int, begin: int) -> Iterator[tuple[int, RecordView]]:
            return ((offset, topics[topic][offset]) for offset in range(begin, end))

    stream = StreamSettings(input="in", output="out", dead_letters="dead", reorder_window=64)
    rule, here, begin = stream.judged_by.entry, {0: len(given_)}, {0: 0}
    mark = Mark(rule, output=4, dead_letters=0, duplicates=0, intervals=0, edits=0, identities=1)
    decision = Decision("2026-01-01", "ann", what, "because", 4, 5, mark)
    owner = Owner("shop", "s", rule, {}, (decision,), judging=(JudgingFrom(0, {"reorder_window": "64"}),))
    ranges = OffsetRanges(here, here, frozenset(), here, {0: len(forwarded)}, begin, here, begin, begin, begin)
    reader: Any = Reader()
    report, rules = Report("s"), Rules(stream, ("dead", "", ""))
    partition = DecidedPartition(stream, reader, rules, ranges, report, 0)
    partition.compare(legs_now(owner, Baseline(), len(given_)), Baseline(), owner, (), (), None)
    assert (dict(report.counts), report.undecided) == (found, 0), report.findings
