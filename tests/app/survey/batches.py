"""Record batches from plain records, as a fetch gives them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.batch.rows import encode_rows, spans
from tests.app.survey.plain_count import PlainRecord


def varint(number: int) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    out = b""
    while raw >= 0x80:
        out, raw = out + bytes([raw & 0x7F | 0x80]), raw >> 7
    return out + bytes([raw])


def part(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def batch_of(records: Sequence[PlainRecord]) -> RecordBatch:
    """One batch of records of one partition, whose offsets follow each other."""
    headers = [
        varint(len(each.headers)) + b"".join(part(name.encode()) + part(value) for name, value in each.headers)
        for each in records
    ]
    [encoded] = encode_rows(
        spans([each.key for each in records]),
        spans([each.value for each in records]),
        np.array([each.timestamp_ms for each in records]),
        64 << 20,
        "a test",
        headers=spans(headers),
    )
    first = records[0].offset
    return read_chunk("t", records[0].partition, first, encoded.as_fetched(first), [])
