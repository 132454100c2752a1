"""Parser of a fetched chunk of a partition: decompresses batches up to a memory limit, and reads them into columns."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c

from kafka_ratchet.errors import BatchTooLarge, CorruptBatch
from kafka_ratchet.transport.batch import kernels
from kafka_ratchet.transport.batch.decompression import GZIP, LZ4, SNAPPY, ZSTD, TooLarge, decompress_into
from kafka_ratchet.transport.batch.record_batch import REPLAY_HEADERS, Bytes, RecordBatch

BATCH_MOST: Final = 64 << 20
"""Default of the setting `max_batch_mb`, in bytes: the maximum size of one batch after decompression. The Java producer
holds 32 MiB of records in all its batches together (buffer.memory)."""

ALL_RECORDS: Final = 1 << 31
"""Value of `records` for no limit: more records than a fetched chunk has."""

CHUNK_SHARE: Final = 4
"""Divisor of the memory limit, for a chunk of several batches.

The chunk's records may take a quarter of the limit, and its columns another quarter. A single batch may take the whole
limit. So a lane reads ahead while it works on a chunk, but not while it works on a large batch. The lane's memory stays
below three times the limit (tests/app/worker/test_large_batches.py).
"""

RATIO_USUAL: Final = 16
ROOM_LEAST: Final = 64 << 10
"""Size in bytes of the smallest buffer for a chunk's decompressed records.

Usually a buffer is `RATIO_USUAL` times as large as the compressed chunk. If each fetch got a buffer of `BATCH_MOST`,
the operating system would have to supply its pages, which takes as long as zstd itself.
"""

_COLUMN_BYTES: Final = 8 * kernels.COLUMNS
"""Size in bytes of one record's columns: seventeen times the size of the shortest record."""


HEAD: Final = struct.Struct(">qiibIhiqqqhii")
"""Format of a batch header, the 61 bytes before the records (KIP-98).

Its fields are base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base and highest
timestamp, producer id, producer epoch, base sequence, record count.
"""

LENGTH_FROM: Final = 12
"""Position in the header after the length field, which counts the bytes from here."""
CRC_FROM: Final = 21
"""Position of the attributes in the header. The CRC covers the bytes from here."""

CODEC, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
"""Bits of the attributes."""

OFFSET_MAX: Final = 2**63 - 2
"""Largest valid offset: its successor still fits a signed 64-bit integer. A batch's checksum does not cover the base
offset, so only such limits reveal a damaged base offset."""

_CONTROL_KEY: Final = struct.Struct(">hh")
"""Format of a control record's key: version and type."""
ABORT_MARKER: Final = 0
EMPTIED: Final = -1
"""Type given to a transaction marker after Kafka's log cleaner has removed its record."""

