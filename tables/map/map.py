"""Map of the last sequence of every identity in one partition, in memory: pushed and persisted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.rule import kernels, windows
from kafka_ratchet.rule.identities import Identities
from kafka_ratchet.rule.windows import PLAIN, ExtraColumns, StateOptions
from kafka_ratchet.tables.map import aging, entries, moves, written
from kafka_ratchet.tables.map.slots import FIRST_SLOTS, Slots, longer
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.encoding import EncodedBatch
from kafka_ratchet.transport.batch.record_batch import RecordBatch

NO_COLUMNS: Final = np.empty((0, 0), np.int64)
"""Empty column array."""
UNASKED: Final = np.empty(0, np.int64)
"""Empty array to pass when previous sequences are not needed."""


class LastSequence(NamedTuple):
    """Last sequence of an identity, persisted and pushed; -1: none (PIP-6, getLastSequenceId)."""

    persisted: int
    pushed: int


class Jumps(NamedTuple):
    """Sequences of a batch suspiciously far above the last one, see `kafka_ratchet.rule.kernels.is_jump`.

    Args:
        number: number of jumps.
        record: index of the last record that jumped; -1: none.
        before: last sequence of that record's identity before the record; -1: it was the identity's first record.
    """

    number: int
    record: int
    before: int


class LastSequences:
    """Map from identities to last sequences: each identity's slot has a pushed and a persisted sequence."""

    def __init__(self, *, timed: bool = False, kept: StateOptions = PLAIN) -> None:
        """Start with an empty map.

        Args:
            timed: whether to record each identity's time of activity, for evictions
            kept: which further state of each identity to keep
        """
        self.slots, self.kept = Slots(timed=timed, kept=kept), kept
        self._changed = np.empty(FIRST_SLOTS, np.int64)
        """Slots that the open transaction changed, in the order of the changes."""
        self._undo = np.empty(FIRST_SLOTS, np.int64)
        self._before = ExtraColumns.of(kept, FIRST_SLOTS)
        """Further state of the slots in `_changed`, as it was before the open transaction."""
        self._touched = np.empty(FIRST_SLOTS if timed else 0, np.int64)
        self.jumps = Jumps(0, -1, -1)
        """Jumps in the batch judged last."""
        self._evicted = 0
        """Number of identities that the open transaction evicted."""
        self.missing = 0
        """Number of missing sequences of persisted identities, in a stream that counts gaps.

        If the map continues a store, the missing sequences of the store's identities are included.
        """
        self._evicted_missing = 0
        self._sums = np.zeros(2, np.int64)
        """Number of missing sequences added by the open transaction; see `windows.add`."""

    def __len__(self) -> int:
        """Return the number of identities with a persisted sequence."""
        return int(self.slots.sizes[kernels.KNOWN])

    @property
    def changes(self) -> int:
        """Return the number of identities that the open transaction moved, refreshed or evicted."""
        return int(self.slots.sizes[kernels.CHANGED])

    @property
    def additions(self) -> int:
        """Return the number of identities that the open transaction added."""
        return int(np.count_nonzero(self._undo[: self.changes] < 0))

    @property
    def removals(self) -> int:
        """Return the number of identities that the open transaction forgot or evicted."""
        return self._evicted

    def holds(self, identity: bytes) -> bool:
        """Return True if the identity has a slot."""
        return self.slots.find(identity) >= 0

    def get(self, identity: bytes) -> LastSequence:
        """Return the last sequence of an identity, persisted and pushed."""
        slot = self.slots.find(identity)
        if slot < 0:
            return LastSequence(-1, -1)
        pushed, change = int(self.slots.pushed[slot]), int(self.slots.changed[slot])
        return LastSequence(int(self._undo[change - 1]) if change else pushed, pushed)

    def seen(self, identity: bytes, sequence: int) -> tuple[bool, bool]:
        """Return whether the window marks a sequence as seen, in the persisted and in the pushed state.

        The window is the range below an identity's last sequence. Both values are False if the sequence is outside of
        the window, or the map keeps no window.
        """
        slot, window = self.slots.find(identity), self.kept.window
        if slot < 0 or not window:
            return False, False
        change, last, bits = int(self.slots.changed[slot]), self.get(identity), self.slots.extras.bits[slot]
        before = self._before.bits[change - 1] if change else bits
        at = sequence % (64 * len(bits))
        persisted, pushed = (
            0 < end - sequence <= window and bool(int(row[at >> 6]) >> (at & 63) & 1)
            for end, row in ((last.persisted, before), (last.pushed, bits))
        )
        return persisted, pushed

    def judge(
        self,
        identities: Identities,
        longest: int,
        sequences: NDArray[np.int64],
        reasons: NDArray[np.uint8],
        against: NDArray[np.int64] = UNASKED,
        batch: RecordBatch | None = None,
    ) -> NDArray[np.uint8]:
        """Judge a batch, and push the fresh records.

        Args:
            identities: identity of each record.
            longest: maximum bytes of an identity; a longer one is invalid.
            sequences: int64[records], sequence of each record; -1: none.
            reasons: uint8[records], NONE if the record is valid so far; reasons about identities are added here.
            against: int64[records], filled with the last sequence before each record, or -1; pass UNASKED if it is not
                needed.
            batch: batch with the records' values, required by a map with fingerprints.

        Returns:
            uint8[records] of FRESH, DUPLICATE or INVALID; also of TOO_LATE if the map has windows, and of CONFLICT if
            it has fingerprints.
        """
        count, slots = len(identities.begins), self.slots
        verdicts = np.empty(count, np.uint8)
        self._reserve(count, int(np.clip(identities.lengths, 0, longest).sum()))
        if self.kept == PLAIN:
            judged = sequences, reasons, verdicts, against
            known = *slots.index, slots.pushed, slots.changed, slots.arena
            jumps = kernels.judge(*identities, longest, *judged, *known, self._changed, self._undo, slots.sizes)
        else:
            jumps = self._judge_by_more(identities, longest, sequences, reasons, verdicts, against, batch)
        self.jumps = Jumps(*map(int, jumps))
        if slots.timed:
            self._touch(identities, verdicts)
        return verdicts

    def _judge_by_more(
        self,
        identities: Identities,
        longest: int,
        sequences: NDArray[np.int64],
        reasons: NDArray[np.uint8],
        verdicts: NDArray[np.uint8],
        against: NDArray[np.int64],
        batch: RecordBatch | None,
    ) -> tuple[int, int, int]:
        if self.kept.fingerprints and batch is None:
            raise ValueError("the rule compares values, so that judge() needs the batch with the values")
        slots, where = self.slots, np.empty(len(verdicts), np.int64)
        known = *slots.index, slots.pushed, slots.changed, slots.arena, slots.sizes
        kernels.locate(*identities, longest, reasons, verdicts, where, *known)
        jumps: tuple[int, int, int] = windows.judge(
            identities.data if batch is None else batch.data,
            NO_COLUMNS if batch is None else batch.columns,
            where,
            sequences,
            verdicts,
            against,
            self.kept.window,
            slots.pushed,
            slots.changed,
            self._changed,
            self._undo,
            slots.sizes,
            slots.extras,
            self._before,
            self._sums,
        )
        return jumps

    def _touch(self, identities: Identities, verdicts: NDArray[np.uint8]) -> None:
        slots = self.slots
        if slots.sizes[kernels.TOUCHED] + len(verdicts) > len(self._touched):
            self._touched = longer(self._touched, max(len(verdicts), len(self._touched)))
        spans = identities.data, identities.begins, identities.lengths
        aging.touch(*spans, verdicts, *slots.index, slots.arena, slots.active, self._touched, slots.sizes)

    @property
    def size(self) -> int:
        """Return the size of the map's arrays, in bytes."""
        arrays = *self._before, self._changed, self._undo, self._touched
        return self.slots.size + sum(array.nbytes for array in arrays)

    def outgrows(self, room: int) -> bool:
        """Return True if the map exceeds a size in bytes, or will soon exceed it.

        Moving into twice as many slots takes three times the present size for a short time.
        """
        return self.size > room or (self.slots.is_nearly_full and self.size * 3 > room)

    def absent(self, identities: Identities, longest: int) -> list[bytes]:
        """Return the identities without a slot, each once.

        Args:
            identities: identity of each record.
            longest: maximum bytes of an identity; longer ones are left out.
        """
        return self.slots.absent(identities.data, identities.begins, identities.lengths, 0, longest)

    def absent_entries(self, batch: RecordBatch) -> list[bytes]:
        """Return the identities of a changelog batch without a slot in the map, each once."""
        keys = batch.columns[records.KEY], batch.columns[records.KEY_LENGTH]
        return self.slots.absent(batch.data, *keys, 1, len(batch.data))

    def load(self, batch: RecordBatch, *, saved: bool, since: int = 0) -> tuple[int, int, int]:
        """Apply committed entries to the map.

        Args:
            batch: entries of the changelog, or of the store.
            saved: whether the store on disk already contains the entries.
            since: minimum time of activity in seconds, whatever the timestamps are.

        Returns:
            Index of the first foreign entry, of the last progress entry, and of the last entry with totals of
            evictions; each may be -1.
        """
        self._reserve(batch.count, int(np.clip(batch.columns[records.KEY_LENGTH], 0, None).sum()))
        slots = self.slots
        known = *slots.index, slots.pushed, slots.changed, slots.unsaved, slots.seen, slots.arena, slots.sizes
        found: tuple[int, int, int] = entries.load(
            batch.data, batch.columns, *known, 0 if saved else 1, since, slots.extras, self._sums
        )
        if not saved:
            self._add_missing()
        return found

    def rollback(self) -> None:
        """Reset the pushed state of every identity to its persisted state."""
        if self.kept != PLAIN:
            self.slots.extras.put(self._changed[: self.changes], self._before, slice(self.changes))
        moves.rollback(self.slots.pushed, self.slots.changed, self._changed, self._undo, self.slots.sizes)
        self._end_transaction()

    def commit(self, time: int = 0) -> None:
        """Make the pushed state persisted.

        Args:
            time: time of activity of all changed identities, in seconds.
        """
        if self.slots.timed:
            self.slots.seen[self._changed[: self.changes]] = time
        self.slots.sizes[kernels.KNOWN] -= self._evicted
        self._add_missing()
        moves.commit(self.slots.changed, self.slots.unsaved, self._changed, self._undo, self.slots.sizes)
        self._end_transaction()

    def _end_transaction(self) -> None:
        """Clear the counts and marks of the ended transaction."""
        self._evicted = self._evicted_missing = 0
        self._sums[:] = 0
        if self.slots.timed:
            self.slots.active[self._touched[: self.slots.sizes[kernels.TOUCHED]]] = 0
            self.slots.sizes[kernels.TOUCHED] = 0

    def _add_missing(self) -> None:
        self.missing += (int(self._sums[0]) << 32) + int(self._sums[1]) - self._evicted_missing
        self._sums[:] = 0

    def refresh(self, before: int) -> None:
        """Record, in the open transaction, the activity of identities with duplicates and without fresh records.

        Args:
            before: time in seconds; an identity with a later recorded activity is left out.
        """
        touched = self._touched[: self.slots.sizes[kernels.TOUCHED]]
        self._change(touched[(self.slots.changed[touched] == 0) & (self.slots.seen[touched] < before)])

    def evict(self, slots: NDArray[np.int64]) -> None:
        """Evict persisted identities as part of the open transaction, which must not have moved them."""
        self._change(slots)
        if self.kept.dense:
            self._evicted_missing += windows.total(self.slots.missing_of(slots))
        self.slots.pushed[slots] = -1
        self._evicted += len(slots)

    def activity_of(self, identity: bytes) -> tuple[int | None, int | None]:
        """Return an identity's last activity in seconds, and its number of missing sequences.

        The values include the changes of the open transaction.

        Returns:
            None in place of a value that the stream does not record.
        """
        slot = self.slots.find(identity)
        if slot < 0:
            return None, None
        seen = int(self.slots.seen[slot]) if self.slots.timed else None
        if not self.kept.dense or self.slots.pushed[slot] < 0:
            return seen, None
        return seen, int(self.slots.missing_of(np.array([slot]))[0])

    def put_back(self, to: Mapping[bytes, int]) -> None:
        """Lower the last sequences of identities that the open transaction has not moved.

        Args:
            to: new last sequence by identity; -1: forget the identity. Each identity has a persisted sequence.
        """
        slots = self.slots.of(list(to))
        self._change(slots)
        if self.kept.dense:
            self._evicted_missing += windows.total(self.slots.missing_of(slots))
        for slot, last in zip(slots.tolist(), to.values(), strict=True):
            windows.put_back(self.slots.extras, slot, self.slots.pushed[slot], last)
        self.slots.pushed[slots] = np.array(list(to.values()), np.int64)
        self._evicted += sum(last < 0 for last in to.values())

    def _change(self, slots: NDArray[np.int64]) -> None:
        begin, end = self.changes, self.changes + len(slots)
        self._reserve_changes(len(slots))
        if self.kept != PLAIN:
            self._before.put(np.arange(begin, end), self.slots.extras, slots)
        self._changed[begin:end] = slots
        self._undo[begin:end] = self.slots.pushed[slots]
        self.slots.changed[slots] = np.arange(begin + 1, end + 1)
        self.slots.sizes[kernels.CHANGED] = end

    def changed_entries(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield key and value of the changelog entry of every identity that the open transaction changed."""
        return self._entries(self._changed[: self.changes])

    def unsaved_entries(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield key and value of each identity persisted since the last snapshot; call it only between transactions."""
        return written.pairs(self.unsaved_columns())

    def unsaved_columns(self) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
        """Yield the unsaved entries as lists of keys and values, for less than half the cost of pairs.

        They are ordered by the eight bytes after their common prefix: RocksDB writes sorted entries five times as fast.
        """
        slots = written.in_order(self.slots, np.flatnonzero(self.slots.unsaved))
        return written.columns(self.slots, slots, timed=self.slots.timed)

    def uncommitted(self, most: int) -> dict[bytes, bool] | None:
        """Return the identities pushed, or persisted since the last snapshot.

        Returns:
            By identity, True if it has a last sequence, False if it was forgotten or evicted; None: there are more than
            `most` identities.
        """
        # Counting reads one flag of each slot, in a tenth of a nanosecond, and no identity.
        unsaved, changed = self.slots.unsaved.view(np.bool_), self._changed[: self.changes]
        if int(np.count_nonzero(unsaved)) > most or len(changed) > most:
            return None
        slots = np.union1d(np.flatnonzero(unsaved), changed)
        if len(slots) > most:
            return None
        return {key[1:]: value is not None for key, value in self._entries(slots)}

    def saved(self) -> None:
        """Mark the persisted state as contained in the store on disk."""
        self.slots.unsaved[:] = 0

    def _entries(self, slots: NDArray[np.int64]) -> Iterator[tuple[bytes, bytes | None]]:
        return written.pairs(written.columns(self.slots, slots, timed=False))

    def encode_changes(self, head: tuple[bytes, bytes] | None, limit: int, begin: int = 0) -> list[EncodedBatch]:
        """Encode the changelog of the open transaction: one entry about the partition, then each change.

        Args:
            head: key and value of the first entry; None: there is none
            limit: maximum bytes of a batch, max.message.bytes of the changelog topic
            begin: index of the first change to encode
        """
        return written.encode_changes(self.slots, self._changed, begin, head, limit)

    def _reserve(self, identities: int, identity_bytes: int) -> None:
        """Enlarge the arrays beforehand, so that the kernels never have to."""
        if slots := self.slots.lack(identities):
            self.grow(slots)
        self._reserve_changes(identities)
        self.slots.reserve_arena(identity_bytes)

    def _reserve_changes(self, identities: int) -> None:
        if self.slots.sizes[kernels.CHANGED] + identities > len(self._changed):
            more = max(identities, len(self._changed))
            self._changed, self._undo = longer(self._changed, more), longer(self._undo, more)
            before, rows = self._before, np.arange(self.changes)
            self._before = ExtraColumns.of(self.kept, len(self._changed))
            self._before.put(rows, before, rows)

    def grow(self, slots: int) -> None:
        """Move the map into this number of slots: a power of two above the number of used slots."""
        self.slots.grow(slots, self._changed)
        if self.slots.timed:
            self._touched[: self.slots.sizes[kernels.TOUCHED]] = np.flatnonzero(self.slots.active)
