"""Compiled passes over a map with evictions: they mark activity, find inactive identities, and pack slots.

`kafka_ratchet.rule.kernels` describes the arrays; these passes run only if a stream has bounds.
"""

from __future__ import annotations

import numpy as np

from kafka_ratchet.rule.kernels import ARENA, FRESH, I32, I64, INVALID, TOUCHED, U8, U32, U64, USED, find
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.compiled import compiled


@compiled()
def touch(
    data: U8,
    begins: I64,
    spans: I64,
    verdicts: U8,
    seed: np.uint64,
    hashes: U64,
    starts: I64,
    lengths: I32,
    arena: U8,
    active: U8,
    touched: I64,
    sizes: I64,
) -> None:
    """Mark the identities of all records as active, except of fresh and invalid ones.

    Args:
        data, begins, spans: identities, as for `kafka_ratchet.rule.kernels.judge`
        verdicts: uint8[records]
        seed, hashes, starts, lengths, arena, active, sizes: the map
        touched: int64[...], with room for all records; filled with the slots marked as active, each once
    """
    for i in range(len(begins)):
        if verdicts[i] == FRESH or verdicts[i] == INVALID:
            continue
        slot, _ = find(data, begins[i], spans[i], seed, hashes, starts, lengths, arena)
        if active[slot] == 0:
            active[slot] = 1
            touched[sizes[TOUCHED]] = slot
            sizes[TOUCHED] += 1


@compiled()
def quiet(
    before: int, at: int, most: int, hashes: U64, pushed: I64, changed: I32, active: U8, seen: U32, found: I64
) -> tuple[int, int]:
    """Find persisted identities last active before a time, except those of the open transaction.

    Args:
        before: time in seconds.
        at: first slot to search.
        most: number of slots to search.
        hashes, pushed, changed, active, seen: the map.
        found: int64[...], filled with the slots found; the search ends when it is full.

    Returns:
        Number of slots found, and the next slot to search.
    """
    count = 0
    mask = len(hashes) - 1
    at &= mask
    for _ in range(most):
        if count == len(found):
            break
        if (
            hashes[at] != np.uint64(0)
            and seen[at] < before
            and pushed[at] >= 0
            and changed[at] == 0
            and active[at] == 0
        ):
            found[count] = at
            count += 1
        at = (at + 1) & mask
    return count, at


@compiled()
def keep(
    kept: I64,
    hashes: U64,
    starts: I64,
    lengths: I32,
    pushed: I64,
    seen: U32,
    arena: U8,
    new_hashes: U64,
    new_starts: I64,
    new_lengths: I32,
    new_pushed: I64,
    new_seen: U32,
    new_arena: U8,
    sizes: I64,
    moved: I64,
) -> None:
    """Move some slots into other arrays, and leave out all other slots.

    Call it only while no change is pushed or unsaved.

    Args:
        kept: int64[n], slots to move.
        hashes, starts, lengths, pushed, seen, arena: present arrays of the map.
        new_hashes, new_starts, new_lengths, new_pushed, new_seen, new_arena: arrays to fill.
        sizes: sizes of the map, updated here.
        moved: int64[n], filled with the new slots.
    """
    mask = len(new_hashes) - 1
    sizes[USED], sizes[ARENA] = len(kept), 0
    for i in range(len(kept)):
        old = kept[i]
        slot = np.int64(hashes[old] & np.uint64(mask))
        while new_hashes[slot] != np.uint64(0):
            slot = (slot + 1) & mask
        new_hashes[slot] = hashes[old]
        moved[i] = slot
        new_starts[slot] = sizes[ARENA]
        new_lengths[slot] = lengths[old]
        new_pushed[slot] = pushed[old]
        if len(seen):
            new_seen[slot] = seen[old]
        records.copy_bytes(new_arena, sizes[ARENA], arena, starts[old], lengths[old])
        sizes[ARENA] += lengths[old]
