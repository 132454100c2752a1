import random
import time
from collections.abc import Iterable

import numpy as np
import pytest
from aiokafka.record import MemoryRecords

from kafka_ratchet.errors import RecordTooLarge
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.encoding import (
    EncodedBatch,
    entry_batch,
    forward,
    pack_entries,
    varint,
    with_headers,
)
from kafka_ratchet.transport.batch.kernels import HEADER_SIZE
from kafka_ratchet.transport.batch.record_batch import Header, RecordBatch
from kafka_ratchet.transport.batch.rows import encode_rows, spans
from tests.transport.batch.known_batches import COMPRESSIONS, Source, encode
from tests.transport.batch.slow_reading import read_slowly

MEGABYTE = 1 << 20
HEADERS = (("ratchet-sequence", b"7"), ("again", b"a"), ("again", None), ("größe", b""))

Row = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def batch_of(rows: list[Source], base: int = 1_000, compression: str = "none") -> RecordBatch:
    return read_chunk("in", 2, base, encode(rows, base, compression), [])


def some_rows(count: int, size: int = 30, seed: int = 1) -> list[Source]:
    dice = random.Random(seed)
    return [
        Source(
            key=dice.choice([None, b"", dice.randbytes(8)]),
            value=dice.choice([None, b"", dice.randbytes(size), b"z" * size]),
            headers=dice.choice([(), HEADERS, HEADERS[2:]]),
            timestamp=1_700_000_000_000 + dice.randrange(-100_000, 100_000),
        )
        for _ in range(count)
    ]


def decoded(batches: Iterable[EncodedBatch]) -> list[Row]:
    """The records of some batches, by aiokafka's decoder; every batch is checked as the broker checks it."""
    rows: list[Row] = []
    for sequence, encoded in enumerate(batches):
        data = bytes(encoded.seal(4_711, 3, sequence))
        records = MemoryRecords(data)
        batch = records.next_batch()
        assert batch is not None
        assert not records.has_next()
        assert batch.validate_crc()
        assert batch.is_transactional
        assert not batch.is_control_batch
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (4_711, 3, sequence)
        assert (batch.base_offset, batch.next_offset) == (0, encoded.count)
        found = list(batch)
        assert [record.offset for record in found] == list(range(encoded.count))
        assert batch.max_timestamp == max(record.timestamp for record in found)
        assert [record[0] for record in read_slowly(0, data, []).records] == list(range(encoded.count))
        rows += [(record.timestamp, record.key, record.value, tuple(record.headers)) for record in found]
    return rows


def as_sent(rows: Iterable[Source]) -> list[Row]:
    return [(row.timestamp, row.key, row.value, row.headers) for row in rows]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("before", COMPRESSIONS)
def test_kept_records_are_forwarded_byte_for_byte(before: str, compression: str) -> None:
    rows = some_rows(200)
    batch = batch_of(rows, compression=before)
    keep = np.array([i % 3 != 0 for i in range(200)])
    sent = list(forward(batch, keep, MEGABYTE, compression))
    assert decoded(sent) == as_sent(row for row, kept in zip(rows, keep, strict=True) if kept)
    assert len(sent) == 1
    assert sent[0].buffer[22] & 7 == COMPRESSIONS.index(compression)


def test_nothing_kept_is_nothing_sent() -> None:
    assert list(forward(batch_of(some_rows(5)), np.zeros(5, bool), MEGABYTE, "none")) == []
    empty = read_chunk("in", 2, 0, b"", [])
    assert list(forward(empty, np.zeros(0, bool), MEGABYTE, "gzip")) == []


@pytest.mark.parametrize("kept", [0, 7, 19])
def test_one_record_kept(kept: int) -> None:
    rows = some_rows(20)
    sent = list(forward(batch_of(rows), np.arange(20) == kept, MEGABYTE, "none"))
    assert decoded(sent) == as_sent([rows[kept]])


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("limit", [700, 1_000, 5_000, 65_536])
def test_batches_are_split_at_the_limit_and_none_is_beyond_it(limit: int, compression: str) -> None:
    rows = [Source(b"k", random.Random(i).randbytes(i * 37 % 500), HEADERS[:2], 1_000 + i) for i in range(300)]
    sent = list(forward(batch_of(rows), np.ones(300, bool), limit, compression))
    assert decoded(sent) == as_sent(rows)
    assert len(sent) > 1
    assert max(len(encoded.buffer) for encoded in sent) <= limit


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_record_that_just_fits_fits_though_it_does_not_compress(compression: str) -> None:
    row = Source(None, random.Random(1).randbytes(4_000))
    size = len(encode([row]))
    sent = list(forward(batch_of([row]), np.ones(1, bool), size, compression))
    assert decoded(sent) == as_sent([row])


def test_a_record_beyond_the_limit_goes_through_if_it_compresses() -> None:
    rows = [Source(b"small"), Source(value=b"a" * 5_000), Source(b"last")]
    sent = list(forward(batch_of(rows, compression="gzip"), np.ones(3, bool), 1_000, "gzip"))
    assert decoded(sent) == as_sent(rows)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_record_that_does_not_fit_is_named(compression: str) -> None:
    rows = [Source(value=b"x"), Source(value=b"dropped"), Source(value=random.Random(1).randbytes(3_000))]
    with pytest.raises(
        RecordTooLarge, match=r"in, partition 2, offset 1002: a batch of 30\d\d bytes .*max\.message\.bytes of 2000"
    ):
        list(forward(batch_of(rows), np.array([True, False, True]), 2_000, compression))
    assert len(list(forward(batch_of(rows), np.array([True, True, False]), 2_000, compression))) == 1


