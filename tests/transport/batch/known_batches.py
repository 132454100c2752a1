"""Record batches made by aiokafka's encoder, with header fields set afterwards as only a broker sets them."""

from __future__ import annotations

import struct
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from kafka_ratchet.transport.batch import kernels
from kafka_ratchet.transport.batch.compression import compress_into
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from tests.transport.batch.slow_reading import SlowRecord, slow_crc32c

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")

CONTROL, TRANSACTIONAL, APPEND_TIME = 0x20, 0x10, 0x08

HEAD = struct.Struct(">qiibIhiqqqhii")


class Source(NamedTuple):
    """A record as a program wants to send it."""

    key: bytes | None = None
    value: bytes | None = b""
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = 1_700_000_000_000
    delta: int | None = None
    """Offset within the batch; None takes the next one."""


def packed(compression: str, plain: bytes) -> bytes:
    """Compressed as the transport does it."""
    return bytes(compress_into(COMPRESSIONS.index(compression), memoryview(plain), 0))


def encode(
    records: list[Source],
    base: int = 0,
    compression: str = "none",
    producer: int = -1,
    attributes: int = 0,
    last_delta: int | None = None,
    top_time: int | None = None,
) -> bytes:
    """A batch of these records, as a broker returns it."""
    if not records:
        empty = HEAD.pack(base, 49, 0, 2, 0, attributes, last_delta or 0, -1, top_time or -1, producer, 0, -1, 0)
        return seal(empty)
    builder = DefaultRecordBatchBuilder(2, COMPRESSIONS.index(compression), 0, producer, 0, 0, 1 << 30)
    deltas: list[int] = []
    for record in records:
        delta = record.delta if record.delta is not None else (deltas[-1] + 1 if deltas else 0)
        deltas.append(delta)
        builder.append(delta, record.timestamp, record.key, record.value, list(record.headers))
    data = bytes(builder.build())
    fields = list(HEAD.unpack_from(data))
    fields[0] = base
    fields[5] |= attributes
    fields[6] = last_delta if last_delta is not None else (deltas[-1] if deltas else 0)
    if top_time is not None:
        fields[8] = top_time
    fields[9] = producer
    return seal(HEAD.pack(*fields) + data[HEAD.size :])


def seal(batch: bytes) -> bytes:
    """The batch with the length and the checksum that its bytes call for."""
    body = batch[21:]
    return batch[:8] + struct.pack(">i", len(batch) - 12) + batch[12:17] + struct.pack(">I", slow_crc32c(body)) + body


def marker(base: int, producer: int, kind: int) -> bytes:
    """A control batch. kind: 0 abort, 1 commit, 2 leader change."""
    key = struct.pack(">hh", 0, kind)
    return encode([Source(key, struct.pack(">hi", 0, 0))], base, "none", producer, CONTROL | TRANSACTIONAL)


def with_field(batch: bytes, at: int, form: str, value: int) -> bytes:
    """The batch with one header field replaced, sealed again."""
    return seal(batch[:at] + struct.pack(form, value) + batch[at + struct.calcsize(form) :])


def stamped(batch: bytes, at_ms: int) -> bytes:
    """The batch as a broker with LogAppendTime stores it."""
    fields = list(HEAD.unpack_from(batch))
    fields[5], fields[8] = fields[5] | APPEND_TIME, at_ms
    return seal(HEAD.pack(*fields) + batch[HEAD.size :])


def columns_of(batch: RecordBatch) -> list[SlowRecord]:
    """The records that the columns describe."""
    return [
        SlowRecord(
            int(batch.offsets[i]),
            int(batch.timestamps[i]),
            batch.key(i),
            batch.value(i),
            [(name.encode(), value) for name, value in batch.headers(i)],
        )
        for i in range(batch.count)
    ]


def wanted(batch: RecordBatch, index: int, row: int) -> tuple[bytes | None, int, int]:
    """(value, length, how often) of one of the two headers asked for; row: kernels.FIRST or kernels.SECOND."""
    start, length, times = (int(batch.columns[row + i, index]) for i in range(3))
    return batch.span(start, length), length, times


def wanted_slowly(record: SlowRecord, name: bytes) -> tuple[bytes | None, int, int]:
    """The same, from a slow reading."""
    values = [value for header, value in record.headers if header == name]
    if not name or not values:
        return None, kernels.ABSENT, 0
    return values[-1], -1 if values[-1] is None else len(values[-1]), len(values)
