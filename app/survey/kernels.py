"""Compiled passes of a survey: search for JSON fields, and hashes of places.

They never raise, and read nothing outside the given spans. A place is a header or field to find. A search returns two
arrays, int64[places, records]: the start of each place, and its length, ABSENT or REPEATED.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.rule.kernels import fold, hash_of, multiplier_of
from kafka_ratchet.rule.parts import ABSENT, read_sequences, same_text
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.compiled import compiled

DEPTH_MOST = 4
"""Maximum number of parts of a field's path."""

NO_NUMBER = -1
_ZERO = np.zeros(1, np.int64)
_ONCE = np.empty(0, np.int64)

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]


@compiled(inline="always")
def _skip_space(data: U8, at: int, end: int) -> int:
    while at < end and (data[at] == 32 or data[at] == 10 or data[at] == 13 or data[at] == 9):
        at += 1
    return at


@compiled(inline="always")
def _string_end(data: U8, at: int, end: int) -> int:
    """Return the position of the quote that ends the string from `at` on; -1 without one."""
    while at < end:
        if data[at] == 34:
            return at
        at += 2 if data[at] == 92 else 1
    return -1


@compiled()
def _value_end(data: U8, at: int, end: int) -> int:
    """Return the position after the JSON value at `at`; -1 if the value has no end."""
    if at >= end:
        return -1
    depth = 0
    while at < end:
        byte = data[at]
        if byte == 34:
            at = _string_end(data, at + 1, end)
            if at < 0:
                return -1
            at += 1
        elif byte == 123 or byte == 91:
            depth += 1
            at += 1
        elif byte == 125 or byte == 93:
            if depth == 0:
                return -1
            depth -= 1
            at += 1
        elif depth == 0:
            begin = at
            while at < end and data[at] > 32 and data[at] != 44 and data[at] != 125 and data[at] != 93:
                at += 1
            return at if at > begin else -1
        else:
            at += 1
        if depth == 0:
            return at
    return -1


@compiled(inline="always")
def _is_whole(data: U8, at: int, end: int) -> bool:
    """Return True if a number has only digits after its first character."""
    for q in range(at + 1, end):
        if data[q] < 48 or data[q] > 57:
            return False
    return True


@compiled()
def find_fields(
    data: U8,
    columns: I64,
    names: U8,
    part_starts: I64,
    part_ends: I64,
    parts: I64,
    masks: U64,
    starts: I64,
    lengths: I64,
) -> int:
    """Find the fields at given paths in each record's JSON value.

    Null, true, false, fractions, objects and lists are ABSENT, as for the identity `field:PATH`. If an object has a
    name twice, the last one counts, as in Python. Names are compared byte by byte, and the JSON syntax is not checked:
    `kafka_ratchet.app.survey.json_check` finds the records that need more.

    Args:
        data: uint8[bytes], bytes of a valid record batch.
        columns: columns of the batch.
        names: uint8[bytes], names of all parts of the paths, one after the other.
        part_starts: int64[places, DEPTH_MOST], start in `names` of each part.
        part_ends: int64[places, DEPTH_MOST], end in `names` of each part.
        parts: int64[places], number of parts of each path.
        masks: uint64[DEPTH_MOST + 1], overwritten.
        starts: int64[places, records], filled with the position of each field.
        lengths: int64[places, records], filled with the length of each field, or ABSENT.

    Returns:
        number of records with a broken value, or a value other than a JSON object.
    """
    wanted = len(parts)
    broken = 0
    for i in range(columns.shape[1]):
        for place in range(wanted):
            lengths[place, i] = ABSENT
        at = columns[records.VALUE, i]
        end = at + max(columns[records.VALUE_LENGTH, i], 0)
        if not _fields_of(data, at, end, names, part_starts, part_ends, parts, masks, starts, lengths, i):
            broken += 1
            for place in range(wanted):
                lengths[place, i] = ABSENT
    return broken


