"""Compiled passes that read sequences, parts of identities, and headers of given names from records.

These passes never raise, and read nothing outside the given spans. `find_headers` fills two arrays, int64[headers,
records]: start and length of each value, or ABSENT or REPEATED as the length.
"""

from __future__ import annotations

import numpy as np
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
from kafka_ratchet.transport.batch.compiled import compiled

GUESS, TEXT, INTEGER, LITTLE = 0, 1, 2, 3
"""Forms of a sequence in a header, see `kafka_ratchet.rule.identity.SequenceForm`."""

ABSENT = -2
"""Length of a header that a record does not have; the length of a null is -1."""

REPEATED = -3
"""Length of a header that a record has more than once."""

VARINT_BYTE_MOST = 0x7F
"""Largest number that one byte of an unsigned varint can store."""

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]


@compiled(inline="always")
def eight_bytes(data: U8, start: int, is_little: bool) -> np.int64:
    """Return the signed number in eight bytes, in either order."""
    raw = np.uint64(0)
    for q in range(8):
        at = start + 7 - q if is_little else start + q
        raw = (raw << np.uint64(8)) | np.uint64(data[at])
    return np.int64(raw)


@compiled(inline="always")
def is_decimal(data: U8, start: int, length: int) -> bool:
    """Return True if bytes are decimal digits, perhaps after a minus."""
    first = start + 1 if length > 1 and data[start] == 45 else start
    for q in range(first, start + length):
        if data[q] < 48 or data[q] > 57:
            return False
    return length > 0


@compiled(inline="always")
def number_of(data: U8, start: int, length: int, form: int) -> tuple[np.int64, int]:
    """Return (sequence, NONE) for bytes that contain a sequence, else (-1, reason for their refusal).

    In the form GUESS, eight bytes of decimal text (digits, or a minus and digits) count as text; any other eight bytes
    count as a big-endian integer.
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


@compiled()
def read_sequences(
    data: U8, starts: I64, lengths: I64, times: I64, form: int, sequences: I64, reasons: NDArray[np.uint8]
) -> None:
    """Read the sequence in one header of each record.

    Args:
        data: uint8[bytes].
        starts: int64[records], position of each header's value.
        lengths: int64[records], bytes of each header's value; negative: none.
        times: int64[records], number of occurrences of the header; int64[0]: one in every record.
        form: form of the sequences.
        sequences: int64[records], filled with the sequences; -1: none.
        reasons: uint8[records], filled with the reasons why sequences are missing.
    """
    for i in range(len(starts)):
        if len(times) and times[i] > 1:
            sequences[i], reasons[i] = -1, SEQUENCE_REPEATED
        else:
            sequences[i], reasons[i] = number_of(data, starts[i], lengths[i], form)


@compiled(inline="always")
def same_text(data: U8, at: int, names: U8, start: int, length: int) -> bool:
    """Return True if a range of bytes equals a name."""
    if length > 0 and data[at + length - 1] != names[start + length - 1]:
        return False  # the end first: names of one program begin alike
    for q in range(length):
        if data[at + q] != names[start + q]:
            return False
    return True


@compiled()
def find_headers(
    data: U8, columns: I64, names: U8, name_starts: I64, name_ends: I64, starts: I64, lengths: I64
) -> None:
    """Find the values of some headers in each record.

    Args:
        data: uint8[bytes] of an undamaged record batch.
        columns: columns of the batch.
        names: uint8[bytes], names of the headers, one after the other.
        name_starts: int64[headers], start of each name.
        name_ends: int64[headers], end of each name.
        starts: int64[headers, records], filled with the positions of the values.
        lengths: int64[headers, records], filled with the bytes of the values, ABSENT or REPEATED.
    """
    wanted = len(name_starts)
    for i in range(columns.shape[1]):
        for place in range(wanted):
            lengths[place, i] = ABSENT
        end = columns[records.BODY_END, i]
        count, at = records.read_varint(data, columns[records.HEADERS, i], end)
        for _ in range(count):
            length, name = records.read_varint(data, at, end)
            size, at = records.read_varint(data, name + length, end)
            for place in range(wanted):
                begin = name_starts[place]
                if name_ends[place] - begin == length and same_text(data, name, names, begin, length):
                    if lengths[place, i] != ABSENT:
                        lengths[place, i] = REPEATED
                    else:
                        starts[place, i], lengths[place, i] = at, size
            at += max(size, 0)


@compiled()
def append_part(data: U8, begins: I64, lengths: I64, is_good: NDArray[np.bool_], out: U8, at: I64) -> None:
    """Write one part of each valid record's identity, preceded by its length as a varint.

    Args:
        data: uint8[bytes] with the parts
        begins: int64[records], see `kafka_ratchet.rule.identities.Identities`
        lengths: int64[records], bytes of each part
        is_good: bool[records], True for valid records
        out: uint8[bytes] to write to
        at: int64[records], position of each record's part in `out`; advanced past the part here
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
