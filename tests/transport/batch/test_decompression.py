import random
import struct

import cramjam
import numpy as np
import pyarrow as pa
import pytest

from kafka_ratchet.errors import BatchTooLarge
from kafka_ratchet.transport.batch.chunk import BATCH_MOST, read_chunk
from kafka_ratchet.transport.batch.decompression import TooLarge, decompress_into
from tests.transport.batch.known_batches import COMPRESSIONS, Source, encode, marker, packed, seal, with_field

CODECS = list(enumerate(COMPRESSIONS[1:], 1))
NOISE = random.Random(5).randbytes(300_000)
MIB = 1 << 20


def unpack(number: int, data: bytes, most: int = MIB) -> bytes:
    room = np.empty(most, np.uint8)
    return room[: decompress_into(number, memoryview(data), room)].tobytes()


@pytest.mark.parametrize(("number", "name"), CODECS)
@pytest.mark.parametrize("plain", [b"", b"x", bytes(1 << 20), NOISE])
def test_there_and_back(number: int, name: str, plain: bytes) -> None:
    if plain or name != "snappy":  # no batch of snappy is empty
        assert unpack(number, packed(name, plain)) == plain


@pytest.mark.parametrize(("number", "name"), CODECS)
def test_what_fits_to_the_byte_is_taken_and_a_byte_more_is_not(number: int, name: str) -> None:
    plain = bytes(MIB)
    small = packed(name, plain)
    assert unpack(number, small) == plain
    with pytest.raises(TooLarge) as refused:
        unpack(number, small, MIB - 1)
    assert refused.value.size == (MIB if name in {"snappy", "zstd"} else None)


def snappy_of(size: int) -> bytes:
    """Some bytes of snappy that say of themselves they hold this many."""
    raw = b""
    while size >= 0x80:
        raw, size = raw + bytes([size & 0x7F | 0x80]), size >> 7
    return raw + bytes([size]) + b"\x00x"


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_batch_that_says_it_holds_too_much_is_refused(blocks: int) -> None:
    block = snappy_of((BATCH_MOST >> (blocks - 1)) + 1)
    body = block
    if blocks > 1:
        body = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + (struct.pack(">i", len(block)) + block) * blocks
    batch = with_field(seal(encode([Source()], 7)[:61] + body), 21, ">h", 2)
    with pytest.raises(
        BatchTooLarge, match=rf"t, partition 0, .*offset 7: the batch unpacks to {BATCH_MOST + blocks} bytes"
    ):
        read_chunk("t", 0, 7, batch, [])


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_batch_may_unpack_to_the_bound_and_not_to_more(compression: str) -> None:
    value = bytes(2 * MIB)
    chunk = encode([Source(value=value)], 7, compression)
    unpacked = len(encode([Source(value=value)], 7)) - 61
    assert read_chunk("t", 0, 7, chunk, [], most=unpacked).value(0) == value
    with pytest.raises(BatchTooLarge) as refused:
        read_chunk("t", 0, 7, chunk, [], most=unpacked - 1, is_input=True)
    assert "t, partition 0, record batch at offset 7: the batch unpacks to" in str(refused.value)
    assert "max_batch_mb" in str(refused.value)
    assert "ratchet resume --stream S --partition 0 --from 8 --reason TEXT" in str(refused.value)
    with pytest.raises(BatchTooLarge, match=r"Raise max_batch_mb$"):  # the offset is of no stream's input
        read_chunk("t", 0, 7, chunk, [], most=unpacked - 1)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_what_stands_before_a_large_batch_is_read_without_it(compression: str) -> None:
    chunk = encode([Source(value=b"small")]) + encode([Source(value=bytes(2 * MIB))], 1, compression)
    batch = read_chunk("t", 0, 0, chunk, [], most=MIB)
    assert (batch.count, batch.next) == (1, 1)
    with pytest.raises(BatchTooLarge, match="offset 1: "):
        read_chunk("t", 0, 1, chunk, [], most=MIB)


