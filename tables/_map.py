"""The last sequence of every identity of one partition, in memory: pushed, and behind it persisted."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tables import _kernels as kernels
from transport import EncodedBatch, RecordBatch, entry_batch
from transport import _kernels as records

FIRST_SLOTS: Final = 1 << 12
"""Slots of an empty map, 33 bytes each; a power of two, as the kernels mask instead of dividing."""
FIRST_ARENA: Final = 1 << 16
COLUMN: Final = {kernels.BY_KEY: records.KEY, kernels.BY_PRODUCER: records.SECOND}
"""Where a batch has the start of the identity; its length is in the column behind it."""
AT_A_TIME: Final = 10_000
"""Entries made into Python's numbers at a time: those of a million identities would take 100 MB."""
NEAR: Final = 1 / 8
"""So much of what is used may be added by one transaction: beyond it the map has to grow, whatever its bound is."""
ENTRY_OVERHEAD: Final = 40
"""Most bytes a changelog record takes besides the identity."""


class LastSequence(NamedTuple):
    """What is known of an identity; -1 is nothing (PIP-6, getLastSequenceId)."""

    persisted: int
    pushed: int


class LastSequences:
    """A hash table in numpy; `tables._kernels` has its layout and its inner loops."""

    def __init__(self) -> None:
        self._seed = np.uint64(secrets.randbits(64))
        self._allocate(FIRST_SLOTS)
        self._arena = np.empty(FIRST_ARENA, np.uint8)
        self._slots = np.empty(FIRST_SLOTS, np.int64)
        self._undo = np.empty(FIRST_SLOTS, np.int64)
        self._sizes = np.zeros(4, np.int64)

    def _allocate(self, slots: int) -> None:
        self._hashes = np.zeros(slots, np.uint64)
        self._starts = np.empty(slots, np.int64)
        self._lengths = np.empty(slots, np.int32)
        self._pushed = np.empty(slots, np.int64)
        self._changed = np.zeros(slots, np.int32)
        self._unsaved = np.zeros(slots, np.uint8)

    def __len__(self) -> int:
        """Identities with a persisted sequence."""
        return int(self._sizes[kernels.KNOWN])

    @property
    def changes(self) -> int:
        """Identities that the open transaction has moved."""
        return int(self._sizes[kernels.CHANGED])

    def holds(self, identity: bytes) -> bool:
        """Whether it has a slot."""
        return self._slot(identity) >= 0

    def _slot(self, identity: bytes) -> int:
        data = np.frombuffer(identity, np.uint8)
        slot, _ = kernels.find(data, 0, len(data), self._seed, self._hashes, self._starts, self._lengths, self._arena)
        return int(slot)

    def get(self, identity: bytes) -> LastSequence:
        """Last sequence of an identity, persisted and pushed."""
        slot = self._slot(identity)
        if slot < 0:
            return LastSequence(-1, -1)
        pushed, change = int(self._pushed[slot]), int(self._changed[slot])
        return LastSequence(int(self._undo[change - 1]) if change else pushed, pushed)

    def judge(
        self, batch: RecordBatch, by: int, longest: int, sequences: NDArray[np.int64], reasons: NDArray[np.uint8]
    ) -> NDArray[np.uint8]:
        """Judge a batch and push what is fresh; adds identity reasons to reasons. See `tables._kernels.judge`.

        Returns:
            uint8[batch.count] of FRESH, DUPLICATE, INVALID
        """
        verdicts = np.empty(batch.count, np.uint8)
        spans = np.clip(batch.columns[COLUMN[by] + 1], 0, longest).sum() if by in COLUMN else 0
        self._reserve(batch.count, int(spans))
        kernels.judge(
            batch.data,
            batch.columns,
            by,
            longest,
            sequences,
            reasons,
            verdicts,
            self._seed,
            self._hashes,
            self._starts,
            self._lengths,
            self._pushed,
            self._changed,
            self._arena,
            self._slots,
            self._undo,
            self._sizes,
        )
        return verdicts

    @property
    def _per_slot(self) -> tuple[NDArray[Any], ...]:
        return self._hashes, self._starts, self._lengths, self._pushed, self._changed, self._unsaved

    @property
    def size(self) -> int:
        """Bytes that its arrays take."""
        return sum(array.nbytes for array in (*self._per_slot, self._arena, self._slots, self._undo))

    def outgrows(self, room: int) -> bool:
        """Whether it takes more than so many bytes, or would while it moves into twice as many slots, which is near."""
        full = self._sizes[kernels.USED] * 3 * (1 + NEAR) > len(self._hashes) * 2
        return self.size > room or bool(full and self.size * 3 > room)

    def absent(self, batch: RecordBatch, by: int, longest: int) -> list[bytes]:
        """Identities of a batch that have no slot, each once."""
        return self._absent(batch, COLUMN.get(by, -1), 0, longest)

    def absent_entries(self, batch: RecordBatch) -> list[bytes]:
        """Identities of a batch of changelog entries that have no slot, each once."""
        return self._absent(batch, records.KEY, 1, len(batch.data))

    def _absent(self, batch: RecordBatch, row: int, skip: int, longest: int) -> list[bytes]:
        found = np.empty(batch.count, np.int64)
        known = self._seed, self._hashes, self._starts, self._lengths, self._arena
        count = kernels.absent(batch.data, batch.columns, row, skip, longest, *known, found)
        if row < 0:
            return [b""][:count]
        columns = batch.columns[:, found[:count]]
        data = batch.data.data
        ends = columns[row] + columns[row + 1]
        spans = zip((columns[row] + skip).tolist(), ends.tolist(), strict=True)
        return list({bytes(data[start:end]): None for start, end in spans})

    def load(self, batch: RecordBatch, *, saved: bool) -> tuple[int, int]:
        """Take over committed changelog entries. saved: whether the store on disk has them.

        Returns:
            (index of the first that is none, or -1; index of the last progress entry, or -1)
        """
        self._reserve(batch.count, int(np.clip(batch.columns[records.KEY_LENGTH], 0, None).sum()))
        found: tuple[int, int] = kernels.load(
            batch.data,
            batch.columns,
            self._seed,
            self._hashes,
            self._starts,
            self._lengths,
            self._pushed,
            self._changed,
            self._unsaved,
            self._arena,
            self._sizes,
            0 if saved else 1,
        )
        return found

    def roll_back(self) -> None:
        """Pushed falls back to persisted."""
        kernels.roll_back(self._pushed, self._changed, self._slots, self._undo, self._sizes)

    def settle(self) -> None:
        """Pushed becomes persisted."""
        kernels.settle(self._changed, self._unsaved, self._slots, self._undo, self._sizes)

    def changed_entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Key and value, as in the changelog, of every identity that the open transaction has moved."""
        return self._entries(self._slots[: self.changes])

    def unsaved_entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Key and value of every identity that was persisted since `saved`. Only between transactions.

        In the order of their first 16 bytes: RocksDB takes what is in order five times as fast.
        """
        slots = np.flatnonzero(self._unsaved)
        first, second = np.empty(len(slots), np.uint64), np.empty(len(slots), np.uint64)
        kernels.beginnings(self._starts, self._lengths, self._arena, slots, first, second)
        return self._entries(slots[np.lexsort((second, first))])

    def unsettled(self, most: int) -> list[bytes] | None:
        """Identities that are pushed, or persisted since `saved`; None where they are more than so many."""
        slots = np.flatnonzero((self._unsaved != 0) | (self._changed != 0))
        return [key[1:] for key, _ in self._entries(slots)] if len(slots) <= most else None

    def saved(self) -> None:
        """What is persisted is in the store on disk."""
        self._unsaved[:] = 0

    def _entries(self, slots: NDArray[np.int64]) -> Iterator[tuple[bytes, bytes]]:
        arena = self._arena.data
        for begin in range(0, len(slots), AT_A_TIME):
            some = slots[begin : begin + AT_A_TIME]
            values = self._pushed[some].astype(">i8").tobytes()
            spans = zip(self._starts[some].tolist(), self._lengths[some].tolist(), strict=True)
            for i, (start, length) in enumerate(spans):
                yield b"i" + arena[start : start + length], values[8 * i : 8 * i + 8]

    def encode_changes(self, progress: tuple[bytes, bytes], limit: int) -> list[EncodedBatch]:
        """The changelog of the open transaction: the partition's progress, then each changed identity.

        Args:
            progress: key and value of the progress entry
            limit: bytes, max.message.bytes of the changelog topic
        """
        slots = self._slots[: self.changes]
        room = records.HEADER_SIZE + sum(map(len, progress)) + ENTRY_OVERHEAD
        room += int(self._lengths[slots].sum()) + len(slots) * ENTRY_OVERHEAD
        batches, done, first = [], 0, [progress]
        while first or done < len(slots):
            out = np.empty(max(min(room, limit), records.HEADER_SIZE + 2048), np.uint8)
            at, count = entry_batch(out, first)
            first = []
            done, at, count = kernels.write_entries(
                done,
                self._starts,
                self._lengths,
                self._pushed,
                self._arena,
                self._slots,
                self._sizes,
                out,
                at,
                count,
                limit,
            )
            batches.append(EncodedBatch.finish(out[:at], count))
        return batches

    def _reserve(self, identities: int, identity_bytes: int) -> None:
        """Make room, so that the kernels never have to. At most two thirds of the slots are used."""
        if (self._sizes[kernels.USED] + identities) * 3 > len(self._hashes) * 2:
            self.grow(1 << int((self._sizes[kernels.USED] + identities) * 3 // 2).bit_length())
        if self._sizes[kernels.CHANGED] + identities > len(self._slots):
            more = max(identities, len(self._slots))
            self._slots = np.concatenate([self._slots, np.empty(more, np.int64)])
            self._undo = np.concatenate([self._undo, np.empty(more, np.int64)])
        if self._sizes[kernels.ARENA] + identity_bytes > len(self._arena):
            more = max(identity_bytes, len(self._arena) // 2)
            self._arena = np.concatenate([self._arena, np.empty(more, np.uint8)])

    def grow(self, slots: int) -> None:
        """Move into so many slots, a power of two and more than are used."""
        old = self._per_slot
        self._allocate(slots)
        kernels.rehash(*old, self._slots, *self._per_slot)
