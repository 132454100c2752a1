"""A record batch as columns: what a lane hands to the agent for one fetched chunk of a partition."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from errors import CorruptBatch
from transport import _kernels as kernels
from transport._decompression import GZIP, LZ4, SNAPPY, ZSTD, decompress

HEAD: Final = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base and highest timestamp, producer
id, producer epoch, base sequence, record count: the 61 bytes before the records (KIP-98)."""

LENGTH_FROM: Final = 12
"""The length field counts what follows it."""
CRC_FROM: Final = 21
"""The CRC covers everything from the attributes on."""

CODEC, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
"""Bits of the attributes."""

OFFSET_MAX: Final = 2**63 - 2
"""Offsets are signed 64-bit, and so is the one after the last; the checksum does not cover the first of a batch."""

_CONTROL_KEY: Final = struct.Struct(">hh")
"""Version and type, in the key of a control record."""
ABORT_MARKER: Final = 0

CODECS: Final = {"none": 0, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}

CHUNK_DECOMPRESSED: Final = 64 << 20
"""bytes of decompressed records after which the rest of a chunk is left to the next fetch: 32 times of what a lane
fetches, so that a chunk of many batches, each within its bound, does not take all the memory either."""

Bytes = NDArray[np.uint8]
Column = NDArray[np.int64]


class Header(NamedTuple):
    """A record header; a null value is None."""

    name: str
    value: bytes | None


