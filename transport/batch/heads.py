"""The heads of the record batches in a fetched chunk: which batches hold records to read, and where."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c

from kafka_ratchet.errors import CorruptBatch
from kafka_ratchet.transport.batch import kernels
from kafka_ratchet.transport.batch.decompression import GZIP, LZ4, SNAPPY, ZSTD

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
_CODEC_IDS: Final = frozenset(CODECS.values())


class Found(NamedTuple):
    """A batch with records to read: where they are in the chunk, and what its header says."""

    start: int
    end: int
    codec_id: int
    base: int
    last: int
    base_time: int
    append_time: int
    records: int
    epoch: int
    epoch_before: int
    """of the batch before it, hidden ones included; -1 where it is the first that counts"""


class Heads:
    """Walks the batch headers of a chunk: which batches hold visible records, and where.

    Attributes:
        found: batches with records to read, in order
        next: the offset after the last batch
        epoch: leader epoch of that batch; -1 where there is none
    """

    def __init__(
        self, topic: str, partition: int, start: int, data: bytes | memoryview, aborted: list[tuple[int, int]]
    ) -> None:
        self.topic, self.partition, self.data = topic, partition, data
        self._view = memoryview(data)
        self.found: list[Found] = []
        self.next = start
        self.epoch = -1
        self._open_aborted: set[int] = set()
        self._aborted = sorted(aborted, key=lambda entry: entry[1], reverse=True)
        at = 0
        behind = -1
        while at + kernels.HEADER_SIZE <= len(data):
            base, length, epoch, magic, crc, attributes, last, base_time, top_time, producer, _, _, count = (
                HEAD.unpack_from(data, at)
            )
            if length < kernels.HEADER_SIZE - LENGTH_FROM:
                raise CorruptBatch(f"{self.at(base)}: length {length} bytes is too short for a record batch")
            end = at + LENGTH_FROM + length
            if end > len(data):
                break
            self._check(data, at, end, base, magic, crc, last, count)
            if base <= behind:
                raise CorruptBatch(
                    f"{self.at(base)}: begins before offset {behind + 1}, where the batch before it ended"
                )
            behind = base + last
            if base + last >= start:
                if not self._hidden(data, at, end, base, last, attributes, producer) and count:
                    append_time = top_time if attributes & LOG_APPEND_TIME else kernels.NO_APPEND_TIME
                    codec_id = attributes & CODEC
                    if codec_id not in _CODEC_IDS:
                        raise CorruptBatch(f"{self.at(base)}: unknown compression {codec_id}")
                    begin = at + kernels.HEADER_SIZE
                    self.found.append(
                        Found(begin, end, codec_id, base, last, base_time, append_time, count, epoch, self.epoch)
                    )
                self.next = base + last + 1
                self.epoch = epoch
            at = end
        if data and not at:
            raise CorruptBatch(f"{self.at(start)}: the fetch returned {len(data)} bytes but no whole record batch")

    def at(self, offset: int) -> str:
        """Where a batch is, for people."""
        return f"{self.topic}, partition {self.partition}, record batch at offset {offset}"

    def _check(
        self, data: bytes | memoryview, at: int, end: int, base: int, magic: int, crc: int, last: int, count: int
    ) -> None:
        if magic != 2:
            raise CorruptBatch(f"{self.at(base)}: record format v{magic}; Ratchet reads v2 (Kafka 0.11 and later)")
        if crc32c(self._view[at + CRC_FROM : end]) != crc:
            raise CorruptBatch(f"{self.at(base)}: the checksum does not match; the log or the connection is damaged")
        if last < 0 or count < 0 or count > last + 1:
            raise CorruptBatch(f"{self.at(base)}: {count} records in {last + 1} offsets")
        if base < 0 or base + last > OFFSET_MAX:
            raise CorruptBatch(f"{self.at(base)}: offsets up to {base + last}")

    def _hidden(
        self, data: bytes | memoryview, at: int, end: int, base: int, last: int, attributes: int, producer: int
    ) -> bool:
        """Control batches, and batches of a transaction that was aborted (KIP-98, Fetcher.PartitionRecords)."""
        if not attributes & (CONTROL | TRANSACTIONAL):
            return False
        while self._aborted and self._aborted[-1][1] <= base + last:
            self._open_aborted.add(self._aborted.pop()[0])
        if attributes & CONTROL:
            if self._control_type(data, at, end, base) == ABORT_MARKER:
                self._open_aborted.discard(producer)
            return True
        return bool(attributes & TRANSACTIONAL) and producer in self._open_aborted

    def _control_type(self, data: bytes | memoryview, at: int, end: int, base: int) -> int:
        """Type in the key of a control record: 0 abort, 1 commit; others (leader changes) concern nobody here."""
        at += kernels.HEADER_SIZE
        marker = kernels.control_key(np.frombuffer(data, np.uint8)[at:end])
        if marker < 0:
            raise CorruptBatch(f"{self.at(base)}: unreadable transaction marker")
        return int(_CONTROL_KEY.unpack_from(data, at + marker)[1])
