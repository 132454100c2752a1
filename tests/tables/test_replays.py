"""Replayed records are judged by the name of their dead letter, or never dropped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kafka_ratchet.rule.extraction import reader_for
from kafka_ratchet.rule.identity import Identity, SequenceSource
from kafka_ratchet.rule.kernels import DUPLICATE, FRESH, INVALID
from kafka_ratchet.rule.reasons import NONE, REPLAY_NOT_NEW, SEQUENCE_MISSING
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.tables.replays import REPLAYED_FROM, REPLAYS, identity_of
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from tests.tables.fetched_records import Sent, fetched, named

READ = reader_for(SequenceSource.parse("header:ratchet-sequence"))
ONCE = ((REPLAYS, b"1"),)
OWN = b"orders.dead-letters/id/"
APP = b"shop/"
LETTER_7 = (REPLAYED_FROM, OWN + b"0/7")  # as an earlier version names it
LETTER_8 = (REPLAYED_FROM, APP + OWN + b"0/8")


def replayed(sent: Sent, *headers: tuple[str, bytes | None]) -> Sent:
    return sent._replace(headers=(*sent.headers, *ONCE, *headers))


@pytest.fixture(params=[Identity.PRODUCER, Identity.KEY, Identity.PARTITION])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SequencePartition]:
    made = SequencePartition(tmp_path, "changelog", 0, request.param, 1 << 20)
    made.open()
    yield made
    made.close()


def judged(table: SequencePartition, batch: RecordBatch) -> list[tuple[int, int]]:
    verdicts, reasons = table.judge(batch, *READ(batch), letters=APP + OWN)
    return list(zip(verdicts.tolist(), reasons.tolist(), strict=True))


def rows(*sent: Sent, start: int = 0) -> RecordBatch:
    return fetched([each._replace(key=b"a") for each in sent], start)


def test_a_record_that_names_its_letter_passes_once_beside_the_others(table: SequencePartition) -> None:
    five, six, nine = named(b"a", 5, 6, 9)
    assert judged(table, rows(five, nine)) == [(FRESH, NONE)] * 2
    mixed = rows(five, replayed(five, LETTER_7), replayed(five, LETTER_7), six, replayed(nine, LETTER_8))
    # Its own sequence was seen; the letter's name was not. A copy of it, from a mirror, is a duplicate.
    wanted = [DUPLICATE, FRESH, DUPLICATE, DUPLICATE, FRESH]
    assert judged(table, mixed) == [(verdict, NONE) for verdict in wanted]
    assert table.last({Identity.PARTITION: b""}.get(table.identity, b"a")).pushed == 9
    table.changes(7)
    table.committed(10)
    progress = table.progress
    assert progress is not None
    assert (progress.fresh, progress.duplicate, progress.invalid) == (4, 3, 0)
    assert judged(table, rows(replayed(five, LETTER_7), start=7)) == [(DUPLICATE, NONE)]
    assert table.tally is None or table.tally.of(identity_of(OWN + b"0/7", b"a", five.value)) is None


def test_only_the_same_content_takes_the_place_of_a_letter(table: SequencePartition) -> None:
    (five,) = named(b"a", 5)
    junk = [five._replace(value=value) for value in (b"junk", None, b"-")]
    # Somebody has guessed which letter is replayed next, and is there first.
    assert judged(table, rows(*(replayed(each, LETTER_7) for each in junk))) == [(FRESH, NONE)] * 3
    assert judged(table, rows(replayed(five, LETTER_7), replayed(five, LETTER_7), start=3)) == [
        (FRESH, NONE),
        (DUPLICATE, NONE),
    ]


@pytest.mark.parametrize(
    "name", [b"other.dead-letters/id/0/7", b"orders.dead-letters/earlier/0/7", b"till/" + OWN + b"0/7"]
)
def test_the_letter_of_another_topic_or_application_says_nothing_here(table: SequencePartition, name: bytes) -> None:
    five, six = named(b"a", 5, 6)
    mark = REPLAYED_FROM, name
    assert judged(table, rows(five)) == [(FRESH, NONE)]
    # It was forwarded here long ago, or its headers were copied to a record of its own.
    again = rows(replayed(five, mark), replayed(six, mark), start=1)
    assert judged(table, again) == [(INVALID, REPLAY_NOT_NEW), (FRESH, NONE)]


def test_it_passes_again_where_its_transaction_was_rolled_back(table: SequencePartition) -> None:
    (five,) = named(b"a", 5)
    once = rows(replayed(five, LETTER_7))
    assert judged(table, once) == [(FRESH, NONE)]
    table.rollback()
    assert judged(table, once) == [(FRESH, NONE)]


def test_a_record_without_a_usable_sequence_passes_by_its_letter(table: SequencePartition) -> None:
    broken = Sent(headers=(("ratchet-producer", b"a"),))
    assert judged(table, rows(broken, replayed(broken, LETTER_7))) == [(INVALID, SEQUENCE_MISSING), (FRESH, NONE)]


def test_a_replayed_record_is_judged_by_the_rule_and_never_dropped(table: SequencePartition) -> None:
    five, six, nine = named(b"a", 5, 6, 9)
    assert judged(table, rows(replayed(five), six, replayed(five), nine)) == [
        (FRESH, NONE),
        (FRESH, NONE),
        (INVALID, REPLAY_NOT_NEW),
        (FRESH, NONE),
    ]
    table.changes(4)
    table.committed(10)
    progress = table.progress
    assert progress is not None
    assert (progress.fresh, progress.duplicate, progress.invalid) == (3, 0, 1)


@pytest.mark.parametrize(
    "headers",
    [
        ((REPLAYED_FROM, None),),
        ((REPLAYED_FROM, b""),),
        ((REPLAYED_FROM, OWN),),
        ((REPLAYED_FROM, OWN + b"0/" + b"7" * 20),),
        ((REPLAYED_FROM, OWN + b"0/07"),),
        ((REPLAYED_FROM, OWN + b"0/7/8"),),
        ((REPLAYED_FROM, OWN + b"0/7\n"),),
        (LETTER_7, LETTER_7),
        (("ratchet-replayed-from-x", LETTER_7[1]),),
        ((REPLAYED_FROM.upper(), LETTER_7[1]),),
    ],
)
def test_what_names_no_letter_is_judged_by_the_rule(
    table: SequencePartition, headers: tuple[tuple[str, bytes | None], ...]
) -> None:
    (five,) = named(b"a", 5)
    strange = five._replace(headers=(*five.headers, *headers))
    assert judged(table, rows(five, strange)) == [(FRESH, NONE), (DUPLICATE, NONE)]


def test_the_records_with_such_headers_are_found_in_a_chunk_and_in_part_of_it() -> None:
    five, six, nine = named(b"a", 5, 6, 9)
    batch = rows(five, replayed(six), nine, replayed(nine, LETTER_7))
    assert batch.replays.tolist() == [1, 3]
    assert batch.only(np.array([False, True, False, True])).replays.tolist() == [0, 1]
    assert batch.only(np.array([True, False, True, True])).replays.tolist() == [2]
    assert rows(five, nine).replays.tolist() == []


def test_against_is_told_of_both(tmp_path: Path) -> None:
    table = SequencePartition(tmp_path, "changelog", 0, Identity.PRODUCER, 1 << 20)
    table.open()
    five, six = named(b"a", 5, 6)
    batch = rows(five, replayed(five, LETTER_7), six, replayed(five, LETTER_7))
    against = np.empty(4, np.int64)
    table.judge(batch, *READ(batch), against, letters=APP + OWN)
    assert against.tolist() == [-1, -1, 5, 0]
    table.close()