@dataclass(slots=True)
class RecordBatch:
    """The records of one partition from offset `start` up to, not including, `next`.

    Control batches, aborted transactions and records below `start` are already left out, so `count` may be 0 while
    `next` is ahead of `start`.

    Attributes:
        data: uint8[bytes], what the spans of the columns point into
        columns: int64[COLUMNS, count], see `transport._kernels`
        codec: name of the compression of the last data batch ("none", "gzip", "snappy", "lz4", "zstd")
        epoch: leader epoch of the last batch before `next`, control batches included; -1 where there is none
    """

    topic: str
    partition: int
    start: int
    next: int
    data: Bytes
    columns: NDArray[np.int64]
    codec: str = "none"
    epoch: int = -1

    @property
    def count(self) -> int:
        """Number of records."""
        return int(self.columns.shape[1])

    @property
    def offsets(self) -> Column:
        """int64[count], offsets in the topic."""
        offsets: Column = self.columns[kernels.OFFSET]
        return offsets

    @property
    def timestamps(self) -> Column:
        """int64[count], ms since the epoch."""
        timestamps: Column = self.columns[kernels.TIMESTAMP]
        return timestamps

    def span(self, start: int, length: int) -> bytes | None:
        """A copy of data[start:start+length]; None for a negative length, which stands for null."""
        return self.data[start : start + length].tobytes() if length >= 0 else None

    def only(self, keep: NDArray[np.bool_]) -> RecordBatch:
        """The same batch with these records alone. keep: bool[count]."""
        return replace(self, columns=np.ascontiguousarray(self.columns[:, keep]))

    def key(self, index: int) -> bytes | None:
        """Key of a record, None where it is null."""
        return self.span(int(self.columns[kernels.KEY, index]), int(self.columns[kernels.KEY_LENGTH, index]))

    def value(self, index: int) -> bytes | None:
        """Value of a record, None where it is null."""
        return self.span(int(self.columns[kernels.VALUE, index]), int(self.columns[kernels.VALUE_LENGTH, index]))

    def headers(self, index: int) -> list[Header]:
        """All headers of a record, in order. Slow: for dead letters, extractors and people."""
        at, end = int(self.columns[kernels.HEADERS, index]), int(self.columns[kernels.BODY_END, index])
        body = self.data[at:end].tobytes()
        count, at = read_varint(body, 0)
        headers = []
        for _ in range(count):
            length, at = read_varint(body, at)
            name, at = body[at : at + length], at + length
            length, at = read_varint(body, at)
            value = None if length < 0 else body[at : at + length]
            at += max(length, 0)
            headers.append(Header(name.decode("utf-8", "replace"), value))
        return headers


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A zig-zag varint and the position after it. For bytes that the compiled pass has already found sound."""
    raw = shift = 0
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7


def read_chunk(
    topic: str,
    partition: int,
    start: int,
    data: bytes,
    aborted: list[tuple[int, int]],
    *,
    first_header: bytes = b"",
    second_header: bytes = b"",
) -> RecordBatch:
    """Make columns of the bytes a fetch (read committed) returned for one partition.

    Args:
        topic: where they come from
        partition: where they come from
        start: the offset that was asked for
        data: record batches; the last may be cut off, as brokers do
        aborted: (producer id, first offset) of the aborted transactions in this range, as the fetch response lists them
        first_header: name of a header to find in every record; b"" for none
        second_header: name of another

    Raises:
        CorruptBatch: wrong magic, CRC, lengths or counts, or an unreadable compression.
    """
    heads = _Heads(topic, partition, start, data, aborted)
    buffer = np.frombuffer(heads.data, np.uint8)
    buffer.flags.writeable = False  # decompressed or not, the passes are compiled for one kind of array
    h = np.array(heads.rows, np.int64).reshape(-1, 7)
    columns = np.empty((kernels.COLUMNS, int(h[:, 6].sum())), np.int64)
    count, damaged = kernels.read_records(
        buffer,
        *(np.ascontiguousarray(h[:, i]) for i in range(7)),
        start,
        np.frombuffer(first_header, np.uint8),
        np.frombuffer(second_header, np.uint8),
        columns,
    )
    if damaged >= 0:
        raise CorruptBatch(
            f"{_where(topic, partition, int(h[damaged, 2]))}: its records do not fit the batch they are in"
        )
    return RecordBatch(topic, partition, start, heads.next, buffer, columns[:, :count], heads.codec, heads.epoch)


class _Heads:
    """Walks the batch headers of a chunk: which batches hold visible records, and where.

    `rows` has one (start, end, base offset, last offset delta, base timestamp, append time, count) per batch.
    """

    def __init__(self, topic: str, partition: int, start: int, data: bytes, aborted: list[tuple[int, int]]) -> None:
        self.topic, self.partition = topic, partition
        self.data: bytes | bytearray = data
        self.rows: list[tuple[int, int, int, int, int, int, int]] = []
        self.next = start
        self.codec = "none"
        self.epoch = -1
        self._decompressed = 0
        self._open_aborted: set[int] = set()
        self._aborted = sorted(aborted, key=lambda entry: entry[1], reverse=True)
        at = 0
        behind = -1
        while at + kernels.HEADER_SIZE <= len(data) and self._decompressed < CHUNK_DECOMPRESSED:
            base, length, epoch, magic, crc, attributes, last, base_time, top_time, producer, _, _, count = (
                HEAD.unpack_from(data, at)
            )
            if length < kernels.HEADER_SIZE - LENGTH_FROM:
                raise CorruptBatch(f"{self._at(base)}: length {length} bytes is too short for a record batch")
            end = at + LENGTH_FROM + length
            if end > len(data):
                break
            self._check(data, at, end, base, magic, crc, last, count)
            if base <= behind:
                raise CorruptBatch(
                    f"{self._at(base)}: begins before offset {behind + 1}, where the batch before it ended"
                )
            behind = base + last
            if base + last >= start:
                if not self._hidden(data, at, end, base, last, attributes, producer) and count:
                    append_time = top_time if attributes & LOG_APPEND_TIME else kernels.NO_APPEND_TIME
                    self._add(at, end, attributes & CODEC, (base, last, base_time, append_time, count))
                self.next = base + last + 1
                self.epoch = epoch
            at = end
        if data and not at:
            raise CorruptBatch(f"{self._at(start)}: the fetch returned {len(data)} bytes but no whole record batch")

    def _at(self, offset: int) -> str:
        return _where(self.topic, self.partition, offset)

    def _check(self, data: bytes, at: int, end: int, base: int, magic: int, crc: int, last: int, count: int) -> None:
        if magic != 2:
            raise CorruptBatch(f"{self._at(base)}: record format v{magic}; Ratchet reads v2 (Kafka 0.11 and later)")
        if crc32c(memoryview(data)[at + CRC_FROM : end]) != crc:
            raise CorruptBatch(f"{self._at(base)}: the checksum does not match; the log or the connection is damaged")
        if last < 0 or count < 0 or count > last + 1:
            raise CorruptBatch(f"{self._at(base)}: {count} records in {last + 1} offsets")
        if base < 0 or base + last > OFFSET_MAX:
            raise CorruptBatch(f"{self._at(base)}: offsets up to {base + last}")

    def _hidden(self, data: bytes, at: int, end: int, base: int, last: int, attributes: int, producer: int) -> bool:
        """Control batches, and batches of a transaction that was aborted (KIP-98, Fetcher.PartitionRecords)."""
        while self._aborted and self._aborted[-1][1] <= base + last:
            self._open_aborted.add(self._aborted.pop()[0])
        if attributes & CONTROL:
            if self._control_type(data, at, end, base) == ABORT_MARKER:
                self._open_aborted.discard(producer)
            return True
        return bool(attributes & TRANSACTIONAL) and producer in self._open_aborted

    def _control_type(self, data: bytes, at: int, end: int, base: int) -> int:
        """Type in the key of a control record: 0 abort, 1 commit; others (leader changes) concern nobody here."""
        at += kernels.HEADER_SIZE
        marker = kernels.control_key(np.frombuffer(data, np.uint8)[at:end])
        if marker < 0:
            raise CorruptBatch(f"{self._at(base)}: unreadable transaction marker")
        return int(_CONTROL_KEY.unpack_from(data, at + marker)[1])

    def _add(self, at: int, end: int, codec_id: int, rest: tuple[int, int, int, int, int]) -> None:
        base, *_, count = rest
        start = at + kernels.HEADER_SIZE
        if codec_id:
            plain = self._decompress(start, end, codec_id, base)
            if not isinstance(self.data, bytearray):
                self.data = bytearray(self.data)
            start, end = len(self.data), len(self.data) + len(plain)
            self.data += plain
            self._decompressed += len(plain)
        if count * kernels.RECORD_LEAST > end - start:
            raise CorruptBatch(f"{self._at(base)}: {count} records in {end - start} bytes")
        self.codec = next(name for name, number in CODECS.items() if number == codec_id)
        self.rows.append((start, end, *rest))

    def _decompress(self, start: int, end: int, codec_id: int, base: int) -> bytes:
        if codec_id not in CODECS.values():
            raise CorruptBatch(f"{self._at(base)}: unknown compression {codec_id}")
        try:
            return decompress(codec_id, bytes(memoryview(self.data)[start:end]))
        except Exception as error:
            # Each codec has its own exceptions, and all of them mean the same here.
            raise CorruptBatch(f"{self._at(base)}: cannot be decompressed: {error}") from error


def _where(topic: str, partition: int, offset: int) -> str:
    return f"{topic}, partition {partition}, record batch at offset {offset}"