CODECS: Final = {"none": 0, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
_CODEC_IDS: Final = frozenset(CODECS.values())


class FoundBatch(NamedTuple):
    """Position and header fields of a batch with visible records."""

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
    """Leader epoch of the preceding batch, hidden batches included; -1 for the first batch of the chunk."""


class Heads:
    """Batches with visible records in a fetched chunk, found by their headers.

    Attributes:
        found: batches with records to read, in order
        next: the offset after the last batch
        epoch: leader epoch of the last batch; -1 without one
    """

    def __init__(
        self, topic: str, partition: int, start: int, data: bytes | memoryview, aborted: list[tuple[int, int]]
    ) -> None:
        self.topic, self.partition, self.data = topic, partition, data
        self._view = memoryview(data)
        self.found: list[FoundBatch] = []
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
                raise self.corrupt(base, f"its header states a length of {length} bytes, too short for a record batch")
            end = at + LENGTH_FROM + length
            if end > len(data):
                break
            self._check(data, at, end, base, magic, crc, last, count)
            if base <= behind:
                raise self.corrupt(base, f"it begins before offset {behind + 1}, the end of the preceding batch")
            behind = base + last
            if base + last >= start:
                if not self._hidden(data, at, end, base, last, attributes, producer) and count:
                    append_time = top_time if attributes & LOG_APPEND_TIME else kernels.NO_APPEND_TIME
                    codec_id = attributes & CODEC
                    if codec_id not in _CODEC_IDS:
                        raise self.corrupt(base, f"unknown compression {codec_id}")
                    begin = at + kernels.HEADER_SIZE
                    self.found.append(
                        FoundBatch(begin, end, codec_id, base, last, base_time, append_time, count, epoch, self.epoch)
                    )
                self.next = base + last + 1
                self.epoch = epoch
            at = end
        if data and not at:
            raise self.corrupt(start, f"the fetch returned {len(data)} bytes but no whole record batch")

    def at(self, offset: int) -> str:
        """Return topic, partition and offset of a batch as text for error messages."""
        return f"{self.topic}, partition {self.partition}, record batch at offset {offset}"

    def corrupt(self, offset: int, fault: str) -> CorruptBatch:
        """Return the error for the batch at an offset, with the remedy. fault: words about the bytes."""
        return CorruptBatch(
            f"{self.at(offset)}: {fault}. Repair the log of this partition, or skip the batch; see "
            "docs/reference/halted.md"
        )

    def _check(
        self, data: bytes | memoryview, at: int, end: int, base: int, magic: int, crc: int, last: int, count: int
    ) -> None:
        if magic != 2:
            raise self.corrupt(
                base, f"record format v{magic} cannot be read; Ratchet reads v2, which Kafka 0.11 and later write"
            )
        if crc32c(self._view[at + CRC_FROM : end]) != crc:
            raise self.corrupt(
                base, "the checksum does not match its bytes; the broker's log or the connection is damaged"
            )
        if last < 0 or count < 0 or count > last + 1:
            raise self.corrupt(base, f"its header states {count} records for {last + 1} offsets")
        if base < 0 or base + last > OFFSET_MAX:
            raise self.corrupt(base, f"its header states the impossible last offset {base + last}")

    def _hidden(
        self, data: bytes | memoryview, at: int, end: int, base: int, last: int, attributes: int, producer: int
    ) -> bool:
        """Return True for control batches and for batches of aborted transactions, which consumers do not see.

        See KIP-98, Fetcher.PartitionRecords.
        """
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
        """Return the type in a control record's key.

        0 is an abort, 1 a commit; other types, such as leader changes, have no effect. Kafka's log cleaner may keep
        only the header of a producer's last marker (LogCleaner, RETAIN_EMPTY). Then return EMPTIED.
        """
        if not HEAD.unpack_from(data, at)[-1]:
            return EMPTIED
        at += kernels.HEADER_SIZE
        marker = kernels.control_key(np.frombuffer(data, np.uint8)[at:end])
        if marker < 0:
            raise self.corrupt(base, "it is an unreadable transaction marker")
        return int(_CONTROL_KEY.unpack_from(data, at + marker)[1])


def read_chunk(
    topic: str,
    partition: int,
    start: int,
    data: bytes | memoryview,
    aborted: list[tuple[int, int]],
    *,
    sequence_header: bytes = b"",
    identity_header: bytes = b"",
    most: int = BATCH_MOST,
    records: int = ALL_RECORDS,
    is_input: bool = False,
) -> RecordBatch:
    """Parse the bytes that a fetch returned for one partition into columns, without aborted transactions.

    Records that do not fit the memory limit, or exceed `records`, are left for the next fetch. The result's `next` is
    the offset to fetch from, possibly in the middle of a batch.

    Args:
        topic: the fetched topic.
        partition: the fetched partition.
        start: the requested offset.
        data: record batches; the broker may have cut off the last one.
        aborted: (producer id, first offset) of the aborted transactions in this range, from the fetch response.
        sequence_header: name of a header to find in every record; b"" for none.
        identity_header: name of a second header to find in every record; b"" for none.
        most: bytes that one batch may unpack to.
        records: maximum number of records to read, 1 or more.
        is_input: True if a lane reads its input: an error about a batch then names the command that skips the batch.

    Raises:
        BatchTooLarge: the first batch with records to read unpacks to more than `most`.
        CorruptBatch: wrong magic, CRC, lengths or counts, or an unreadable compression.
    """
    heads = Heads(topic, partition, start, data, aborted)
    unpacked = _Unpacked(heads, most, is_input=is_input)
    h = np.array(unpacked.rows, np.int64).reshape(-1, 7)
    room = max(1, min(records, most // CHUNK_SHARE // _COLUMN_BYTES))
    columns = np.empty((kernels.COLUMNS, min(int(h[:, 6].sum()), room)), np.int64)
    replays = np.empty(columns.shape[1], np.int64)
    count, damaged, is_full, replayed = kernels.read_records(
        unpacked.buffer,
        *(np.ascontiguousarray(h[:, i]) for i in range(7)),
        start,
        np.frombuffer(sequence_header, np.uint8),
        np.frombuffer(identity_header, np.uint8),
        np.frombuffer(REPLAY_HEADERS.encode(), np.uint8),
        columns,
        replays,
    )
    if damaged >= 0:
        raise heads.corrupt(int(h[damaged, 2]), "its records do not fit the length that the batch header states")
    end, epoch = unpacked.next, unpacked.epoch
    if is_full:
        last = int(columns[kernels.OFFSET, count - 1])
        end, epoch = last + 1, unpacked.epoch_at(last)
    return RecordBatch(
        topic,
        partition,
        start,
        end,
        unpacked.buffer,
        columns[:, :count],
        unpacked.codec,
        epoch,
        replays[:replayed].copy(),
    )


class _Unpacked:
    """Decompressed batches of a chunk, up to the memory limit.

    Attributes:
        buffer: uint8[bytes], read-only.
        rows: one tuple for each batch, as `read_records` takes it: (start, end, base offset, last offset delta, base
            timestamp, append time, count).
        next: offset after the last batch read; control batches and aborted ones count as read.
        epoch: leader epoch of that batch.
        codec: compression codec of the last batch.
    """

    def __init__(self, heads: Heads, most: int, *, is_input: bool) -> None:
        """Decompress batches up to `most` bytes. Raises BatchTooLarge and CorruptBatch, as `read_chunk` describes."""
        self._heads, self._most, self._share, self._is_input = heads, most, most // CHUNK_SHARE, is_input
        self._chunk = memoryview(heads.data)
        self._is_packed = any(found.codec_id for found in heads.found)
        size = min(self._share, max(ROOM_LEAST, len(heads.data) * RATIO_USUAL))
        # Uncompressed bytes stay where they are.
        self._room = np.empty(size, np.uint8) if self._is_packed else np.frombuffer(heads.data, np.uint8)
        self._used = records = 0
        self._size: int | None = None
        self.rows: list[tuple[int, ...]] = []
        self.next, self.epoch, codec_id = heads.next, heads.epoch, CODECS["none"]
        self._taken: list[FoundBatch] = []
        for found in heads.found:
            records += found.records
            is_much = self._used >= self._share or records * _COLUMN_BYTES > self._share
            if self.rows and (is_much or not self._take(found)):
                self.next, self.epoch = found.base, found.epoch_before
                break
            if not self.rows:
                self._take_first(found)
            codec_id = found.codec_id
            self._taken.append(found)
        self.codec = next(name for name, number in CODECS.items() if number == codec_id)
        self.buffer = self._room[: self._used] if self._is_packed else self._room
        self.buffer.flags.writeable = False  # decompressed or not, the passes are compiled for one kind of array

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of the batch that holds the record at `offset`."""
        return next(found.epoch for found in reversed(self._taken) if found.base <= offset)

    def _take_first(self, found: FoundBatch) -> None:
        if self._take(found):
            return
        if self._is_packed and len(self._room) < self._most:
            # Pages take no memory until something is written to them.
            self._room = np.empty(self._most, np.uint8)
            if self._take(found):
                return
        is_stated = self._size is not None and self._size > self._most  # a batch may state a wrong size
        size = f"{self._size} bytes" if is_stated else f"more than {self._most} bytes"
        remedy = ""
        if self._is_input:  # elsewhere the offset is of another topic
            remedy = (
                " and start the workers again; or skip the batch: ratchet resume --stream S --partition "
                f"{self._heads.partition} --from {found.base + found.last + 1} --reason TEXT"
            )
        raise BatchTooLarge(
            f"{self._heads.at(found.base)}: the batch unpacks to {size}, and max_batch_mb is "
            f"{self._most >> 20}. Raise max_batch_mb{remedy}"
        )

    def _take(self, found: FoundBatch) -> bool:
        """Decompress the batch into the buffer, or return False if it does not fit.

        Compressed batches after the first one may fill only a share of the buffer (`CHUNK_SHARE`). After False, `_size`
        is the size that the batch states, or None if it states none.

        Raises:
            CorruptBatch: the batch cannot be decompressed, or states more records than its size can hold.
        """
        try:
            if not self._is_packed:
                start, size = found.start, found.end - found.start
                if self._used + size > self._most:
                    raise TooLarge(self._most, size)
            else:
                packed = self._chunk[found.start : found.end]
                end = self._share if self.rows else len(self._room)
                start, size = self._used, self._unpack(found.codec_id, packed, self._room[self._used : end])
        except TooLarge as error:
            self._size = error.size
            return False
        except Exception as error:
            # Each codec has its own exceptions, and all of them mean the same here.
            raise self._heads.corrupt(found.base, f"it cannot be decompressed: {error}") from error
        if found.records * kernels.RECORD_LEAST > size:
            raise self._heads.corrupt(
                found.base, f"its header states {found.records} records, too many for {size} bytes"
            )
        self.rows.append(
            (start, start + size, found.base, found.last, found.base_time, found.append_time, found.records)
        )
        self._used += size
        return True

    @staticmethod
    def _unpack(codec_id: int, packed: memoryview, room: Bytes) -> int:
        if codec_id and len(room):
            return decompress_into(codec_id, packed, room)
        if len(packed) > len(room):
            raise TooLarge(len(room), None if codec_id else len(packed))
        room[: len(packed)] = np.frombuffer(packed, np.uint8)
        return len(packed)
