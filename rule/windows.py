"""Compiled passes over a map that keeps more state of an identity than its last sequence.

This state is: the sequences seen below the last one (RFC 4303, section 3.4.3; RFC 6479), a fingerprint of the last
value, and the number of sequences seen since the first. The map then has the columns of `ExtraColumns` in addition to
those of `kafka_ratchet.rule.kernels`, and a copy of them from before the open transaction. A stream without such
settings runs none of these passes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.rule.kernels import (
    CHANGED,
    CONFLICT,
    DUPLICATE,
    FRESH,
    I32,
    I64,
    TOO_LATE,
    U8,
    U64,
    hash_of,
    is_jump,
)
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.compiled import compiled

FINGERPRINT_SEED: Final = np.uint64(0x52617463686574)
NULL_SEED: Final = np.uint64(0x6E756C6C)
"""Seed of a null's fingerprint; it differs from `FINGERPRINT_SEED`, so that a null differs from an empty value.

Both seeds are fixed, because the changelog contains fingerprints. So an attacker can construct two values with the same
fingerprint, but two values that differ by mistake have different fingerprints.
"""


class StateOptions(NamedTuple):
    """Deduplication options of a map: the further state kept for each identity.

    Args:
        window: number of sequences below the last one that the map marks as seen or unseen; 0: none.
        fingerprints: whether to keep a fingerprint of the value with the last sequence.
        dense: whether to keep the first sequence, and the number of sequences seen since.
    """

    window: int = 0
    fingerprints: bool = False
    dense: bool = False

    @property
    def words(self) -> int:
        """Return the number of 64-bit words per identity, each for 64 sequences."""
        return (self.window + 63) // 64

    @property
    def bytes(self) -> int:
        """Return the size of this state for each identity, in bytes."""
        return 8 * (self.words + self.fingerprints + 2 * self.dense)


PLAIN: Final = StateOptions()


class ExtraColumns(NamedTuple):
    """Further columns of a map, by slot; an unused column has length 0.

    Args:
        bits: uint64[slots, words]; for each sequence s from last - 64 * words to last - 1, bit number s modulo 64 *
            words is set if s was seen.
        prints: uint64[slots], fingerprint of the last value; 0: unknown.
        firsts: int64[slots], lowest sequence seen; ~n if counting began when n was the last sequence.
        counts: int64[slots], number of sequences seen since counting began.
    """

    bits: NDArray[np.uint64]
    prints: NDArray[np.uint64]
    firsts: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, kept: StateOptions, slots: int) -> ExtraColumns:
        """Return columns with `slots` rows of undefined content."""
        return cls(
            np.empty((slots if kept.words else 0, kept.words), np.uint64),
            np.empty(slots if kept.fingerprints else 0, np.uint64),
            np.empty(slots if kept.dense else 0, np.int64),
            np.empty(slots if kept.dense else 0, np.int64),
        )

    def put(self, at: NDArray[np.int64], other: ExtraColumns, of: NDArray[np.int64] | slice) -> None:
        """Copy rows of other columns into these columns.

        Args:
            at: rows of these columns to write.
            other: columns to copy from.
            of: rows of `other` to read.
        """
        for mine, theirs in zip(self, other, strict=True):
            if len(mine):
                mine[at] = theirs[of]


@compiled()
def fingerprint(data: U8, start: int, length: int) -> np.uint64:
    """Return a 64-bit fingerprint of a value, never 0; length -1: the value is null."""
    found: np.uint64 = hash_of(data, start, max(length, 0), FINGERPRINT_SEED if length >= 0 else NULL_SEED)
    return found


@compiled()
def is_seen(bits: U64, slot: int, sequence: int) -> bool:
    """Return True if a sequence within the window was seen."""
    at = sequence % (64 * bits.shape[1])
    found: bool = bits[slot, at >> 6] >> np.uint64(at & 63) & np.uint64(1) != np.uint64(0)
    return found


@compiled()
def set_seen(bits: U64, slot: int, sequence: int) -> None:
    """Mark a sequence within the window as seen."""
    at = sequence % (64 * bits.shape[1])
    bits[slot, at >> 6] |= np.uint64(1) << np.uint64(at & 63)


@compiled()
def clear(bits: U64, slot: int) -> None:
    """Mark the whole window as unseen."""
    for w in range(bits.shape[1]):
        bits[slot, w] = np.uint64(0)


@compiled()
def advance(bits: U64, slot: int, last: int, sequence: int) -> None:
    """Move the window up, from below `last` to below `sequence`.

    `last` becomes seen, and the sequences between the two become unseen.
    """
    size = 64 * bits.shape[1]
    if sequence - last > size:
        clear(bits, slot)
        return
    at, left = (last + 1) % size, sequence - last - 1
    while left > 0:
        begin = at & 63
        count = min(64 - begin, left)
        mask = (np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - count)) << np.uint64(begin)
        bits[slot, at >> 6] &= ~mask
        at = (at + count) % size
        left -= count
    set_seen(bits, slot, last)


@compiled()
def put_back(extras: ExtraColumns, slot: int, last: int, to: int) -> None:
    """Adjust an identity's row of `extras` after an operator has lowered its last sequence from `last` to `to`.

    Marks below `to` stay, and sequences below the old window count as seen. The fingerprint becomes unknown, and
    counting starts again. A negative `to` (no last sequence) changes nothing.
    """
    bits, prints, firsts, counts = extras
    if to < 0:
        return
    if len(bits):
        size = 64 * bits.shape[1]
        for sequence in range(max(0, to - size), min(to, last - size)):
            set_seen(bits, slot, sequence)
    if len(prints):
        prints[slot] = np.uint64(0)
    if len(firsts):
        firsts[slot], counts[slot] = ~to, 1


@compiled()
def missing(first: int, last: int, count: int) -> np.int64:
    """Return the number of missing sequences of an identity, from its row of `ExtraColumns` and its last sequence."""
    start = first if first >= 0 else ~first
    return np.int64(last - start - (count - 1))


@compiled()
def add(sums: I64, number: int) -> None:
    """Add a number to a sum that may exceed 64 bits.

    Args:
        sums: int64[2], in units of 2^32 and of 1.
        number: number to add.
    """
    sums[0] += number >> 32
    sums[1] += number & 0xFFFFFFFF


@compiled()
def judge(
    data: U8,
    columns: I64,
    where: I64,
    sequences: I64,
    verdicts: U8,
    against: I64,
    window: int,
    pushed: I64,
    changed: I32,
    slots: I64,
    undo: I64,
    sizes: I64,
    extras: ExtraColumns,
    before: ExtraColumns,
    sums: I64,
) -> tuple[np.int64, np.int64, np.int64]:
    """Judge every record with a slot, in the order of offsets.

    Args:
        data, columns: a record batch.
        where: int64[records], slot of each record's identity; -1: the record is invalid.
        sequences: int64[records].
        verdicts: uint8[records], filled for records with a slot.
        against: int64[records], filled with the last sequence before each record, or -1; int64[0]: not needed.
        window: number of sequences below the last one that may arrive late; at most 64 for each word of extras.bits.
        pushed, changed, slots, undo, sizes, extras: the map, with room for all records.
        before: copy of changed rows of `extras`, by index in `undo`.
        sums: sum of missing sequences, see `add`.

    Returns:
        As `kafka_ratchet.rule.kernels.judge`.
    """
    jumps, jumped, jumped_from = np.int64(0), np.int64(-1), np.int64(-1)
    bits, prints, firsts, counts = extras
    for i in range(len(where)):
        slot = where[i]
        if slot < 0:
            if len(against):
                against[i] = -1
            continue
        last, sequence = pushed[slot], sequences[i]
        if len(against):
            against[i] = last
        if sequence <= last:
            verdicts[i] = DUPLICATE
            if sequence == last:
                if len(prints) and prints[slot] != np.uint64(0):
                    value, length = columns[records.VALUE, i], columns[records.VALUE_LENGTH, i]
                    if fingerprint(data, value, length) != prints[slot]:
                        verdicts[i] = CONFLICT
                continue
            if window == 0:
                continue
            if last - sequence > window:
                verdicts[i] = TOO_LATE
                continue
            if is_seen(bits, slot, sequence):
                continue
        verdicts[i] = FRESH
        if changed[slot] == 0:
            at = sizes[CHANGED]
            slots[at], undo[at] = slot, last
            if len(bits):
                for w in range(bits.shape[1]):
                    before.bits[at, w] = bits[slot, w]
            if len(prints):
                before.prints[at] = prints[slot]
            if len(firsts):
                before.firsts[at], before.counts[at] = firsts[slot], counts[slot]
            sizes[CHANGED] += 1
            changed[slot] = sizes[CHANGED]
        if sequence < last:
            set_seen(bits, slot, sequence)
            if len(firsts):
                _count_late(firsts, counts, slot, sequence, sums)
            continue
        if is_jump(last, sequence):
            jumps += 1
            jumped, jumped_from = np.int64(i), last
        if len(bits):
            if last < 0:
                clear(bits, slot)
            else:
                advance(bits, slot, last, sequence)
        if len(prints):
            prints[slot] = fingerprint(data, columns[records.VALUE, i], columns[records.VALUE_LENGTH, i])
        if len(firsts):
            if last < 0:
                firsts[slot], counts[slot] = sequence, 1
            else:
                counts[slot] += 1
                add(sums, sequence - last - 1)
        pushed[slot] = sequence
    return jumps, jumped, jumped_from


@compiled()
def _count_late(firsts: I64, counts: I64, slot: int, sequence: int, sums: I64) -> None:
    first = firsts[slot]
    if first < 0 and sequence < ~first:
        return  # counting began above it
    counts[slot] += 1
    if 0 <= first and sequence < first:
        firsts[slot] = sequence
        add(sums, first - sequence - 1)
    else:
        add(sums, np.int64(-1))


def missing_of(extras: ExtraColumns, pushed: I64) -> I64:
    """Return the number of missing sequences of each identity, as int64[n].

    Args:
        extras: columns with one row per identity.
        pushed: int64[n], last sequence of each identity.
    """
    firsts = extras.firsts
    found: I64 = pushed - np.where(firsts >= 0, firsts, ~firsts) - (extras.counts - 1)
    return found


def total(numbers: I64) -> int:
    """Return the sum of numbers as a Python integer, because it may exceed 64 bits."""
    return (int((numbers >> 32).sum()) << 32) + int((numbers & 0xFFFFFFFF).sum())