@compiled()
def _fields_of(
    data: U8,
    at: int,
    end: int,
    names: U8,
    part_starts: I64,
    part_ends: I64,
    parts: I64,
    masks: U64,
    starts: I64,
    lengths: I64,
    i: int,
) -> bool:
    """Find the fields of one record's value; return False if the value is not a whole JSON object."""
    wanted = len(parts)
    one = np.uint64(1)
    at = _skip_space(data, at, end)
    if at >= end or data[at] != 123:
        return False
    at += 1
    depth = 0
    masks[0] = (one << np.uint64(wanted)) - one
    while True:
        at = _skip_space(data, at, end)
        if at >= end:
            return False
        if data[at] == 44:
            at += 1
            continue
        if data[at] == 125:
            at += 1
            if depth == 0:
                return bool(_skip_space(data, at, end) == end)
            depth -= 1
            continue
        if data[at] != 34:
            return False
        key = at + 1
        key_end = _string_end(data, key, end)
        if key_end < 0:
            return False
        at = _skip_space(data, key_end + 1, end)
        if at >= end or data[at] != 58:
            return False
        at = _skip_space(data, at + 1, end)
        if at >= end:
            return False
        inner = np.uint64(0)
        for place in range(wanted):
            begin, length = part_starts[place, depth], part_ends[place, depth] - part_starts[place, depth]
            if (
                (masks[depth] >> np.uint64(place)) & one
                and length == key_end - key
                and same_text(data, key, names, begin, length)
            ):
                lengths[place, i] = ABSENT
                if parts[place] > depth + 1:
                    inner |= one << np.uint64(place)
                elif data[at] == 34:
                    last = _string_end(data, at + 1, end)
                    if last < 0:
                        return False
                    starts[place, i], lengths[place, i] = at + 1, last - at - 1
                elif data[at] == 45 or 48 <= data[at] <= 57:
                    last = _value_end(data, at, end)
                    if last < 0:
                        return False
                    if _is_whole(data, at, last):
                        starts[place, i], lengths[place, i] = at, last - at
        if inner and data[at] == 123:
            depth += 1
            masks[depth] = inner
            at += 1
            continue
        at = _value_end(data, at, end)
        if at < 0:
            return False


@compiled(inline="always")
def mixed(a: np.uint64, b: np.uint64, seed: np.uint64) -> np.uint64:
    """Return a seeded hash of two hashes, which depends on their order; never 0."""
    multiplier = multiplier_of(seed)
    found = fold(fold(seed ^ a, multiplier) ^ b, multiplier)
    return found if found != np.uint64(0) else np.uint64(1)


@compiled()
def hash_records(data: U8, columns: I64, seed: np.uint64, values: U64, wholes: U64) -> None:
    """Hash each record's content (key and value), and each whole record (key, value and headers).

    data: uint8[bytes] of a valid record batch; columns: columns of the batch. The hashes are written into `values` and
    `wholes`, uint64[records] each. A repeat may have other headers, such as the time or trace of its sending.
    """
    for i in range(columns.shape[1]):
        body, headers = columns[records.BODY, i], columns[records.HEADERS, i]
        value, length = columns[records.VALUE, i], columns[records.VALUE_LENGTH, i]
        # Null is not empty.
        content = hash_of(data, value, length, seed) if length >= 0 else ~seed
        # The key with its length before it; the value's length stands in its own hash.
        key = hash_of(data, body, max(columns[records.KEY, i] + columns[records.KEY_LENGTH, i] - body, 0), seed)
        if columns[records.KEY_LENGTH, i] < 0:
            key = ~seed
        rest = hash_of(data, headers, columns[records.BODY_END, i] - headers, seed)
        values[i] = mixed(key, content, seed)
        wholes[i] = mixed(values[i], rest, seed)


@compiled()
def hash_spans(data: U8, starts: I64, lengths: I64, least: int, most: int, seed: np.uint64, hashes: U64) -> None:
    """Hash the contents of one header or field into `hashes`, uint64[records].

    data: uint8[bytes]; starts, lengths: int64[records], position and length of the header or field in each record. The
    hash is 0 if a record lacks the header or field, or if its length is not from `least` to `most`.
    """
    for i in range(len(starts)):
        is_one = least <= lengths[i] <= most
        hashes[i] = hash_of(data, starts[i], lengths[i], seed) if is_one else np.uint64(0)


@compiled()
def join_hashes(first: U64, second: U64, seed: np.uint64, hashes: U64) -> None:
    """Hash each record's two hashes, `first` and `second`, into `hashes`; all are uint64[records].

    The result is 0 if one of the two is 0.
    """
    for i in range(len(first)):
        lacks = first[i] == np.uint64(0) or second[i] == np.uint64(0)
        hashes[i] = np.uint64(0) if lacks else mixed(first[i], second[i], seed)


def read_numbers(data: U8, starts: I64, lengths: I64, form: int, numbers: I64) -> None:
    """Read the numbers in one header or field as a worker does, into `numbers`, int64[records].

    A record without a number gets NO_NUMBER. starts, lengths: int64[records], positions of the header or field
    """
    read_sequences(data, starts, lengths, _ONCE, form, numbers, np.empty(len(starts), np.uint8))


def parse_number(text: bytes, form: int) -> int:
    """Return the number in a header's or field's bytes, as a worker does; NO_NUMBER without one."""
    numbers = np.empty(1, np.int64)
    read_numbers(np.frombuffer(text, np.uint8), _ZERO, np.array([len(text)]), form, numbers)
    return int(numbers[0])


@compiled()
def join_numbers(owners: U64, numbers: I64, seed: np.uint64, hashes: U64) -> None:
    """Hash each record's owner, uint64[records], and number, int64[records], into `hashes`, uint64[records].

    The result is 0 if the owner is 0 or the number is negative.
    """
    for i in range(len(owners)):
        lacks = owners[i] == np.uint64(0) or numbers[i] < 0
        hashes[i] = np.uint64(0) if lacks else mixed(owners[i], np.uint64(numbers[i]), seed)