def test_timestamps_of_any_distance_keep_their_value() -> None:
    rows = [Source(timestamp=t) for t in (1 << 45, 0, 5, 1 << 61, 1)]
    assert decoded(forward(batch_of(rows), np.ones(5, bool), MEGABYTE, "none")) == as_sent(rows)


MORE = [Header("ratchet-reason", b"sequence-missing"), Header("null", None), Header("größe", b"\0")]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_headers_are_added_behind_those_of_the_record(compression: str) -> None:
    rows = some_rows(40)
    batch = batch_of(rows, compression=compression)
    for i, row in enumerate(rows):
        assert decoded([with_headers(batch, i, MORE, MEGABYTE)]) == [
            (row.timestamp, row.key, row.value, (*row.headers, *MORE))
        ]
    assert decoded([with_headers(batch, 3, [], MEGABYTE)]) == as_sent([rows[3]])


def test_more_than_63_headers() -> None:
    """The count then takes two bytes where one stood before."""
    row = Source(headers=tuple((f"h{i}", b"") for i in range(62)))
    (found,) = decoded([with_headers(batch_of([row]), 0, MORE, MEGABYTE)])
    assert found[3] == (*row.headers, *MORE)


def test_a_dead_letter_beyond_the_limit_is_compressed_or_named() -> None:
    batch = batch_of([Source(value=b"a" * 5_000), Source(value=random.Random(1).randbytes(5_000))])
    assert decoded([with_headers(batch, 0, MORE, 1_000)])[0][2] == b"a" * 5_000
    with pytest.raises(
        RecordTooLarge, match=r"in, partition 2, offset 1001: as a dead letter .* 5\d\d\d bytes, .* 1000"
    ):
        with_headers(batch, 1, MORE, 1_000)


PAIRS = [(b"p", b"progress"), (b"i", b""), (b"i" * 200, b"12345678"), (b"ab", b"x" * 300)]


def test_entries_begin_a_batch() -> None:
    out = np.full(2_000, 255, np.uint8)
    before = time.time_ns() // 1_000_000
    end, count = entry_batch(out, PAIRS)
    rows = decoded([EncodedBatch.finish(out[:end], count)])
    assert [(key, value, headers) for _, key, value, headers in rows] == [(key, value, ()) for key, value in PAIRS]
    assert before <= rows[0][0] <= time.time_ns() // 1_000_000
    assert len({time for time, *_ in rows}) == 1
    assert (out[end:] == 255).all()


def test_no_entries() -> None:
    assert entry_batch(np.zeros(100, np.uint8), []) == (HEADER_SIZE, 0)


def test_packed_entries_read_like_fetched_ones() -> None:
    batch = pack_entries("changelog", 3, PAIRS)
    assert [(batch.key(i), batch.value(i)) for i in range(batch.count)] == PAIRS
    assert (batch.topic, batch.partition, batch.offsets.tolist()) == ("changelog", 3, [0] * 4)
    assert pack_entries("changelog", 3, []).count == 0


def test_sealing_again_changes_only_who_sends_it() -> None:
    (encoded,) = forward(batch_of(some_rows(3)), np.ones(3, bool), MEGABYTE, "zstd")
    first, second = bytes(encoded.seal(1, 2, 3)), bytes(encoded.seal(5, 6, 7))
    assert first != second
    assert first[:17] == second[:17]
    assert first[21:43] + first[57:] == second[21:43] + second[57:]
    assert encoded.seal(1, 2, 3) == first


def test_batches_of_one_call_share_no_bytes() -> None:
    sent = list(forward(batch_of(some_rows(100)), np.ones(100, bool), 2_000, "none"))
    assert len(sent) >= 3
    before = [bytes(encoded.buffer) for encoded in sent]
    for encoded in sent[1:]:
        encoded.buffer[:] = bytes(len(encoded.buffer))
    assert bytes(sent[0].buffer) == before[0]


def test_new_records_are_what_was_given() -> None:
    rows = some_rows(300)
    rows = [row._replace(headers=row.headers if number % 2 else ()) for number, row in enumerate(rows)]
    keys, values = spans([row.key for row in rows]), spans([row.value for row in rows])
    headers = spans([written_headers(row.headers) for row in rows])
    times = np.array([row.timestamp for row in rows], np.int64)
    for limit in (MEGABYTE, 500):
        assert decoded(encode_rows(keys, values, times, limit, "here", "none", headers)) == as_sent(rows)
    bare = [row._replace(headers=()) for row in rows]
    assert decoded(encode_rows(keys, values, times, MEGABYTE, "here", "zstd")) == as_sent(bare)


def written_headers(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Encode headers as a record has them; without headers, return no bytes, as rows without headers have."""
    parts = [
        varint(len(name.encode())) + name.encode() + varint(-1 if value is None else len(value)) + (value or b"")
        for name, value in headers
    ]
    return varint(len(parts)) + b"".join(parts) if parts else b""
