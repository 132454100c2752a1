"""Topics that have lost their beginning, and runs of verify that go on where the last one ended."""

from __future__ import annotations

import hashlib
import json
import resource
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ratchet.app.verify import ComparedStart, ExitCode, Report, SourceFiles, UnjudgedInput, verify
from kafka_ratchet.app.verify.compare import ExpectedPartition
from kafka_ratchet.app.verify.reading import OffsetRanges, TopicReader
from kafka_ratchet.app.verify.rule import RecordView, Rule
from kafka_ratchet.app.verify.state import Baseline, KnownSequence, ProvenStream, StateWriter
from kafka_ratchet.errors import PositionLost, StateFileRefused
from kafka_ratchet.rule.identity import Identity, SequenceSource
from kafka_ratchet.tables.edits import FORGET, IMPORT, Edit
from tests.app.written_stream import NOW_MS, NewTopic, Stage, continued_twice, record

INPUT, OUTPUT, LETTERS = 0, 1, 2
FRESH = [record(5 * i, value=b"value %d" % i) for i in range(10)]


@pytest.fixture
def stage(broker: str, new_topic: NewTopic) -> Stage:
    return Stage(broker, new_topic, 1)


def delete_before(stage: Stage, topic: int, offset: int) -> None:
    """Delete the records before an offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": stage.broker})
    for deleted in admin.delete_records([TopicPartition(stage.topics[topic], 0, offset)]).values():
        deleted.result(30)


def again(item: RecordView) -> RecordView:
    return replace(item, timestamp_ms=item.timestamp_ms + 1)


def counts(report: Report) -> dict[str, int]:
    return {kind: count for kind, count in report.counts.items()}


def test_an_input_without_its_beginning_is_proven_from_there_on(stage: Stage) -> None:
    stage.write(INPUT, 0, [*FRESH, again(FRESH[1]), again(FRESH[7])])
    stage.write(OUTPUT, 0, FRESH)
    stage.commit(12)
    delete_before(stage, INPUT, 4)
    report = stage.verify()
    assert counts(report) == {}
    assert report.begins == [ComparedStart(0, 4, 0, continued=False)]
    assert (report.fresh, report.duplicate, report.before, report.delivered) == (6, 2, 4, 6)
    assert (report.undecided, report.exit_code()) == (0, ExitCode.PROVEN)


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ([*range(4, 8), 9], {"lost": 1}),
        ([*range(10), 6], {"doubled": 1}),
        ([0, 1, 2, 3, 4, 6, 5, 7, 8, 9], {"reordered": 1}),
    ],
)
def test_what_is_wrong_behind_the_beginning_is_found(stage: Stage, output: list[int], found: dict[str, int]) -> None:
    stage.write(INPUT, 0, FRESH)
    stage.write(OUTPUT, 0, [FRESH[i] for i in output])
    stage.commit(10)
    delete_before(stage, INPUT, 4)
    assert counts(stage.verify()) == found


def test_an_output_without_its_beginning_is_proven_from_there_on(stage: Stage) -> None:
    stage.write(INPUT, 0, FRESH)
    stage.write(OUTPUT, 0, [*FRESH[:7], *FRESH[8:]])
    stage.commit(10)
    delete_before(stage, OUTPUT, 5)
    report = stage.verify()
    assert (counts(report), report.output_deleted, report.undecided) == ({"lost": 1}, 5, 0)
    delete_before(stage, OUTPUT, 9)  # where nothing is left, nothing is proven
    report = stage.verify()
    assert (counts(report), report.output_deleted, report.undecided, report.exit_code()) == ({}, 0, 10, 3)


def test_repeats_of_what_is_deleted_are_told_by_the_output_or_not_at_all(stage: Stage) -> None:
    first = [record(1, b"a"), record(1, b"b"), record(2, b"a"), record(2, b"b")]
    then = [again(first[0]), again(first[1]), record(3, b"a"), again(first[3]), record(9, b"c")]
    stage.write(INPUT, 0, [*first, *then])
    stage.write(OUTPUT, 0, [*first, then[2], then[4]])
    stage.commit(9)
    delete_before(stage, INPUT, 4)
    report = stage.verify()  # the output still says where "b" was
    assert (counts(report), report.undecided, report.fresh, report.duplicate) == ({}, 0, 2, 3)
    delete_before(stage, OUTPUT, 4)
    report = stage.verify()  # "a" goes on, and so tells; of "b" nothing came, and nobody knows whether it had to
    assert (counts(report), report.output_deleted, report.undecided) == ({}, 2, 1)
    assert report.exit_code(pending_ok=True) is ExitCode.NOT_ALL_PROVEN


def test_dead_letters_without_their_beginning(stage: Stage) -> None:
    bad = [record(None, value=b"bad %d" % i) for i in range(6)]
    stage.write(INPUT, 0, bad)
    stage.write(LETTERS, 0, [stage.letter(bad[i], 0, i) for i in (0, 1, 2, 4, 5)])
    stage.commit(6)
    delete_before(stage, LETTERS, 2)
    report = stage.verify()
    assert (counts(report), report.output_deleted, report.undecided) == ({"lost": 1}, 2, 0)
    delete_before(stage, INPUT, 4)
    report = stage.verify()
    assert (counts(report), report.undecided) == ({}, 0)


def test_input_that_was_deleted_before_a_worker_read_it_was_never_judged(stage: Stage) -> None:
    stage.write(INPUT, 0, FRESH)
    stage.write(OUTPUT, 0, FRESH[:3])
    stage.commit(3)
    delete_before(stage, INPUT, 6)
    report = stage.verify()
    assert report.never_judged == [UnjudgedInput(0, 3, 6, deleted=True)]
    # No worker will ever judge it, so it is not forgiven for a look in between either.
    assert (report.ok, report.pending, report.exit_code(pending_ok=True)) == (True, 4, ExitCode.NOT_ALL_PROVEN)


@pytest.mark.parametrize("begin", [6, len(FRESH)])
def test_deleted_input_of_a_partition_without_a_commit_is_named(stage: Stage, begin: int) -> None:
    stage.write(INPUT, 0, FRESH)
    delete_before(stage, INPUT, begin)
    report = stage.verify()
    waiting = [UnjudgedInput(0, begin, len(FRESH), deleted=False)] if begin < len(FRESH) else []
    assert report.never_judged == [UnjudgedInput(0, 0, begin, deleted=True), *waiting]
    assert report.exit_code(pending_ok=True) is ExitCode.NOT_ALL_PROVEN


def retained_amid(monkeypatch: pytest.MonkeyPatch, retain: Callable[[], None]) -> None:
    """Have records deleted once, after the offsets to compare were read and before any record is."""
    whole, left = TopicReader.offset_ranges, [retain]

    def ranges(self: TopicReader) -> OffsetRanges:
        found = whole(self)
        while left:
            left.pop()()
        return found

    monkeypatch.setattr(TopicReader, "offset_ranges", ranges)


@pytest.mark.parametrize("topic", [INPUT, OUTPUT, LETTERS])
def test_retention_amid_a_run_moves_its_beginning(stage: Stage, monkeypatch: pytest.MonkeyPatch, topic: int) -> None:
    bad = [record(None, value=b"bad %d" % i) for i in range(4)]
    stage.write(INPUT, 0, [*FRESH, *bad])
    stage.write(OUTPUT, 0, [*FRESH[:7], *FRESH[8:]])
    stage.write(LETTERS, 0, [stage.letter(bad[i], 0, 10 + i) for i in range(4)])
    stage.commit(14)
    retained_amid(monkeypatch, lambda: delete_before(stage, topic, 2))
    amid = verify(stage.settings)
    assert counts(amid) == {"lost": 1}
    assert amid.as_dict() == verify(stage.settings).as_dict()


def test_retention_amid_a_run_that_goes_on_from_a_file(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage.write(INPUT, 0, FRESH)
    stage.write(OUTPUT, 0, FRESH[:4])
    stage.commit(4)
    assert verify(stage.settings, state=tmp_path / "state").state_written
    stage.write(OUTPUT, 0, FRESH[4:])
    stage.commit(10)
    retained_amid(monkeypatch, lambda: delete_before(stage, INPUT, 6))
    report = verify(stage.settings, state=tmp_path / "state")
    assert report.begins == [ComparedStart(0, 6, 4, continued=True, gap_from=4)]
    assert (counts(report), report.fresh, report.exit_code()) == ({}, 4, ExitCode.NOT_ALL_PROVEN)


def test_retention_amid_a_run_over_a_producers_files(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"line {i}\n" for i in range(10)))
    given = [record(7 * i, b"files", b"line %d" % i, None) for i in range(10)]
    stage.write(INPUT, 0, given)
    stage.write(OUTPUT, 0, given)
    stage.commit(10)
    source = SourceFiles("files", [lines])
    retained_amid(monkeypatch, lambda: delete_before(stage, OUTPUT, 4))
    amid = verify(stage.settings, source=source)
    assert (counts(amid), amid.source and amid.source.ok) == ({}, True)
    assert amid.as_dict() == verify(stage.settings, source=source).as_dict()


# -- from one run to the next


def go_on(stage: Stage, state: Path) -> Report:
    report = continued_twice(stage.settings, state)
    assert [path.name for path in state.parent.iterdir()] == [state.name]  # nothing is left lying about
    return report


def test_the_next_run_goes_on_where_the_last_one_ended_whatever_retention_has_deleted(
    stage: Stage, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    bad = record(None, value=b"bad")
    stage.write(INPUT, 0, [*FRESH[:6], bad, *FRESH[6:8]])
    stage.write(OUTPUT, 0, FRESH[:6])
    stage.write(LETTERS, 0, [stage.letter(bad, 0, 6)])
    stage.commit(7)
    report = go_on(stage, state)
    assert (report.ok, report.fresh, report.pending, report.state_written, report.begins) == (True, 6, 2, True, [])
    for topic, offset in ((INPUT, 7), (OUTPUT, 6), (LETTERS, 1)):
        delete_before(stage, topic, offset)
    stage.write(INPUT, 0, [again(FRESH[0]), record(1, b"late"), again(bad)])
    stage.write(OUTPUT, 0, [*FRESH[6:8], record(1, b"late")])
    stage.write(LETTERS, 0, [stage.letter(bad, 0, 11)])
    stage.commit(12)
    report = go_on(stage, state)
    assert (counts(report), report.undecided, report.exit_code()) == ({}, 0, ExitCode.PROVEN)
    assert (report.fresh, report.duplicate, report.invalid, report.delivered) == (3, 1, 1, 3)
    assert report.begins == [ComparedStart(0, 7, 6, continued=True)]
    report = go_on(stage, state)  # and nothing new
    assert (report.fresh, report.delivered, report.dead_letters, report.exit_code()) == (0, 0, 0, ExitCode.PROVEN)


def test_the_state_does_not_move_on_past_something_wrong(stage: Stage, tmp_path: Path) -> None:
    state = tmp_path / "state"
    stage.write(INPUT, 0, FRESH[:5])
    stage.write(OUTPUT, 0, FRESH[:5])
    stage.commit(5)
    assert go_on(stage, state).ok
    before = state.read_bytes()
    stage.write(INPUT, 0, FRESH[5:])
    stage.write(OUTPUT, 0, [*FRESH[6:], FRESH[2]])  # a repeat from before the state, and one that is missing
    stage.commit(10)
    for _ in range(2):
        report = go_on(stage, state)
        assert counts(report) == {"lost": 1, "unexpected": 1}
        assert report.state_written is False
        assert state.read_bytes() == before


def test_what_was_deleted_between_two_runs_is_said(stage: Stage, tmp_path: Path) -> None:
    state = tmp_path / "state"
    stage.write(INPUT, 0, FRESH[:4])
    stage.write(OUTPUT, 0, FRESH[:4])
    stage.commit(4)
    go_on(stage, state)
    stage.write(INPUT, 0, FRESH[4:])
    stage.write(OUTPUT, 0, FRESH[4:])
    stage.commit(10)
    delete_before(stage, INPUT, 7)
    report = go_on(stage, state)
    assert (counts(report), report.before, report.fresh) == ({}, 3, 3)
    assert report.begins == [ComparedStart(0, 7, 4, continued=True, gap_from=4)]
    assert report.exit_code() is ExitCode.NOT_ALL_PROVEN
    assert go_on(stage, state).exit_code() is ExitCode.PROVEN


def test_a_topic_that_has_lost_its_end_since_the_last_run(stage: Stage, tmp_path: Path) -> None:
    state = tmp_path / "state"
    stage.write(INPUT, 0, FRESH)
    stage.write(OUTPUT, 0, FRESH)
    stage.commit(10)
    go_on(stage, state)
    lines = [json.loads(line) for line in state.read_text().splitlines()]
    lines[1]["output"] = 11
    signed(state, lines)
    with pytest.raises(PositionLost, match="ends at offset 10, and the last run ended at 11"):
        verify(stage.settings, state=state)


def signed(state: Path, lines: list[object]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines[:-1]).encode()
    state.write_bytes(text + json.dumps({"sha256": hashlib.sha256(text).hexdigest()}).encode() + b"\n")


def test_a_state_of_something_else_is_refused_with_both_sides(
    stage: Stage, tmp_path: Path, new_topic: NewTopic
) -> None:
    state = tmp_path / "state"
    stage.commit(0)
    go_on(stage, state)
    chosen = stage.settings.streams["events"]
    others = [
        (
            stage.settings.model_copy(update={"app": "another"}),
            rf"for app '{stage.settings.app}', and .* app 'another'",
        ),
        (
            stage.settings.model_copy(update={"streams": {"others": chosen}}),
            "for stream 'events', and this run checks stream 'others'",
        ),
    ]
    for changed, sentence in (
        ({"identity": Identity.KEY}, "for identity 'producer', and this run checks identity 'key'"),
        ({"sequence": "field:number"}, "for sequence 'header:ratchet-sequence', and .* sequence 'field:number'"),
        ({"output": new_topic(1)}, f"for output '{chosen.output}', and this run checks output"),
    ):
        streams = {"events": chosen.model_copy(update=changed)}
        others.append((stage.settings.model_copy(update={"streams": streams}), sentence))
    before = state.read_bytes()
    for other, sentence in others:
        with pytest.raises(StateFileRefused, match=sentence):
            verify(other, state=state)
    lines = [json.loads(line) for line in before.splitlines()]
    lines[0]["input_id"] = "AAAAAAAAAAAAAAAAAAAAAA"
    signed(state, lines)
    with pytest.raises(
        StateFileRefused, match="for input topic id 'AAAAAAAAAAAAAAAAAAAAAA', and this run checks input topic"
    ):
        verify(stage.settings, state=state)


def _changed(state: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    lines = [json.loads(line) for line in state.read_text().splitlines()]
    change(lines)
    signed(state, lines)


def test_a_damaged_or_hostile_state_is_a_sentence(stage: Stage, tmp_path: Path) -> None:
    state = tmp_path / "state"
    stage.write(INPUT, 0, FRESH)
    stage.write(OUTPUT, 0, FRESH)
    stage.commit(10)
    go_on(stage, state)
    whole = state.read_bytes()
    broken = [
        b"",
        b"\n",
        b"{}",
        whole[:-1] + b" x",
        whole[:100],
        whole[:-20],
        whole.replace(b'"a"', b'"b"'),
        b"[" * 9999,
    ]
    broken += [whole + whole, b"\0" * 1000, b"x" * (17 << 20), whole.replace(b"\n", b"", 1)]
    for damaged in broken:
        state.write_bytes(damaged)
        with pytest.raises(StateFileRefused, match="is damaged, or was not written by ratchet verify"):
            verify(stage.settings, state=state)
        assert state.read_bytes() == damaged
    hostile: list[Callable[[list[dict[str, Any]]], None]] = [
        lambda lines: lines[0].update(kind="a recipe"),
        lambda lines: lines[0].update(dead_letters_from={"a": 1}),
        lambda lines: lines[1].update(partition=7),
        lambda lines: lines[1].update(input=-1),
        lambda lines: lines[1].update(input=True),
        lambda lines: lines[1].update(output=10**40),
        lambda lines: lines[1].update(letters="0"),
        lambda lines: lines.insert(2, ["\u2603", 1, True]),  # type: ignore[arg-type]
        lambda lines: lines.insert(2, ["b", 1.5, True]),  # type: ignore[arg-type]
        lambda lines: lines.insert(2, ["b" * 5000, 1, True]),  # type: ignore[arg-type]
        lambda lines: lines.insert(2, ["b", 1]),  # type: ignore[arg-type]
        lambda lines: lines.insert(-1, dict(lines[1], partition=1)),
    ]
    for change in hostile:
        state.write_bytes(whole)
        _changed(state, change)
        with pytest.raises(StateFileRefused, match="is damaged, or was not written by ratchet verify"):
            verify(stage.settings, state=state)
    state.write_bytes(whole)
    _changed(state, lambda lines: lines[0].update(version=2))
    with pytest.raises(StateFileRefused, match="has the format 2, and this Ratchet reads format 1"):
        verify(stage.settings, state=state)


def test_a_place_where_no_state_can_be_is_said(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(StateFileRefused, match="cannot be read: Is a directory"):
        verify(stage.settings, state=tmp_path)
    with pytest.raises(StateFileRefused, match="the state cannot be written there: No such file or directory"):
        verify(stage.settings, state=tmp_path / "nowhere" / "state")


def test_a_disk_that_is_full_leaves_no_temporary_file(tmp_path: Path) -> None:
    names = [each.name for each in fields(ProvenStream)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, limits[1]))
    try:
        writer = StateWriter(tmp_path / "state", ProvenStream(**dict.fromkeys(names, "x")), {0: 0})
        try:
            known = ((b"%d" % number, KnownSequence(number, exact=True)) for number in range(10_000))
            with pytest.raises(StateFileRefused, match="the state cannot be written there: File too large"):
                writer.add(0, input_from=0, output_from=0, complete=True, letters=(), known=known)
        finally:
            writer.discard()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


# -- without Kafka: whatever is deleted, what is right is never called wrong

RULE = Rule(Identity.PRODUCER, SequenceSource.parse("header:ratchet-sequence"))


class Made(NamedTuple):
    """An input; the output that the rule makes of it, with the input offset of each record; what people have edited."""

    records: list[RecordView]
    output: list[tuple[int, RecordView]]
    edits: list[Edit]


@st.composite
def streams(draw: st.DrawFn, kinds: tuple[str, ...] = (FORGET, IMPORT)) -> Made:
    sent = draw(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 9)), max_size=30))
    records = [
        replace(record(sequence, producer), timestamp_ms=NOW_MS + number)
        for number, (producer, sequence) in enumerate(sent)
    ]
    last: dict[bytes, int] = {}
    output = []
    one = st.tuples(
        st.integers(0, len(sent)), st.sampled_from(kinds), st.sampled_from([b"a", b"b", b"c"]), st.integers(-1, 9)
    )
    asked = sorted(draw(st.lists(one, max_size=3)), key=lambda each: each[0])
    edits = []
    for offset, (producer, sequence) in enumerate([*sent, (b"", -1)]):
        for _, kind, name, above in (each for each in asked if each[0] == offset):
            before = last.get(name, -1)
            who = "id", kind, "now", "me", "so", offset
            if kind == FORGET:
                last[name] = min(before, above)
                bound = None if above < 0 else above
                edits.append(Edit(*who, name.hex(), bound, before, last[name]))
            else:
                last[name] = max(before, above)
                edits.append(Edit(*who, added=1))
        if sequence > last.get(producer, -1):
            last[producer] = sequence
            output.append((offset, records[offset]))
    return Made(records, output, edits)


def proven(
    made: Made, output: list[tuple[int, RecordView]], baseline: Baseline, judged: int, committed_to: int
) -> tuple[Report, ExpectedPartition]:
    """output: what stands in it, from the baseline's offset on."""
    report, expected = Report("events"), ExpectedPartition(RULE, 0, (), baseline, edits=made.edits)
    for offset in range(baseline.input_from, committed_to):
        expected.add_input(offset, made.records[offset], report)
    shown: Iterator[tuple[int, RecordView]] = ((at, item) for at, (_, item) in enumerate(output))
    expected.compare("out", shown, judged, report)
    return report, expected


