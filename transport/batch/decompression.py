"""Decompression of a batch's records into a buffer of limited size.

Kafka bounds batches by their compressed size alone (max.message.bytes), and zstd packs 128 KiB into four bytes. So a
few kilobytes could fill all memory. No memory is reserved by the size that a batch states: a snappy batch that states
too much is refused, and the size in a zstd batch only appears in error messages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import cramjam
import numpy as np
from numpy.typing import NDArray

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
"""Codec ids, as in a batch's attributes."""

_FULL: Final = "failed to write whole buffer"
"""cramjam's text for a result longer than its buffer (Rust's io::ErrorKind::WriteZero)."""

_XERIAL: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER: Final = 16
_SIZE: Final = struct.Struct(">i")

_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_HEAD_MOST: Final = 14
"""Maximum bytes of a zstd frame header: magic, descriptor, window, dictionary, content size (RFC 8878, 3.1.1)."""

Bytes = NDArray[np.uint8]


class TooLarge(ValueError):
    """Error for a batch that unpacks to more than the buffer holds. size: unpacked bytes, if the batch states them."""

    def __init__(self, most: int, size: int | None) -> None:
        self.size = size
        super().__init__(f"it holds more than {most} bytes")


def decompress_into(codec_id: int, data: memoryview, room: Bytes) -> int:
    """Decompress bytes into a buffer.

    Args:
        codec_id: GZIP, SNAPPY, LZ4 or ZSTD
        data: one batch's compressed records
        room: uint8[bytes] to write into, not empty; untouched pages take no memory.

    Returns:
        number of bytes written

    Raises:
        KeyError: there is no such codec.
        TooLarge: the decompressed bytes exceed `room`.
        Exception: the codec's error about unreadable bytes.
    """
    decode_into = _CODECS[codec_id]
    try:
        return decode_into(data, room.data)
    except cramjam.DecompressionError as error:
        if _FULL in str(error):
            raise TooLarge(len(room), _zstd_size(bytes(data[:_ZSTD_HEAD_MOST])) if codec_id == ZSTD else None) from None
        raise


def _snappy_into(data: memoryview, room: memoryview) -> int:
    """Decompress snappy into `room`, plain or in snappy-java's blocks.

    Both formats state the decompressed size first.
    """
    if bytes(data[: len(_XERIAL)]) != _XERIAL or len(data) <= _XERIAL_HEADER:
        size = int(cramjam.snappy.decompress_raw_len(data))
        if size > len(room):
            raise TooLarge(len(room), size)
        return int(cramjam.snappy.decompress_raw_into(data, room)) if size else 0
    blocks, at, total = [], _XERIAL_HEADER, 0
    while at < len(data):
        if bytes(data[at : at + len(_XERIAL)]) == _XERIAL:  # snappy-java reads one stream after the other
            at += _XERIAL_HEADER
            continue
        (size,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        if not 0 < size <= len(data) - at:
            raise ValueError(f"a snappy block of {size} bytes is cut off: only {len(data) - at} bytes are left")
        block = data[at : at + size]
        blocks.append((block, int(cramjam.snappy.decompress_raw_len(block))))
        total += blocks[-1][1]
        at += size
    if total > len(room):
        raise TooLarge(len(room), total)
    at = 0
    for block, size in blocks:
        if size:
            at += int(cramjam.snappy.decompress_raw_into(block, room[at : at + size]))
    return at


def _zstd_size(head: bytes) -> int | None:
    """Return the decompressed size that the first zstd frame states; None without one (RFC 8878, 3.1.1.1)."""
    if len(head) < _ZSTD_HEAD_MOST or int.from_bytes(head[:4], "little") != _ZSTD_MAGIC:
        return None
    single = head[4] >> 5 & 1
    width = (single, 2, 4, 8)[head[4] >> 6]
    at = 5 + (1 - single) + (0, 1, 2, 4)[head[4] & 3]
    size = int.from_bytes(head[at : at + width], "little") + (256 if width == 2 else 0)
    return size if width and at + width <= len(head) else None


_CODECS: Final[dict[int, Callable[..., int]]] = {
    GZIP: cramjam.gzip.decompress_into,
    SNAPPY: _snappy_into,
    LZ4: cramjam.lz4.decompress_into,
    ZSTD: cramjam.zstd.decompress_into,
}
"""Functions by codec that decompress into a buffer and return the number of bytes."""
