"""The list of producers: several partitions, several workers, pages, and names that are out to harm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_ratchet.app.status.answers import ForgetEffect
from kafka_ratchet.app.status.lookup import answer_of
from kafka_ratchet.app.status.model import KnownIdentity
from kafka_ratchet.app.status.producers import (
    ProducerPartition,
    ProducersAnswer,
    ProducersPage,
    ProducerStatus,
    PublishedProgress,
    _take,
    list_producers,
    merge_pages,
    shown,
    with_published,
)
from kafka_ratchet.producers import Progress
from kafka_ratchet.rule.extraction import reader_for
from kafka_ratchet.rule.identity import Identity, SequenceSource
from kafka_ratchet.rule.verdicts import SequenceVerdict
from kafka_ratchet.tables.table import Sequences
from tests.app.fetched import named_batch
from tests.clock import SAVES_AT_ONCE, Clock

READ = reader_for(SequenceSource.parse("header:ratchet-sequence"))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sequences(tmp_path: Path, clock: Clock) -> Iterator[Sequences]:
    made = Sequences(tmp_path, "changelog", Identity.PRODUCER, 1 << 20, clock=clock)
    for number in range(2):
        made.partition(number).open()
    yield made
    for number in range(2):
        made.partition(number).close()


def judge(sequences: Sequences, partition: int, *rows: tuple[bytes, int], commit: bool = True) -> None:
    state = sequences.partition(partition)
    batch = named_batch(rows, partition)
    state.judge(batch, *READ(batch))
    if commit:
        state.changes(batch.next)
        state.committed(state.position + 10)


def test_a_name_in_several_partitions_has_a_row_for_each(sequences: Sequences) -> None:
    judge(sequences, 0, (b"a", 100), (b"b", 1))
    judge(sequences, 1, (b"a", 40), (b"a", 40), (b"a", 39))
    judge(sequences, 1, (b"a", 41), commit=False)
    answer = list_producers(sequences, [0, 1], None, 10)
    page = merge_pages("events", "in", [answer], 10, {0, 1}, [])
    a, b = page.producers
    assert (a.name, a.persisted, a.persisted_lowest, a.pushed) == ("a", 100, 40, 100)
    assert [(row.partition, row.persisted, row.pushed) for row in a.partitions] == [(0, 100, 100), (1, 40, 41)]
    assert (a.fresh, a.duplicate) == (2, 2)
    assert a.last_seen is not None
    assert (b.name, b.persisted, len(b.partitions)) == ("b", 1, 1)
    assert (page.next, page.problems) == (None, [])


@pytest.mark.parametrize("step_s", [SAVES_AT_ONCE, 0.0])
def test_pages_have_every_name_once_whether_saved_or_not(sequences: Sequences, clock: Clock, step_s: float) -> None:
    clock.step = step_s
    names = [b"%04d" % number for number in range(0, 60, 2)]
    judge(sequences, 0, *((name, 1) for name in names))
    clock.step = 0.0
    odd = [b"%04d" % number for number in range(1, 60, 2)]
    judge(sequences, 0, *((name, 1) for name in odd[:15]))
    judge(sequences, 1, *((name, 1) for name in odd[10:]), commit=False)
    found: list[bytes] = []
    after = None
    while True:
        page = merge_pages("events", "in", [list_producers(sequences, [0, 1], after, 7)], 7, {0, 1}, [])
        found += [bytes.fromhex(each.name_hex) for each in page.producers]
        if page.next is None:
            break
        after = bytes.fromhex(page.next)
    assert found == sorted(names + odd)


def test_more_new_names_than_can_be_looked_through_are_said(
    sequences: Sequences, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_ratchet.tables.known.NAMES_AT_ONCE", 2)
    judge(sequences, 0, (b"a", 1), (b"b", 1), (b"c", 1), commit=False)
    page = merge_pages("events", "in", [list_producers(sequences, [0], None, 10)], 10, {0, 1}, ["worker x is silent"])
    assert page.producers == []
    assert page.problems == [
        "worker x is silent",
        "no worker can answer now for partitions 1",
        "very many names came within the last seconds; some of them may be missing here",
    ]


def part(number: int, persisted: int) -> ProducerPartition:
    return ProducerPartition(number, persisted, persisted, None, 0, 0, None)


def test_while_a_partition_moves_the_one_that_has_seen_more_counts() -> None:
    old = ProducersAnswer([ProducerStatus(b"a".hex(), [part(0, 5), part(1, 7)])], False, [0, 1])
    new = ProducersAnswer([ProducerStatus(b"a".hex(), [part(0, 9)]), ProducerStatus("no hex", [])], False, [0])
    page = merge_pages("events", "in", [old, new], 10, {0, 1}, [])
    (a,) = page.producers
    assert [(row.partition, row.persisted) for row in a.partitions] == [(0, 9), (1, 7)]
    assert page.problems == ["a worker returned a name without hex form; it is left out"]


def test_what_producers_say_themselves_is_put_beside_and_in_between() -> None:
    workers = [ProducersAnswer([ProducerStatus(name.hex(), [part(0, 5)]) for name in (b"b", b"d")], True, [0])]
    page = merge_pages("events", "in", workers, 2, {0}, [])
    own = {
        b"a": PublishedProgress(3, 4),
        b"b": PublishedProgress(6, 7),
        b"c": PublishedProgress(-1, 0),
        b"z": PublishedProgress(1, 1),
    }
    merged = with_published(page, own, None, 3)
    told = [(each.name, each.published, each.persisted) for each in merged.producers]
    assert told == [("a", 3, None), ("b", 6, 5), ("c", None, None)]
    assert merged.next == b"c".hex()
    assert [each.name for each in with_published(page, own, b"b", 9).producers] == ["c", "d", "z"]
    unread = with_published(ProducersPage(None, "other", [], None, []), {b"x": PublishedProgress(1, 2)}, None, 5)
    assert (unread.producers[0].stream, unread.producers[0].published_records, unread.next) == (None, 2, None)


def test_strangers_records_are_left_out_of_what_producers_say() -> None:
    found: dict[str, dict[bytes, PublishedProgress]] = {}
    good = Progress(7, 8, 4, "id", None, 9, "session").encode()
    for key in (None, b"", b"{}", b"[1, 2]", b'["t"]', b"[" * 2000, b"\xff"):
        _take(found, key, good, 0)
    for value in (b"", b"[]", b'{"sequence": "7"}', b"{}" * 9):
        _take(found, json.dumps(["t", "bad"]).encode(), value, 1)
    for name in ("kept", "gone"):
        _take(found, json.dumps(["t", name]).encode(), good, 2)
    _take(found, json.dumps(["t", "gone"]).encode(), None, 3)
    assert found == {"t": {b"kept": PublishedProgress(7, 8)}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"Z\xc3\xbcrich", "Zürich"),
        (b"\x1b[2J\r\n", "\\x1b[2J\\r\\n"),
        (b"a\xe2\x80\xaeb", "a\\u202eb"),  # right-to-left override
        (b"\xff", "\\xff"),
        (b"\xc2\x9b31m", "\\x9b31m"),  # a control sequence in one character
    ],
)
def test_names_cannot_write_to_the_terminal(name: bytes, text: str) -> None:
    assert shown(name) == text


@pytest.mark.parametrize(
    ("verdicts", "not_asked", "identity", "partition", "answer"),
    [
        ({0: "duplicate", 1: "duplicate"}, [], "producer", None, "persisted"),
        ({0: "duplicate", 1: "unknown"}, [], "producer", None, "in flight"),
        ({0: "duplicate", 1: "fresh"}, [], "producer", None, "depends"),
        ({0: "duplicate"}, [], "producer", None, "depends"),
        ({0: "duplicate"}, [], "producer", 0, "persisted"),
        ({0: "duplicate"}, [], "producer", 1, "unseen"),
        ({0: "duplicate"}, [], "key", None, "persisted"),
        ({0: "fresh"}, [], "producer", None, "unseen"),
        ({}, [], "producer", None, "unseen"),
        ({}, [], "key", None, "unseen"),
        ({0: "duplicate"}, [1], "producer", None, "unknown"),
        ({0: "unknown"}, [1], "producer", 0, "in flight"),
        ({0: "duplicate"}, [1], "producer", 1, "unknown"),
        ({0: "duplicate"}, [], "producer", 7, "unknown"),
        ({0: "too-late"}, [], "key", None, "unknown"),
        ({0: "too-late"}, [], "producer", 0, "unknown"),
        ({0: "too-late", 1: "duplicate"}, [], "producer", None, "depends"),
        ({0: "too-late", 1: "unknown"}, [], "producer", None, "depends"),
        ({0: "too-late"}, [], "producer", None, "depends"),
    ],
)
def test_the_answer_is_only_what_is_true_wherever_the_record_went(
    verdicts: dict[int, SequenceVerdict], not_asked: list[int], identity: str, partition: int | None, answer: str
) -> None:
    assert answer_of(verdicts, [0, 1], not_asked, identity=identity, partition=partition) == answer


@pytest.mark.parametrize(
    ("verdicts", "forgotten", "identity", "partition", "answer"),
    [
        ({0: "fresh"}, [0], "key", None, "forgotten"),
        ({0: "fresh"}, [0], "producer", None, "forgotten"),  # and unseen in the other partition
        ({0: "fresh", 1: "duplicate"}, [0], "producer", None, "depends"),
        ({0: "fresh"}, [0], "producer", 0, "forgotten"),
        ({0: "fresh"}, [0], "producer", 1, "unseen"),
        ({0: "duplicate"}, [0], "key", None, "persisted"),  # it has come once more
        ({0: "unknown"}, [0], "key", None, "in flight"),
    ],
)
def test_a_forgotten_sequence_is_not_unseen(
    verdicts: dict[int, SequenceVerdict], forgotten: list[int], identity: str, partition: int | None, answer: str
) -> None:
    told = answer_of(verdicts, [0, 1], [], identity=identity, partition=partition, forgotten=forgotten)
    assert told == answer


@pytest.mark.parametrize(("before", "sequence", "is_forgotten"), [(7, 7, True), (7, 8, False), (None, 0, False)])
def test_what_an_operator_had_forgotten(before: int | None, sequence: int, is_forgotten: bool) -> None:
    edit = ForgetEffect("2026-11-22T00:00:00Z", "ann@desk", "began again", 12, None, before, None)
    assert KnownIdentity(0, "w", None, None, "fresh", [edit]).had_reached(sequence) is is_forgotten
    assert not KnownIdentity(0, "w", None, None, "fresh").had_reached(sequence)
