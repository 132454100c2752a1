"""Compiled passes over the whole map: commit, rollback and growth; see `kafka_ratchet.rule.kernels` for its arrays."""

from __future__ import annotations

import numpy as np

from kafka_ratchet.rule.kernels import CHANGED, I32, I64, KNOWN, U8, U32, U64, find
from kafka_ratchet.transport.batch.compiled import compiled


@compiled()
def absent(
    data: U8,
    begins: I64,
    spans: I64,
    skip: int,
    longest: int,
    seed: np.uint64,
    hashes: U64,
    starts: I64,
    lengths: I32,
    arena: U8,
    found: I64,
) -> int:
    """Find the records of identities that the map does not contain.

    Args:
        data, begins, spans: identities, as for `kafka_ratchet.rule.kernels.judge`.
        skip: number of bytes before the identity to skip.
        longest: maximum bytes of an identity.
        seed, hashes, starts, lengths, arena: the map.
        found: int64[records], filled with the indices of the records found.

    Returns:
        Number of records found.
    """
    count = 0
    for i in range(len(begins)):
        length = spans[i] - skip
        if length < 0 or length > longest:
            continue
        slot, _ = find(data, begins[i] + skip, length, seed, hashes, starts, lengths, arena)
        if slot < 0:
            found[count] = i
            count += 1
    return count


@compiled()
def rollback(pushed: I64, changed: I32, slots: I64, undo: I64, sizes: I64) -> None:
    """Reset the pushed state of every changed identity to its persisted state (PIP-6: a failed write)."""
    for c in range(sizes[CHANGED]):
        pushed[slots[c]] = undo[c]
        changed[slots[c]] = 0
    sizes[CHANGED] = 0


@compiled()
def commit(changed: I32, unsaved: U8, slots: I64, undo: I64, sizes: I64) -> None:
    """Make the pushed state persisted, and mark the changed identities as unsaved."""
    for c in range(sizes[CHANGED]):
        changed[slots[c]] = 0
        unsaved[slots[c]] = 1
        if undo[c] < 0:
            sizes[KNOWN] += 1
    sizes[CHANGED] = 0


@compiled()
def rehash(
    hashes: U64,
    starts: I64,
    lengths: I32,
    pushed: I64,
    changed: I32,
    unsaved: U8,
    seen: U32,
    active: U8,
    slots: I64,
    new_hashes: U64,
    new_starts: I64,
    new_lengths: I32,
    new_pushed: I64,
    new_changed: I32,
    new_unsaved: U8,
    new_seen: U32,
    new_active: U8,
    moved: I64,
) -> None:
    """Move every identity into larger arrays, and correct the slots of the open transaction.

    Args:
        hashes, starts, lengths, pushed, changed, unsaved, seen, active: present arrays of the map.
        slots: slots that the open transaction changed, corrected here.
        new_hashes, new_starts, new_lengths, new_pushed, new_changed, new_unsaved, new_seen, new_active: arrays to fill.
        moved: int64[old slots], filled with the new slot of each used one, else -1; or int64[0].
    """
    mask = len(new_hashes) - 1
    for old in range(len(hashes)):
        if hashes[old] == np.uint64(0):
            continue
        slot = np.int64(hashes[old] & np.uint64(mask))
        while new_hashes[slot] != np.uint64(0):
            slot = (slot + 1) & mask
        new_hashes[slot] = hashes[old]
        new_starts[slot] = starts[old]
        new_lengths[slot] = lengths[old]
        new_pushed[slot] = pushed[old]
        new_changed[slot] = changed[old]
        new_unsaved[slot] = unsaved[old]
        if len(seen):
            new_seen[slot] = seen[old]
            new_active[slot] = active[old]
        if len(moved):
            moved[old] = slot
        if changed[old]:
            slots[changed[old] - 1] = slot
