"""The compiled passes between the map of last sequences and its entries: written for the changelog, and loaded back.

An entry is `ENTRY_PREFIX` and the identity as key, and the sequence as value; `kafka_ratchet.tables.map.kernels`
describes the map.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kafka_ratchet.tables.map.kernels import CHANGED, I32, I64, KNOWN, U8, U32, U64, find, insert
from kafka_ratchet.transport.batch import kernels as records

ENTRY_PREFIX = 105
"""b"i": first byte of an identity's key in changelog and store."""

PROGRESS_KEY = 112
"""b"p": the whole key of the partition's progress."""

EVICTED_KEY = 101
"""b"e": the whole key of how many identities were evicted."""


@njit(**records.OPTIONS)
def beginnings(starts: I64, lengths: I32, arena: U8, slots: I64, first: U64, second: U64) -> None:
    """The first 16 bytes of the identities in slots, as two numbers that sort as the bytes do; 0 where there are none.

    Args:
        starts, lengths, arena: the map
        slots: int64[n]
        first, second: uint64[n], filled here
    """
    for i in range(len(slots)):
        start, length = starts[slots[i]], lengths[slots[i]]
        high, low = np.uint64(0), np.uint64(0)
        for q in range(8):
            high <<= np.uint64(8)
            low <<= np.uint64(8)
            if q < length:
                high |= np.uint64(arena[start + q])
            if q + 8 < length:
                low |= np.uint64(arena[start + q + 8])
        first[i], second[i] = high, low


@njit(**records.OPTIONS)
def write_entries(
    first: int,
    starts: I64,
    lengths: I32,
    pushed: I64,
    arena: U8,
    slots: I64,
    sizes: I64,
    out: U8,
    at: int,
    count: int,
    limit: int,
) -> tuple[int, int, int]:
    """Changed identities as changelog records: key b"i" + identity, value 8-byte big-endian sequence; null if evicted.

    Args:
        first: index in slots of the first to write
        starts, lengths, pushed, arena, slots, sizes: the map
        out: uint8[bytes], room for limit bytes or one whole record, whichever is more
        at, count: bytes and records that out holds already
        limit: bytes after which no further record is begun

    Returns:
        (index of the first not written, position after the last byte, records in out)
    """
    i = first
    while i < sizes[CHANGED]:
        slot = slots[i]
        length = np.int64(lengths[slot])
        gone = pushed[slot] < 0
        size = 0 if gone else 8
        body = 1 + 1 + records.varint_size(count) + records.varint_size(length + 1) + length + 1 + 1 + size + 1
        if count > 0 and at + records.varint_size(body) + body > limit:
            break
        at = records.write_varint(out, at, body)
        out[at] = 0
        at = records.write_varint(out, at + 1, np.int64(0))
        at = records.write_varint(out, at, np.int64(count))
        at = records.write_varint(out, at, length + 1)
        out[at] = ENTRY_PREFIX
        at = records.copy_bytes(out, at + 1, arena, starts[slot], length)
        if gone:
            at = records.write_varint(out, at, np.int64(-1))
        else:
            at = records.write_varint(out, at, np.int64(8))
            raw = np.uint64(pushed[slot])
            for q in range(8):
                out[at + q] = np.uint8((raw >> np.uint64(56 - 8 * q)) & np.uint64(255))
            at += 8
        at = records.write_varint(out, at, np.int64(0))
        count += 1
        i += 1
    return i, at, count


@njit(**records.OPTIONS)
def load(
    data: U8,
    columns: I64,
    seed: np.uint64,
    hashes: U64,
    starts: I64,
    lengths: I32,
    pushed: I64,
    changed: I32,
    unsaved: U8,
    seen: U32,
    arena: U8,
    sizes: I64,
    mark: int,
    since: int,
) -> tuple[int, int, int]:
    """Take over committed entries in order; the last one of an identity stands.

    Args:
        data, columns: a record batch
        seed, hashes, starts, lengths, pushed, changed, unsaved, seen, arena, sizes: the map, with room for all records
        mark: what becomes of `unsaved`: 1 for entries of the changelog, 0 for those of the store, which may have
            `seen` behind the sequence, as 4 bytes
        since: seconds, for `seen` where the record's timestamp is before that

    Returns:
        (index of the first that is no entry of ours, or -1; indices of the last progress entry and of the last count
        of evictions, or -1)
    """
    progress, evicted = -1, -1
    for i in range(columns.shape[1]):
        start, length = columns[records.KEY, i], columns[records.KEY_LENGTH, i]
        if length == 1 and data[start] == PROGRESS_KEY:
            progress = i
            continue
        if mark and length == 1 and data[start] == EVICTED_KEY:
            evicted = i
            continue
        value, value_length = columns[records.VALUE, i], columns[records.VALUE_LENGTH, i]
        if length < 1 or data[start] != ENTRY_PREFIX:
            return i, progress, evicted
        if mark and value_length < 0:
            slot, h = find(data, start + 1, length - 1, seed, hashes, starts, lengths, arena)
            if slot >= 0 and pushed[slot] >= 0:
                sizes[KNOWN] -= 1
                pushed[slot] = -1
                unsaved[slot] = 1
            continue
        if not (value_length == 8 or (not mark and value_length == 12)) or data[value] > 127:  # a negative sequence
            return i, progress, evicted
        raw = np.uint64(0)
        for q in range(8):
            raw = (raw << np.uint64(8)) | np.uint64(data[value + q])
        slot, h = find(data, start + 1, length - 1, seed, hashes, starts, lengths, arena)
        if slot < 0:
            slot = -1 - slot
            insert(data, start + 1, length - 1, slot, h, hashes, starts, lengths, pushed, changed, arena, sizes)
        if pushed[slot] < 0:
            sizes[KNOWN] += 1
        pushed[slot] = np.int64(raw)
        unsaved[slot] = mark
        if len(seen):
            when = max(columns[records.TIMESTAMP, i] // 1000, since)
            if value_length == 12:
                when = np.int64(0)
                for q in range(8, 12):
                    when = (when << 8) | np.int64(data[value + q])
            seen[slot] = np.uint32(when)
    return -1, progress, evicted
