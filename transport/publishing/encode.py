"""Encoder of a producer's records: batches by partition, in order, with name and sequence as record headers."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from kafka_ratchet.errors import RecordTooLarge
from kafka_ratchet.producers import PRODUCER_HEADER, SEQUENCE_HEADER, partition_of
from kafka_ratchet.transport.batch.compiled import compiled
from kafka_ratchet.transport.batch.encoding import EncodedBatch, finish, varint
from kafka_ratchet.transport.batch.kernels import HEADER_SIZE, copy_bytes, varint_size, write_varint
from kafka_ratchet.transport.batch.rows import Ints, Spans, spans
from kafka_ratchet.transport.publishing.lines import find_lines

RECORD_OVERHEAD: Final = 24
"""Maximum bytes of a record other than key, value and headers: length, attributes, two deltas, and two lengths."""

_CRC_TABLE: Final = np.array([zlib.crc32(bytes([n ^ 0xFF])) ^ 0xFF000000 for n in range(256)], np.uint32)
"""Table of zlib's CRC-32, the hash of `partition_of`."""


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one producer name, by rising sequences."""

    sequences: Ints
    keys: Spans
    values: Spans

    def first(self, count: int) -> Records:
        """Return the first `count` records."""
        if count == len(self.sequences):
            return self
        return Records(self.sequences[:count], _first(self.keys, count), _first(self.values, count))


def _first(spans: Spans, count: int) -> Spans:
    return spans[0], spans[1][:count], spans[2][:count]


class Outgoing(NamedTuple):
    """Encoded batch for one partition, with its last sequence and the size of its values."""

    partition: int
    batch: EncodedBatch
    last: int
    """Sequence of the batch's last record."""
    value_bytes: int


class Encoder:
    """Encoder of a producer's records into batches for each partition of the topic.

    Args:
        topic: topic's name, for error messages.
        name: the producer's name, as returned by `name_bytes`.
        partitions: partition count of the topic when the name was first used.
        limit: maximum bytes of one batch, before compression.
        compression: "none", "gzip", "snappy", "lz4" or "zstd".
    """

    def __init__(self, topic: str, name: bytes, partitions: int, limit: int, compression: str) -> None:
        self._topic, self._name, self._partitions = topic, name, partitions
        self._limit, self._compression = limit, compression
        self._keyless = partition_of(None, name, partitions)
        headers = varint(2)
        for header, value in ((PRODUCER_HEADER, name), (SEQUENCE_HEADER, b"")):
            headers += varint(len(header)) + header.encode() + varint(len(value) or 8) + value
        self._headers = np.frombuffer(headers, np.uint8)
        """Encoded headers of every record, without the eight bytes of the sequence at their end."""

        self.most = limit - HEADER_SIZE - RECORD_OVERHEAD - len(self._headers) - 8
        """Maximum bytes that key and value of one record may have together."""

    def fits(self, records: Records) -> int:
        """Return the number of records before the first one too large for a batch."""
        sizes = np.maximum(records.keys[2], 0) + np.maximum(records.values[2], 0)
        too_large = np.flatnonzero(sizes > self.most)
        return int(too_large[0]) if len(too_large) else len(sizes)

    def too_large(self, sequence: int, takes: int) -> RecordTooLarge:
        """Return the error for a record too large for a batch."""
        error = RecordTooLarge(
            f"topic {self._topic!r}, producer {self._name.decode()!r}, sequence {sequence}: {takes} bytes of key and "
            f"value do not fit a batch of {self._limit} bytes. Raise max.message.bytes of the topic and "
            "message.max.bytes in the `kafka` settings, or leave the record out"
        )
        error.sequence = sequence
        return error

    def encode(self, records: Records) -> list[Outgoing]:
        """Encode records as batches by partition, in the records' order. All records must fit a batch (`fits`)."""
        count = len(records.sequences)
        order, ends = np.empty(count, np.int64), np.zeros(self._partitions + 1, np.int64)
        room = np.zeros(self._partitions, np.int64)
        chosen = np.empty(count, np.int64)
        each = RECORD_OVERHEAD + len(self._headers) + 8
        _by_partition(*records.keys, records.values[2], _CRC_TABLE, self._keyless, each, chosen, order, ends, room)
        now = time.time_ns() // 1_000_000
        found: list[Outgoing] = []
        for partition in np.flatnonzero(np.diff(ends)).tolist():
            at, end = int(ends[partition]), int(ends[partition + 1])
            while at < end:
                out = np.empty(min(HEADER_SIZE + int(room[partition]), self._limit), np.uint8)
                first = at
                at, size, value_bytes = _write(
                    *records.keys, *records.values, records.sequences, self._headers, order, at, end, out, len(out)
                )
                batch = finish(out[:size], at - first, now, now, self._compression, transactional=False)
                if len(batch.buffer) > size:  # what does not compress grows a little
                    batch = finish(out[:size], at - first, now, now, transactional=False)
                found.append(Outgoing(partition, batch, int(records.sequences[order[at - 1]]), int(value_bytes)))
        return found


