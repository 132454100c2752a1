"""New record batches from keys and values: outputs of an agent, and entries of its tables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.errors import RecordTooLarge
from kafka_ratchet.transport.batch.compiled import compiled
from kafka_ratchet.transport.batch.encoding import BATCH_WRITTEN, EncodedBatch, finish
from kafka_ratchet.transport.batch.kernels import HEADER_SIZE, copy_bytes, varint_size, write_varint
from kafka_ratchet.transport.batch.record_batch import Bytes

ROW_OVERHEAD: Final = 37
"""Maximum bytes of a record other than key and value: RECORD_OVERHEAD, two lengths (5 each), header count."""

Ints = NDArray[np.int64]
Spans = tuple[Bytes, Ints, Ints]
"""Joined byte strings, and the start and length of each as int64[n]; length -1 is null."""


@compiled()
def write_rows(  # type: ignore[no-untyped-def]
    keys,
    key_starts,
    key_lengths,
    values,
    value_starts,
    value_lengths,
    headers,
    header_starts,
    header_lengths,
    times,
    first,
    out,
    limit,
):
    """Write records into the record section of one new batch.

    Args:
        keys: uint8[bytes], the keys one after the other.
        key_starts: int64[records], where each key begins.
        key_lengths: int64[records], length of each key; -1 is null.
        values: uint8[bytes], the values one after the other.
        value_starts: int64[records], where each value begins.
        value_lengths: int64[records], length of each value; -1 is null.
        headers: uint8[bytes], headers of each record as encoded in a record, count first.
        header_starts: int64[records], where each record's headers begin.
        header_lengths: int64[records], bytes of each record's headers; 0 without headers.
        times: int64[records], timestamps in ms.
        first: index of the first record to write.
        out: uint8[bytes], room for limit bytes or one whole record, whichever is more; records begin at HEADER_SIZE.
        limit: size in bytes after which no further record is started.

    Returns:
        (index of the first record not written, position after the last byte, records, base timestamp, highest
        timestamp).
    """
    at = HEADER_SIZE
    count = 0
    base_time = np.int64(-1)
    top_time = np.int64(-1)
    i = first
    while i < len(key_starts):
        time = times[i]
        if count == 0:
            base_time = time
        key, value = key_lengths[i], value_lengths[i]
        length = 1 + varint_size(time - base_time) + varint_size(np.int64(count)) + varint_size(key)
        length += max(key, 0) + varint_size(value) + max(value, 0) + max(header_lengths[i], 1)
        if count > 0 and at + varint_size(length) + length > limit:
            break
        at = write_varint(out, at, length)
        out[at] = 0  # attributes of a record: none are defined
        at = write_varint(out, at + 1, time - base_time)
        at = write_varint(out, at, np.int64(count))
        at = write_varint(out, at, key)
        if key > 0:
            at = copy_bytes(out, at, keys, key_starts[i], key)
        at = write_varint(out, at, value)
        if value > 0:
            at = copy_bytes(out, at, values, value_starts[i], value)
        if header_lengths[i] > 0:
            at = copy_bytes(out, at, headers, header_starts[i], header_lengths[i])
        else:
            out[at] = 0  # no headers
            at += 1
        if count == 0 or time > top_time:
            top_time = time
        count += 1
        i += 1
    return i, at, count, base_time, top_time


def spans(parts: Sequence[bytes | None]) -> Spans:
    """Join byte strings into one buffer. Return the buffer, and each string's start and length; None has length -1."""
    if None in parts:
        lengths = np.fromiter((-1 if part is None else len(part) for part in parts), np.int64, len(parts))
        data = b"".join(part for part in parts if part)
    else:
        whole = cast("Sequence[bytes]", parts)
        lengths, data = np.fromiter(map(len, whole), np.int64, len(whole)), b"".join(whole)
    sizes = np.maximum(lengths, 0)
    starts = np.cumsum(sizes) - sizes
    return np.frombuffer(data, np.uint8), starts, lengths


def encode_rows(
    keys: Spans,
    values: Spans,
    times: Ints,
    limit: int,
    what: str,
    compression: str = "none",
    headers: Spans | None = None,
) -> list[EncodedBatch]:
    """Encode records as batches of at most `limit` bytes each, usually about `BATCH_WRITTEN`.

    Args:
        keys: keys of the records, as `spans` returns them.
        values: values of the records, as `spans` returns them.
        times: int64[records], timestamps in ms.
        limit: bytes, max.message.bytes of the topic to write to.
        what: the topic and the origin of the records, for error messages.
        compression: "none", "gzip", "snappy", "lz4" or "zstd".
        headers: encoded headers of the records, count first, as `spans` returns them; None: no record has headers.

    Raises:
        RecordTooLarge: a single record does not fit.
    """
    if headers is None:
        none = np.zeros(len(times), np.int64)
        # Read-only, as all bytes that come here are: Numba compiles separately for each kind of array.
        headers = np.frombuffer(b"", np.uint8), none, none
    sizes = np.maximum(keys[2], 0) + np.maximum(values[2], 0) + headers[2] + ROW_OVERHEAD
    size = min(limit, BATCH_WRITTEN)
    longest = int(sizes.max(initial=0))
    room = HEADER_SIZE + min(int(sizes.sum()), max(size, longest))
    batches: list[EncodedBatch] = []
    at = 0
    while at < len(times):
        out = np.empty(room, np.uint8)
        at, end, count, base_time, top_time = write_rows(*keys, *values, *headers, times, at, out, size)
        encoded = finish(out[:end], count, base_time, top_time, compression)
        if len(encoded.buffer) > limit and end <= limit:
            # What does not compress grows a little: it fits as it was.
            encoded = finish(out[:end], count, base_time, top_time)
        if len(encoded.buffer) > limit:
            raise RecordTooLarge(
                f"{what}: a record of {len(encoded.buffer)} bytes exceeds the topic's max.message.bytes of {limit}. "
                "Raise max.message.bytes of that topic, or write smaller records"
            )
        batches.append(encoded)
    return batches


def encode_pairs(
    pairs: Sequence[tuple[bytes | None, bytes | None]],
    limit: int,
    what: str = "changelog",
    times: Sequence[int] | None = None,
) -> list[EncodedBatch]:
    """Encode key and value pairs as batches; the arguments are those of `encode_columns`."""
    return encode_columns([key for key, _ in pairs], [value for _, value in pairs], limit, what, times)


def encode_columns(
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    limit: int,
    what: str = "changelog",
    times: Sequence[int] | None = None,
) -> list[EncodedBatch]:
    """Encode keys and their values as batches; the value None is null.

    times: timestamp of each record in ms; None: the present time.
    """
    stamps: Any = np.full(len(keys), time.time_ns() // 1_000_000, np.int64) if times is None else np.array(times)
    return encode_rows(spans(keys), spans(values), stamps, limit, what)
