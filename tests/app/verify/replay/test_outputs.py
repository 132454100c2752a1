"""Differences between an output and the program's second run: every kind, told apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random

import pytest

from kafka_ratchet.app.verify import RecordView, Report
from kafka_ratchet.app.verify.replay import outputs as module
from kafka_ratchet.app.verify.replay.outputs import Output, OutputComparison


def record(number: int, value: bytes = b"v") -> RecordView:
    return RecordView(b"key-%d" % (number % 7), b"%s-%d" % (value, number), [], 1_700_000_000_000 + number)


RECORDS = [record(number) for number in range(40)]


def given(records: Iterable[RecordView], due: int = 10**9) -> Iterator[Output]:
    return (Output.of(each, offset, is_due=offset < due) for offset, each in enumerate(records))


def compared(
    replay: Iterable[RecordView], output: Iterable[RecordView], *, due: int = 10**9, is_whole: bool = True
) -> Report:
    report = Report("orders")
    OutputComparison("out", 3, report).compare(given(replay, due), given(output), is_whole=is_whole)
    return report


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (RECORDS, {}),
        ([], {"lost": 40}),
        (RECORDS[:10] + RECORDS[13:], {"lost": 3}),
        (RECORDS[:-1], {"lost": 1}),
        ([*RECORDS[:10], record(99), *RECORDS[10:]], {"unexpected": 1}),
        ([*RECORDS, record(99)], {"unexpected": 1}),
        ([*RECORDS[:10], *RECORDS[5:]], {"doubled": 5}),
        ([*RECORDS[:10], RECORDS[12], RECORDS[11], RECORDS[10], *RECORDS[13:]], {"reordered": 2}),
        ([RECORDS[-1], *RECORDS[:-1]], {"reordered": 1}),
        ([*RECORDS[:10], record(10, b"forged"), *RECORDS[11:]], {"altered": 1}),
        ([*RECORDS[:10], replace(record(10), timestamp_ms=1), *RECORDS[11:]], {"altered": 1}),
        ([*RECORDS[:10], replace(record(10), headers=[("a", None)]), *RECORDS[11:]], {"altered": 1}),
        ([record(number, b"edited") for number in range(40)], {"altered": 40}),
        # One is gone, one is there twice, one was changed, one is nobody's.
        (
            [*RECORDS[:5], *RECORDS[6:9], RECORDS[8], record(9, b"?"), *RECORDS[10:30], record(99), *RECORDS[30:]],
            {"lost": 1, "doubled": 1, "altered": 1, "unexpected": 1},
        ),
    ],
)
def test_each_difference_is_told_apart(output: list[RecordView], expected: dict[str, int]) -> None:
    report = compared(RECORDS, output)
    assert dict(report.counts) == expected, report.findings
    assert report.delivered == len(output)


def test_a_finding_says_where_and_shows_both_values() -> None:
    report = compared(RECORDS, [*RECORDS[:10], record(10, b"forged"), *RECORDS[11:]])
    assert [str(finding) for finding in report.findings] == [
        "altered: topic out, partition 3 offset 10, input partition 3 offset 10, key 'key-3', value 'v-10' in the "
        "replay, 'forged-10' in the topic"
    ]


def test_what_workers_had_not_committed_is_pending() -> None:
    report = compared(RECORDS, RECORDS[:35], due=35)
    assert (dict(report.counts), report.pending) == ({}, 5)
    assert compared(RECORDS, RECORDS[:38], due=35).pending == 2
    assert dict(compared(RECORDS, RECORDS[:34], due=35).counts) == {"lost": 1}


@pytest.mark.parametrize("first", [1, 20, 39])
def test_an_output_without_its_beginning_is_compared_from_there_on(first: int) -> None:
    report = compared(RECORDS, RECORDS[first:], is_whole=False)
    assert (dict(report.counts), report.output_deleted, report.undecided) == ({}, first, 0)


def test_an_output_whose_beginning_is_nowhere_is_not_compared() -> None:
    report = Report("orders")
    comparison = OutputComparison("out", 3, report)
    assert not comparison.compare(given(RECORDS), given([record(99)]), is_whole=False)
    assert (dict(report.counts), report.undecided, report.delivered) == ({}, 40, 1)


def test_after_the_program_has_failed_nothing_is_unexpected() -> None:
    report = Report("orders")
    OutputComparison("out", 3, report, lambda: True).compare(given(RECORDS[:10]), given(RECORDS))
    assert (dict(report.counts), report.delivered) == ({}, 40)


def test_what_differs_is_found_however_little_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged in up to three places, far apart; what is held is less than the topic."""
    monkeypatch.setattr(module, "AHEAD", 30)
    choose = Random(7)
    records = [record(number) for number in range(300)]
    for _ in range(60):
        output, damage = list(records), {"lost": 0, "doubled": 0, "altered": 0, "unexpected": 0}
        for place in (270, 150, 30)[choose.randrange(4) :]:
            kind = choose.choice(list(damage))
            damage[kind] += 1
            if kind == "lost":
                del output[place]
            elif kind == "doubled":
                output.insert(place + choose.randrange(1, 20), output[place])
            elif kind == "altered":
                output[place] = record(place, b"forged")
            else:
                output.insert(place, record(10_000 + place))
        report = compared(records, output)
        assert dict(report.counts) == {kind: count for kind, count in damage.items() if count}, report.findings
