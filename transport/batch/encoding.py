"""New record batches: kept records of a fetched batch, dead letters, changelog entries."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from kafka_ratchet.errors import RecordTooLarge
from kafka_ratchet.transport.batch import kernels
from kafka_ratchet.transport.batch.chunk import CODECS, CRC_FROM, HEAD, LENGTH_FROM, TRANSACTIONAL
from kafka_ratchet.transport.batch.compression import compress_into
from kafka_ratchet.transport.batch.record_batch import Bytes, Header, RecordBatch, read_varint

_PRODUCER_STATE: Final = struct.Struct(">qhi")
_PRODUCER_STATE_AT: Final = 43
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17

BATCH_WRITTEN: Final = 1_048_588
"""Usual limit of a written batch, in bytes: Kafka's default for max.message.bytes. Only a single larger record makes a
larger batch. The limit bounds memory: a lane sends several batches at once, and each is copied for the socket."""


ENTRY_OVERHEAD: Final = 40
"""Maximum bytes of a changelog record other than its key and value."""


@dataclass(slots=True)
class EncodedBatch:
    """Record batch, complete except for producer id, epoch, sequence and checksum. `seal` fills these in."""

    buffer: memoryview
    count: int

    @classmethod
    def finish(cls, records: Bytes, count: int) -> EncodedBatch:
        """Finish a batch of changelog entries: uncompressed, all stamped with the present time.

        records: bytes as for the function `finish`.
        """
        now = time.time_ns() // 1_000_000
        return finish(records, count, now, now)

    def seal(self, producer_id: int, epoch: int, base_sequence: int) -> memoryview:
        """Fill in the producer's fields and the checksum, and return the bytes to produce."""
        _PRODUCER_STATE.pack_into(self.buffer, _PRODUCER_STATE_AT, producer_id, epoch, base_sequence)
        _CRC.pack_into(self.buffer, _CRC_AT, crc32c(self.buffer[CRC_FROM:]))
        return self.buffer

    def as_fetched(self, offset: int) -> bytes:
        """Return the batch as the bytes that a fetch response contains, with its first record at `offset`."""
        return offset.to_bytes(8, "big") + bytes(self.seal(1, 0, 0)[8:])


def finish(
    records: Bytes,
    count: int,
    base_time: int,
    top_time: int,
    compression: str = "none",
    *,
    transactional: bool = True,
) -> EncodedBatch:
    """Make a batch of encoded records by writing the batch header in front of them.

    Args:
        records: uint8[HEADER_SIZE + bytes of the records]; the header is written into its first HEADER_SIZE bytes.
            Without compression this array itself becomes the batch's buffer.
        count: number of the records.
        base_time: ms, start of the records' timestamp deltas.
        top_time: ms, the highest timestamp.
        compression: "none", "gzip", "snappy", "lz4" or "zstd".
        transactional: True for a batch in a transaction.
    """
    buffer = records.data
    if compression != "none":
        buffer = compress_into(CODECS[compression], buffer[kernels.HEADER_SIZE :], kernels.HEADER_SIZE)
    attributes = CODECS[compression] | (TRANSACTIONAL if transactional else 0)
    HEAD.pack_into(
        buffer, 0, 0, len(buffer) - LENGTH_FROM, -1, 2, 0, attributes, count - 1, base_time, top_time, -1, -1, 0, count
    )
    return EncodedBatch(buffer, count)


def forward(batch: RecordBatch, keep: NDArray[np.bool_], limit: int, compression: str) -> Iterator[EncodedBatch]:
    """Copy the kept records of a fetched batch, bytes unchanged, into new batches.

    Each new batch has at most `limit` bytes, usually about `BATCH_WRITTEN`.

    Args:
        batch: fetched batch
        keep: bool[batch.count], True for records to copy
        limit: bytes, the output topic's max.message.bytes
        compression: compression of the output

    Raises:
        RecordTooLarge: a single record does not fit.
    """
    if not keep.any():
        return
    bodies = batch.columns[kernels.BODY_END] - batch.columns[kernels.BODY]
    total = int(bodies.sum()) + batch.count * kernels.RECORD_OVERHEAD
    longest = int(bodies.max()) + kernels.RECORD_OVERHEAD
    size = min(limit, BATCH_WRITTEN)
    room = kernels.HEADER_SIZE + min(total, max(size, longest))
    at = 0
    while at < batch.count:
        first = at
        out = np.empty(room, np.uint8)
        at, end, count, base_time, top_time = kernels.write_records(batch.data, batch.columns, keep, at, out, size)
        if not count:
            return
        encoded = finish(out[:end], count, base_time, top_time, compression)
        if len(encoded.buffer) > limit and end <= limit:
            # What does not compress grows a little: it fits as it was.
            encoded = finish(out[:end], count, base_time, top_time)
        if len(encoded.buffer) > limit:
            offset = int(batch.offsets[first + int(np.flatnonzero(keep[first:])[0])])
            raise RecordTooLarge(
                f"{batch.topic}, partition {batch.partition}, offset {offset}: a batch of {len(encoded.buffer)} "
                f"bytes exceeds the output topic's max.message.bytes of {limit}. Raise max.message.bytes of the "
                "output topic to at least this size, and to no less than that of the input topic"
            )
        yield encoded


