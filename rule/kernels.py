"""Compiled rule: compares each record with the last sequence of its identity, and gives the verdict.

The map of last sequences is a hash table in plain numpy arrays: open addressing with linear probing, and one slot per
identity. `kafka_ratchet.tables.map.slots.Slots` holds the arrays of the slots, and
`kafka_ratchet.tables.map.map.LastSequences` those of a transaction's changes:

    hashes   uint64[slots]  0 is an empty slot
    starts   int64[slots]   start of the identity's bytes in the arena
    lengths  int32[slots]   number of these bytes; they are compared, never the hash alone
    pushed   int64[slots]   last sequence judged fresh; -1 is none
    changed  int32[slots]   0, or 1 + the index in `slots`/`undo` of this slot's entry in the open transaction
    unsaved  uint8[slots]   1 where the persisted state is not yet in the store on disk
    seen     uint32[slots]  last activity of the identity, in seconds; empty array in a map without bounds
    active   uint8[slots]   1 if the open transaction has a duplicate of the identity; empty array without bounds

    arena    uint8[...]     the identities' bytes
    slots    int64[...]     slots that the open transaction changed, in order
    undo     int64[...]     `pushed` of each of these slots before the transaction: the persisted sequence
    sizes    int64[5]       USED slots, ARENA bytes in use, CHANGED slots, KNOWN identities (persisted), TOUCHED
                            slots (those with `active`)

An evicted identity keeps its slot, with -1 for its sequence, as does a new identity after a rollback. So the worker
does not search the store, which may still contain the identity. `kafka_ratchet.rule.windows` has the rule of
streams that keep more state, `kafka_ratchet.tables.map` the passes that commit, grow, age and store the map.

`hash_of` is seeded per map, so that a stranger cannot choose keys that all have one slot. The functions never raise and
change only the given arrays; tests/tables/map/plain_judge.py is their oracle.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.rule.reasons import IDENTITY_MISSING, IDENTITY_REPEATED, IDENTITY_TOO_LONG, NONE
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.compiled import compiled

USED, ARENA, CHANGED, KNOWN, TOUCHED = range(5)

FRESH, DUPLICATE, INVALID, TOO_LATE, CONFLICT = range(5)
"""Verdicts, uint8. TOO_LATE and CONFLICT occur only if a stream has the settings for them."""

JUMP = 1 << 40
"""Minimum rise above an identity's last sequence to report as a jump. A counter of a million records a second takes 12
days to rise by that much.
"""

FILE_STEPS_MOST = 1 << 10
FILE_BYTE_MOST = 1 << 32
"""Bounds of a step between two files of one producer; such a step is not reported as a jump.

A producer of a set of files gives each file 2^40 sequences, one for each byte (`kafka_ratchet.producers.file_set`). So
the first record of the next file may be more than JUMP above the last record of this file. A step is within the bounds
if it goes at most 2^10 files further and ends in the first 2^32 bytes of a file. It may pass over files without a
record in the partition. A random number is within both bounds once in two million. A time in milliseconds after a time
in seconds is not within the bounds before 2039.
"""

FIRST_MOST = 1 << 61
"""Maximum first sequence of an identity. A higher one is reported, because no earlier sequence shows a jump.

Any eight printable characters, read as an integer, exceed this maximum (the lowest character is 0x20). Timestamps in
nanoseconds do not exceed it until the year 2043.
"""

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]
U32 = NDArray[np.uint32]


@compiled()
def is_jump(last: np.int64, sequence: np.int64) -> np.bool:
    """Return True if a sequence is so far above the last one (-1: none) that it is reported as a jump."""
    if last < 0:
        return sequence > FIRST_MOST
    is_far = sequence // JUMP - last // JUMP > FILE_STEPS_MOST or sequence % JUMP > FILE_BYTE_MOST
    return sequence - last > JUMP and is_far


@compiled()
def fold(a: np.uint64, b: np.uint64) -> np.uint64:
    """Return the xor of the two halves of the 128-bit product a * b."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a_low, a_high, b_low, b_high = a & low, a >> half, b & low, b >> half
    first, second = a_low * b_high, a_high * b_low
    middle = ((a_low * b_low) >> half) + (first & low) + (second & low)
    return (a * b) ^ (a_high * b_high + (first >> half) + (second >> half) + (middle >> half))


