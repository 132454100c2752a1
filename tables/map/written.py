"""Entries of the map for store and changelog, in the form that `kafka_ratchet.tables.map.entries` describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.rule import kernels
from kafka_ratchet.rule.windows import PLAIN
from kafka_ratchet.tables.map import entries
from kafka_ratchet.tables.map.slots import Slots
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.encoding import BATCH_WRITTEN, EncodedBatch, entry_batch

TIMED: Final = np.dtype([("sequence", ">i8"), ("seen", ">u4")])
"""Numpy type of a value in the store of a stream with bounds."""
AT_A_TIME: Final = 10_000
"""Number of entries converted to Python objects at a time: the objects of a million identities would take 100 MB."""
ENTRY_OVERHEAD: Final = 40
"""Maximum bytes of a changelog record with a plain value, without its identity."""


def pairs(columns: Iterable[tuple[list[bytes], list[bytes | None]]]) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield key and value of each entry."""
    return chain.from_iterable(zip(keys, values, strict=True) for keys, values in columns)


def in_order(known: Slots, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the slots ordered by the eight bytes of their identities after the common prefix."""
    first, second = np.empty(len(slots), np.uint64), np.empty(len(slots), np.uint64)
    entries.beginnings(known.starts, known.lengths, known.arena, slots, first, second)
    return slots[np.argsort(sort_keys(first, second))]


def columns(known: Slots, slots: NDArray[np.int64], *, timed: bool) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
    """Yield keys and values of some slots' entries, `AT_A_TIME` at a time; a slot without a sequence has value None.

    Args:
        known: slots of the map.
        slots: int64[n], slots to convert.
        timed: whether values end with the time of activity.
    """
    for begin in range(0, len(slots), AT_A_TIME):
        some = slots[begin : begin + AT_A_TIME]
        room, ends = np.empty(int(known.lengths[some].sum()) + len(some), np.uint8), np.empty(len(some), np.int64)
        entries.write_keys(known.starts, known.lengths, known.arena, some, room, ends)
        values = _values(known, some, timed=timed)
        for i in np.flatnonzero(known.pushed[some] < 0).tolist():
            values[i] = None
        yield _cut(room, ends), values


def _values(known: Slots, slots: NDArray[np.int64], *, timed: bool) -> list[bytes | None]:
    if known.kept != PLAIN:
        room = np.empty(len(slots) * entries.longest_value(known.kept), np.uint8)
        seen, ends = known.seen if timed else np.empty(0, np.uint32), np.empty(len(slots), np.int64)
        entries.write_values(slots, known.pushed, seen, known.extras, room, ends)
        return [*_cut(room, ends)]
    if timed:
        both = np.empty(len(slots), TIMED)
        both["sequence"], both["seen"] = known.pushed[slots], known.seen[slots]
        return cast(list[bytes | None], both.view(f"V{TIMED.itemsize}").tolist())
    return cast(list[bytes | None], known.pushed[slots].astype(">i8").view("V8").tolist())


def _cut(room: NDArray[np.uint8], ends: NDArray[np.int64]) -> list[bytes]:
    """Split bytes into consecutive pieces.

    Args:
        room: bytes of all pieces.
        ends: int64[n], position after each piece.
    """
    at, data = ends.tolist(), room[: ends[-1]].tobytes()
    return [data[begin:end] for begin, end in zip([0, *at[:-1]], at, strict=True)]


def sort_keys(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a number to sort each identity by: its eight bytes after the prefix common to all.

    Args:
        first, second: uint64[n], first 16 bytes of each identity, as two numbers that sort as the bytes do.
    """
    if not len(first):
        return first
    alike = 64 - int(first.min() ^ first.max()).bit_length() & ~7
    if alike == 0:
        return first
    return second if alike == 64 else first << np.uint64(alike) | second >> np.uint64(64 - alike)


def encode_changes(
    known: Slots, changed: NDArray[np.int64], begin: int, head: tuple[bytes, bytes] | None, limit: int
) -> list[EncodedBatch]:
    """Encode a transaction's changelog: one entry about the partition, then one for each changed identity.

    Args:
        known: the map.
        changed: int64[...], slots in the order of the changes; the first `sizes[CHANGED]` are valid.
        begin: index of the first change to encode.
        head: key and value of the first entry; None: there is none.
        limit: maximum bytes of a batch, max.message.bytes of the changelog topic.
    """
    limit, end = min(limit, BATCH_WRITTEN), int(known.sizes[kernels.CHANGED])
    slots = changed[begin:end]
    overhead = ENTRY_OVERHEAD if known.kept == PLAIN else ENTRY_OVERHEAD + entries.longest_value(known.kept)
    room = records.HEADER_SIZE + sum(map(len, head or ())) + ENTRY_OVERHEAD
    room += int(known.lengths[slots].sum()) + len(slots) * overhead
    batches, done, first = [], begin, [head] if head else []
    while first or done < end:
        out = np.empty(max(min(room, limit), records.HEADER_SIZE + 2048), np.uint8)
        at, count = entry_batch(out, first)
        first = []
        done, at, count = entries.write_entries(
            done,
            known.starts,
            known.lengths,
            known.pushed,
            known.arena,
            changed,
            known.sizes,
            known.extras,
            out,
            at,
            count,
            limit,
        )
        batches.append(EncodedBatch.finish(out[:at], count))
    return batches
