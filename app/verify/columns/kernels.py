"""The rule of deduplication over the columns of a record batch: verify's own, in plain loops.

It shares with the worker how Kafka's bytes become columns (`kafka_ratchet.transport.batch`), and nothing of what comes
after that: headers, numbers, identities and last sequences are read, kept and compared here a second time. The batches
are sound: the reader has checked their spans.
"""
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kafka_ratchet.transport.batch import kernels as records

KEY, HEADER, CONSTANT = 0, 1, 2
"""Places of a part of an identity. A constant one is empty: the partition itself."""

TEXT, INTEGER, GUESS, NONE, LITTLE = 0, 1, 2, 3, 4
"""Forms of a sequence; without one all have 0."""

FRESH, DUPLICATE, INVALID = 0, 1, 2

INVALID_SEQUENCE = -1
MISSING = -1
"""Length of a missing part of a record; null counts as missing."""
NOT_ONE = -2
"""Length of a header during its search: none was met. REPEATED: more than one was."""
REPEATED = -3

DIGITS_MOST = 19
"""2^63 has as many."""
REPLAY_LENGTH = 14
"""Bytes of `ratchet-replay`, the prefix of a replayed record's headers."""

FREE = -1
"""A slot without an entry."""

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]


@njit(inline="always", **records.OPTIONS)
def _varint(data: U8, at: int) -> tuple[Any, int]:
    """Return a zig-zag varint, and the position after it."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    while True:
        byte = np.uint64(data[at])
        at += 1
        raw |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), at
        shift += np.uint64(7)


@njit(inline="always", **records.OPTIONS)
def _is(data: U8, at: int, length: int, names: U8, begin: int, end: int) -> bool:
    # The end first: names of one program begin alike.
    if length != end - begin or (length > 0 and data[at + length - 1] != names[end - 1]):
        return False
    for q in range(length):
        if data[at + q] != names[begin + q]:
            return False
    return True


@njit(inline="always", **records.OPTIONS)
def _decimal(data: U8, at: int, length: int) -> tuple[bool, Any]:
    """Return True for decimal text, with its number; INVALID_SEQUENCE for one outside 0 to 2^63 - 1."""
    end = at + length
    is_negative = length > 0 and data[at] == 45
    first = at + 1 if is_negative else at
    if first == end:
        return False, INVALID_SEQUENCE
    for q in range(first, end):
        if data[q] < 48 or data[q] > 57:
            return False, INVALID_SEQUENCE
    while first < end and data[first] == 48:
        first += 1
    if end - first > DIGITS_MOST:
        return True, INVALID_SEQUENCE
    total = np.uint64(0)
    for q in range(first, end):
        total = total * np.uint64(10) + np.uint64(data[q] - 48)  # nineteen digits fit into 64 bits without a sign
    if total > np.uint64(0x7FFFFFFFFFFFFFFF) or (is_negative and total > np.uint64(0)):
        return True, INVALID_SEQUENCE
    return True, np.int64(total)


@njit(inline="always", **records.OPTIONS)
def _number(data: U8, at: int, length: int, form: int) -> Any:
    if length < 0:
        return INVALID_SEQUENCE
    if form != INTEGER and form != LITTLE:
        is_text, number = _decimal(data, at, length)
        if is_text or form == TEXT:
            return number
    if length != 8:
        return INVALID_SEQUENCE
    raw = np.uint64(0)
    for q in range(8):
        raw = (raw << np.uint64(8)) | np.uint64(data[at + 7 - q if form == LITTLE else at + q])
    return max(np.int64(raw), np.int64(INVALID_SEQUENCE))


@njit(**records.OPTIONS)
def read(
    data: U8,
    columns: I64,
    names: U8,
    name_ends: I64,
    kinds: I64,
    form: int,
    replay: U8,
    starts: I64,
    lengths: I64,
    sequences: I64,
) -> int:
    """Read the parts of each record's identity, and its sequence.

    Args:
        data: uint8[bytes], of a record batch.
        columns: its columns.
        names: uint8[bytes], of the sequence's header and then of each part's, one after the other.
        name_ends: int64[1 + parts], ends of them.
        kinds: int64[parts], KEY, HEADER or CONSTANT.
        form: form of the sequence.
        replay: uint8[REPLAY_LENGTH], prefix of the names of a replayed record's headers.
        starts: int64[parts, records], filled.
        lengths: int64[parts, records], filled; MISSING for none.
        sequences: int64[records], filled; INVALID_SEQUENCE for none.

    Returns:
        number of replayed records.
    """
    replayed = 0
    parts = len(kinds)
    for i in range(columns.shape[1]):
        number_at = np.int64(0)
        number_length: Any = np.int64(NOT_ONE)
        for part in range(parts):
            lengths[part, i] = NOT_ONE
        is_replayed = False
        count, at = _varint(data, columns[records.HEADERS, i])
        for _ in range(count):
            length, name = _varint(data, at)
            size, value = _varint(data, name + length)
            if _is(data, name, length, names, 0, name_ends[0]):
                number_length = size if number_length == NOT_ONE else REPEATED
                number_at = value
            for part in range(parts):
                if kinds[part] == HEADER and _is(data, name, length, names, name_ends[part], name_ends[part + 1]):
                    lengths[part, i] = size if lengths[part, i] == NOT_ONE else REPEATED
                    starts[part, i] = value
            if length >= REPLAY_LENGTH and _is(data, name, REPLAY_LENGTH, replay, 0, REPLAY_LENGTH):
                is_replayed = True
            at = value + max(size, 0)
        replayed += is_replayed
        for part in range(parts):
            if kinds[part] == KEY:
                starts[part, i], lengths[part, i] = columns[records.KEY, i], columns[records.KEY_LENGTH, i]
            elif kinds[part] == CONSTANT:
                starts[part, i], lengths[part, i] = 0, 0
            elif lengths[part, i] <= 0:  # a header without a value is none
                lengths[part, i] = MISSING
        sequences[i] = 0 if form == NONE else _number(data, number_at, number_length, form)
    return replayed


@njit(**records.OPTIONS)
def join(data: U8, starts: I64, lengths: I64, most: int, out: U8, joined_starts: I64, joined_lengths: I64) -> None:
    """Join the parts of identities, each after its length, seven bits a byte, the lowest first.

    Args:
        data: uint8[bytes].
        starts: int64[parts, records].
        lengths: int64[parts, records].
        most: bytes that a part may have.
        out: uint8[bytes], filled; it has room for all.
        joined_starts: int64[records], filled.
        joined_lengths: int64[records], filled; MISSING where a part is missing or too long.
    """
    at = 0
    for i in range(starts.shape[1]):
        begin = at
        for part in range(starts.shape[0]):
            length = lengths[part, i]
            if length < 0 or length > most:
                at = -1
                break
            left = length
            while left > 127:
                out[at] = np.uint8(left & 127 | 128)
                left >>= 7
                at += 1
            out[at] = np.uint8(left)
            at += 1
            for q in range(length):
                out[at] = data[starts[part, i] + q]
                at += 1
        joined_starts[i] = begin
        if at < 0:
            joined_lengths[i], at = MISSING, begin
        else:
            joined_lengths[i] = at - begin


@njit(inline="always", **records.OPTIONS)
def _hash(data: U8, at: int, length: int, seed: np.uint64) -> Any:
    """FNV-1a (http://www.isthe.com/chongo/tech/comp/fnv/), from another beginning in each run."""
    found = seed
    for q in range(length):
        found = (found ^ np.uint64(data[at + q])) * np.uint64(0x100000001B3)
    return found ^ (found >> np.uint64(32))


@njit(**records.OPTIONS)
def judge(
    data: U8,
    starts: I64,
    lengths: I64,
    sequences: I64,
    first: int,
    most: int,
    seed: np.uint64,
    slots: I64,
    hashes: U64,
    entries: I64,
    names: U8,
    used: I64,
    verdicts: U8,
    owners: I64,
    before: I64,
) -> int:
    """Judge records by the rule: fresh is a sequence above all earlier ones of the identity.

    Args:
        data: uint8[bytes] of the identities.
        starts: int64[records].
        lengths: int64[records], of the identities; MISSING for none.
        sequences: int64[records]; INVALID_SEQUENCE for none.
        first: index of the first record to judge.
        most: most bytes of an identity.
        seed: seed of the hashes.
        slots: int64[a power of two], entry by hash, or FREE.
        hashes: uint64[entries].
        entries: int64[3, entries]: start of the identity in names, its length, its last sequence.
        names: uint8[bytes].
        used: int64[2], entries and bytes of names so far.
        verdicts: uint8[records], filled.
        owners: int64[records], entry of each valid record's identity, filled.
        before: int64[records], its last sequence before the record, or -1, filled.

    Returns:
        index of the first record not judged, for lack of room for its identity; or the number of records.
    """
    mask = np.uint64(len(slots) - 1)
    for i in range(first, len(sequences)):
        length = lengths[i]
        if sequences[i] < 0 or length < 0 or length > most:
            verdicts[i] = INVALID
            continue
        wanted = _hash(data, starts[i], length, seed)
        slot = wanted & mask
        entry = slots[slot]
        while entry != FREE and not (
            hashes[entry] == wanted
            and _is(data, starts[i], length, names, entries[0, entry], entries[0, entry] + entries[1, entry])
        ):
            slot = (slot + np.uint64(1)) & mask
            entry = slots[slot]
        if entry == FREE:
            if used[0] == len(hashes) or used[1] + length > len(names):
                return i
            entry = used[0]
            slots[slot], hashes[entry] = entry, wanted
            entries[0, entry], entries[1, entry], entries[2, entry] = used[1], length, -1
            for q in range(length):
                names[used[1] + q] = data[starts[i] + q]
            used[0] += 1
            used[1] += length
        owners[i], before[i] = entry, entries[2, entry]
        if sequences[i] > entries[2, entry]:
            entries[2, entry] = sequences[i]
            verdicts[i] = FRESH
        else:
            verdicts[i] = DUPLICATE
    return len(sequences)


@njit(**records.OPTIONS)
def hash_all(names: U8, entries: I64, seed: np.uint64, hashes: U64) -> None:
    """Fill in the hashes of identities known before, uint64[entries]."""
    for entry in range(len(hashes)):
        hashes[entry] = _hash(names, entries[0, entry], entries[1, entry], seed)


@njit(**records.OPTIONS)
def place_again(slots: I64, hashes: U64, used: int) -> None:
    """Fill larger slots, all FREE, with the entries that there are."""
    mask = np.uint64(len(slots) - 1)
    for entry in range(used):
        slot = hashes[entry] & mask
        while slots[slot] != FREE:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = entry


@njit(**records.OPTIONS)
def same(
    data: U8, columns: I64, rows: I64, first: int, other: U8, other_columns: I64, other_first: int, count: int
) -> int:
    """Count the leading records equal to others, one by one, byte for byte.

    Args:
        data: uint8[bytes].
        columns: columns of these records.
        rows: int64[], indexes of those to compare, in order.
        first: index in rows of the first.
        other: uint8[bytes].
        other_columns: columns of the others, each of them compared.
        other_first: index of the first.
        count: most records to compare.
    """
    for k in range(count):
        i, j = rows[first + k], other_first + k
        at, other_at = np.uint64(columns[records.BODY, i]), np.uint64(other_columns[records.BODY, j])
        length = columns[records.BODY_END, i] - columns[records.BODY, i]
        if (
            length != other_columns[records.BODY_END, j] - other_columns[records.BODY, j]
            or columns[records.TIMESTAMP, i] != other_columns[records.TIMESTAMP, j]
        ):
            return k
        differing = np.uint8(0)
        for q in range(np.uint64(length)):  # to its end: so it takes several bytes at a time
            differing |= data[at + q] ^ other[other_at + q]
        if differing:
            return k
    return count