@settings(max_examples=400, deadline=None)
@given(streams(), st.data())
def test_whatever_is_deleted_what_is_right_is_not_called_wrong(made: Made, data: st.DataObject) -> None:
    records, output, edits = made
    begin = data.draw(st.integers(0, len(records)), "first input offset")
    output_begin = data.draw(st.integers(0, len(output)), "first output offset")
    baseline = Baseline.after_retention(begin, output_begin)
    report, _ = proven(made, output[output_begin:], baseline, len(records), len(records))
    assert report.counts == {}, report.findings
    here = [offset for offset, _ in output if offset >= begin]
    assert report.delivered <= len(here)
    if output_begin == 0 and not edits:  # the output says it all
        assert (report.undecided, report.fresh, report.delivered) == (0, len(here), len(here))


@settings(max_examples=400, deadline=None)
@given(streams((FORGET,)), st.data())
def test_two_runs_find_what_one_finds(made: Made, data: st.DataObject) -> None:
    """The first run sees a part, some of it not yet in the output; the second goes on from what it has left."""
    records, output, edits = made
    judged = data.draw(st.integers(0, len(records)), "committed before")
    committed_to = data.draw(st.integers(judged, len(records)), "committed after")
    there = data.draw(st.integers(judged, committed_to), "in the output")
    first = [each for each in output if each[0] < there]
    report, expected = proven(made, first, Baseline(), judged, committed_to)
    assert report.counts == {}
    cut = expected.proven_to(judged, committed_to, None)
    assert judged <= cut <= committed_to
    # With forgets and a gap a record may be called unexpected: docs/guide/verify.md says so.
    may_be_late = not edits and data.draw(st.booleans(), "too late")
    gap = data.draw(st.integers(0, 3), "deleted since") if may_be_late else 0
    known = dict(expected.known_at(cut))
    baseline = Baseline(cut, len(first), known).moved_to(min(len(records), cut + gap), 0)
    missing = data.draw(st.sampled_from([None, *range(len(first), len(output))]), "missing")
    rest = [each for at, each in enumerate(output) if at >= len(first) and at != missing]
    report, expected = proven(made, rest, baseline, len(records), len(records))
    if missing is None:
        assert report.counts == {}, report.findings
        if gap == 0:
            assert (report.undecided, report.fresh) == (0, len(rest))
            last = {identity: each.sequence for identity, each in expected.known_at(len(records))}
            whole = ExpectedPartition(RULE, 0, edits=edits)
            for offset, item in enumerate(records):
                whole.add_input(offset, item, Report("events"))
            whole.compare("out", ((at, item) for at, (_, item) in enumerate(output)), len(records), Report("events"))
            assert last == {identity: each.sequence for identity, each in whole.known_at(len(records))}
    elif gap == 0:
        assert report.counts == {"lost": 1}
