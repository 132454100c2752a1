"""Hash table of the map: the arrays that give each identity a slot, and their growth.

`kafka_ratchet.rule.kernels` describes the arrays and contains the inner loops.
"""

from __future__ import annotations

import secrets
import sys
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.rule import kernels, windows
from kafka_ratchet.rule.windows import PLAIN, ExtraColumns, StateOptions
from kafka_ratchet.tables.map import aging, moves

Number = TypeVar("Number", bound=np.generic)

FIRST_SLOTS: Final = 1 << 12
"""Number of slots of an empty map, 33 bytes each. It is a power of two: the kernels mask instead of dividing."""
FIRST_ARENA: Final = 1 << 16
NEAR: Final = 1 / 8
"""Number of slots that the next transaction may add, as a share of the used ones; see `Slots.is_nearly_full`."""
WASTE: Final = 1 / 4
"""Share of used slots without a sequence above which the map is packed.

Packing costs a tenth of a microsecond for each remaining identity, so it is done only after many evictions.
"""
WASTE_LEAST: Final = 4_096


class Slots:
    """Hash table in numpy, with the identity and the state of each slot."""

    def __init__(self, *, timed: bool = False, kept: StateOptions = PLAIN) -> None:
        """Start with an empty table.

        Args:
            timed: whether to record each identity's time of activity
            kept: which further state of each identity to keep
        """
        self.timed, self.kept = timed, kept
        self.seed = np.uint64(secrets.randbits(64))
        self.allocate(FIRST_SLOTS)
        self.arena = np.empty(FIRST_ARENA, np.uint8)
        self.sizes = np.zeros(5, np.int64)

    def allocate(self, slots: int) -> None:
        """Allocate arrays for this number of free slots."""
        self.hashes = np.zeros(slots, np.uint64)
        self.starts = np.empty(slots, np.int64)
        self.lengths = np.empty(slots, np.int32)
        self.pushed = np.empty(slots, np.int64)
        self.changed = np.zeros(slots, np.int32)
        self.unsaved = np.zeros(slots, np.uint8)
        self.seen = np.zeros(slots if self.timed else 0, np.uint32)
        self.active = np.zeros(slots if self.timed else 0, np.uint8)
        self.extras = ExtraColumns.of(self.kept, slots)

    @property
    def _per_slot(self) -> tuple[NDArray[Any], ...]:
        return (
            self.hashes,
            self.starts,
            self.lengths,
            self.pushed,
            self.changed,
            self.unsaved,
            self.seen,
            self.active,
        )

    @property
    def index(self) -> tuple[np.uint64, NDArray[np.uint64], NDArray[np.int64], NDArray[np.int32]]:
        """Return the index for the kernels: hash seed, hashes, starts and lengths."""
        return self.seed, self.hashes, self.starts, self.lengths

    @property
    def size(self) -> int:
        """Return the size of the arrays in bytes."""
        return sum(array.nbytes for array in (*self._per_slot, *self.extras, self.arena))

    @property
    def is_nearly_full(self) -> bool:
        """Return True if the next transaction may have to double the slots."""
        return bool(self.sizes[kernels.USED] * 3 * (1 + NEAR) > len(self.hashes) * 2)

    @property
    def is_wasteful(self) -> bool:
        """Return True if many slots are without a sequence; call it only between transactions."""
        used = int(self.sizes[kernels.USED])
        return used - int(self.sizes[kernels.KNOWN]) > max(WASTE_LEAST, used * WASTE)

    def find(self, identity: bytes) -> int:
        """Return the slot of an identity; negative: the identity has no slot."""
        data = np.frombuffer(identity, np.uint8)
        slot, _ = kernels.find(data, 0, len(data), *self.index, self.arena)
        return int(slot)

    def of(self, identities: list[bytes]) -> NDArray[np.int64]:
        """Return the slots of identities, each of them present."""
        return np.array([self.find(identity) for identity in identities], np.int64)

    def identities(self, slots: NDArray[np.int64]) -> list[bytes]:
        """Return the identities in some slots."""
        spans = zip(self.starts[slots].tolist(), self.lengths[slots].tolist(), strict=True)
        return [self.arena[start : start + length].tobytes() for start, length in spans]

    def absent(
        self,
        data: NDArray[np.uint8],
        begins: NDArray[np.int64],
        lengths: NDArray[np.int64],
        skip: int,
        longest: int,
    ) -> list[bytes]:
        """Return the identities without a slot, each once.

        Args:
            data: bytes that contain the identities
            begins: int64[n], position of each identity
            lengths: int64[n], bytes of each identity, including skipped ones
            skip: number of bytes before each identity to skip
            longest: maximum bytes of an identity; longer ones are left out
        """
        found = np.empty(len(begins), np.int64)
        count = moves.absent(data, begins, lengths, skip, longest, *self.index, self.arena, found)
        starts, ends = begins[found[:count]] + skip, (begins + lengths)[found[:count]]
        held = data.data
        return list({bytes(held[start:end]): None for start, end in zip(starts.tolist(), ends.tolist(), strict=True)})

    def quiet(self, before: int, at: int, most: int, look_at: int = sys.maxsize) -> tuple[NDArray[np.int64], int]:
        """Return slots of persisted identities last active before a time.

        Identities of the open transaction are left out.

        Args:
            before: time in seconds
            at: first slot to search
            most: maximum number of slots to return
            look_at: maximum number of slots to search

        Returns:
            The slots as int64[...], and the next slot to search
        """
        found = np.empty(most, np.int64)
        columns = self.hashes, self.pushed, self.changed, self.active, self.seen
        count, at = aging.quiet(before, at, min(look_at, len(self.hashes)), *columns, found)
        return found[:count], at

    def oldest(self, slots: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Return, of the given slots, the `count` ones with the least recent activity."""
        return slots if len(slots) <= count else slots[np.argpartition(self.seen[slots], count - 1)[:count]]

    def newest_s(self, slots: NDArray[np.int64]) -> int:
        """Return the newest time of activity among some slots, in seconds; 0: there are no slots."""
        return int(self.seen[slots].max()) if len(slots) else 0

    def missing_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of missing sequences of each identity in some slots, in the pushed state."""
        found = ExtraColumns.of(StateOptions(dense=True), len(slots))
        found.firsts[:], found.counts[:] = self.extras.firsts[slots], self.extras.counts[slots]
        return windows.missing_of(found, self.pushed[slots])

    def lack(self, identities: int) -> int:
        """Return the number of slots needed to add this number of identities; 0: the present slots suffice."""
        used = int(self.sizes[kernels.USED]) + identities
        return 1 << (used * 3 // 2).bit_length() if used * 3 > len(self.hashes) * 2 else 0

    def reserve_arena(self, identity_bytes: int) -> None:
        """Make room for this number of further bytes of identities."""
        if self.sizes[kernels.ARENA] + identity_bytes > len(self.arena):
            self.arena = longer(self.arena, max(identity_bytes, len(self.arena) // 2))

    def grow(self, slots: int, changed: NDArray[np.int64]) -> None:
        """Move the table into this number of slots: a power of two above the number of used slots.

        Args:
            slots: new number of slots.
            changed: int64[...], slots that the open transaction changed; corrected here.
        """
        old, extras = self._per_slot, self.extras
        moved = np.full(len(self.hashes) if self.kept != PLAIN else 0, -1, np.int64)
        self.allocate(slots)
        moves.rehash(*old, changed, *self._per_slot, moved)
        used = np.flatnonzero(moved >= 0)
        self.extras.put(moved[used], extras, used)

    def pack(self) -> None:
        """Remove the slots without a sequence; call it only between transactions, when everything is saved."""
        kept = np.flatnonzero((self.hashes != 0) & (self.pushed >= 0))
        old = self.hashes, self.starts, self.lengths, self.pushed, self.seen, self.arena
        extras, moved = self.extras, np.empty(len(kept), np.int64)
        size = int(self.lengths[kept].sum())
        self.allocate(max(FIRST_SLOTS, 1 << (len(kept) * 3 // 2).bit_length()))
        self.arena = np.empty(max(FIRST_ARENA, size), np.uint8)
        new = self.hashes, self.starts, self.lengths, self.pushed, self.seen, self.arena
        aging.keep(kept, *old, *new, self.sizes, moved)
        self.extras.put(moved, extras, kept)


def longer(array: NDArray[Number], more: int) -> NDArray[Number]:
    """Return the array with more elements at its end, uninitialised."""
    return np.concatenate([array, np.empty(more, array.dtype)])
