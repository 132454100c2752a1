"""The compiled passes of the agents: sequences out of a header, and headers out of records and into them."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kafka_ratchet.rule.reasons import (
    NONE,
    SEQUENCE_MISSING,
    SEQUENCE_NEGATIVE,
    SEQUENCE_NOT_A_NUMBER,
    SEQUENCE_OUT_OF_RANGE,
    SEQUENCE_REPEATED,
)
from kafka_ratchet.transport.batch import kernels as records

GUESS, TEXT, INTEGER, LITTLE = 0, 1, 2, 3
"""Forms of a sequence in a header, see `kafka_ratchet.rule.identity.SequenceForm`."""

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]


@njit(inline="always", **records.OPTIONS)
def eight_bytes(data: U8, start: int, is_little: bool) -> np.int64:
    """Return the signed number in eight bytes, in either order."""
    raw = np.uint64(0)
    for q in range(8):
        at = start + 7 - q if is_little else start + q
        raw = (raw << np.uint64(8)) | np.uint64(data[at])
    return np.int64(raw)


@njit(inline="always", **records.OPTIONS)
def is_decimal(data: U8, start: int, length: int) -> bool:
    """Tell whether bytes are decimal digits, with or without a minus before them."""
    first = start + 1 if length > 1 and data[start] == 45 else start
    for q in range(first, start + length):
        if data[q] < 48 or data[q] > 57:
            return False
    return length > 0


@njit(inline="always", **records.OPTIONS)
def number_of(data: U8, start: int, length: int, form: int) -> tuple[np.int64, int]:
    """Return the sequence in some bytes, -1 where there is none, and the reason for that.

    GUESS takes eight bytes that read as decimal text (digits, or a minus and digits) as text, and any other eight
    bytes as a big-endian integer.
    """
    none = np.int64(-1)
    if length <= 0:
        return none, SEQUENCE_MISSING
    if form == INTEGER or form == LITTLE or not is_decimal(data, start, length):
        if length != 8 or form == TEXT:
            return none, SEQUENCE_NOT_A_NUMBER
        number = eight_bytes(data, start, form == LITTLE)
        return (none, SEQUENCE_NEGATIVE) if number < 0 else (number, NONE)
    is_negative = data[start] == 45
    total = np.uint64(0)
    for q in range(start + (1 if is_negative else 0), start + length):
        digit = np.uint64(data[q] - 48)
        if total > (np.uint64(0x7FFFFFFFFFFFFFFF) - digit) // np.uint64(10):
            return none, SEQUENCE_NEGATIVE if is_negative else SEQUENCE_OUT_OF_RANGE
        total = total * np.uint64(10) + digit
    if is_negative and total > np.uint64(0):
        return none, SEQUENCE_NEGATIVE
    return np.int64(total), NONE


@njit(**records.OPTIONS)
def read_sequences(data: U8, columns: I64, sequences: I64, reasons: U8, form: int) -> None:
    """Read sequences from the header in columns FIRST.

    Fills sequences int64[records] and reasons uint8[records].
    """
    for i in range(columns.shape[1]):
        if columns[records.FIRST_TIMES, i] > 1:
            sequences[i], reasons[i] = -1, SEQUENCE_REPEATED
            continue
        start, length = columns[records.FIRST, i], columns[records.FIRST_LENGTH, i]
        sequences[i], reasons[i] = number_of(data, start, length, form)


@njit(**records.OPTIONS)
def count_headers(data: U8, begins: I64, ends: I64, offsets: NDArray[np.int32]) -> None:
    """Count the headers before each record's own into offsets int32[records + 1], from 0.

    begins, ends: int64[records], start of a record's headers with their count, and end of the record
    """
    for i in range(len(begins)):
        count, _ = records.read_varint(data, begins[i], ends[i])
        offsets[i + 1] = offsets[i] + count


@njit(**records.OPTIONS)
def find_headers(data: U8, begins: I64, ends: I64, names: I64, values: I64) -> None:
    """Find the names and values of headers in sound records.

    Fills names int64[2, headers] and values int64[2, headers] with starts and lengths. A null value has length -1 and
    begins where its name ends.
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


@njit(**records.OPTIONS)
def find_header(data: U8, columns: I64, name: U8, begins: I64, lengths: I64, times: I64) -> None:
    """Find the value of the header with this name in sound records.

    Fills begins, lengths and times, each int64[records], as the columns FIRST, FIRST_LENGTH and FIRST_TIMES: the last
    of several headers counts.
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


VARINT_BYTE_MOST = 0x7F
"""Largest number of one byte as an unsigned varint."""


@njit(**records.OPTIONS)
def append_part(data: U8, begins: I64, lengths: I64, is_good: NDArray[np.bool_], out: U8, at: I64) -> None:
    """Write a part of each good record's identity, with its length as a varint before it.

    Args:
        data: uint8[bytes]
        begins: int64[records], as `kafka_ratchet.rule.identities.Identities` has them
        lengths: int64[records]
        is_good: bool[records]
        out: uint8[bytes]
        at: int64[records], where each record's part begins in out; moved past it here
    """
    for i in range(len(begins)):
        if not is_good[i]:
            continue
        length = lengths[i]
        if length > VARINT_BYTE_MOST:
            out[at[i]] = np.uint8(length & 0x7F | 0x80)
            at[i] += 1
        out[at[i]] = np.uint8(length >> 7 if length > VARINT_BYTE_MOST else length)
        at[i] = records.copy_bytes(out, at[i] + 1, data, begins[i], length)


@njit(**records.OPTIONS)
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
    """Write the headers of records in their wire form, one record after the other.

    Args:
        first: int64[records], index of the record's first header.
        counts: int64[records].
        names: uint8[bytes] of the names.
        name_starts: int64[headers].
        name_lengths: int64[headers].
        values: uint8[bytes] of the values.
        value_starts: int64[headers].
        value_lengths: int64[headers]; -1 is null.
        out: uint8[bytes], room for all.
        starts: int64[records], filled.
        lengths: int64[records], filled.
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
