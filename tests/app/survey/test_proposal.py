"""Proposed settings, and the cases with too little evidence for any."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from kafka_ratchet.app.settings import StreamSettings
from kafka_ratchet.app.survey.places import KEY, WHOLE, Candidate, RecordPart
from kafka_ratchet.app.survey.proposal import Proposal, busiest, propose, rounded_up, span_text, stream_name, two_digits
from kafka_ratchet.app.survey.reading import Range
from kafka_ratchet.app.survey.report import Bucket, Example, Finding, NumberOrder, Report

ID, EVENT = RecordPart("field", "id"), RecordPart("header", "ce_id")
HOUR_MS = 3_600_000


def finding(*identity: RecordPart, sequence: RecordPart | None = None, **more: Any) -> Finding:
    """100,000 records, of which 1,000 are duplicates that came within a minute or two."""
    usual: dict[str, Any] = {
        "records": 100_000,
        "without": 0,
        "distinct": 99_000,
        "equal": 1_000,
        "conflicts": 0,
        "across": 0,
        "across_conflicts": 0,
        "one_of": 1,
        "errors": {},
        "mistaken": 0.0,
        "ages": [Bucket(65_536, 131_071, 1_000)],
        "ages_across": [],
        "distances": [],
        "age_most_ms": 100_000,
        "distance_most": 10,
        "examples": [Example(0, 5, 3, 7)],
        "conflict_examples": [Example(1, 15, 13, 7)],
        "numbers": None,
    }
    return Finding(Candidate(identity, sequence), **{**usual, **more})


def numbers(**more: Any) -> NumberOrder:
    usual: dict[str, Any] = {
        "identities": 40,
        "rises": 98_900,
        "steps": 98_000,
        "late": 0,
        "late_most": -1,
        "before": 0,
        "lates": [],
    }
    return NumberOrder(**{**usual, **more})


def proposed(*findings: Finding, whole: Finding | None = None, **more: Any) -> Proposal:
    usual: dict[str, Any] = {
        "topic": "web.hooks",
        "ranges": [Range(0, 0, 0, 100_000)],
        "partitions": 1,
        "records": 100_000,
        "bytes": 1,
        "seconds": 1.0,
        "first_ms": 1_000,
        "last_ms": 10 * HOUR_MS,
        "log_append_time": True,
        "broken": 0,
        "deleted": 0,
        "future": 0,
        "sampled": 1,
        "busy": {minute: 200 for minute in range(500)},
        "left_out": (),
    }
    return propose(Report(**{**usual, **more}, findings=[whole or finding(WHOLE, equal=1_000), *findings]))


def values(proposal: Proposal) -> dict[str, Any]:
    section: dict[str, Any] = tomllib.loads(proposal.toml)["streams"]["web-hooks"]
    StreamSettings(**section)  # a worker takes it
    return section


def test_ids_are_remembered_for_twice_the_oldest_duplicate_and_as_many_as_came_in_that_time() -> None:
    proposal = proposed(finding(ID))
    assert values(proposal) == {
        "input": "web.hooks",
        "output": "web.hooks.once",
        "dead_letters": "web.hooks.dead-letters",
        "identity": "field:id",
        "sequence": "none",
        "inactive_after_s": 300,
        "max_identities": 2_000,
    }
    assert proposal.finding is not None
    assert all(line.reason for line in proposal.lines[3:])


def test_a_pair_is_a_list_and_names_of_strangers_are_quoted() -> None:
    odd = RecordPart("header", "a\"b'\\ü #]")
    assert values(proposed(finding(odd, EVENT)))["identity"] == [str(odd), "header:ce_id"]


def test_a_counter_comes_before_an_id_that_finds_the_same_and_a_time_does_not() -> None:
    counter = finding(KEY, sequence=RecordPart("header", "n"), numbers=numbers())
    assert values(proposed(finding(ID), counter))["sequence"] == "header:n"
    assert "inactive_after_s" not in values(proposed(counter))
    for name, steps in (("created_at", 98_000), ("order", 500)):
        rising = finding(KEY, sequence=RecordPart("field", name), numbers=numbers(steps=steps))
        assert values(proposed(rising, finding(ID)))["identity"] == "field:id"


def test_of_two_that_find_the_same_the_one_without_conflicts_is_taken() -> None:
    counter = finding(KEY, sequence=RecordPart("header", "n"), numbers=numbers(), conflicts=30)
    assert values(proposed(counter, finding(ID)))["identity"] == "field:id"
    assert values(proposed(finding(ID, conflicts=30)))["conflicts"] == "count"


def test_a_window_passes_every_late_number_or_is_not_proposed() -> None:
    late = numbers(late=50, late_most=60, lates=[Bucket(32, 63, 50)])
    assert values(proposed(finding(KEY, sequence=EVENT, numbers=late)))["reorder_window"] == 64
    far = numbers(late=50, late_most=10**6, lates=[Bucket(1 << 19, (1 << 20) - 1, 50)])
    proposal = proposed(finding(KEY, sequence=EVENT, numbers=far))
    assert "reorder_window" not in values(proposal)
    assert "# reorder_window: not proposed: 50 new records" in proposal.toml


def test_an_id_that_loses_nothing_comes_before_a_counter_whose_late_numbers_no_window_passes() -> None:
    far = numbers(rises=94_900, late=4_000, late_most=10**6, lates=[Bucket(1 << 19, (1 << 20) - 1, 4_000)])
    some = numbers(late=50, late_most=10**6, lates=[Bucket(32, 63, 45), Bucket(1 << 19, (1 << 20) - 1, 5)])
    for lossy in (far, some):
        counter = finding(RecordPart("header", "device"), sequence=RecordPart("header", "seq"), numbers=lossy)
        for other in (finding(RecordPart("header", "event-id")), finding(ID, equal=500), finding(ID, conflicts=30)):
            section = values(proposed(counter, other))
            assert (section["identity"], section["sequence"]) == (str(other.candidate.identity[0]), "none")
        # An id that finds no duplicate at all is none of those that came twice.
        assert values(proposed(counter, finding(ID, equal=0)))["identity"] == "header:device"
    near = numbers(late=50, late_most=60, lates=[Bucket(32, 63, 50)])
    passed = finding(KEY, sequence=RecordPart("header", "n"), numbers=near)
    assert values(proposed(finding(ID), passed))["sequence"] == "header:n"


def test_new_records_that_the_settings_lose_are_told() -> None:
    far = numbers(rises=94_900, late=4_000, late_most=10**6, lates=[Bucket(1 << 19, (1 << 20) - 1, 4_000)])
    proposal = proposed(finding(KEY, sequence=EVENT, numbers=far))
    assert not {"reorder_window", "late"} & set(values(proposal))
    [note] = proposal.notes
    assert note.startswith("4,000 new records of those read would be dropped as duplicates by these settings")

    some = numbers(late=50, late_most=10**6, lates=[Bucket(32, 63, 45), Bucket(1 << 19, (1 << 20) - 1, 5)])
    proposal = proposed(finding(KEY, sequence=EVENT, numbers=some))
    section = values(proposal)
    assert (section["reorder_window"], section["late"]) == (4_096, "dead-letter")
    [note] = proposal.notes
    assert note.startswith("5 new records of those read would be dropped as duplicates without late")

    near = numbers(late=50, late_most=60, lates=[Bucket(32, 63, 50)])
    proposal = proposed(finding(KEY, sequence=EVENT, numbers=near))
    assert "late" not in values(proposal)
    assert proposal.notes == []


def test_duplicates_in_other_partitions_ask_for_a_repartition() -> None:
    proposal = proposed(finding(ID, across=200, ages_across=[Bucket(1 << 20, (1 << 21) - 1, 200)]))
    assert values(proposal)["repartition_by"] == "identity"
    # The oldest of them counts as well.
    assert values(proposal)["inactive_after_s"] == 2 * HOUR_MS / 1_000


def test_a_number_is_not_proposed_for_an_identity_that_comes_in_several_partitions() -> None:
    device, number = RecordPart("field", "device"), RecordPart("field", "n")
    counter = finding(device, sequence=number, across=200, numbers=numbers())
    section = values(proposed(finding(RecordPart("field", "event_id"), across=200), counter))
    assert (section["identity"], section["sequence"]) == ("field:event_id", "none")
    assert section["repartition_by"] == "identity"
    assert values(proposed(finding(ID), replace(counter, across=0)))["sequence"] == "field:n"
    refused = proposed(counter).refused
    assert refused is not None
    assert refused.startswith(f"200 repeats of {counter.candidate} came in another partition than the first")


@pytest.mark.parametrize(
    ("findings", "more", "why"),
    [
        ([finding(ID)], {"records": 999}, "999 records are too few"),
        ([finding(ID, conflicts=300, equal=700)], {}, "300 of the 1,000 repeats of field:id have another key or value"),
        ([], {}, "1,000 records equal an earlier one as a whole"),
        ([finding(ID, without=2_000, records=98_000)], {}, "1,000 records equal an earlier one as a whole"),
        ([finding(ID, equal=60_000)], {}, "1,000 records equal an earlier one as a whole"),
    ],
)
def test_where_evidence_is_thin_nothing_is_proposed(findings: list[Finding], more: dict[str, Any], why: str) -> None:
    proposal = proposed(*findings, **more)
    assert proposal.refused is not None
    assert why in proposal.refused
    assert proposal.toml == ""
    assert proposal.finding is None


@pytest.mark.parametrize(
    ("found", "more", "why"),
    [
        (finding(ID, ages=[Bucket(1, 1, 29)]), {}, "29 duplicates with a known age"),
        (finding(ID), {"last_ms": 200_000}, "Read more of the topic"),
        (finding(ID, equal=0, ages=[], age_most_ms=-1), {}, "0 duplicates"),
    ],
)
def test_a_time_that_was_not_seen_is_not_proposed(found: Finding, more: dict[str, Any], why: str) -> None:
    proposal = proposed(found, **more)
    assert "inactive_after_s" not in values(proposal)
    assert "max_identities" not in values(proposal)
    [line] = [line for line in proposal.lines if line.setting == "inactive_after_s"]
    assert why in line.reason


def test_equal_records_that_the_identity_does_not_find_are_told() -> None:
    [note] = proposed(finding(ID, equal=900)).notes
    assert note.startswith("100 records that equal an earlier one as a whole are new by this identity")
    assert proposed(finding(ID, equal=990)).notes == []


def test_equal_contents_with_other_headers_show_no_id_without_a_usual_name() -> None:
    cents = RecordPart("field", "cents")
    refused = proposed(finding(cents), whole=finding(WHOLE, equal=6)).refused
    assert refused is not None
    assert refused.startswith("1,000 records repeat field:cents with the same key and value, and only 6 with")
    assert proposed(finding(ID), whole=finding(WHOLE, equal=6)).refused is None
    [note] = proposed(finding(cents)).notes
    assert note.startswith("no usual name shows that field:cents is the id of an event")


def test_without_a_duplicate_only_a_usual_name_is_proposed() -> None:
    nothing: dict[str, Any] = {"equal": 0, "ages": [], "age_most_ms": -1}
    whole = finding(WHOLE, **nothing)
    report = Report(
        "t",
        [],
        1,
        100_000,
        1,
        1.0,
        1,
        2,
        None,
        0,
        0,
        0,
        1,
        {},
        [whole, finding(RecordPart("field", "colour"), **nothing)],
        (),
    )
    assert (
        propose(report).refused
        == "nothing that all records have tells one event from another, and no record came twice"
    )
    named = replace(report, findings=[whole, finding(ID, **nothing)])
    assert 'identity = "field:id"  # by its name; no record came twice among 100,000' in propose(named).toml


def test_without_a_duplicate_a_key_is_no_id() -> None:
    nothing: dict[str, Any] = {"equal": 0, "ages": [], "age_most_ms": -1}
    late = numbers(late=4_000, late_most=10**6, lates=[Bucket(1 << 19, (1 << 20) - 1, 4_000)])

    def without(*findings: Finding) -> Proposal:
        return proposed(*findings, whole=finding(WHOLE, **nothing))

    key = finding(KEY, **nothing)
    # It was asked for, and no part of it is named as an id.
    pair = finding(KEY, RecordPart("field", "source.lsn"), **nothing)
    lossy = finding(KEY, sequence=RecordPart("header", "n"), numbers=late, **nothing)
    for others in ((), (pair,), (lossy,)):
        refused = without(key, *others).refused
        assert refused is not None
        assert refused.startswith("no record came twice, and no key did. These records do not show")
    for named in (finding(ID, **nothing), finding(RecordPart("field", "source"), ID, **nothing)):
        [line] = [line for line in without(key, named).lines if line.setting == "identity"]
        assert line.value == named.candidate.setting
        assert line.reason == "by its name; no record came twice among 100,000"
    # A counter is known by how it counts.
    counter = finding(KEY, sequence=RecordPart("header", "n"), numbers=numbers(), **nothing)
    [line] = [line for line in without(key, counter).lines if line.setting == "identity"]
    assert line.reason == "by its number, which counts by one; no record came twice among 100,000"


def test_numbers_as_people_write_them() -> None:
    assert [rounded_up(each) for each in (0, 60, 61, 3_601, 86_400 * 100, 86_400 * 400)] == [
        60,
        60,
        120,
        7_200,
        86_400 * 180,
        86_400 * 730,
    ]
    assert [two_digits(each) for each in (0.2, 9, 99, 101, 1_234_567)] == [1, 9, 99, 110, 1_300_000]
    assert [span_text(each) for each in (0, 999, 1_000, 90_000, 2 * HOUR_MS, 49 * HOUR_MS)] == [
        "0 ms",
        "999 ms",
        "1 s",
        "1.5 min",
        "2 h",
        "2.04 d",
    ]
    assert [stream_name(each) for each in ("Web.Hooks", "1.a", "...", "x" * 249)] == [
        "web-hooks",
        "s-1-a",
        "s-",
        "x" * 63,
    ]
    assert busiest({1: 5, 2: 7, 10: 1}, 60) == 7
    assert busiest({1: 5, 2: 7, 10: 1}, 61) == 12
    assert busiest({}, 60) == 0
