"""The record batch format (v2, KIP-98), read byte by byte: slow and obvious, and nothing in common with transport/.

What it refuses it refuses with `Unreadable`. Decompression is zlib's and pyarrow's, where transport uses cramjam's.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa


class Unreadable(Exception):
    """These bytes are no record batches."""


class SlowRecord(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]


class Reading(NamedTuple):
    records: list[SlowRecord]
    next: int


def crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = crc32c_table()


def slow_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


class Bytes:
    """Consumes bytes from the front; wanting more than there are is `Unreadable`."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise Unreadable(f"{count} bytes wanted at {self.at} of {len(self.data)}")
        self.at += count
        return self.data[self.at - count : self.at]

    def integer(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def varint(self) -> int:
        raw = 0
        for group in range(10):
            byte = self.take(1)[0]
            raw += (byte & 0x7F) << (7 * group)
            if byte < 0x80:
                if raw >= 1 << 64:
                    raise Unreadable("a varint of more than 64 bits")
                return raw // 2 if raw % 2 == 0 else -(raw // 2) - 1
        raise Unreadable("a varint of more than ten bytes")

    def span(self) -> bytes | None:
        length = self.varint()
        if length < -1:
            raise Unreadable(f"length {length}")
        return None if length == -1 else self.take(length)

    def rest(self) -> int:
        return len(self.data) - self.at


def long(value: int) -> int:
    """Java's long: 64 bits, wrapping."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def decompress(codec: int, data: bytes) -> bytes:
    if codec == 0:
        return data
    if codec == 1:
        return zlib.decompress(data, 47)
    if codec == 2:
        return unsnappy(data)
    name = {3: "lz4", 4: "zstd"}.get(codec)
    if name is None:
        raise Unreadable(f"compression {codec}")
    return bytes(pa.CompressedInputStream(io.BytesIO(data), name).read())


def unsnappy(data: bytes) -> bytes:
    """Plain snappy, or blocks with a length before each, as snappy-java writes them."""
    if not data.startswith(b"\x82SNAPPY\x00"):
        source, size = Bytes(data), 0
        for group in range(5):
            byte = source.take(1)[0]
            size += (byte & 0x7F) << (7 * group)
            if byte < 0x80:
                break
        return bytes(pa.Codec("snappy").decompress(data, size, asbytes=True))
    source = Bytes(data[16:])
    plain = b""
    while source.rest():
        plain += unsnappy(source.take(source.integer(4)))
    return plain


def read_slowly(
    start: int,
    data: bytes,
    aborted: list[tuple[int, int]],
    decompress: Callable[[int, bytes], bytes] = decompress,
) -> Reading:
    """Return a committed reader's view of a fetched chunk from offset start on, and its next offset."""
    records: list[SlowRecord] = []
    going_on = start
    behind = None
    still_aborted = list(aborted)
    ignored: set[int] = set()
    source = Bytes(data)
    while source.rest() >= 61:
        base, length = struct.unpack(">qi", data[source.at : source.at + 12])
        if length < 49:
            raise Unreadable("shorter than its own header")
        if source.rest() < 12 + length:
            break
        batch = Bytes(source.take(12 + length)[12:])
        batch.take(4)  # leader epoch
        if batch.integer(1) != 2:
            raise Unreadable("magic")
        checksum = int.from_bytes(batch.take(4), "big")
        if slow_crc32c(batch.data[batch.at :]) != checksum:
            raise Unreadable("checksum")
        attributes, last_delta = batch.integer(2), batch.integer(4)
        first_time, top_time = batch.integer(8), batch.integer(8)
        producer = batch.integer(8)
        batch.take(6)  # epoch and sequence of the producer
        count = batch.integer(4)
        last = base + last_delta
        if base < 0 or last + 1 >= 1 << 63 or not 0 <= count <= last_delta + 1 or last_delta < 0:
            raise Unreadable("offsets and count")
        if behind is not None and base <= behind:
            raise Unreadable("goes backwards")
        behind = last
        if last < start:
            continue
        going_on = last + 1
        for who, first in list(still_aborted):
            if first <= last:
                still_aborted.remove((who, first))
                ignored.add(who)
        if attributes & 0x20:
            if count and marker_of(batch) == 0:  # compaction may have emptied it
                ignored.discard(producer)
            continue
        if attributes & 0x10 and producer in ignored:
            continue
        if count:
            body = Bytes(decompress(attributes & 7, batch.data[batch.at :]))
            append_time = top_time if attributes & 8 else None
            records += records_of(body, count, base, last_delta, first_time, append_time)
    if data and not source.at:
        raise Unreadable("not one whole batch")
    return Reading([record for record in records if record.offset >= start], going_on)


def marker_of(batch: Bytes) -> int:
    """Type of the marker in a control batch: 0 abort, 1 commit."""
    batch.varint()
    batch.take(1)
    batch.varint()
    batch.varint()
    key = batch.span()
    if key is None or len(key) < 4:
        raise Unreadable("marker")
    return int.from_bytes(key[2:4], "big", signed=True)


def records_of(
    source: Bytes, count: int, base: int, last_delta: int, first_time: int, append_time: int | None
) -> list[SlowRecord]:
    records = []
    before = -1
    for _ in range(count):
        length = source.varint()
        if length < 1:
            raise Unreadable("a record of no length")
        record = Bytes(source.take(length))
        record.take(1)  # attributes, none are defined
        time_delta, offset_delta = record.varint(), record.varint()
        if not before < offset_delta <= last_delta:
            raise Unreadable("offset delta")
        before = offset_delta
        key, value = record.span(), record.span()
        headers = []
        header_count = record.varint()
        if header_count < 0:
            raise Unreadable("header count")
        for _ in range(header_count):
            name = record.span()
            if name is None:
                raise Unreadable("a header without a name")
            headers.append((name, record.span()))
        if record.rest():
            raise Unreadable("bytes behind the last header")
        timestamp = append_time if append_time is not None else long(first_time + time_delta)
        records.append(SlowRecord(base + offset_delta, timestamp, key, value, headers))
    if source.rest():
        raise Unreadable("bytes behind the last record")
    return records