@compiled()
def _by_partition(  # type: ignore[no-untyped-def]
    keys, key_starts, key_lengths, value_lengths, table, keyless, each, chosen, order, ends, room
):
    """Order records by partition, and keep their order within each partition.

    Args:
        keys: uint8[bytes], the keys one after the other.
        key_starts: int64[records], where each key begins.
        key_lengths: int64[records], length of each key; -1 is null.
        value_lengths: int64[records], length of each value; -1 is null.
        table: uint32[256], table of CRC-32.
        keyless: the partition of records without a key.
        each: bytes of a record other than key and value.
        chosen: int64[records], receives the partition of each record.
        order: int64[records], receives the records' indices, partition by partition.
        ends: int64[partitions + 1] of zeros, receives the start of each partition in `order`, and at last the end.
        room: int64[partitions] of zeros, receives the maximum size of each partition's records.
    """
    partitions = len(room)
    full = np.uint32(0xFFFFFFFF)
    for i in range(len(key_lengths)):
        length = key_lengths[i]
        partition = np.int64(keyless)
        if length >= 0:
            crc = full
            start = key_starts[i]
            for byte in range(start, start + length):
                crc = table[(crc ^ np.uint32(keys[byte])) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
            partition = np.int64(crc ^ full) % partitions
        chosen[i] = partition
        ends[partition + 1] += 1
        room[partition] += each + max(length, 0) + max(value_lengths[i], 0)
    for each_partition in range(partitions):
        ends[each_partition + 1] += ends[each_partition]
    for i in range(len(chosen)):
        # `ends[p]` is the place of p's next record; it rises from p's start to p's end.
        partition = chosen[i]
        order[ends[partition]] = i
        ends[partition] += 1
    for each_partition in range(partitions - 1, -1, -1):
        # p's end is the start of the next partition.
        ends[each_partition + 1] = ends[each_partition]
    ends[0] = 0


@compiled()
def _write(  # type: ignore[no-untyped-def]
    keys,
    key_starts,
    key_lengths,
    values,
    value_starts,
    value_lengths,
    sequences,
    headers,
    order,
    first,
    end,
    out,
    limit,
):
    """Write records with one common timestamp into the record section of a new batch.

    Args:
        keys: as `write_rows` takes them.
        key_starts: as `write_rows` takes them.
        key_lengths: as `write_rows` takes them.
        values: as `write_rows` takes them.
        value_starts: as `write_rows` takes them.
        value_lengths: as `write_rows` takes them.
        sequences: int64[records], sequence of each record.
        headers: uint8[bytes], headers of a record without its sequence.
        order: int64[records], the records' indices in the order to write.
        first: start of the range in `order`.
        end: end of the range in `order`.
        out: uint8[limit] to write into; records begin at HEADER_SIZE.
        limit: bytes of the batch; one record always fits.

    Returns:
        (index in `order` of the first record not written, position after the last byte, bytes of keys and values).
    """
    at = HEADER_SIZE
    taken = np.int64(0)
    headers_length = len(headers) + 8
    n = first
    while n < end:
        i = order[n]
        key, value = key_lengths[i], value_lengths[i]
        delta = np.int64(n - first)
        length = 2 + varint_size(delta) + varint_size(key) + max(key, 0)
        length += varint_size(value) + max(value, 0) + headers_length
        if at + varint_size(length) + length > limit:
            break
        at = write_varint(out, at, length)
        out[at] = 0  # attributes of a record: none are defined
        out[at + 1] = 0  # all have the batch's time
        at = write_varint(out, at + 2, delta)
        at = write_varint(out, at, key)
        if key > 0:
            at = copy_bytes(out, at, keys, key_starts[i], key)
        at = write_varint(out, at, value)
        if value > 0:
            at = copy_bytes(out, at, values, value_starts[i], value)
        at = copy_bytes(out, at, headers, 0, len(headers))
        sequence = sequences[i]
        for byte in range(8):
            out[at + byte] = np.uint8((sequence >> (56 - 8 * byte)) & 0xFF)
        at += 8
        taken += max(key, 0) + max(value, 0)
        n += 1
    return n, at, taken


def compile_publishing() -> None:
    """Compile the encoding functions by encoding one record.

    Numba caches the compiled code next to the source or in the user's cache.
    """
    find_lines(b'{"a":"b"}\n', True, "a")
    Encoder("compile", b"a", 1, 1000, "none").encode(Records(np.arange(1), spans([b"a"]), spans([b"b"])))
