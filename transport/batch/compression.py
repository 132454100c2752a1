"""Compression of a new batch's records, piece by piece, with space for the batch header in front.

A single record may be as large as the largest batch, and each further copy would take that much memory again.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final

import cramjam
import numpy as np
from aiokafka.codec import snappy_encode

from kafka_ratchet.transport.batch.decompression import GZIP, LZ4, SNAPPY, ZSTD

_PIECE: Final = 1 << 20
"""Bytes compressed at a time; a multiple of a block of lz4 and snappy."""
_XERIAL_BLOCK: Final = 32 << 10
"""Bytes of a block in the format of snappy-java, which Kafka's clients write."""
_XERIAL_HEADER: Final = bytes(snappy_encode(b"x"))[:16]
_SIZE: Final = struct.Struct(">i")
_GZIP_WRAPPED: Final = 31
"""zlib's wbits: the largest window, in gzip's format."""

# Kafka's own default levels for gzip and zstd. For lz4 the broker's default, 9, costs ten times the time of 1 for a few
# per cent of size; the Java client's default output is the fast one.
_GZIP_LEVEL, _LZ4_LEVEL, _ZSTD_LEVEL = 6, 1, 3


def compress_into(codec_id: int, plain: memoryview, space: int) -> memoryview:
    """Compress bytes, leaving `space` free bytes in front for the caller's batch header.

    Args:
        codec_id: GZIP, SNAPPY, LZ4 or ZSTD
        plain: bytes to compress
        space: number of free bytes in front of the result
    """
    # Incompressible bytes grow by less than this with any codec. Untouched pages take no memory.
    out = np.empty(space + len(plain) + len(plain) // 4 + 4096, np.uint8)
    end = space
    if codec_id == ZSTD:
        end += int(cramjam.zstd.compress_into(plain, out[space:].data, _ZSTD_LEVEL))
    else:
        for piece in _PIECES[codec_id](plain):
            out[end : end + len(piece)] = np.frombuffer(piece, np.uint8)
            end += len(piece)
    # A mostly unused buffer would stay in memory until the broker has the batch.
    return out[:end].data if end * 2 > len(out) else memoryview(bytearray(out[:end].data))


def _gzip(plain: memoryview) -> Iterator[bytes]:
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WRAPPED)
    for at in range(0, len(plain), _PIECE):
        yield compressor.compress(plain[at : at + _PIECE])
    yield compressor.flush()


def _snappy(plain: memoryview) -> Iterator[bytes]:
    yield _XERIAL_HEADER
    for at in range(0, len(plain), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(plain[at : at + _XERIAL_BLOCK]))
        yield _SIZE.pack(len(block)) + block


def _lz4(plain: memoryview) -> Iterator[bytes]:
    # Brokers do not read linked blocks and content checksums (KIP-57).
    compressor = cramjam.lz4.Compressor(level=_LZ4_LEVEL, content_checksum=False, block_linked=False)
    for at in range(0, len(plain), _PIECE):
        compressor.compress(bytes(plain[at : at + _PIECE]))
        yield bytes(compressor.flush())
    yield bytes(compressor.finish())


_PIECES: Final[dict[int, Callable[[memoryview], Iterator[bytes]]]] = {GZIP: _gzip, SNAPPY: _snappy, LZ4: _lz4}
