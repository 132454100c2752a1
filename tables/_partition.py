"""The last sequences of one input partition: the map in memory, the store on disk, the changelog between them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from errors import StateError, StoreDamaged
from tables import _kernels as kernels
from tables._map import COLUMN, LastSequence, LastSequences
from tables._sequences import Reader
from tables._spec import MAX_IDENTITY_BYTES, Identity
from tables._store import PROGRESS, Progress, Store
from tables._stretches import Stretches
from tables._tally import MOST_MOVED, Tally
from transport import EncodedBatch, RecordBatch, crash_point, pack_entries

log = structlog.get_logger(__name__)

_BY: Final = {
    Identity.PARTITION: kernels.BY_PARTITION,
    Identity.KEY: kernels.BY_KEY,
    Identity.PRODUCER: kernels.BY_PRODUCER,
}
SNAPSHOT_EVERY_S: Final = 1.0
"""How far the store on disk may lag behind the last commit. After a crash so much of the changelog is replayed: a
second's worth takes a fraction of one. Writing it at every commit cost a third of the worker's CPU
(docs/decisions/0004-snapshots.md)."""
SNAPSHOT_TAKES_S: Final = 0.02
SNAPSHOT_LATER: Final = 30.0
"""A snapshot that takes longer than `SNAPSHOT_TAKES_S` is due again that much later, up to so many times: where a
million keys change every second, writing them would cost more than judging them. Nothing else runs meanwhile."""
LOAD_ENTRIES: Final = 10_000
"""Entries taken from the store into the map at a time; about 15 ms."""
LOAD_AT_ONCE: Final = 50_000
"""Identities that are all taken before the partition is at work. Where there are more, they follow while it is, some
after each commit, and what a batch needs before that is looked up."""
NAMES_AT_ONCE: Final = 20_000
"""Identities not yet in the store that are looked through for a list, in some 10 ms. Where more came since the last
snapshot, a list is without them until the next one."""
RESIDENT_BYTES: Final = 100
"""What an identity may take in the map: at worst three slots of 33 bytes. Its own bytes come on top."""


class SequencePartition:
    """What a lane's transaction moves: satisfies `transport.PartitionState`.

    Two views of every sequence (PIP-6): *pushed*, what the open transaction has judged, and *persisted*, what is
    committed.

    The map holds what fits in `room`. When it has outgrown that, everything is saved and the map begun anew; from then
    on an identity without a slot is looked up in the store before it is judged.
    """

    def __init__(
        self,
        path: Path,
        changelog: str,
        partition: int,
        identity: Identity,
        limit: int,
        room: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        """Nothing is read yet.

        Args:
            path: folder of the store
            changelog: topic
            partition: number of the input and changelog partition
            identity: whose sequences these are
            limit: bytes, max.message.bytes of the changelog
            room: bytes that the map may take, asked after each commit
        """
        self.path, self.changelog, self.partition = path, changelog, partition
        self.identity, self.limit, self.room = identity, limit, room
        self.position = 0
        self.progress: Progress | None = None
        self.stretches = Stretches()
        self.tally: Tally | None = None
        """Who was active since the store was opened; None where that is not by producer."""
        self._map = LastSequences()
        self._beyond = 0
        """Identities that are in the store and not in the map."""
        self._store: Store | None = None
        self._rest: Generator[tuple[bytes, bytes], None, None] | None = None
        """Entries that are still to be taken into the map, as they were when the store was opened."""
        self._judged = np.zeros(3, np.int64)
        self._pending = Progress(0, 0, 0, 0)
        self._stored = 0
        """Changelog offset below which the store has everything; `position` is that of the map."""
        self._saved_at, self._later = 0.0, 1.0

    @property
    def input_position(self) -> int | None:
        """Next input offset as of `position`; None where nothing was ever committed."""
        return self.progress.next if self.progress else None

    @property
    def policy_position(self) -> int:
        """Next offset of the policy topic as of `position`."""
        last = self.stretches.last
        return last.policy if last else 0

    @property
    def is_open(self) -> bool:
        """Whether its store is loaded."""
        return self._store is not None

    def __len__(self) -> int:
        """Identities with a persisted sequence."""
        return len(self._map) + self._beyond

    def open(self) -> None:
        """Load the store, unless it is open already. One that is damaged is removed and begun anew.

        Raises:
            StateError: it cannot be used.
        """
        if self._store is not None:
            return
        try:
            store, loaded, beyond, position, progress, stretches = self._read()
        except StoreDamaged as error:
            log.error(
                "the local store is damaged; it is removed, and rebuilt from the changelog",
                changelog=self.changelog,
                partition=self.partition,
                reason=str(error),
            )
            Store.remove(self.path)  # nobody else has it: the worker holds a lock on the whole state folder
            store, loaded, beyond, position, progress, stretches = self._read()
        # Only now: this runs in a thread of its own, and the map may be looked at meanwhile.
        self.stretches = stretches
        self._map, self._beyond, self.position, self.progress, self._store = loaded, beyond, position, progress, store
        self._stored, self._saved_at, self._later = position, time.monotonic(), 1.0
        self.tally = Tally(COLUMN[kernels.BY_PRODUCER]) if self.identity is Identity.PRODUCER else None
        if beyond and beyond * RESIDENT_BYTES <= self.room():
            self._rest = store.entries()

    def _read(self) -> tuple[Store, LastSequences, int, int, Progress | None, Stretches]:
        store = Store(self.path)
        try:
            position, identities = store.stands_for
            stretches = Stretches(store.stretches())
            if identities > LOAD_AT_ONCE or identities * RESIDENT_BYTES > self.room():
                return store, LastSequences(), identities, position, store.progress, stretches
            return store, self._loaded(store), 0, position, store.progress, stretches
        except BaseException:
            store.close()
            raise

    def _loaded(self, store: Store) -> LastSequences:
        loaded = LastSequences()
        with closing(store.entries()) as entries:
            while pairs := list(islice(entries, LOAD_ENTRIES)):
                self._take(loaded, pairs)
        return loaded

    def judge(self, batch: RecordBatch, read: Reader) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Judge a batch against what is pushed, and push what is fresh.

        Returns:
            (verdicts uint8[batch.count] of FRESH, DUPLICATE, INVALID; reasons uint8[batch.count], 0 unless invalid)
        """
        if self._beyond:
            self._look_up(self._map.absent(batch, _BY[self.identity], MAX_IDENTITY_BYTES))
        sequences, reasons = read(batch)
        verdicts = self._map.judge(batch, _BY[self.identity], MAX_IDENTITY_BYTES, sequences, reasons)
        self._judged += np.bincount(verdicts, minlength=3)
        if self.tally is not None:
            self.tally.add(batch, verdicts)
        return verdicts, reasons

    def _look_up(self, identities: list[bytes]) -> None:
        """Take into the map what the store has of these."""
        try:
            found = self._opened().find(identities)
            if found:
                self._take(self._map, found)
        except StoreDamaged:
            self._discard()
            raise
        self._beyond -= len(found)

    def _take(self, into: LastSequences, entries: list[tuple[bytes, bytes]]) -> None:
        damaged, _ = into.load(pack_entries(self.changelog, self.partition, entries), saved=True)
        if damaged >= 0:
            raise StoreDamaged(f"{self.path}: key {entries[damaged][0].hex()} is not an entry that Ratchet wrote")

    def last(self, identity: bytes) -> LastSequence:
        """Last sequence of an identity; -1 is none. Changes nothing: it may be asked while another thread opens."""
        if self._beyond and self._store is not None and not self._map.holds(identity):
            for _, value in self._store.find([identity]):
                sequence = int.from_bytes(value, "big")
                return LastSequence(sequence, sequence)
        return self._map.get(identity)

    def page(self, after: bytes | None, limit: int) -> tuple[list[bytes], bool]:
        """Identities behind `after` in the order of their bytes (None: from the first), pushed ones included.

        Returns:
            (at most limit of them; whether none can be missing, see `NAMES_AT_ONCE`)

        Raises:
            StateError: the store is not open.
            StoreDamaged: a file is not what was written.
        """
        with closing(self._opened().entries(after)) as entries:
            found = {key[1:] for key, _ in islice(entries, limit)}
        recent = self._map.unsettled(NAMES_AT_ONCE)
        found.update(name for name in recent or () if after is None or name > after)
        return sorted(found)[:limit], recent is not None

    def changes(self, next_offset: int) -> list[EncodedBatch]:
        """The open transaction's changelog entries: progress and every identity it has moved."""
        fresh, duplicate, invalid = (int(n) for n in self._judged)
        before = self.progress or Progress(0, 0, 0, 0)
        self._pending = Progress(
            next_offset, before.fresh + fresh, before.duplicate + duplicate, before.invalid + invalid
        )
        return [*self._map.encode_changes((PROGRESS, self._pending.pack()), self.limit), *self.stretches.encode()]

    def committed(self, changelog_next: int) -> None:
        """Step 6: pushed becomes persisted; once in a while, before anything else is judged, it is saved."""
        if self.tally is not None:
            moved = self._map.changed_entries() if self._map.changes <= MOST_MOVED else ()
            self.tally.settle(key[1:] for key, _ in moved)
        self._map.settle()
        self.stretches.settle()
        self.position, self.progress = changelog_next, self._pending
        self._judged[:] = 0
        self._save_in_time()
        self._take_rest()

    def at_rest(self) -> None:
        """Nothing to judge: what was put off is done now, so that a crash in the next hour finds little to replay."""
        if self._judged.any():
            return  # a transaction is open: what it has moved is not to be saved
        if self.position > self._stored and time.monotonic() >= self._saved_at + SNAPSHOT_EVERY_S:
            self._save()
        self._opened().flush_much()
        self._take_rest()

    def _take_rest(self) -> None:
        """Take some more of the store's entries into the map; those that it has are newer."""
        if self._rest is None:
            return
        try:
            if entries := list(islice(self._rest, LOAD_ENTRIES)):
                absent = set(self._map.absent_entries(pack_entries(self.changelog, self.partition, entries)))
                if missing := [entry for entry in entries if entry[0][1:] in absent]:
                    self._take(self._map, missing)
                    self._beyond -= len(missing)
                return
        except StoreDamaged:
            self._discard()
            raise
        self._rest = None

    def _discard(self) -> None:
        """Remove a damaged store; the next `open` begins anew."""
        self._release()
        Store.remove(self.path)

    def _save_in_time(self) -> None:
        outgrown = self._map.outgrows(self.room())
        if outgrown or time.monotonic() >= self._saved_at + SNAPSHOT_EVERY_S * self._later:
            self._save()
        if outgrown:  # everything in it is in the store now
            self._beyond += len(self._map)
            self._map = LastSequences()
            self._forget_rest()

    def _save(self) -> None:
        """What was persisted since the last snapshot, and the changelog position it stands for, in one WriteBatch."""
        began = time.monotonic()
        if self.position > self._stored:
            progress = [(PROGRESS, self.progress.pack())] if self.progress else []
            try:
                entries = chain(self._map.unsaved_entries(), self.stretches.unsaved_entries(), progress)
                self._opened().write(entries, self.position, len(self))
            except StateError:
                self._release()  # the next `open` is a fresh start
                raise
            self._map.saved()
            self.stretches.saved()
            self._stored = self.position
            crash_point("saved")
        self._saved_at = time.monotonic()
        self._later = min(max(1.0, (self._saved_at - began) / SNAPSHOT_TAKES_S), SNAPSHOT_LATER)

    def rollback(self) -> None:
        """Pushed falls back to persisted, for every identity."""
        self._map.roll_back()
        self.stretches.roll_back()
        if self.tally is not None:
            self.tally.roll_back()
        self._judged[:] = 0

    def apply(self, batch: RecordBatch) -> None:
        """Committed changelog entries, on recovery.

        Raises:
            StateError: an entry that Ratchet did not write.
        """
        self._opened()
        batch = self.stretches.apply(batch)
        if self._beyond:
            self._look_up(self._map.absent_entries(batch))  # for the count: which of them are new
        damaged, progress = self._map.load(batch, saved=False)
        if damaged >= 0:
            raise StateError(
                f"{self._where(batch, damaged)}: not an entry that Ratchet wrote. "
                "Is another program writing to this topic?"
            )
        if progress >= 0:
            try:
                self.progress = Progress.unpack(batch.value(progress) or b"")
            except StateError as error:
                raise StateError(f"{self._where(batch, progress)}: {error}") from None
        self.position = batch.next
        self._save_in_time()

    def _where(self, batch: RecordBatch, index: int) -> str:
        return f"{self.changelog}, partition {self.partition}, offset {int(batch.offsets[index])}"

    def _opened(self) -> Store:
        if self._store is None:
            raise StateError(f"{self.path}: the store is not open")
        return self._store

    def close(self) -> None:
        """Save what is persisted and release the store; `open` loads it again. What is pushed is rolled back first."""
        if self._store is not None:
            self.rollback()
            try:
                self._save()
            except StateError as error:
                log.warning("closed without a last snapshot; the changelog has the rest", reason=str(error))
        self._release()

    def _forget_rest(self) -> None:
        if self._rest is not None:
            self._rest.close()
            self._rest = None

    def _release(self) -> None:
        self._forget_rest()  # it holds on to the store
        if self._store is not None:
            self._store.close()
            self._store = None