def test_the_epoch_is_that_of_the_batch_before_the_next_position() -> None:
    def of(epoch: int, batch: bytes) -> bytes:
        return batch[:12] + struct.pack(">i", epoch) + batch[16:]

    small = of(3, encode([Source(value=b"%d" % n) for n in range(5_000)]))
    chunk = small + of(4, marker(5_000, 1, 1)) + of(5, encode([Source(value=bytes(MIB))], 5_001))
    batch = read_chunk("t", 0, 0, chunk, [], most=MIB)
    assert (batch.next < 5_000, batch.epoch) == (True, 3)
    while batch.next < 5_000:
        batch = read_chunk("t", 0, batch.next, chunk, [], most=MIB)
    # In the midst of the chunk, behind a marker that another leader has written.
    assert (batch.next, batch.epoch) in {(5_000, 3), (5_001, 4)}
    whole = read_chunk("t", 0, 0, chunk[:-10], [])
    assert (whole.next, whole.epoch) == (5_001, 4)
    parted = read_chunk("t", 0, 4_999, chunk, [], most=MIB)
    assert (parted.next, parted.epoch) == (5_001, 4)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_batch_of_many_small_records_is_read_in_parts(compression: str) -> None:
    records = [Source(value=b"%d" % n) for n in range(5_000)]
    chunk = encode(records, 100, compression)
    start, values = 100, []
    while start < 5_100:
        batch = read_chunk("t", 0, start, chunk, [], most=MIB)
        assert batch.columns.nbytes <= MIB // 4
        assert batch.next == start + batch.count
        values += [batch.value(index) for index in range(batch.count)]
        start = batch.next
    assert values == [record.value for record in records]


@pytest.mark.parametrize("size", [-10, -4, -1, 0, 9, 1 << 30, -(1 << 31)])
def test_a_snappy_block_begins_and_ends_in_its_batch(size: int) -> None:
    good = bytes(cramjam.snappy.compress_raw(b"four"))
    whole = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + struct.pack(">i", size) + good + bytes(2)
    with pytest.raises(ValueError, match=f"a snappy block of {size} bytes"):
        unpack(2, whole)


def zstd_frames() -> dict[str, bytes]:
    """The forms a frame's header takes, all of them beyond the size at which the blocks are counted."""
    stream = pa.BufferOutputStream()
    with pa.CompressedOutputStream(stream, "zstd") as written:
        written.write(NOISE)
    of_no_said_size = stream.getvalue().to_pybytes()
    of_said_size = pa.compress(NOISE, "zstd", asbytes=True)
    skipped = struct.pack("<II", 0x184D2A53, 5) + b"skip!"
    return {
        "size not said": of_no_said_size,
        "size said": of_said_size,
        "two": of_no_said_size + of_said_size,
        "skipped": skipped + of_no_said_size + skipped,
    }


@pytest.mark.parametrize("form", zstd_frames())
def test_forms_of_a_zstd_frame(form: str) -> None:
    frame = zstd_frames()[form]
    assert unpack(4, frame) == (NOISE * 2 if form == "two" else NOISE)
    with pytest.raises(TooLarge) as refused:
        unpack(4, frame, 1_000)
    assert refused.value.size == (len(NOISE) if form == "size said" else None)


@pytest.mark.parametrize("lie", [0, 1, 2**32, 2**63])
def test_a_lie_about_the_size_takes_no_memory(lie: int) -> None:
    # A frame of one segment with a content size of eight bytes, and one block of zeros, repeated.
    frame = (
        struct.pack("<IBQ", 0xFD2FB528, 0b11100000, lie) + (1 << 20 << 3 | 1 << 1 | 1).to_bytes(4, "little")[:3] + b"\0"
    )
    with pytest.raises(Exception) as refused:  # noqa: PT011 - each codec has its own
        unpack(4, frame)
    assert not isinstance(refused.value, MemoryError)


@pytest.mark.parametrize("compression", COMPRESSIONS[1:])
def test_a_chunk_of_several_large_batches_is_read_in_parts(compression: str) -> None:
    chunk = b"".join(encode([Source(value=bytes(10 << 20))], base, compression) for base in range(6))
    start, sizes = 0, []
    while start < 6:
        batch = read_chunk("t", 0, start, chunk, [])
        assert batch.count == batch.next - start
        sizes.append(len(batch.data) >> 20)
        start = batch.next
    assert max(sizes) <= 16  # a quarter of the bound
    assert sum(sizes) == 60