@compiled(inline="always")
def multiplier_of(seed: np.uint64) -> np.uint64:
    """Derive the multiplier of `hash_of`, an odd number, from a seed."""
    return (((seed << np.uint64(32)) | (seed >> np.uint64(32))) ^ np.uint64(0xD6E8FEB86659FD93)) | np.uint64(1)


@compiled()
def hash_of(data: U8, start: int, length: int, seed: np.uint64) -> np.uint64:
    """Return a seeded 64-bit hash of data[start:start+length], computed from eight bytes at a time; never 0.

    The seed determines the multiplier, and both halves of the product are used, as in wyhash. With a known multiplier,
    or only the lower half, an attacker could choose two words that cancel out for every seed. Each word is read without
    a loop over its bytes, so that the compiler makes one load of it: 16 bytes take 11 ns instead of 42.
    """
    prime = np.uint64(0x9E3779B97F4A7C15)
    multiplier = multiplier_of(seed)
    h = seed ^ (np.uint64(length) * prime)
    at = np.uint64(start)
    words = np.uint64(length) >> np.uint64(3)
    for _ in range(words):
        h = fold(h ^ records.read_word(data, at), multiplier)
        at += np.uint64(8)
    left = np.uint64(length) & np.uint64(7)
    if left:
        if words:  # the unread ones of the last eight bytes
            word = records.read_word(data, at + left - np.uint64(8)) >> (np.uint64(64) - np.uint64(8) * left)
        else:
            word = np.uint64(0)
            for q in range(left):
                word |= np.uint64(data[at + q]) << (np.uint64(8) * q)
        h = fold(h ^ word, multiplier)
    h = fold(h ^ prime, multiplier)
    return h if h != np.uint64(0) else np.uint64(1)


@compiled()
def find(
    data: U8, start: int, length: int, seed: np.uint64, hashes: U64, starts: I64, lengths: I32, arena: U8
) -> tuple[np.int64, np.uint64]:
    """Find an identity in the map, and return its slot and its hash.

    If the identity is missing, the slot is negative: -1 minus the index of the empty slot where it belongs.
    """
    h = hash_of(data, start, length, seed)
    mask = len(hashes) - 1
    slot = np.int64(h & np.uint64(mask))
    while hashes[slot] != np.uint64(0):
        if hashes[slot] == h and lengths[slot] == length:
            if records.same_bytes(arena, starts[slot], data, start, length):
                return slot, h
        slot = (slot + 1) & mask
    return -1 - slot, h


@compiled(inline="always")
def why_none(times: int, length: int, least: int, longest: int) -> int:
    """Return the reason why a record has no usable identity; NONE: the identity is usable.

    Args:
        times: number of identities in the record.
        length: bytes of the identity.
        least, longest: minimum and maximum bytes of an identity.
    """
    if times > 1:
        return IDENTITY_REPEATED
    if length < least:
        return IDENTITY_MISSING
    return IDENTITY_TOO_LONG if length > longest else NONE


@compiled()
def note(spans: I64, times: I64, least: int, longest: int, reasons: U8) -> None:
    """Fill in the reason for each otherwise valid record that has no usable identity; see `judge` for the arguments."""
    for i in range(len(spans)):
        if reasons[i] == NONE:
            reasons[i] = why_none(times[i] if len(times) else 1, spans[i], least, longest)


@compiled()
def insert(
    data: U8,
    start: int,
    length: int,
    slot: int,
    h: np.uint64,
    hashes: U64,
    starts: I64,
    lengths: I32,
    pushed: I64,
    changed: I32,
    arena: U8,
    sizes: I64,
) -> None:
    """Add an identity to the map, in an empty slot; the arena must have room.

    Args:
        data, start, length: bytes of the identity.
        slot: the empty slot.
        h: hash of the identity.
        hashes, starts, lengths, pushed, changed, arena, sizes: the map.
    """
    hashes[slot] = h
    starts[slot] = sizes[ARENA]
    lengths[slot] = length
    pushed[slot] = -1
    changed[slot] = 0
    records.copy_bytes(arena, sizes[ARENA], data, start, length)
    sizes[ARENA] += length
    sizes[USED] += 1


