"""Headers of a dead letter, and its original record."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ratchet.app.dead_letters.letters import APPENDED, LetterOrigin, letter_at
from kafka_ratchet.app.dead_letters.original import OriginalRecord, encode, original_of
from kafka_ratchet.errors import RecordTooLarge
from kafka_ratchet.rule.reasons import REASONS
from kafka_ratchet.tables.replays import REPLAYED_FOR, REPLAYED_FROM, REPLAYS
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.encoding import EncodedBatch, varint
from kafka_ratchet.transport.batch.record_batch import Header, RecordBatch
from kafka_ratchet.transport.delivery import LETTER_AGENTS, LETTER_APP
from tests.tables.fetched_records import Sent, fetched

SAID = [Header(name, value) for name, value in zip(APPENDED, (b"why", b"orders", b"1", b"7"), strict=True)]
NAMES = st.sampled_from([*APPENDED, "trace", "", "größe", "ratchet-producer"])
HEADERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=9)), max_size=5)


def batch(key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> RecordBatch:
    return fetched(
        [Sent(b"before"), Sent(key, value, tuple((name, said) for name, said in headers))], 3, topic="letters"
    )


def read(encoded: EncodedBatch) -> RecordBatch:
    return read_chunk("orders", 1, 0, encoded.as_fetched(0), [])


@settings(deadline=None)
@given(st.none() | st.binary(max_size=5), st.none() | st.binary(max_size=5), HEADERS)
def test_the_record_is_what_it_was(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    letter = batch(key, value, [*headers, *SAID])
    found = letter_at(letter, 1)
    assert (found.partition, found.offset) == (0, 4)
    assert found.origin == LetterOrigin("why", "orders", 1, 7)
    assert found.headers == headers
    for name in (None, "letters/id/0/4"):
        (encoded,) = encode([original_of(letter, 1, name, 1_700_000_000_000)], 1 << 20)
        again = read(encoded)
        assert (again.key(0), again.value(0), int(again.timestamps[0])) == (key, value, 1_700_000_000_000)
        marks = [(REPLAYS, b"1")] + ([(REPLAYED_FROM, name.encode())] if name else [])
        assert again.headers(0) == [*headers, *marks]


def test_headers_of_an_earlier_replay_are_replaced_and_counted() -> None:
    marks: list[tuple[str, bytes | None]] = [(REPLAYS, b"3"), ("a", b"b"), (REPLAYED_FROM, b"x"), (REPLAYS, b"2")]
    letter = batch(b"k", b"v", [*marks, *SAID])
    assert letter_at(letter, 1).replays == 3
    (encoded,) = encode([original_of(letter, 1, None, 0)], 1 << 20)
    assert read(encoded).headers(0) == [("a", b"b"), (REPLAYS, b"4")]


def test_the_agents_that_rejected_it_are_named_and_nobody_elses_header_is_taken_for_that() -> None:
    rejected = [Header(APPENDED[0], b"agent a: raised X"), *SAID[1:]]
    own: list[tuple[str, bytes | None]] = [(LETTER_AGENTS, b"mine"), (REPLAYED_FOR, b"old")]
    letter = batch(b"k", b"v", [*own, (LETTER_AGENTS, b'["a"]'), *rejected])  # of an earlier version
    assert (letter_at(letter, 1).headers, letter_at(letter, 1).app) == (own, None)
    letter = batch(b"k", b"v", [*own, (LETTER_APP, b"shop"), (LETTER_AGENTS, b'["a"]'), *rejected])
    assert (letter_at(letter, 1).headers, letter_at(letter, 1).app) == (own, "shop")
    (encoded,) = encode([original_of(letter, 1, "t/i/0/4", 0)], 1 << 20)
    marks = [(REPLAYS, b"1"), (REPLAYED_FROM, b"t/i/0/4"), (REPLAYED_FOR, b'["a"]')]
    assert read(encoded).headers(0) == [own[0], *marks]
    assert letter_at(batch(b"k", b"v", [*own[:1], *SAID]), 1).headers == own[:1]


@pytest.mark.parametrize("said", [None, b"", b"many", b"-1", b"99999", "²".encode()])
def test_a_count_that_is_none_is_a_high_one(said: bytes | None) -> None:
    assert letter_at(batch(b"k", b"v", [(REPLAYS, said), *SAID]), 1).replays == 9999


@pytest.mark.parametrize(
    "headers",
    [
        [],
        SAID[:3],
        SAID[1:] + SAID[:1],
        [*SAID, Header("more", None)],
        [*SAID[:2], Header(APPENDED[2], b"-1"), SAID[3]],
        [*SAID[:3], Header(APPENDED[3], b"9" * 20)],
        [*SAID[:3], Header(APPENDED[3], None)],
    ],
)
def test_a_record_without_such_headers_is_no_letter(headers: list[Header]) -> None:
    assert letter_at(batch(b"k", b"v", list(headers)), 1).origin is None


def test_names_that_are_not_utf_8_stay_as_they_are() -> None:
    letter = batch(b"k", b"v", [("ab", b"1"), *SAID])
    data = letter.data.tobytes().replace(varint(2) + b"ab", varint(2) + b"\xff\x00")
    strange = RecordBatch("letters", 0, 3, 5, np.frombuffer(data, np.uint8), letter.columns)
    assert b"\xff\x00" in original_of(strange, 1, None, 0).body


def test_batches_are_cut_at_the_limit_and_keep_each_records_time() -> None:
    originals = [
        OriginalRecord(varint(-1) + varint(50) + b"x" * 50 + varint(0), 1000 - n, f"letter {n}") for n in range(40)
    ]
    encoded = list(encode(originals, 700))
    assert len(encoded) > 4
    assert all(len(each.buffer) <= 700 for each in encoded)
    times = [int(time) for each in encoded for time in read(each).timestamps]
    assert times == [each.timestamp_ms for each in originals]
    large = OriginalRecord(varint(-1) + varint(4000) + b"x" * 4000 + varint(0), 5, "letters, partition 0, offset 4")
    (packed,) = encode([large], 700)
    assert read(packed).value(0) == b"x" * 4000
    noise = np.random.default_rng(1).bytes(4000)
    with pytest.raises(
        RecordTooLarge, match=r"letters, partition 0, offset 4: .* max.message.bytes of the input is 700"
    ):
        list(encode([large._replace(body=varint(-1) + varint(4000) + noise + varint(0))], 700))


@pytest.mark.parametrize("reason", REASONS[1:])
def test_what_judging_rejects_is_not_an_agents(reason: str) -> None:
    assert not LetterOrigin(reason, "orders", 0, 0).is_of_agent
    assert LetterOrigin("agent add_up: raised ValueError", "orders", 0, 0).is_of_agent
    assert LetterOrigin("value does not decode: it is JSON no more", "orders", 0, 0).is_of_agent


def test_a_time_before_all_others_is_kept() -> None:
    (encoded,) = encode([OriginalRecord(varint(-1) + varint(-1) + varint(0), each, "") for each in (5, 0, 9)], 1 << 20)
    assert struct.unpack_from(">qq", encoded.as_fetched(0), 27) == (5, 9)
    assert read(encoded).timestamps.tolist() == [5, 0, 9]
