"""Decompression of a batch's records, bounded: a few kilobytes may not become all the memory there is.

Kafka bounds batches by their compressed size alone (max.message.bytes), and zstd packs 128 KiB into four bytes. Each
format says in its own way how large the result can become at most; only where that is too much is the exact way taken,
into a buffer of limited size.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import cramjam
import numpy as np
from aiokafka import codec

DECOMPRESSED_MOST: Final = 1 << 30
"""bytes. Nobody writes as much into one batch: librdkafka takes at most 1,000,000,000 bytes of messages before it
compresses them (message.max.bytes), the Java producer's whole buffer.memory is 32 MiB by default."""

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
"""Numbers of the codecs in a batch's attributes."""

_GZIP_RATIO: Final = 1032
"""Deflate's highest: 258 bytes for two bits."""
_LZ4_RATIO: Final = 255
"""A byte more of match length is at most 255 bytes more of output."""

_ZSTD_BLOCK: Final = 128 << 10
"""bytes, the most a zstd block holds (RFC 8878, 3.1.1.2.4)."""
_ZSTD_RATIO: Final = _ZSTD_BLOCK // 4
"""The shortest block is one byte, repeated, behind three bytes of block header."""
_ZSTD_MAGIC, _ZSTD_SKIPPED = 0xFD2FB528, 0x184D2A50
_ZSTD_RLE: Final = 1

_XERIAL: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER: Final = 16
_SIZE: Final = struct.Struct(">i")


def decompress(codec_id: int, data: bytes, most: int = DECOMPRESSED_MOST) -> bytes:
    """The bytes that were compressed.

    Args:
        codec_id: GZIP, SNAPPY, LZ4 or ZSTD
        data: one batch's compressed records
        most: bytes, the largest result

    Raises:
        KeyError: there is no such codec.
        Exception: whatever the codec says of bytes it cannot read, or that hold more than `most`.
    """
    ceiling, decode, decode_into = _CODECS[codec_id]
    if ceiling(data) <= most:
        return decode(data)
    if decode_into is None:
        raise ValueError(f"it holds more than {most} bytes")
    room = np.empty(most, np.uint8)  # pages that nothing is written to take no memory
    try:
        size = decode_into(data, room)
    except cramjam.DecompressionError as error:
        raise ValueError(f"it is damaged, or holds more than {most} bytes: {error}") from error
    return room[:size].tobytes()


def _gzip_ceiling(data: bytes) -> int:
    return len(data) * _GZIP_RATIO


def _lz4_ceiling(data: bytes) -> int:
    return len(data) * _LZ4_RATIO


def _snappy_ceiling(data: bytes) -> int:
    """Snappy says beforehand how much it holds: plain, or in blocks with a length before each (snappy-java)."""
    if not data.startswith(_XERIAL) or len(data) <= _XERIAL_HEADER:
        return int(cramjam.snappy.decompress_raw_len(data))
    at, total = _XERIAL_HEADER, 0
    while at < len(data):
        (size,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        if not 0 < size <= len(data) - at:
            raise ValueError(f"a snappy block of {size} bytes where {len(data) - at} are left")
        total += cramjam.snappy.decompress_raw_len(data[at : at + size])
        at += size
    return total


def _zstd_ceiling(data: bytes) -> int:
    """Walks the block headers (RFC 8878, 3.1.1). Where they make no sense the decoder says so better."""
    if len(data) * _ZSTD_RATIO <= DECOMPRESSED_MOST:
        return len(data) * _ZSTD_RATIO
    at = total = 0
    while at < len(data):
        magic = int.from_bytes(data[at : at + 4], "little")
        if magic & ~0xF == _ZSTD_SKIPPED:
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            continue
        if magic != _ZSTD_MAGIC:
            break
        descriptor = data[at + 4]
        single = descriptor >> 5 & 1
        content_size = (single, 2, 4, 8)[descriptor >> 6]
        at += 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3] + content_size
        last = False
        while not last and at < len(data):
            block = int.from_bytes(data[at : at + 3], "little")
            last = bool(block & 1)
            at += 3 + (1 if block >> 1 & 3 == _ZSTD_RLE else block >> 3)
            total += _ZSTD_BLOCK
        at += 4 * (descriptor >> 2 & 1)  # checksum
    return total


_CODECS: Final[dict[int, tuple[Callable[[bytes], int], Callable[[bytes], bytes], Callable[..., int] | None]]] = {
    GZIP: (_gzip_ceiling, codec.gzip_decode, cramjam.gzip.decompress_into),
    SNAPPY: (_snappy_ceiling, codec.snappy_decode, None),
    LZ4: (_lz4_ceiling, codec.lz4_decode, cramjam.lz4.decompress_into),
    ZSTD: (_zstd_ceiling, codec.zstd_decode, cramjam.zstd.decompress_into),
}
"""Most bytes that some compressed ones can hold; decompression; decompression into a buffer, for what may not fit."""
