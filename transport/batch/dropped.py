"""Record batches of dropped records: unchanged, with added headers for verdict and origin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.transport.batch import kernels
from kafka_ratchet.transport.batch.compiled import compiled
from kafka_ratchet.transport.batch.encoding import EncodedBatch, varint
from kafka_ratchet.transport.batch.kernels import copy_bytes, read_varint, write_varint
from kafka_ratchet.transport.batch.record_batch import Column, RecordBatch
from kafka_ratchet.transport.batch.rows import Spans, encode_rows, spans

VERDICT: Final = "ratchet-verdict"
LAST_SEQUENCE: Final = "ratchet-last-sequence"
TOPIC: Final = "ratchet-topic"
PARTITION: Final = "ratchet-partition"
OFFSET: Final = "ratchet-offset"
HEADERS: Final = (VERDICT, LAST_SEQUENCE, TOPIC, PARTITION, OFFSET)
"""Names of the headers appended to a dropped record's own headers, in this order."""

NUMBER_MOST: Final = 21
"""Upper bound of a number's bytes as a header's value: the length, and 19 digits. A negative number becomes null."""
COUNT_MOST: Final = 5
"""Maximum bytes of a record's count of headers."""


class DroppedBatch(NamedTuple):
    """Dropped records of a fetched batch, duplicates for example, with the verdict on each.

    rows: int64[dropped], indices of the records in the batch, rising.
    verdicts: uint8[dropped], index of the verdict's name in `names`.
    against: int64[dropped], the identity's last sequence when the record came; -1 without one.
    names: names of the verdicts, as written in the header.
    """

    rows: NDArray[np.int64]
    verdicts: NDArray[np.uint8]
    against: NDArray[np.int64]
    names: Sequence[bytes]


@compiled(inline="always")
def _write_number(out, at, number):  # type: ignore[no-untyped-def]
    """Write a number as the value of a record header, in decimal text; -1 is written as null."""
    if number < 0:
        return write_varint(out, at, np.int64(-1))
    digits = 1
    rest = number // 10
    while rest > 0:
        digits += 1
        rest //= 10
    at = write_varint(out, at, np.int64(digits))
    rest = number
    for q in range(at + digits - 1, at - 1, -1):
        out[q] = np.uint8(48 + rest % 10)
        rest //= 10
    return at + digits


@compiled()
def append_headers(  # type: ignore[no-untyped-def]
    data, begins, ends, offsets, verdicts, against, constants, constant_starts, constant_lengths, out, starts, lengths
):
    """Write the headers of dropped records: the record's own headers, and five that give verdict and origin.

    Args:
        data: uint8[bytes] with the records.
        begins: int64[dropped], where a record's headers begin with their count.
        ends: int64[dropped], where the record ends.
        offsets: int64[dropped], offsets in the input topic.
        verdicts: uint8[dropped], as in `DroppedBatch`.
        against: int64[dropped], as in `DroppedBatch`.
        constants: uint8[bytes], constant bytes of the appended headers, in parts. Each verdict has one part, with the
            header of the verdict, and the name of the header with the last sequence. The last part has the headers
            with topic and partition, and the name of the header with the offset.
        constant_starts: int64[parts], start of each part.
        constant_lengths: int64[parts], length of each part.
        out: uint8[bytes], output buffer with room for all headers.
        starts: int64[dropped], receives the start of each record's headers in `out`.
        lengths: int64[dropped], receives the length of each record's headers.
    """
    at = 0
    last = len(constant_starts) - 1
    for i in range(len(begins)):
        starts[i] = at
        count, own = read_varint(data, begins[i], ends[i])
        at = write_varint(out, at, count + 5)
        at = copy_bytes(out, at, data, own, ends[i] - own)
        verdict = verdicts[i]
        at = copy_bytes(out, at, constants, constant_starts[verdict], constant_lengths[verdict])
        at = _write_number(out, at, against[i])
        at = copy_bytes(out, at, constants, constant_starts[last], constant_lengths[last])
        at = _write_number(out, at, offsets[i])
        lengths[i] = at - starts[i]


def _header(name: str, value: bytes) -> bytes:
    return varint(len(name)) + name.encode() + varint(len(value)) + value


def _name(name: str) -> bytes:
    return varint(len(name)) + name.encode()


def _headers(batch: RecordBatch, dropped: DroppedBatch) -> Spans:
    columns, rows = batch.columns, dropped.rows
    where = _header(TOPIC, batch.topic.encode()) + _header(PARTITION, str(batch.partition).encode()) + _name(OFFSET)
    constants = [_header(VERDICT, name) + _name(LAST_SEQUENCE) for name in dropped.names]
    parts = spans([*constants, where])
    begins, ends = columns[kernels.HEADERS, rows], columns[kernels.BODY_END, rows]
    each = max(map(len, constants)) + len(where) + COUNT_MOST + 2 * NUMBER_MOST
    out = np.empty(int((ends - begins).sum()) + each * len(rows), np.uint8)
    starts, lengths = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    against = np.ascontiguousarray(dropped.against, np.int64)
    append_headers(
        batch.data, begins, ends, batch.offsets[rows], dropped.verdicts, against, *parts, out, starts, lengths
    )
    out.flags.writeable = False  # the compiled pass that copies them knows one kind of array
    return out, starts, lengths


def encode_dropped(
    batch: RecordBatch, dropped: DroppedBatch, topic: str, limit: int, compression: str, *, values: bool
) -> list[EncodedBatch]:
    """Encode dropped records as batches of at most `limit` bytes each, usually about `BATCH_WRITTEN`.

    Args:
        batch: fetched batch.
        dropped: its dropped records, with verdicts.
        topic: topic to write to, for error messages.
        limit: that topic's max.message.bytes.
        compression: "none", "gzip", "snappy", "lz4" or "zstd".
        values: True: keep values; False: write nulls.

    Raises:
        RecordTooLarge: a single record does not fit.
    """
    rows, columns = dropped.rows, batch.columns
    lengths: Column = columns[kernels.VALUE_LENGTH, rows] if values else np.full(len(rows), -1, np.int64)
    first, last = int(batch.offsets[rows[0]]), int(batch.offsets[rows[-1]])
    return encode_rows(
        (batch.data, columns[kernels.KEY, rows], columns[kernels.KEY_LENGTH, rows]),
        (batch.data, columns[kernels.VALUE, rows], lengths),
        batch.timestamps[rows],
        limit,
        f"{topic}, partition {batch.partition}: dropped of {batch.topic}, offsets {first} to {last}",
        compression,
        _headers(batch, dropped),
    )