@compiled()
def judge(
    data: U8,
    begins: I64,
    spans: I64,
    times: I64,
    least: int,
    longest: int,
    sequences: I64,
    reasons: U8,
    verdicts: U8,
    against: I64,
    seed: np.uint64,
    hashes: U64,
    starts: I64,
    lengths: I32,
    pushed: I64,
    changed: I32,
    arena: U8,
    slots: I64,
    undo: I64,
    sizes: I64,
) -> tuple[np.int64, np.int64, np.int64]:
    """Judge every record in the order of offsets. Only fresh records change the last sequences in the map.

    Args:
        data: uint8[bytes] with the identities.
        begins, spans: int64[records], start and length of each identity; a negative length: none.
        times: int64[records], number of identities in each record; int64[0] if no record has more than one.
        least, longest: minimum and maximum bytes of an identity.
        sequences: int64[records].
        reasons: uint8[records], NONE if the sequence is valid; reasons about identities are added here.
        verdicts: uint8[records], filled here.
        against: int64[records], filled with the last sequence before each record, or -1; int64[0]: not needed.
        seed: seed of the hash.
        hashes, starts, lengths, pushed, changed, arena, slots, undo, sizes: the map, with room for all records.

    Returns:
        Number of sequences that jumped, see `is_jump`; index of the last record that jumped, or -1; and the last
        sequence before that record, or -1.
    """
    jumps, jumped, jumped_from = np.int64(0), np.int64(-1), np.int64(-1)
    for i in range(len(begins)):
        start, length = begins[i], spans[i]
        if reasons[i] == NONE:
            reasons[i] = why_none(times[i] if len(times) else 1, length, least, longest)
        if reasons[i] != NONE:
            verdicts[i] = INVALID
            if len(against):
                against[i] = -1
            continue
        slot, h = find(data, start, length, seed, hashes, starts, lengths, arena)
        if slot < 0:
            slot = -1 - slot
            insert(data, start, length, slot, h, hashes, starts, lengths, pushed, changed, arena, sizes)
        if len(against):
            against[i] = pushed[slot]
        if sequences[i] <= pushed[slot]:  # the decision: see the beginning of docs/design.md
            verdicts[i] = DUPLICATE
            continue
        verdicts[i] = FRESH
        if is_jump(pushed[slot], sequences[i]):
            jumps += 1
            jumped, jumped_from = np.int64(i), pushed[slot]
        if changed[slot] == 0:
            slots[sizes[CHANGED]] = slot
            undo[sizes[CHANGED]] = pushed[slot]
            sizes[CHANGED] += 1
            changed[slot] = sizes[CHANGED]
        pushed[slot] = sequences[i]
    return jumps, jumped, jumped_from


@compiled()
def locate(
    data: U8,
    begins: I64,
    spans: I64,
    times: I64,
    least: int,
    longest: int,
    reasons: U8,
    verdicts: U8,
    where: I64,
    seed: np.uint64,
    hashes: U64,
    starts: I64,
    lengths: I32,
    pushed: I64,
    changed: I32,
    arena: U8,
    sizes: I64,
) -> None:
    """Find the slot of every record's identity, and add identities that the map does not have.

    `kafka_ratchet.rule.windows.judge` judges the records afterwards.

    Args:
        data, begins, spans, times, least, longest, reasons: as in `judge`.
        verdicts: uint8[records], set to INVALID for invalid records.
        where: int64[records], filled with the slots; -1: the record is invalid.
        seed, hashes, starts, lengths, pushed, changed, arena, sizes: the map, with room for all records.
    """
    for i in range(len(begins)):
        start, length = begins[i], spans[i]
        if reasons[i] == NONE:
            reasons[i] = why_none(times[i] if len(times) else 1, length, least, longest)
        if reasons[i] != NONE:
            verdicts[i] = INVALID
            where[i] = -1
            continue
        slot, h = find(data, start, length, seed, hashes, starts, lengths, arena)
        if slot < 0:
            slot = -1 - slot
            insert(data, start, length, slot, h, hashes, starts, lengths, pushed, changed, arena, sizes)
        where[i] = slot
