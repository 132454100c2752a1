"""Compiled functions of the agents, which read headers from records and encode headers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.compiled import compiled

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]


@compiled()
def count_headers(data: U8, begins: I64, ends: I64, offsets: NDArray[np.int32]) -> None:
    """Count the headers of records.

    Args:
        data: uint8[bytes] of the record batch.
        begins: int64[records], position of each record's header count.
        ends: int64[records], end of each record.
        offsets: int32[records + 1], filled with the number of headers before each record; the first must be 0.
    """
    for i in range(len(begins)):
        count, _ = records.read_varint(data, begins[i], ends[i])
        offsets[i + 1] = offsets[i] + count


@compiled()
def find_headers(data: U8, begins: I64, ends: I64, names: I64, values: I64) -> None:
    """Find the names and values of headers in valid records.

    Fills names int64[2, headers] and values int64[2, headers] with starts and lengths. A null value has length -1 and
    begins where its name ends. The other parameters are those of `count_headers`.
    """
    found = 0
    for i in range(len(begins)):
        count, at = records.read_varint(data, begins[i], ends[i])
        for _ in range(count):
            length, at = records.read_varint(data, at, ends[i])
            names[0, found], names[1, found] = at, length
            at += length
            length, after = records.read_varint(data, at, ends[i])
            values[0, found], values[1, found] = at if length < 0 else after, length
            at = after + max(length, 0)
            found += 1


@compiled()
def find_header(data: U8, columns: I64, name: U8, begins: I64, lengths: I64, times: I64) -> None:
    """Find the value of the header with this name in valid records.

    Fills begins, lengths and times, each int64[records], like the columns FIRST, FIRST_LENGTH and FIRST_TIMES. Of
    several headers the last counts.
    """
    for i in range(columns.shape[1]):
        begins[i], lengths[i], times[i] = 0, records.ABSENT, 0
        end = columns[records.BODY_END, i]
        count, at = records.read_varint(data, columns[records.HEADERS, i], end)
        for _ in range(count):
            length, at = records.read_varint(data, at, end)
            is_it = length == len(name)
            if is_it:
                for q in range(length):
                    if data[at + q] != name[q]:
                        is_it = False
                        break
            at += length
            length, at = records.read_varint(data, at, end)
            if is_it:
                begins[i], lengths[i] = at, length
                times[i] += 1
            at += max(length, 0)


@compiled()
def write_headers(
    first: I64,
    counts: I64,
    names: U8,
    name_starts: I64,
    name_lengths: I64,
    values: U8,
    value_starts: I64,
    value_lengths: I64,
    out: U8,
    starts: I64,
    lengths: I64,
) -> None:
    """Encode the headers of records, one record after the other.

    Args:
        first: int64[records], index of the record's first header.
        counts: int64[records], number of headers.
        names: uint8[bytes], the names one after the other.
        name_starts: int64[headers], where each name begins.
        name_lengths: int64[headers], length of each name.
        values: uint8[bytes], the values one after the other.
        value_starts: int64[headers], where each value begins.
        value_lengths: int64[headers], length of each value; -1 is null.
        out: uint8[bytes] to write into, large enough for all headers.
        starts: int64[records], receives the start of each record's headers.
        lengths: int64[records], receives their length.
    """
    at = 0
    for i in range(len(first)):
        starts[i] = at
        at = records.write_varint(out, at, counts[i])
        for h in range(first[i], first[i] + counts[i]):
            at = records.write_varint(out, at, name_lengths[h])
            at = records.copy_bytes(out, at, names, name_starts[h], name_lengths[h])
            at = records.write_varint(out, at, value_lengths[h])
            if value_lengths[h] > 0:
                at = records.copy_bytes(out, at, values, value_starts[h], value_lengths[h])
        lengths[i] = at - starts[i]
