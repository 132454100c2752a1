"""The last sequence of every identity of one partition, in memory: pushed, and behind it persisted."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.tables.identities import Identities
from kafka_ratchet.tables.map import aging, entries, kernels, windows
from kafka_ratchet.tables.map.windows import PLAIN, Extras, Kept
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.encoding import BATCH_WRITTEN, EncodedBatch, entry_batch
from kafka_ratchet.transport.batch.record_batch import RecordBatch

Number = TypeVar("Number", bound=np.generic)

FIRST_SLOTS: Final = 1 << 12
"""Slots of an empty map, 33 bytes each; a power of two, as the kernels mask instead of dividing."""
FIRST_ARENA: Final = 1 << 16
TIMED: Final = np.dtype([("sequence", ">i8"), ("seen", ">u4")])
"""A value in the store of a stream with bounds."""
AT_A_TIME: Final = 10_000
"""Entries made into Python's numbers at a time: those of a million identities would take 100 MB."""
NEAR: Final = 1 / 8
"""So much of what is used may be added by one transaction: beyond it the map has to grow, whatever its bound is."""
WASTE: Final = 1 / 4
"""So much of what is used may be slots without a sequence before the map is packed: then what that costs, a tenth of a
microsecond for each identity that stays, is paid for by a third as many that went."""
WASTE_LEAST: Final = 4_096
ENTRY_OVERHEAD: Final = 40
"""Most bytes a changelog record takes besides the identity."""


NO_COLUMNS: Final = np.empty((0, 0), np.int64)
"""Of no batch."""
UNASKED: Final = np.empty(0, np.int64)
"""Where nobody asks what the records of a batch are judged against."""


class LastSequence(NamedTuple):
    """What is known of an identity; -1 is nothing (PIP-6, getLastSequenceId)."""

    persisted: int
    pushed: int


class Jumps(NamedTuple):
    """Sequences of a batch that jumped by more than `kafka_ratchet.tables.map.kernels.JUMP`.

    record is the index of the last of them, or -1; before is its identity's last sequence, -1 where that was its first
    record.
    """

    number: int
    record: int
    before: int


