"""Records that had to be dropped, compared with the topic of duplicates; no worker runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_ratchet.app.verify.compare import UNKNOWN_LAST, ExpectedPartition
from kafka_ratchet.app.verify.dropped import DroppedRecords, WrittenDrops, first_kept
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rule import RecordView, Rule
from kafka_ratchet.rule.identity import Identity, SequenceSource
from kafka_ratchet.transport.owner import Decision, DuplicatesFrom, Mark, Owner, Topic

RULE = Rule(Identity.PRODUCER, SequenceSource.parse("header:ratchet-sequence"))
HERE = Topic("dropped", "A" * 22)
NAMES = ("ratchet-verdict", "ratchet-last-sequence", "ratchet-topic", "ratchet-partition", "ratchet-offset")


def record(sequence: int, value: bytes | None = b"v") -> RecordView:
    headers = [("ratchet-producer", b"a"), ("ratchet-sequence", b"%d" % sequence), ("trace", None)]
    return RecordView(b"k", value, headers, 1_700_000_000_000)


INPUT = [record(5), record(5, b"again"), record(9), record(3), record(9), record(10)]
"""Offsets 1, 3 and 4 are dropped: after 5, 9 and 9."""


def kept_as(offset: int, last: int, verdict: bytes = b"duplicate", given: bytes = b"in") -> RecordView:
    said = (verdict, b"%d" % last, given, b"0", b"%d" % offset)
    own = INPUT[offset]
    return replace(own, headers=[*own.headers, *zip(NAMES, said, strict=True)])


THERE = [kept_as(1, 5), kept_as(3, 9), kept_as(4, 9)]


def owner(*changes: DuplicatesFrom, decisions: tuple[Decision, ...] = ()) -> Owner:
    return Owner("app", "s", {}, {}, decisions=decisions, duplicates=changes)


ALWAYS = owner(DuplicatesFrom(0, HERE))


def compared(
    found: list[RecordView],
    of: Owner | None = ALWAYS,
    judged_to: int = 6,
    *,
    values: bool = True,
    whole: bool = True,
    complete: bool = True,
    begin: int = 0,
) -> tuple[Report, int | None]:
    report, dropped = Report("s"), DroppedRecords(0, values=values)
    expected = ExpectedPartition(RULE, 0, on_dropped=dropped.expect)
    for offset, each in enumerate(INPUT):
        if offset >= begin:
            expected.add_input(offset, each, report)
    where = WrittenDrops(of, HERE.name, HERE.id, range(begin, 6), whole=whole, complete=complete)
    waits = dropped.compare(HERE.name, "in", enumerate(found), where, judged_to, report)
    return report, waits


def counts(*args: object, **more: object) -> dict[str, int]:
    return dict(compared(*args, **more)[0].counts)  # type: ignore[arg-type]


def test_each_is_there_once() -> None:
    report, waits = compared(THERE)
    assert (report.counts, report.duplicates_kept, report.duplicate, waits) == ({}, 3, 3, None)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (THERE[:2], {"lost": 1}),
        ([*THERE, THERE[0]], {"doubled": 1}),
        ([*THERE, kept_as(0, -1)], {"unexpected": 1}),
        ([*THERE, kept_as(3, 9, given=b"other")], {"unexpected": 1}),
        ([*THERE, INPUT[1]], {"unexpected": 1}),
        ([*THERE[:2], kept_as(4, 8)], {"altered": 1}),
        ([*THERE[:2], kept_as(4, 9, b"too-late")], {"altered": 1}),
        ([*THERE[:2], replace(THERE[2], value=b"")], {"altered": 1}),
        ([*THERE[:2], replace(THERE[2], timestamp_ms=1)], {"altered": 1}),
    ],
)
def test_what_is_wrong_is_found(found: list[RecordView], expected: dict[str, int]) -> None:
    assert counts(found) == expected


def test_without_values() -> None:
    assert counts([replace(each, value=None) for each in THERE], values=False) == {}
    assert counts(THERE, values=False) == {"altered": 3}


def test_those_of_input_that_was_committed_meanwhile_may_still_come() -> None:
    report, waits = compared(THERE[:1], judged_to=3)
    assert (report.counts, report.pending, waits) == ({}, 2, 3)


@pytest.mark.parametrize(
    ("of", "found"),
    [
        (None, []),
        (owner(DuplicatesFrom(2, HERE)), THERE[1:]),
        (owner(DuplicatesFrom(0, HERE), DuplicatesFrom(2), DuplicatesFrom(4, HERE)), [THERE[0], THERE[2]]),
        (owner(DuplicatesFrom(0, Topic("dropped", "B" * 22)), DuplicatesFrom(2, HERE)), THERE[1:]),
    ],
)
def test_those_from_before_the_topic_was_set_need_not_be_there(of: Owner | None, found: list[RecordView]) -> None:
    assert counts(found, of) == {}
    assert counts(found[:-1], of) == ({"lost": 1} if found else {})


OTHER = Topic("other", "B" * 22)


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ((), 1000),  # no worker has started since
        ((DuplicatesFrom(3, HERE),), 1000),
        ((DuplicatesFrom(0, OTHER), DuplicatesFrom(3, HERE)), 1000),
        ((DuplicatesFrom(3, HERE), DuplicatesFrom(5), DuplicatesFrom(6, HERE)), 1000),
        ((DuplicatesFrom(3, OTHER), DuplicatesFrom(4, HERE)), 0),
        ((DuplicatesFrom(3, Topic("dropped", "B" * 22)), DuplicatesFrom(4, HERE)), 0),
        ((DuplicatesFrom(0, HERE), DuplicatesFrom(2), DuplicatesFrom(4, HERE)), 0),
    ],
)
def test_the_offset_of_a_decision_is_of_the_topic_at_that_time(changes: tuple[DuplicatesFrom, ...], first: int) -> None:
    mark = Mark({}, output=0, dead_letters=0, duplicates=1000, intervals=0, edits=0, identities=0)
    decided = Decision("2026-01-01T00:00:00+00:00", "me@here", "resume", "why", 5, 3, mark)
    assert first_kept(owner(*changes, decisions=(decided,)), mark, HERE.name, HERE.id) == first


def test_a_partition_that_a_person_has_moved_back_may_drop_once_more() -> None:
    back = Decision("2026-01-01T00:00:00+00:00", "me@here", "resume", "why", before=6, after=2)
    again = owner(DuplicatesFrom(0, HERE), decisions=(back,))
    assert counts([*THERE, kept_as(2, 9), *THERE[1:], kept_as(5, 10)], again) == {}


def test_what_retention_has_deleted_is_not_missed() -> None:
    report, _ = compared(THERE[1:], whole=False)
    assert (report.counts, report.output_deleted) == ({}, 1)
    # What stands before the first input offset that is compared was compared by an earlier run.
    assert counts(THERE, begin=2) == {}


@pytest.mark.parametrize(
    ("found", "begin", "lost", "undecided", "deleted"),
    [
        ([THERE[0], THERE[2]], 2, 1, 0, 0),
        ([THERE[0]], 2, 2, 0, 0),
        ([THERE[1]], 0, 1, 0, 1),
        ([], 0, 0, 3, 0),
        ([kept_as(5, 10)], 0, 0, 0, 3),
    ],
)
def test_a_record_of_earlier_input_shows_that_later_ones_were_not_deleted(
    found: list[RecordView], begin: int, lost: int, undecided: int, deleted: int
) -> None:
    report, _ = compared(found, whole=False, begin=begin)
    assert (report.counts.get("lost", 0), report.undecided, report.output_deleted) == (lost, undecided, deleted)


def test_where_the_input_has_lost_its_beginning_nothing_is_said_of_what_seems_to_be_new() -> None:
    assert counts([kept_as(2, 9), THERE[2]], begin=2, complete=False) == {"lost": 1}
    dropped = DroppedRecords(0, values=True)
    dropped.expect(4, INPUT[4], "duplicate", UNKNOWN_LAST)
    report, where = Report("s"), WrittenDrops(ALWAYS, HERE.name, HERE.id, range(2, 6), whole=True, complete=False)
    dropped.compare(HERE.name, "in", enumerate([kept_as(4, 77)]), where, 6, report)
    assert not report.counts


def test_a_stream_for_its_counts_alone_has_nothing_in_its_output() -> None:
    def of_output(output: list[RecordView]) -> Report:
        report, expected = Report("s"), ExpectedPartition(RULE, 0, forward=False)
        for offset, each in enumerate(INPUT):
            expected.add_input(offset, each, report)
        expected.compare("out", enumerate(output).__iter__(), 6, report)
        return report

    assert (of_output([]).counts, of_output([]).fresh, of_output([]).pending) == ({}, 3, 0)
    assert dict(of_output([INPUT[0]]).counts) == {"unexpected": 1}


def test_a_time_that_kafka_has_replaced_is_not_compared() -> None:
    restamped = [replace(each, timestamp_ms=1, is_append_time=True) for each in THERE]
    assert not compared(restamped)[0].counts
    altered = compared([*THERE[:2], replace(THERE[2], timestamp_ms=1)])[0]
    assert dict(altered.counts) == {"altered": 1}
