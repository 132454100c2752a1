"""Records of a producer as record batches: each partition's in their order, with its name and sequence as headers."""

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
"""Most bytes of a record other than key, value and headers: length, attributes, two deltas, and two lengths."""

_CRC_TABLE: Final = np.array([zlib.crc32(bytes([n ^ 0xFF])) ^ 0xFF000000 for n in range(256)], np.uint32)
"""Table of zlib's CRC-32, the hash of `partition_of`."""


@dataclass(frozen=True, slots=True)
class Records:
    """Some records of a name, by rising sequences."""

    sequences: Ints
    keys: Spans
    values: Spans

    def first(self, count: int) -> Records:
        """So many of them, from the first on."""
        if count == len(self.sequences):
            return self
        return Records(self.sequences[:count], _first(self.keys, count), _first(self.values, count))


def _first(spans: Spans, count: int) -> Spans:
    return spans[0], spans[1][:count], spans[2][:count]


class Outgoing(NamedTuple):
    """Batch for a partition."""

    partition: int
    batch: EncodedBatch
    last: int
    """Sequence of its last record."""
    value_bytes: int


class Encoder:
    """Encoder of one name's records into batches of its topic's partitions.

    Args:
        topic: name, for error messages.
        name: the producer's, as `name_bytes` has it.
        partitions: the name's first partition count.
        limit: bytes of one batch, before compression.
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
        """Those of a record but for the eight bytes of its sequence, which are the last."""

        self.most = limit - HEADER_SIZE - RECORD_OVERHEAD - len(self._headers) - 8
        """Bytes of key and value of one record."""

    def fits(self, records: Records) -> int:
        """Return the number of records before the first one too large for a batch."""
        sizes = np.maximum(records.keys[2], 0) + np.maximum(records.values[2], 0)
        too_large = np.flatnonzero(sizes > self.most)
        return int(too_large[0]) if len(too_large) else len(sizes)

    def too_large(self, sequence: int, takes: int) -> RecordTooLarge:
        """Return the error for a record that does not fit a batch."""
        return RecordTooLarge(
            f"topic {self._topic!r}, producer {self._name.decode()!r}, sequence {sequence}: {takes} bytes of key and "
            f"value do not fit a batch of {self._limit} bytes. Raise max.message.bytes of the topic and "
            "message.max.bytes in the `kafka` settings, or leave the record out"
        )

    def encode(self, records: Records) -> list[Outgoing]:
        """Return the batches, those of a partition in its order; all records have to fit."""
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
    """Order records by partition, keeping their order within it.

    Args:
        keys: uint8[bytes] of the keys.
        key_starts: int64[records].
        key_lengths: int64[records]; -1 is null.
        value_lengths: int64[records]; -1 is null.
        table: uint32[256], of CRC-32.
        keyless: the partition of records without a key.
        each: bytes of a record other than key and value.
        chosen: int64[records], filled with partitions.
        order: int64[records], filled with indices of records, partition by partition.
        ends: int64[partitions + 1], zeros, filled with the partitions' starts in order; the last is their end.
        room: int64[partitions], zeros, filled with the most bytes of each partition's records.
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
        # Each partition's beginning runs ahead to its end, ...
        partition = chosen[i]
        order[ends[partition]] = i
        ends[partition] += 1
    for each_partition in range(partitions - 1, -1, -1):
        # ... which is where the next one began.
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
    """Write records, all of one time, into the record section of one new batch.

    Args:
        keys: as `write_rows` takes them.
        key_starts: likewise.
        key_lengths: likewise.
        values: likewise.
        value_starts: likewise.
        value_lengths: likewise.
        sequences: int64[records].
        headers: uint8[bytes], headers of a record without its sequence.
        order: int64[records], indices of records.
        first: where in order to begin.
        end: where in order to end.
        out: uint8[limit], records begin at HEADER_SIZE.
        limit: bytes; one record always fits.

    Returns:
        (index in order of the first record not written, position after the last byte, bytes of keys and values).
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
    """Encode one record, to compile the functions.

    Numba keeps the result next to the source or in the user's cache.
    """
    find_lines(b'{"a":"b"}\n', True, "a")
    Encoder("compile", b"a", 1, 1000, "none").encode(Records(np.arange(1), spans([b"a"]), spans([b"b"])))
