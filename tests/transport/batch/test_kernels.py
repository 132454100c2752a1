import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kafka_ratchet.errors import BatchTooLarge, CorruptBatch
from kafka_ratchet.transport.batch import kernels
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.encoding import forward, varint
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from tests.transport.batch.known_batches import (
    COMPRESSIONS,
    HEAD,
    Source,
    columns_of,
    encode,
    packed,
    seal,
    wanted,
    wanted_slowly,
    with_field,
)
from tests.transport.batch.slow_reading import SlowRecord, Unreadable, decompress, read_slowly, slow_crc32c

NAME, OTHER = b"ratchet-sequence", b"ratchet-producer"

quick = settings(
    derandomize=True,
    deadline=None,
    max_examples=120,
    database=None,
    report_multiple_bugs=False,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)

maybe_bytes = st.none() | st.binary(max_size=40)
names = st.sampled_from([NAME.decode(), OTHER.decode(), "ratchet-sequenc", "", "größe"]) | st.text(max_size=12)
headers = st.lists(st.tuples(names, maybe_bytes), max_size=5).map(tuple)
sources = st.builds(
    Source,
    key=maybe_bytes,
    value=maybe_bytes | st.binary(min_size=100, max_size=300),
    headers=headers,
    timestamp=st.integers(0, 1 << 45) | st.integers(1_700_000_000_000, 1_700_000_001_000),
    delta=st.none(),
)


def equal(batch: RecordBatch, expected: list[SlowRecord]) -> None:
    """The columns say what the slow reading says. Names that are not UTF-8 are compared as people see them."""
    shown = [
        record._replace(headers=[(name.decode("utf-8", "replace").encode(), value) for name, value in record.headers])
        for record in expected
    ]
    assert columns_of(batch) == shown
    for i, record in enumerate(expected):
        assert wanted(batch, i, kernels.FIRST) == wanted_slowly(record, NAME)
        assert wanted(batch, i, kernels.SECOND) == wanted_slowly(record, OTHER)


def read(data: bytes, start: int = 0, aborted: tuple[tuple[int, int], ...] = ()) -> RecordBatch:
    return read_chunk("t", 3, start, data, list(aborted), sequence_header=NAME, identity_header=OTHER)


def test_the_oracle_knows_crc32c() -> None:
    assert slow_crc32c(b"123456789") == 0xE3069283  # RFC 3720, appendix B.4 uses the same polynomial


@quick
@given(
    st.lists(st.lists(sources, min_size=1, max_size=12), min_size=1, max_size=4),
    st.sampled_from(COMPRESSIONS),
    st.integers(0, 1 << 40),
    st.integers(0, 20),
)
def test_what_was_encoded_is_read(batches: list[list[Source]], compression: str, base: int, skip: int) -> None:
    data, expected, at = b"", [], base
    for records in batches:
        data += encode(records, at, compression)
        expected += [
            SlowRecord(at + i, source.timestamp, source.key, source.value, [(n.encode(), v) for n, v in source.headers])
            for i, source in enumerate(records)
        ]
        at += len(records)
    start = min(base + skip, at - 1)
    expected = [record for record in expected if record.offset >= start]
    first = data
    lengths = [len(records) for records in batches]
    while base + lengths[0] <= start:  # a broker begins with the batch that holds the offset
        base += lengths.pop(0)
        first = first[12 + struct.unpack_from(">i", first, 8)[0] :]
    slow = read_slowly(start, first, [])
    assert (slow.records, slow.next) == (expected, at)
    batch = read(first, start)
    assert batch.next == at
    equal(batch, expected)


