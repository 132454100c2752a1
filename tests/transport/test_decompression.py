import random
import struct

import cramjam
import pyarrow as pa
import pytest
from known_batches import COMPRESSIONS, Source, encode, seal, with_field

from errors import CorruptBatch
from transport import read_chunk
from transport._decompression import DECOMPRESSED_MOST, ZSTD, _zstd_ceiling, decompress
from transport._encoding import COMPRESS
from transport._record_batch import CHUNK_DECOMPRESSED

CODECS = list(enumerate(COMPRESSIONS[1:], 1))
NOISE = random.Random(5).randbytes(300_000)


@pytest.mark.parametrize(("number", "name"), CODECS)
@pytest.mark.parametrize("plain", [b"", b"x", bytes(1 << 20), NOISE])
def test_there_and_back(number: int, name: str, plain: bytes) -> None:
    if plain or name != "snappy":  # no batch of snappy is empty
        assert decompress(number, COMPRESS[name](plain)) == plain


@pytest.mark.parametrize(("number", "name"), CODECS)
def test_what_fits_to_the_byte_is_taken_and_a_byte_more_is_not(number: int, name: str) -> None:
    plain = bytes(1 << 20)
    packed = COMPRESS[name](plain)
    assert decompress(number, packed, 1 << 20) == plain
    with pytest.raises(ValueError, match=f"more than {(1 << 20) - 1} bytes"):
        decompress(number, packed, (1 << 20) - 1)


def snappy_of(size: int) -> bytes:
    """Some bytes of snappy that say of themselves they hold this many."""
    raw = b""
    while size >= 0x80:
        raw, size = raw + bytes([size & 0x7F | 0x80]), size >> 7
    return raw + bytes([size]) + b"\x00x"


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_batch_that_says_it_holds_too_much_is_refused(blocks: int) -> None:
    block = snappy_of((DECOMPRESSED_MOST >> (blocks - 1)) + 1)
    body = block
    if blocks > 1:
        body = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + (struct.pack(">i", len(block)) + block) * blocks
    batch = with_field(seal(encode([Source()], 7)[:61] + body), 21, ">h", 2)
    with pytest.raises(CorruptBatch, match=rf"t, partition 0, .*offset 7: .*more than {DECOMPRESSED_MOST} bytes"):
        read_chunk("t", 0, 7, batch, [])


@pytest.mark.parametrize("size", [-10, -4, -1, 0, 9, 1 << 30, -(1 << 31)])
def test_a_snappy_block_begins_and_ends_in_its_batch(size: int) -> None:
    good = bytes(cramjam.snappy.compress_raw(b"four"))
    packed = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + struct.pack(">i", size) + good + bytes(2)
    with pytest.raises(ValueError, match=f"a snappy block of {size} bytes"):
        decompress(2, packed)


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
def test_the_blocks_of_zstd_say_how_much_they_hold_at_most(form: str) -> None:
    packed = zstd_frames()[form]
    plain = decompress(ZSTD, packed)
    assert plain == (NOISE * 2 if form == "two" else NOISE)
    assert len(plain) <= _zstd_ceiling(packed) <= len(plain) + (128 << 10) * (len(plain) // len(NOISE))


def test_a_chunk_that_grows_too_large_is_read_in_parts() -> None:
    value = bytes(40 << 20)
    chunk = b"".join(encode([Source(value=value)], base, "zstd") for base in range(4))
    start = seen = 0
    while start < 4:
        batch = read_chunk("t", 0, start, chunk, [])
        assert batch.start == start < batch.next
        assert batch.count == batch.next - start
        assert len(batch.data) < CHUNK_DECOMPRESSED + len(value) + len(chunk) + 100
        start, seen = batch.next, seen + 1
    assert seen == 2
