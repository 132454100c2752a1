"""Findings in the internal topic of `repartition_by`: records lost, doubled, moved, or out of order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast

import msgspec
import pytest

from kafka_ratchet.app.repartition import RepartitionSettings, repartitioned
from kafka_ratchet.app.settings_sections import StreamSettings
from kafka_ratchet.app.status.open_transactions import BlockedRange
from kafka_ratchet.app.verify.arrivals import compare_arrivals
from kafka_ratchet.app.verify.reading import TopicReader
from kafka_ratchet.app.verify.report import ExitCode, Report
from kafka_ratchet.app.verify.rule import RecordView
from kafka_ratchet.topic_log.clients import OffsetRange
from kafka_ratchet.transport.owner import INPUT, OUTPUT, Decision, Owner
from kafka_ratchet.transport.owner import Topic as OwnedTopic

SETTINGS = StreamSettings(input="in", output="out", dead_letters="dead", repartition_by="identity")
ARRIVALS = cast(RepartitionSettings, repartitioned("app", {"hooks": SETTINGS})["hooks-arrivals"])
Topics = dict[str, list[list[RecordView]]]


class Topic:
    """Stand-in for Kafka with the committed records of a topic; all of the input is read."""

    def __init__(self, topics: Topics, first: int = 0, deleted: int = 0) -> None:
        """deleted: number of the first dead letters that retention has deleted."""
        self.topics, self.first, self.deleted = topics, first, deleted

    def count(self, topic: str) -> int:
        return len(self.topics[topic])

    def topic_id(self, topic: str) -> str:
        return f"id of {topic}"

    def committed_of(self, topic: str, count: int) -> dict[int, int]:
        return {number: len(part) for number, part in enumerate(self.topics[topic])}

    def sent(self, topic: str) -> list[OffsetRange]:
        first = self.deleted if topic == ARRIVALS.dead_letters else 0
        return [OffsetRange(min(first, len(part)), len(part)) for part in self.topics[topic]]

    def spans(self, topic: str) -> dict[int, OffsetRange]:
        return {number: OffsetRange(self.first, len(part)) for number, part in enumerate(self.topics[topic])}

    def blocked(self, topic: str, ends: dict[int, int]) -> list[BlockedRange]:
        return []

    def records(self, topic: str, partition: int, end: int, begin: int) -> Iterator[tuple[int, RecordView]]:
        yield from list(enumerate(self.topics[topic][partition]))[begin:end]


def event(key: bytes, number: int) -> RecordView:
    return RecordView(key, b"%d" % number, [], number)


A1, A2, A3, B1, B2 = event(b"a", 1), event(b"a", 2), event(b"a", 3), event(b"b", 4), event(b"b", 5)
NO_KEY = RecordView(None, b"?", [], 6)


def letter(record: RecordView, partition: int, offset: int) -> RecordView:
    place = [("ratchet-partition", b"%d" % partition), ("ratchet-offset", b"%d" % offset)]
    return replace(record, headers=[("ratchet-reason", b"why"), ("ratchet-topic", b"in"), *place])


LETTER = letter(NO_KEY, 1, 2)


def topics() -> Topics:
    sent = [[A1, A3, A2], [B1, B2], []]
    return {"in": [[A1, A2, B1], [A3, B2, NO_KEY]], ARRIVALS.output: sent, ARRIVALS.dead_letters: [[], [LETTER]]}


def compared(held: Topics, first: int = 0, owners: dict[int, Owner] | None = None, deleted: int = 0) -> Report:
    report = Report("hooks")
    reader = cast(TopicReader, Topic(held, first, deleted))
    compare_arrivals(reader, ARRIVALS, owners or {}, lambda record: record.key, report)
    return report


def test_what_is_right_passes() -> None:
    assert compared(topics()).ok


def test_the_same_record_in_two_partitions_may_come_from_either() -> None:
    again = [[A1], [A1, A2]], [[A1, A2, A1], [], []]
    held: dict[str, list[list[RecordView]]] = {
        "in": again[0],
        ARRIVALS.output: again[1],
        ARRIVALS.dead_letters: [[], []],
    }
    assert compared(held).ok
    held[ARRIVALS.output][0].append(A1)
    assert compared(held).counts == {"doubled": 1}
    del held[ARRIVALS.output][0][2:]
    assert compared(held).counts == {"lost": 1}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda sent: sent[0].pop(), {"lost": 1}),
        (lambda sent: sent[0].append(A1), {"doubled": 1}),
        (lambda sent: sent[0].append(event(b"a", 9)), {"doubled": 1}),
        (lambda sent: sent[0].insert(0, sent[0].pop()), {"reordered": 1}),
        (lambda sent: sent[2].append(sent[1].pop()), {"unexpected": 1}),
        (lambda sent: sent[0].append(NO_KEY), {"doubled": 1}),
    ],
)
def test_what_is_not_right_is_found(change: Callable[[list[list[RecordView]]], object], found: dict[str, int]) -> None:
    held = topics()
    change(held[ARRIVALS.output])
    assert compared(held).counts == found


def swallow(held: Topics) -> None:
    """Write a valid record as a dead letter, and not to the internal topic."""
    held[ARRIVALS.output][1].remove(B2)
    held[ARRIVALS.dead_letters][1].insert(0, letter(B2, 1, 1))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (swallow, {"lost": 1, "unexpected": 1}),
        (lambda held: held[ARRIVALS.dead_letters][1].append(LETTER), {"doubled": 1}),
        (
            lambda held: held[ARRIVALS.dead_letters][1].append(letter(replace(NO_KEY, value=b"!"), 1, 2)),
            {"doubled": 1},
        ),
        (
            lambda held: held[ARRIVALS.dead_letters][1].__setitem__(0, letter(replace(NO_KEY, value=b"!"), 1, 2)),
            {"altered": 1},
        ),
        (lambda held: held[ARRIVALS.dead_letters][1].clear(), {"lost": 1}),
        (lambda held: held[ARRIVALS.dead_letters][0].append(letter(NO_KEY, 7, 0)), {"unexpected": 1}),
    ],
)
def test_what_is_not_right_with_the_dead_letters_is_found(
    change: Callable[[Topics], object], found: dict[str, int]
) -> None:
    held = topics()
    change(held)
    assert compared(held).counts == found


def test_dead_letters_that_retention_has_deleted_leave_their_records_undecided() -> None:
    report = compared(topics(), deleted=1)
    assert (report.counts, report.undecided, report.exit_code()) == ({}, 1, ExitCode.NOT_ALL_PROVEN)


def test_letters_of_the_internal_stream_are_not_counted_with_the_streams_own() -> None:
    held, foreign = topics(), letter(NO_KEY, 1, 2)
    foreign.headers[1] = ("ratchet-topic", b"another")
    held[ARRIVALS.dead_letters][0].append(foreign)
    report = compared(held)
    assert (report.dead_letters, report.other_letters, report.counts) == (0, 0, {})


def test_an_identity_that_is_too_long_is_none() -> None:
    held = topics()
    long = [RecordView(b"x" * 2_000, b"%d" % number, [], number) for number in range(2)]
    for number in range(2):
        held["in"][number].append(long[number])
        held[ARRIVALS.dead_letters][number].append(letter(long[number], number, len(held["in"][number]) - 1))
    assert compared(held).ok


@pytest.mark.parametrize("why", ["deleted", "decided"])
def test_without_the_beginning_or_after_a_decision_the_place_of_each_identity_is_compared_all_the_same(
    why: str,
) -> None:
    decided = Owner("app", "hooks-arrivals", {}, {}, (Decision("now", "me", "resume", "so", 0, 2),))
    known = {"first": 1} if why == "deleted" else {"owners": {0: decided}}
    held = topics()
    held[ARRIVALS.output][0].append(A1)  # not looked for
    report = compared(held, **known)
    assert (report.ok, report.is_compared) == (True, False)
    held[ARRIVALS.output][2].append(A1)
    assert compared(held, **known).counts == {"unexpected": 1}


@pytest.mark.parametrize("part", [INPUT, OUTPUT])
def test_a_topic_that_was_created_again_is_not_compared(part: str) -> None:
    held, names = topics(), {INPUT: "in", OUTPUT: ARRIVALS.output}
    same = {role: OwnedTopic(name, f"id of {name}") for role, name in names.items()}
    owner = Owner("app", "hooks-arrivals", {}, same | {part: OwnedTopic(names[part], "another id")})
    assert compared(held, owners={0: msgspec.structs.replace(owner, topics=same)}).is_compared
    held["in"] = [[], []]
    held[ARRIVALS.output][2].append(A1)  # in a second partition; counts only in the topic of the owner
    report = compared(held, owners={0: owner})
    assert (dict(report.counts), report.arrivals_not_compared) == ({"unexpected": 1} if part == INPUT else {}, 1)
    held[ARRIVALS.output][2].pop()
    assert compared(held, owners={0: owner}).exit_code() is ExitCode.NOT_ALL_PROVEN