class LastSequences:
    """A hash table in numpy; `kafka_ratchet.tables.map.kernels` has its layout and its inner loops."""

    def __init__(self, *, timed: bool = False, kept: Kept = PLAIN) -> None:
        """Empty.

        Args:
            timed: it is known when each identity was active, so that some can be evicted
            kept: of each identity, beside its last sequence
        """
        self._timed, self.kept = timed, kept
        self._seed = np.uint64(secrets.randbits(64))
        self._allocate(FIRST_SLOTS)
        self._arena = np.empty(FIRST_ARENA, np.uint8)
        self._slots = np.empty(FIRST_SLOTS, np.int64)
        self._undo = np.empty(FIRST_SLOTS, np.int64)
        self._before = Extras.of(kept, FIRST_SLOTS)
        """What the extras of `_slots` were before the open transaction."""
        self._touched = np.empty(FIRST_SLOTS if timed else 0, np.int64)
        self._sizes = np.zeros(5, np.int64)
        self.jumps = Jumps(0, -1, -1)
        """Of the batch judged last."""
        self._evicted = 0
        """How many the open transaction has evicted."""
        self.missing = 0
        """Sequences that persisted identities have not had, where numbers have no holes; those of the store included,
        where this goes on from one."""
        self._evicted_missing = 0
        self._sums = np.zeros(2, np.int64)
        """By how many more the open transaction has made it; see `windows.add`."""

    def _allocate(self, slots: int) -> None:
        self._hashes = np.zeros(slots, np.uint64)
        self._starts = np.empty(slots, np.int64)
        self._lengths = np.empty(slots, np.int32)
        self._pushed = np.empty(slots, np.int64)
        self._changed = np.zeros(slots, np.int32)
        self._unsaved = np.zeros(slots, np.uint8)
        self._seen = np.zeros(slots if self._timed else 0, np.uint32)
        self._active = np.zeros(slots if self._timed else 0, np.uint8)
        self._extras = Extras.of(self.kept, slots)

    def __len__(self) -> int:
        """Identities with a persisted sequence."""
        return int(self._sizes[kernels.KNOWN])

    @property
    def changes(self) -> int:
        """Identities that the open transaction has moved, refreshed or evicted."""
        return int(self._sizes[kernels.CHANGED])

    @property
    def additions(self) -> int:
        """Identities that the open transaction has met first."""
        return int(np.count_nonzero(self._undo[: self.changes] < 0))

    @property
    def removals(self) -> int:
        """Identities that the open transaction has forgotten or evicted."""
        return self._evicted

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

    def seen(self, identity: bytes, sequence: int) -> tuple[bool, bool]:
        """Whether a sequence in the window below an identity's last one was seen: persisted, and pushed.

        False where it is not in that window, or no window is kept.
        """
        slot, window = self._slot(identity), self.kept.window
        if slot < 0 or not window:
            return False, False
        change, last, bits = int(self._changed[slot]), self.get(identity), self._extras.bits[slot]
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
        """Judge a batch and push what is fresh.

        Args:
            identities: whose each record is
            longest: bytes of an identity; a longer one is invalid
            sequences: int64[records], -1 where there is none
            reasons: uint8[records], NONE where the record is good so far; reasons of the identity are added here
            against: int64[records], filled here with the last sequence that each record was judged against, -1 for
                none; UNASKED where nobody wants to know
            batch: where the values are, for a map that keeps fingerprints of them

        Returns:
            uint8[records] of FRESH, DUPLICATE, INVALID; TOO_LATE and CONFLICT where a map keeps what they need
        """
        count = len(identities.begins)
        verdicts = np.empty(count, np.uint8)
        self._reserve(count, int(np.clip(identities.lengths, 0, longest).sum()))
        if self.kept == PLAIN:
            jumps = kernels.judge(
                *identities,
                longest,
                sequences,
                reasons,
                verdicts,
                against,
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
        else:
            jumps = self._judge_by_more(identities, longest, sequences, reasons, verdicts, against, batch)
        self.jumps = Jumps(*map(int, jumps))
        if self._timed:
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
            raise ValueError("values are compared, and there is no batch to find them in")
        where = np.empty(len(verdicts), np.int64)
        kernels.locate(
            *identities,
            longest,
            reasons,
            verdicts,
            where,
            self._seed,
            self._hashes,
            self._starts,
            self._lengths,
            self._pushed,
            self._changed,
            self._arena,
            self._sizes,
        )
        jumps: tuple[int, int, int] = windows.judge(
            identities.data if batch is None else batch.data,
            NO_COLUMNS if batch is None else batch.columns,
            where,
            sequences,
            verdicts,
            against,
            self.kept.window,
            self._pushed,
            self._changed,
            self._slots,
            self._undo,
            self._sizes,
            self._extras,
            self._before,
            self._sums,
        )
        return jumps

    def _touch(self, identities: Identities, verdicts: NDArray[np.uint8]) -> None:
        if self._sizes[kernels.TOUCHED] + len(verdicts) > len(self._touched):
            self._touched = _longer(self._touched, max(len(verdicts), len(self._touched)))
        spans = identities.data, identities.begins, identities.lengths
        known = self._seed, self._hashes, self._starts, self._lengths, self._arena
        aging.touch(*spans, verdicts, *known, self._active, self._touched, self._sizes)

    @property
    def _per_slot(self) -> tuple[NDArray[Any], ...]:
        return (
            self._hashes,
            self._starts,
            self._lengths,
            self._pushed,
            self._changed,
            self._unsaved,
            self._seen,
            self._active,
        )

    @property
    def size(self) -> int:
        """Bytes that its arrays take."""
        return sum(
            array.nbytes
            for array in (
                *self._per_slot,
                *self._extras,
                *self._before,
                self._arena,
                self._slots,
                self._undo,
                self._touched,
            )
        )

    def outgrows(self, room: int) -> bool:
        """Whether it takes more than so many bytes, or would while it moves into twice as many slots, which is near."""
        full = self._sizes[kernels.USED] * 3 * (1 + NEAR) > len(self._hashes) * 2
        return self.size > room or bool(full and self.size * 3 > room)

    def absent(self, identities: Identities, longest: int) -> list[bytes]:
        """Those that have no slot, each once. longest: bytes; a longer one is left out."""
        return self._absent(identities.data, identities.begins, identities.lengths, 0, longest)

    def absent_entries(self, batch: RecordBatch) -> list[bytes]:
        """Identities of a batch of changelog entries that have no slot, each once."""
        keys = batch.columns[records.KEY], batch.columns[records.KEY_LENGTH]
        return self._absent(batch.data, *keys, 1, len(batch.data))

    def _absent(
        self,
        data: NDArray[np.uint8],
        begins: NDArray[np.int64],
        lengths: NDArray[np.int64],
        skip: int,
        longest: int,
    ) -> list[bytes]:
        found = np.empty(len(begins), np.int64)
        known = self._seed, self._hashes, self._starts, self._lengths, self._arena
        count = kernels.absent(data, begins, lengths, skip, longest, *known, found)
        starts, ends = begins[found[:count]] + skip, (begins + lengths)[found[:count]]
        held = data.data
        return list({bytes(held[start:end]): None for start, end in zip(starts.tolist(), ends.tolist(), strict=True)})

    def load(self, batch: RecordBatch, *, saved: bool, since: int = 0) -> tuple[int, int, int]:
        """Take over committed entries.

        Args:
            batch: of the changelog, or of the store
            saved: whether the store on disk has them
            since: seconds; nothing in it was active before that, whatever its timestamps are

        Returns:
            (index of the first that is none, or -1; indices of the last progress entry and of the last count of
            evictions, or -1)
        """
        self._reserve(batch.count, int(np.clip(batch.columns[records.KEY_LENGTH], 0, None).sum()))
        found: tuple[int, int, int] = entries.load(
            batch.data,
            batch.columns,
            self._seed,
            self._hashes,
            self._starts,
            self._lengths,
            self._pushed,
            self._changed,
            self._unsaved,
            self._seen,
            self._arena,
            self._sizes,
            0 if saved else 1,
            since,
            self._extras,
            self._sums,
        )
        if not saved:
            self._add_missing()
        return found

    def rollback(self) -> None:
        """Pushed falls back to persisted."""
        if self.kept != PLAIN:
            self._extras.put(self._slots[: self.changes], self._before, slice(self.changes))
        kernels.rollback(self._pushed, self._changed, self._slots, self._undo, self._sizes)
        self._end_transaction()

    def commit(self, time: int = 0) -> None:
        """Pushed becomes persisted. time: seconds, when all that has changed was active."""
        if self._timed:
            self._seen[self._slots[: self.changes]] = time
        self._sizes[kernels.KNOWN] -= self._evicted
        self._add_missing()
        kernels.commit(self._changed, self._unsaved, self._slots, self._undo, self._sizes)
        self._end_transaction()

    def _end_transaction(self) -> None:
        """Clear what is counted and marked for the open transaction: it has ended."""
        self._evicted = self._evicted_missing = 0
        self._sums[:] = 0
        if self._timed:
            self._active[self._touched[: self._sizes[kernels.TOUCHED]]] = 0
            self._sizes[kernels.TOUCHED] = 0

    def _add_missing(self) -> None:
        self.missing += (int(self._sums[0]) << 32) + int(self._sums[1]) - self._evicted_missing
        self._sums[:] = 0

    def refresh(self, before: int) -> None:
        """Have the changelog told of identities that the open transaction has only met duplicates of.

        before: seconds; whoever was active then or later, as far as the changelog knows, is left out
        """
        touched = self._touched[: self._sizes[kernels.TOUCHED]]
        self._change(touched[(self._changed[touched] == 0) & (self._seen[touched] < before)])

    def quiet(self, before: int, at: int, most: int, look_at: int = sys.maxsize) -> tuple[NDArray[np.int64], int]:
        """Slots of persisted identities that were last active before a time, and not in the open transaction.

        Args:
            before: seconds
            at: slot to begin at
            most: slots to return, at most
            look_at: slots to look at, at most

        Returns:
            (int64[...], slot to begin at next)
        """
        found = np.empty(most, np.int64)
        columns = self._hashes, self._pushed, self._changed, self._active, self._seen
        count, at = aging.quiet(before, at, min(look_at, len(self._hashes)), *columns, found)
        return found[:count], at

    def oldest(self, slots: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Of these slots, so many that were last active before the others."""
        return slots if len(slots) <= count else slots[np.argpartition(self._seen[slots], count - 1)[:count]]

    def newest_s(self, slots: NDArray[np.int64]) -> int:
        """When the last of these was active, in seconds; 0 where there are none."""
        return int(self._seen[slots].max()) if len(slots) else 0

    def slots_of(self, identities: list[bytes]) -> NDArray[np.int64]:
        """Slots of identities that have one."""
        return np.array([self._slot(identity) for identity in identities], np.int64)

    def identities(self, slots: NDArray[np.int64]) -> list[bytes]:
        """Identities by their slots."""
        spans = zip(self._starts[slots].tolist(), self._lengths[slots].tolist(), strict=True)
        return [self._arena[start : start + length].tobytes() for start, length in spans]

    def evict(self, slots: NDArray[np.int64]) -> None:
        """Forget what is known of persisted identities that the open transaction has not moved, as part of it."""
        self._change(slots)
        if self.kept.dense:
            self._evicted_missing += windows.total(self._missing_of(slots))
        self._pushed[slots] = -1
        self._evicted += len(slots)

    def told(self, identity: bytes) -> tuple[int | None, int | None]:
        """When an identity was last active, in seconds, and how many sequences it lacks; None: that is not kept.

        With what the open transaction has changed.
        """
        slot = self._slot(identity)
        if slot < 0:
            return None, None
        seen = int(self._seen[slot]) if self._timed else None
        lacks = int(self._missing_of(np.array([slot]))[0]) if self.kept.dense and self._pushed[slot] >= 0 else None
        return seen, lacks

    def put_back(self, to: Mapping[bytes, int]) -> None:
        """Lower last sequences as part of the open transaction, which has not moved any of these identities.

        to: of identities that have a persisted sequence, their last sequence from now on; -1: they are forgotten
        """
        slots = self.slots_of(list(to))
        self._change(slots)
        if self.kept.dense:
            self._evicted_missing += windows.total(self._missing_of(slots))
        for slot, last in zip(slots.tolist(), to.values(), strict=True):
            windows.put_back(self._extras, slot, self._pushed[slot], last)
        self._pushed[slots] = np.array(list(to.values()), np.int64)
        self._evicted += sum(last < 0 for last in to.values())

    def _missing_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        found = Extras.of(Kept(dense=True), len(slots))
        found.firsts[:], found.counts[:] = self._extras.firsts[slots], self._extras.counts[slots]
        return windows.missing_of(found, self._pushed[slots])

    def _change(self, slots: NDArray[np.int64]) -> None:
        begin, end = self.changes, self.changes + len(slots)
        self._reserve_changes(len(slots))
        if self.kept != PLAIN:
            self._before.put(np.arange(begin, end), self._extras, slots)
        self._slots[begin:end] = slots
        self._undo[begin:end] = self._pushed[slots]
        self._changed[slots] = np.arange(begin + 1, end + 1)
        self._sizes[kernels.CHANGED] = end

    @property
    def is_wasteful(self) -> bool:
        """Whether many slots are without a sequence. Only between transactions."""
        used = int(self._sizes[kernels.USED])
        return used - len(self) > max(WASTE_LEAST, used * WASTE)

    def pack(self) -> None:
        """Give up the slots without a sequence. Only between transactions, and where all is saved."""
        kept = np.flatnonzero((self._hashes != 0) & (self._pushed >= 0))
        old = self._hashes, self._starts, self._lengths, self._pushed, self._seen, self._arena
        extras, moved = self._extras, np.empty(len(kept), np.int64)
        size = int(self._lengths[kept].sum())
        self._allocate(max(FIRST_SLOTS, 1 << (len(kept) * 3 // 2).bit_length()))
        self._arena = np.empty(max(FIRST_ARENA, size), np.uint8)
        new = self._hashes, self._starts, self._lengths, self._pushed, self._seen, self._arena
        aging.keep(kept, *old, *new, self._sizes, moved)
        self._extras.put(moved, extras, kept)

    def changed_entries(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Key and value, as in the changelog, of every identity that the open transaction has changed."""
        return self._entries(self._slots[: self.changes], timed=False)

    def unsaved_entries(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Key and value of each identity persisted since `saved`, None if evicted. Only between transactions."""
        return _pairs(self.unsaved_columns())

    def unsaved_columns(self) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
        """`unsaved_entries`, with keys and values apart: by a list they cost less than half as much.

        In order, by eight bytes behind those that all of them begin with: RocksDB takes what is in order five times as
        fast.
        """
        slots = np.flatnonzero(self._unsaved)
        first, second = np.empty(len(slots), np.uint64), np.empty(len(slots), np.uint64)
        entries.beginnings(self._starts, self._lengths, self._arena, slots, first, second)
        return self._columns(slots[np.argsort(_telling(first, second))], timed=self._timed)

    def uncommitted(self, most: int) -> dict[bytes, bool] | None:
        """Identities that are pushed, or persisted since `saved`, and whether they have a sequence or were evicted.

        None where they are more than so many.
        """
        # A look at one flag of each slot, a tenth of a nanosecond, and at no name.
        unsaved, changed = self._unsaved.view(np.bool_), self._slots[: self.changes]
        if int(np.count_nonzero(unsaved)) > most or len(changed) > most:
            return None
        slots = np.union1d(np.flatnonzero(unsaved), changed)
        if len(slots) > most:
            return None
        return {key[1:]: value is not None for key, value in self._entries(slots, timed=False)}

    def saved(self) -> None:
        """What is persisted is in the store on disk."""
        self._unsaved[:] = 0

    def _entries(self, slots: NDArray[np.int64], *, timed: bool) -> Iterator[tuple[bytes, bytes | None]]:
        return _pairs(self._columns(slots, timed=timed))

    def _columns(self, slots: NDArray[np.int64], *, timed: bool) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
        for begin in range(0, len(slots), AT_A_TIME):
            some = slots[begin : begin + AT_A_TIME]
            room, ends = np.empty(int(self._lengths[some].sum()) + len(some), np.uint8), np.empty(len(some), np.int64)
            entries.write_keys(self._starts, self._lengths, self._arena, some, room, ends)
            values = self._values(some, timed=timed)
            for i in np.flatnonzero(self._pushed[some] < 0).tolist():
                values[i] = None
            yield _cut(room, ends), values

    def _values(self, slots: NDArray[np.int64], *, timed: bool) -> list[bytes | None]:
        if self.kept != PLAIN:
            room = np.empty(len(slots) * entries.longest_value(self.kept), np.uint8)
            seen, ends = self._seen if timed else np.empty(0, np.uint32), np.empty(len(slots), np.int64)
            entries.write_values(slots, self._pushed, seen, self._extras, room, ends)
            return [*_cut(room, ends)]
        if timed:
            both = np.empty(len(slots), TIMED)
            both["sequence"], both["seen"] = self._pushed[slots], self._seen[slots]
            return cast(list[bytes | None], both.view(f"V{TIMED.itemsize}").tolist())
        return cast(list[bytes | None], self._pushed[slots].astype(">i8").view("V8").tolist())

    def encode_changes(self, head: tuple[bytes, bytes] | None, limit: int, begin: int = 0) -> list[EncodedBatch]:
        """The changelog of the open transaction: an entry about the partition, then each changed identity.

        Args:
            head: key and value of the first entry; None where there is none
            limit: bytes, max.message.bytes of the changelog topic
            begin: of the changes, in their order; those before it are left out
        """
        limit = min(limit, BATCH_WRITTEN)
        slots = self._slots[begin : self.changes]
        room = records.HEADER_SIZE + sum(map(len, head or ())) + ENTRY_OVERHEAD
        room += int(self._lengths[slots].sum()) + len(slots) * self._entry_overhead
        batches, done, first = [], begin, [head] if head else []
        while first or done < self.changes:
            out = np.empty(max(min(room, limit), records.HEADER_SIZE + 2048), np.uint8)
            at, count = entry_batch(out, first)
            first = []
            done, at, count = entries.write_entries(
                done,
                self._starts,
                self._lengths,
                self._pushed,
                self._arena,
                self._slots,
                self._sizes,
                self._extras,
                out,
                at,
                count,
                limit,
            )
            batches.append(EncodedBatch.finish(out[:at], count))
        return batches

    @property
    def _entry_overhead(self) -> int:
        return ENTRY_OVERHEAD if self.kept == PLAIN else ENTRY_OVERHEAD + entries.longest_value(self.kept)

    def _reserve(self, identities: int, identity_bytes: int) -> None:
        """Make room, so that the kernels never have to. At most two thirds of the slots are used."""
        if (self._sizes[kernels.USED] + identities) * 3 > len(self._hashes) * 2:
            self.grow(1 << int((self._sizes[kernels.USED] + identities) * 3 // 2).bit_length())
        self._reserve_changes(identities)
        if self._sizes[kernels.ARENA] + identity_bytes > len(self._arena):
            self._arena = _longer(self._arena, max(identity_bytes, len(self._arena) // 2))

    def _reserve_changes(self, identities: int) -> None:
        if self._sizes[kernels.CHANGED] + identities > len(self._slots):
            more = max(identities, len(self._slots))
            self._slots, self._undo = _longer(self._slots, more), _longer(self._undo, more)
            longer = Extras.of(self.kept, len(self._slots))
            rows = np.arange(self.changes)
            longer.put(rows, self._before, rows)
            self._before = longer

    def grow(self, slots: int) -> None:
        """Move into so many slots, a power of two and more than are used."""
        old, extras = self._per_slot, self._extras
        moved = np.full(len(self._hashes) if self.kept != PLAIN else 0, -1, np.int64)
        self._allocate(slots)
        kernels.rehash(*old, self._slots, *self._per_slot, moved)
        used = np.flatnonzero(moved >= 0)
        self._extras.put(moved[used], extras, used)
        if self._timed:
            self._touched[: self._sizes[kernels.TOUCHED]] = np.flatnonzero(self._active)


def _pairs(columns: Iterable[tuple[list[bytes], list[bytes | None]]]) -> Iterator[tuple[bytes, bytes | None]]:
    return chain.from_iterable(zip(keys, values, strict=True) for keys, values in columns)


def _cut(room: NDArray[np.uint8], ends: NDArray[np.int64]) -> list[bytes]:
    """What lies in room one behind the other. ends: int64[n], the position after each."""
    at, data = ends.tolist(), room[: ends[-1]].tobytes()
    return [data[begin:end] for begin, end in zip([0, *at[:-1]], at, strict=True)]


def _telling(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Of 16 bytes each, as two numbers that sort as they do, eight from the first on in which they differ."""
    if not len(first):
        return first
    alike = 64 - int(first.min() ^ first.max()).bit_length() & ~7
    if alike == 0:
        return first
    return second if alike == 64 else first << np.uint64(alike) | second >> np.uint64(64 - alike)


def _longer(array: NDArray[Number], more: int) -> NDArray[Number]:
    return np.concatenate([array, np.empty(more, array.dtype)])