damage = st.lists(
    st.tuples(
        st.sampled_from(["flip", "set", "insert", "delete", "bomb", "truncate"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=4,
)
BOMBS = (
    b"\xff" * 9 + b"\x01",  # the lowest 64-bit integer
    b"\xfe" + b"\xff" * 8 + b"\x01",  # the highest
    b"\xff" * 10,
    b"\x80" * 9 + b"\x02",
    varint(1 << 31),
    varint(-2),
    varint(-1),
    varint(0),
    b"\x80\x00",
)


def damaged(data: bytes, changes: list[tuple[str, float, int]]) -> bytes:
    out = bytearray(data)
    for kind, where, value in changes:
        at = int(where * len(out)) if out else 0
        if kind == "insert" or not out:
            out[at:at] = bytes([value])
        elif kind == "flip":
            out[at] ^= 1 << (value % 8)
        elif kind == "set":
            out[at] = value
        elif kind == "delete":
            del out[at]
        elif kind == "bomb":
            bomb = BOMBS[value % len(BOMBS)]
            out[at : at + (len(bomb) if value > 127 else 1)] = bomb
        else:
            del out[at:]
    return bytes(out)


COUNTS = (0, 1, -1, 7, 1 << 20, 0x7FFFFFFF, -0x80000000)


def agree(data: bytes, start: int) -> bool:
    """Both readings refuse, or both say the same. Returns whether it was readable."""
    try:
        slow = read_slowly(start, data, [(7, 0)])
    except Unreadable:
        with pytest.raises(CorruptBatch, match=r"t, partition 3, record batch at offset -?\d+: "):
            read(data, start, ((7, 0),))
        return False
    batch = read(data, start, ((7, 0),))
    assert batch.next == slow.next
    equal(batch, slow.records)
    return True


@quick
@given(st.lists(sources, min_size=1, max_size=6), damage, st.sampled_from(COMPRESSIONS), st.integers(0, 4))
def test_damaged_records_are_refused_or_read_alike(
    records: list[Source], changes: list[tuple[str, float, int]], compression: str, start: int
) -> None:
    whole = encode(records)
    body = damaged(whole[61:], changes)
    if compression != "none":
        body = packed(compression, body)
    fields = list(HEAD.unpack_from(whole))
    fields[5] = COMPRESSIONS.index(compression)
    agree(seal(HEAD.pack(*fields) + body), min(start, len(records) - 1))


@quick
@given(
    st.lists(sources, min_size=1, max_size=4),
    st.integers(0, 60),
    st.integers(0, 255),
    st.sampled_from([None, *COUNTS]),
    st.sampled_from([None, *COUNTS]),
    st.booleans(),
)
def test_damaged_batch_headers_are_refused_or_read_alike(
    records: list[Source], at: int, value: int, count: int | None, last: int | None, sealed: bool
) -> None:
    first, second = encode(records), encode(records, len(records))
    head = bytearray(first[:61])
    head[at] = value
    if last is not None:
        head[23:27] = struct.pack(">i", last)
    if count is not None:
        head[57:61] = struct.pack(">i", count)
    changed = bytes(head) + first[61:]
    if int.from_bytes(changed[21:23], "big") & 7 and not int.from_bytes(changed[21:23], "big") & 0x20:
        return  # records that are not compressed, said to be: test_damaged_compression_is_refused
    agree((seal(changed) if sealed else changed) + second, 0)


@quick
@given(st.sampled_from(COMPRESSIONS[1:]), damage)
def test_damaged_compression_is_refused(compression: str, changes: list[tuple[str, float, int]]) -> None:
    """The libraries differ in what they still take; whatever ours takes has to hold sound records all the same."""
    whole = encode([Source(b"k%d" % i, b"v" * 50) for i in range(20)], 0, compression)
    body = damaged(whole[61:], changes)
    data = seal(whole[:61] + body)
    try:
        batch = read(data)
    except (CorruptBatch, BatchTooLarge) as error:
        assert "offset 0" in str(error)  # noqa: PT017
        return
    assert batch.count == 20
    assert batch.next == 20


def small_damages(body: bytes) -> Iterator[bytes]:
    """One change each, at every place: any other byte, a byte more or less, or a varint that leads astray."""
    for at in range(len(body)):
        before, after = body[:at], body[at + 1 :]
        yield from (before + bytes([byte]) + after for byte in range(256) if byte != body[at])
        yield from (before + bomb + after for bomb in BOMBS)
        yield before + after
        yield before + b"\0" + body[at:]


def test_every_small_damage_is_refused_or_read_alike() -> None:
    rows = [
        Source(None, b"v", ((NAME.decode(), b"7"),)),
        Source(b"k", None, ((OTHER.decode(), None),), Source().timestamp + 70),
    ]
    whole = encode(rows)
    seen = [agree(seal(whole[:61] + body), 0) for body in small_damages(whole[61:])]
    assert seen.count(True) > 1_000
    assert seen.count(False) > 1_000


LENGTHS_AND_DELTAS = (-(1 << 63), -(1 << 31), -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 63, 64, 1 << 31, 1 << 62, (1 << 63) - 1)


@pytest.mark.parametrize("field", ["time", "offset", "key", "value", "count", "name", "header"])
def test_every_field_of_a_record_with_every_doubtful_number(field: str) -> None:
    """The length of the record fits what is in it, so that its fields are all that can be wrong."""
    seen = set()
    for number in LENGTHS_AND_DELTAS:
        fields = {"time": 5, "offset": 1, "key": 1, "value": 1, "count": 1, "name": 1, "header": 1, field: number}
        parts = {
            name: varint(n) + b"x" * (1 if name in ("key", "value", "name", "header") else 0)
            for name, n in fields.items()
        }
        second = b"\0" + b"".join(parts.values())
        body = encode([Source()])[61:] + varint(len(second)) + second
        for last in (0, 1, 3):
            seen.add(agree(with_field(with_field(encode([Source()])[:61] + body, 23, ">i", last), 57, ">i", 2), 0))
    assert False in seen


def test_a_header_without_a_name_is_refused() -> None:
    for name in (varint(0), varint(-1)):
        record = b"\0" + varint(0) * 2 + varint(-1) * 2 + varint(1) + name + varint(1) + b"x"
        assert agree(seal(encode([Source()])[:61] + varint(len(record)) + record), 0) == (name == varint(0))


def test_the_longest_varints_are_told_apart_to_the_last_bit() -> None:
    head = encode([Source()])[:61]
    for last in range(256):
        for tail in (b"", b"\0", b"\1"):
            delta = b"\xff" * 9 + bytes([last]) + tail
            record = b"\0" + delta + varint(0) + varint(-1) + varint(-1) + varint(0)
            assert agree(seal(head + varint(len(record)) + record), 0) == (last < 2 and not tail)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_every_truncation_of_a_record_is_refused(cut: int) -> None:
    whole = encode([Source(b"key", b"value", (("h", b"x"), ("i", None)))])
    for end in range(61, len(whole)):
        assert not agree(seal(whole[:end]), 0)
        assert not agree(seal(whole[:end] + b"\xff" * cut), 0)


class Guarded:
    """Bytes that cannot be read outside of their own bounds, negative indices included."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, at: Any) -> int:
        assert 0 <= at < len(self.data), f"read at {at} of {len(self.data)} bytes"
        return int(self.data[at])


@pytest.fixture
def plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The passes as Python runs them, where bounds are checked: compiled code has none to check them."""
    for name in (
        *("read_varint", "write_varint", "varint_size", "read_word", "same_bytes"),
        *("_is_name", "_span", "read_records", "write_records"),
    ):
        monkeypatch.setattr(kernels, name, getattr(kernels, name).py_func)


def read_guarded(data: bytes, count: int, columns: np.ndarray) -> tuple[int, int, bool]:
    one = np.ones(1, np.int64)
    with np.errstate(over="ignore"):
        found = kernels.read_records(
            Guarded(data), one * 0, one * len(data), one * 0, one * 1000, one * 0, one * -1, one * count, 0,
            Guarded(NAME), Guarded(OTHER), Guarded(b"ratchet-replay"), columns, np.empty(columns.shape[1], np.int64),
        )  # fmt: skip
    return int(found[0]), int(found[1]), bool(found[2])


def test_no_read_leaves_its_batch(plain_kernels: None) -> None:
    whole = encode([Source(b"key", b"value", ((NAME.decode(), b"x" * 8), (OTHER.decode(), b"me"), ("i", None)))] * 2)[
        61:
    ]
    columns = np.empty((kernels.COLUMNS, 3), np.int64)
    assert read_guarded(whole, 2, columns) == (2, -1, False)
    assert read_guarded(whole, 2, columns[:, :1]) == (1, -1, True)
    refused = 0
    for at in range(len(whole)):
        for bomb in BOMBS:
            refused += read_guarded(whole[:at] + bomb + whole[at + 1 :], 3, columns)[1] == 0
        refused += read_guarded(whole[:at], 3, columns)[1] == 0
    assert refused == len(whole) * (len(BOMBS) + 1)  # three records are never there


def test_no_write_leaves_its_room(plain_kernels: None) -> None:
    rows = [Source(b"k" * n, b"v" * (n * 7 % 50), (), 1 << 44 if n % 2 else 0) for n in range(30)]
    batch = read_slow_columns(encode(rows))
    for limit in (180, 250, 1000, 100_000):
        keep = np.arange(batch.count) % 3 != 1
        with np.errstate(over="ignore"):
            total = sum(encoded.count for encoded in forward(batch, keep, limit, "none"))
        assert total == keep.sum()


def read_slow_columns(data: bytes) -> RecordBatch:
    columns = np.empty((kernels.COLUMNS, 30), np.int64)
    base_time = struct.unpack_from(">q", data, 27)[0]
    one = np.ones(1, np.int64)
    with np.errstate(over="ignore"):
        count, wrong, is_full = kernels.read_records(
            np.frombuffer(data, np.uint8), one * 61, one * len(data), one * 0, one * 1000, one * base_time, one * -1,
            one * 30, 0, b"", b"", b"ratchet-replay", columns, np.empty(30, np.int64),
        )[:3]  # fmt: skip
    assert (count, wrong, is_full) == (30, -1, False)
    return RecordBatch("t", 0, 0, 30, np.frombuffer(data, np.uint8), columns)


@pytest.mark.parametrize("value", [0, 1, -1, 63, 64, -64, -65, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63)])
def test_varints_there_and_back(value: int) -> None:
    out = np.zeros(12, np.uint8)
    size = kernels.write_varint(out, 1, np.int64(value))
    assert out[1:size].tobytes() == varint(value)
    assert kernels.varint_size(np.int64(value)) == size - 1
    assert kernels.read_varint(out, 1, size) == (value, size)
    assert kernels.read_varint(out, 1, size - 1)[1] == -1


def test_decompression_of_the_oracle_is_another_library() -> None:
    for number, name in enumerate(COMPRESSIONS[1:], 1):
        assert decompress(number, packed(name, b"some bytes " * 9000)) == b"some bytes " * 9000


@pytest.mark.parametrize("length", [*range(26), 40, 64])
def test_bytes_are_compared_as_python_compares_them(length: int) -> None:
    data = np.arange(100, 100 + length + 6, dtype=np.uint8)
    other = np.concatenate([np.zeros(3, np.uint8), data[2 : 2 + length], np.zeros(2, np.uint8)])
    assert kernels.same_bytes(data, 2, other, 3, length)
    for at in range(length):
        changed = other.copy()
        changed[3 + at] ^= 1
        assert not kernels.same_bytes(data, 2, changed, 3, length)
    if length >= 8:
        assert int(kernels.read_word(data, 2)) == int.from_bytes(data[2:10].tobytes(), "little")