def with_headers(batch: RecordBatch, index: int, headers: Sequence[Header], limit: int) -> EncodedBatch:
    """Encode one record as a batch, with more headers after the record's own.

    Raises:
        RecordTooLarge: the batch is larger than `limit` bytes.
    """
    begin, at, end = (int(batch.columns[row, index]) for row in (kernels.BODY, kernels.HEADERS, kernels.BODY_END))
    # The count of the old headers takes at most five bytes (it is no longer than the headers).
    count, skip = read_varint(batch.data[at : min(end, at + 10)].tobytes(), 0)
    more = b"".join(
        varint(len(name)) + name + (varint(-1) if value is None else varint(len(value)) + value)
        for name, value in ((header.name.encode(), header.value) for header in headers)
    )
    head, number = b"\0" + varint(0) + varint(0), varint(count + len(headers))
    length = len(head) + at - begin + len(number) + end - at - skip + len(more)
    # Copied once, into its place: a record may be as large as a batch may.
    parts: list[bytes | Bytes] = [
        varint(length) + head,
        batch.data[begin:at],
        number,
        batch.data[at + skip : end],
        more,
    ]
    records = np.empty(kernels.HEADER_SIZE + sum(map(len, parts)), np.uint8)
    put = kernels.HEADER_SIZE
    for part in parts:
        records[put : put + len(part)] = np.frombuffer(part, np.uint8)
        put += len(part)
    timestamp = int(batch.timestamps[index])
    encoded = finish(records, 1, timestamp, timestamp)
    if len(encoded.buffer) > limit:
        compressed = finish(records, 1, timestamp, timestamp, "zstd")
        if len(compressed.buffer) > limit:
            raise RecordTooLarge(
                f"{batch.topic}, partition {batch.partition}, offset {int(batch.offsets[index])}: as a dead letter "
                f"the record takes {len(encoded.buffer)} bytes, more than the dead-letter topic's max.message.bytes "
                f"of {limit}. Raise max.message.bytes of that topic"
            )
        return compressed
    return encoded


def encode_entries(pairs: Iterable[tuple[bytes, bytes | None]], limit: int) -> list[EncodedBatch]:
    """Encode key and value pairs as record batches; the value None becomes null.

    limit: maximum size of a batch in bytes; a single larger pair gets a batch of its own.
    """
    batches: list[EncodedBatch] = []
    waiting: list[tuple[bytes, bytes | None]] = []
    size = kernels.HEADER_SIZE

    def finish_waiting() -> None:
        out = np.empty(size, np.uint8)
        at, count = entry_batch(out, waiting)
        batches.append(EncodedBatch.finish(out[:at], count))

    for key, value in pairs:
        takes = len(key) + len(value or b"") + ENTRY_OVERHEAD
        if waiting and size + takes > limit:
            finish_waiting()
            waiting, size = [], kernels.HEADER_SIZE
        waiting.append((key, value))
        size += takes
    if waiting:
        finish_waiting()
    return batches


def entry_batch(out: Bytes, pairs: Sequence[tuple[bytes, bytes | None]]) -> tuple[int, int]:
    """Write a few key and value pairs as the first records of a batch. The caller may append further records.

    Args:
        out: uint8[bytes], with room for the batch header and the pairs
        pairs: keys and values; None is null

    Returns:
        (position after the last byte, records)
    """
    at = kernels.HEADER_SIZE
    for delta, (key, value) in enumerate(pairs):
        length = -1 if value is None else len(value)
        record = (
            b"\0" + varint(0) + varint(delta) + varint(len(key)) + key + varint(length) + (value or b"") + varint(0)
        )
        record = varint(len(record)) + record
        out[at : at + len(record)] = np.frombuffer(record, np.uint8)
        at += len(record)
    return at, len(pairs)


def pack_entries(topic: str, partition: int, pairs: Sequence[tuple[bytes, bytes]]) -> RecordBatch:
    """Put key and value pairs into columns like the columns of a fetched batch; offsets and timestamps are 0."""
    key_lengths = np.fromiter((len(key) for key, _ in pairs), np.int64, len(pairs))
    value_lengths = np.fromiter((len(value) for _, value in pairs), np.int64, len(pairs))
    columns = np.zeros((kernels.COLUMNS, len(pairs)), np.int64)
    ends = np.cumsum(key_lengths + value_lengths)
    columns[kernels.KEY] = ends - key_lengths - value_lengths
    columns[kernels.KEY_LENGTH] = key_lengths
    columns[kernels.VALUE] = ends - value_lengths
    columns[kernels.VALUE_LENGTH] = value_lengths
    data = np.frombuffer(b"".join(key + value for key, value in pairs), np.uint8)
    return RecordBatch(topic, partition, 0, 0, data, columns)


def varint(value: int) -> bytes:
    """Encode a number as a zig-zag varint, as in Kafka's record format."""
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw >= 0x80:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)
