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

from kafka_ratchet.errors import StateError, StoreDamaged
from kafka_ratchet.tables import forgetting
from kafka_ratchet.tables.activity import MOST_MOVED, Tally
from kafka_ratchet.tables.eviction import NULLS_LAST_S, Bounds, Eviction
from kafka_ratchet.tables.identity import MAX_IDENTITY_BYTES, Identity
from kafka_ratchet.tables.invalid_share import RecentShare
from kafka_ratchet.tables.jumps import JumpReport
from kafka_ratchet.tables.map import kernels
from kafka_ratchet.tables.map.map import COLUMN, LastSequence, LastSequences
from kafka_ratchet.tables.ownership import Ownership
from kafka_ratchet.tables.policy_intervals import PolicyInterval, PolicyIntervals
from kafka_ratchet.tables.rocksdb import EVICTED, PROGRESS, Evicted, Progress, Store
from kafka_ratchet.transport.batch.encoding import EncodedBatch, encode_entries, pack_entries
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.changelog import Sighting
from kafka_ratchet.transport.client.topic_id import NO_EPOCH
from kafka_ratchet.transport.owner import Owner
from kafka_ratchet.transport.transactions.crash_points import crash_point

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


class _WithoutTimes(Exception):
    """A store that was written while the stream had no bounds."""


class SequencePartition:
    """What a lane's transaction moves: satisfies `kafka_ratchet.transport.partition_state.PartitionState`.

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
        bounds: Bounds | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            path: folder of the store
            changelog: topic
            partition: number of the input and changelog partition
            identity: whose sequences these are
            limit: bytes, max.message.bytes of the changelog
            room: bytes that the map may take, asked after each commit
            bounds: beyond which identities are evicted
        """
        self.path, self.changelog, self.partition = path, changelog, partition
        self.identity, self.limit, self.room = identity, limit, room
        self.log = log.bind(changelog=changelog, partition=partition)
        self.position = 0
        self.progress: Progress | None = None
        self.evicted = Evicted()
        self.intervals = PolicyIntervals()
        self.jumps = JumpReport()
        self.recent = RecentShare()
        self.ownership = Ownership()
        self.tally: Tally | None = None
        """Who was active since the store was opened; None where that is not by producer."""
        self._eviction = Eviction(bounds, changelog=changelog, partition=partition) if bounds else None
        self._map = self._empty_map()
        self._time, self._restoring_from = 0, 0
        """Broker time of the newest entry applied, in seconds; and of the newest one before the replay."""
        self._beyond = 0
        """Identities that are in the store and not in the map."""
        self._store: Store | None = None
        self._rest: Generator[tuple[bytes, bytes], None, None] | None = None
        """Entries that are still to be taken into the map, as they were when the store was opened."""
        self._judged = np.zeros(3, np.int64)
        self._pending, self._pending_evicted = Progress(0, 0, 0, 0), Evicted()
        self._stored = 0
        """Changelog offset below which the store has everything; `position` is that of the map."""
        self._stored_sighting: Sighting | None = None
        self._is_earlier = False
        """Whether a replay goes on from what was here before it began."""
        self._forgets = False
        """Whether the identities in the store are to go with the next snapshot."""
        self._saved_at, self._later = 0.0, 1.0

    @property
    def input_position(self) -> int | None:
        """Next input offset as of `position`; None where nothing was ever committed."""
        return self.progress.next if self.progress else None

    @property
    def progress_epoch(self) -> int:
        """Leader epoch of the input batch that ends before `input_position`; NO_EPOCH where it is not known."""
        return self.progress.epoch if self.progress else NO_EPOCH

    @property
    def policy_position(self) -> int:
        """Next offset of the policy topic as of `position`."""
        last = self.intervals.last
        return last.policy if last else 0

    @property
    def owner(self) -> Owner | None:
        """Whose changelog it is, as of `position`; None where no entry has said so yet."""
        return self.ownership.owner

    @property
    def sighting(self) -> Sighting | None:
        """The last place in the changelog whose leader epoch is known."""
        return self.ownership.sighting

    def sighted(self, sighting: Sighting) -> None:
        """The leader epoch behind the last commit was looked at; the next snapshot keeps it, also without a commit."""
        self.ownership.sighting = sighting

    @property
    def is_open(self) -> bool:
        """Whether its store is loaded."""
        return self._store is not None

    @property
    def is_bounded(self) -> bool:
        """Whether `evictions` belong to each transaction."""
        return self._eviction is not None

    def __len__(self) -> int:
        """Identities with a persisted sequence."""
        return len(self._map) + self._beyond

    def _empty_map(self) -> LastSequences:
        return LastSequences(timed=self.is_bounded)

    def open(self) -> None:
        """Load the store, unless it is open already. One that is damaged is removed and begun anew.

        Raises:
            StateError: it cannot be used.
        """
        if self._store is not None:
            return
        found = None
        try:
            found = self._read()
        except StoreDamaged as error:
            self.log.error(
                "the local store is damaged; it is removed, and rebuilt from the changelog", reason=str(error)
            )
        except _WithoutTimes:
            self.log.info(
                "the local store does not know when its identities were active; it is rebuilt from the changelog"
            )
        if found is None:
            Store.remove(self.path)  # nobody else has it: the worker holds a lock on the whole state folder
            found = self._read()
        # Only now: this runs in a thread of its own, and the map may be looked at meanwhile.
        store, self._map, self._beyond, position, self.progress, self.evicted, self.intervals, self._time = found
        self.ownership = Ownership(store.owner, store.sighting)
        self._stored_sighting = store.sighting
        self.position, self._store, self._forgets = position, store, False
        self._stored, self._saved_at, self._later = position, time.monotonic(), 1.0
        self.tally = Tally(COLUMN[kernels.BY_PRODUCER]) if self.identity is Identity.PRODUCER else None
        if self._beyond and self._beyond * RESIDENT_BYTES <= self.room():
            self._rest = store.entries()

    def _read(self) -> tuple[Store, LastSequences, int, int, Progress | None, Evicted, PolicyIntervals, int]:
        store = Store(self.path)
        try:
            position, identities, as_of = store.stands_for
            if self.is_bounded and position and as_of is None:
                raise _WithoutTimes
            _ = store.owner, store.sighting  # what cannot be read is found out here
            known = position, store.progress, store.evicted, PolicyIntervals(store.intervals()), as_of or 0
            if identities > LOAD_AT_ONCE or identities * RESIDENT_BYTES > self.room():
                return store, self._empty_map(), identities, *known
            return store, self._loaded(store), 0, *known
        except BaseException:
            store.close()
            raise

    def _loaded(self, store: Store) -> LastSequences:
        loaded = self._empty_map()
        with closing(store.entries()) as entries:
            while pairs := list(islice(entries, LOAD_ENTRIES)):
                self._take(loaded, pairs)
        return loaded

    def judge(
        self, batch: RecordBatch, sequences: NDArray[np.int64], reasons: NDArray[np.uint8]
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Judge a batch against what is pushed, and push what is fresh.

        Args:
            batch: the records
            sequences: int64[batch.count], -1 where there is none
            reasons: uint8[batch.count], NONE where the sequence is good; reasons of the identity are added here

        Returns:
            (verdicts uint8[batch.count] of FRESH, DUPLICATE, INVALID; reasons uint8[batch.count], 0 unless invalid)
        """
        if self._beyond:
            self._look_up(self._map.absent(batch, _BY[self.identity], MAX_IDENTITY_BYTES))
        verdicts = self._map.judge(batch, _BY[self.identity], MAX_IDENTITY_BYTES, sequences, reasons)
        self._judged += np.bincount(verdicts, minlength=3)
        if self._map.jumps.number:
            self.jumps.note(batch, COLUMN.get(_BY[self.identity], -1), sequences, self._map.jumps)
        if self.tally is not None:
            self.tally.add(batch, verdicts)
        return verdicts, reasons

    def _look_up(self, identities: list[bytes]) -> None:
        """Take into the map what the store has of these."""
        try:
            if found := self._opened().find(identities):
                self._take_in(found)
        except StoreDamaged:
            self._discard()
            raise

    def _take(self, into: LastSequences, entries: list[tuple[bytes, bytes]]) -> None:
        damaged, _, _ = into.load(pack_entries(self.changelog, self.partition, entries), saved=True)
        if damaged >= 0:
            raise StoreDamaged(f"{self.path}: key {entries[damaged][0].hex()} is not an entry that Ratchet wrote")

    def last(self, identity: bytes) -> LastSequence:
        """Last sequence of an identity; -1 is none. Changes nothing: it may be asked while another thread opens."""
        if self._beyond and self._store is not None and not self._map.holds(identity):
            for _, value in self._store.find([identity]):
                sequence = int.from_bytes(value[:8], "big")
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
        recent = self._map.uncommitted(NAMES_AT_ONCE)
        gone = {name for name, is_there in (recent or {}).items() if not is_there}
        with closing(self._opened().entries(b"i" if after is None else b"i" + after + b"\0")) as entries:
            found = set(islice((key[1:] for key, _ in entries if key[1:] not in gone), limit))
        found.update(name for name in recent or () if name not in gone and (after is None or name > after))
        return sorted(found)[:limit], recent is not None

    def changes(self, next_offset: int, epoch: int = NO_EPOCH) -> list[EncodedBatch]:
        """The open transaction's changelog entries: progress and every identity it has moved.

        Args:
            next_offset: of the input, to read next
            epoch: leader epoch of the input batch that ends before it
        """
        fresh, duplicate, invalid = (int(n) for n in self._judged)
        before = self.progress or Progress(0, 0, 0, 0)
        self._pending = Progress(
            next_offset, before.fresh + fresh, before.duplicate + duplicate, before.invalid + invalid, epoch
        )
        self._pending_evicted = self.evicted
        return [
            *self.ownership.encode(),
            *self._map.encode_changes((PROGRESS, self._pending.pack()), self.limit),
            *self.intervals.encode(),
        ]

    def evictions(self, at_ms: int, *, caught_up: bool) -> list[EncodedBatch]:
        """More changelog entries of the open transaction: who goes with it, and who stays for a duplicate's sake.

        Args:
            at_ms: when Kafka has appended what `changes` returned
            caught_up: whether the transaction ends where the input does. Before that, who seems to be quiet may have
                records waiting

        Raises:
            StoreDamaged: the store cannot be read, and is removed.
        """
        if self._eviction is None:
            return []
        self._time = max(self._time, at_ms // 1000)
        begin = self._map.changes
        self._map.refresh(max(0, self._time - self._eviction.bounds.refresh_s))
        known = len(self) + self._map.additions
        store = self._opened() if self._beyond else None
        try:
            gone = self._eviction.choose(self._map, store, self._take_in, known, self._time, inactive=caught_up)
        except StoreDamaged:
            self._discard()
            raise
        if self._map.changes == begin:
            return []
        self._pending_evicted = self.evicted.plus(gone)
        head = (EVICTED, self._pending_evicted.pack()) if any(gone) else None
        return self._map.encode_changes(head, self.limit, begin)

    def _take_in(self, entries: list[tuple[bytes, bytes]]) -> None:
        self._take(self._map, entries)
        self._beyond -= len(entries)

    def committed(self, changelog_next: int) -> None:
        """Step 6: pushed becomes persisted; once in a while, before anything else is judged, it is saved."""
        if self.tally is not None:
            moved = self._map.changed_entries() if self._map.changes <= MOST_MOVED else ()
            self.tally.commit(key[1:] for key, value in moved if value is not None)
        self._map.commit(self._time)
        self.intervals.commit()
        self.jumps.commit()
        self.ownership.commit()
        self.recent.note(self.progress, self._pending)
        self.position, self.progress, self.evicted = changelog_next, self._pending, self._pending_evicted
        if self._eviction is not None:
            self._eviction.committed()
        self._judged[:] = 0
        self._save_in_time()
        self._take_rest()

    def at_rest(self) -> None:
        """Nothing to judge: what was put off is done now, so that a crash in the next hour finds little to replay."""
        if self._judged.any():
            return  # a transaction is open: what it has moved is not to be saved
        if self._is_unsaved and time.monotonic() >= self._saved_at + SNAPSHOT_EVERY_S:
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
                    self._take_in(missing)
                return
        except StoreDamaged:
            self._discard()
            raise
        self._rest = None

    def _discard(self) -> None:
        """Remove a damaged store; the next `open` begins anew."""
        self._release()
        Store.remove(self.path)
        self._restoring_from = 0

    def discard(self) -> None:
        """Remove the store, which is of a previous life, and begin anew.

        Raises:
            StateError: it cannot be removed, or not be made again.
        """
        self._discard()
        self._is_earlier = False
        self.open()

    def _save_in_time(self) -> None:
        outgrown = self._map.outgrows(self.room())
        if outgrown or time.monotonic() >= self._saved_at + SNAPSHOT_EVERY_S * self._later:
            self._save()
        if outgrown:  # everything in it is in the store now
            self._beyond += len(self._map)
            self._map = self._empty_map()
            self._forget_rest()

    @property
    def _is_unsaved(self) -> bool:
        return self.position > self._stored or self.sighting != self._stored_sighting

    def _save(self) -> None:
        """What was persisted since the last snapshot, and the changelog position it stands for, in one WriteBatch."""
        began = time.monotonic()
        if self._is_unsaved:
            totals = [(PROGRESS, self.progress.pack())] if self.progress else []
            totals += [(EVICTED, self.evicted.pack())] if any(self.evicted) else []
            totals += self.ownership.unsaved_entries()
            stands_for = self.position, len(self), self._time if self.is_bounded else None, self.sighting
            try:
                entries = chain(self._map.unsaved_entries(), self.intervals.unsaved_entries(), totals)
                self._opened().write(entries, *stands_for, forget=self._forgets)
            except StateError:
                self._release()  # the next `open` is a fresh start
                raise
            self._forgets = False
            self._map.saved()
            self.intervals.saved()
            self.ownership.saved()
            self._stored, self._stored_sighting = self.position, self.sighting
            crash_point("saved")
            if self._map.is_wasteful and self._rest is None:  # `_rest` would bring back whom it has not heard is gone
                self._map.pack()
        self._saved_at = time.monotonic()
        self._later = min(max(1.0, (self._saved_at - began) / SNAPSHOT_TAKES_S), SNAPSHOT_LATER)

    def rollback(self) -> None:
        """Pushed falls back to persisted, for every identity."""
        self._map.rollback()
        self.intervals.rollback()
        self.jumps.rollback()
        if self.tally is not None:
            self.tally.rollback()
        self._judged[:] = 0
        if self._eviction is not None:
            self._eviction.rollback()

    def apply(self, batch: RecordBatch) -> None:
        """Committed changelog entries, on recovery. None are taken where the store is begun anew: see `position` then.

        Where there is a decision of a person that the store does not know of, it is of before that, whatever its
        position says.

        Raises:
            StateError: an entry that Ratchet did not write.
        """
        self._opened()
        if self._is_earlier and self.ownership.is_decided_in(batch):
            self.log.warning("a person has decided since the local store was written; it is rebuilt from the changelog")
            self.discard()
            return
        batch = self.intervals.apply(self.ownership.apply(batch))
        if (remaining := forgetting.remaining(batch)) is not None:
            self._forget_rest()
            self._map, self._beyond, self._forgets = self._empty_map(), 0, True
            batch = remaining
        if self._beyond:
            self._look_up(self._map.absent_entries(batch))  # for the count: which of them are new
        damaged, progress, evicted = self._map.load(batch, saved=False, since=self._time)
        if damaged >= 0:
            raise StateError(
                f"{self._where(batch, damaged)}: not an entry that Ratchet wrote. "
                "Is another program writing to this topic?"
            )
        totals = self.progress, self.evicted
        at = progress
        try:
            if progress >= 0:
                totals = Progress.unpack(batch.value(progress) or b""), totals[1]
            if (at := evicted) >= 0:
                totals = totals[0], Evicted.unpack(batch.value(evicted) or b"")
        except StateError as error:
            raise StateError(f"{self._where(batch, at)}: {error}") from None
        self.progress, self.evicted = totals
        if self.is_bounded and batch.count:
            self._time = max(self._time, int(batch.timestamps[-1]) // 1000)
        self.position = batch.next
        if self._forgets:
            self._save()
        else:
            self._save_in_time()

    def restoring(self) -> None:
        """The changelog is about to be replayed to its end."""
        self._is_earlier = self.position > 0
        if not self._restoring_from:  # else the last one was cut short, and this goes on with it
            self._restoring_from = self._time if self.position else 0

    def restored(self) -> bool:
        """It was. False: the state was too old for that to be enough, and is begun anew.

        Who was evicted in between may be missing from the changelog already, and would be known here for ever.
        """
        self._is_earlier = False
        behind, self._restoring_from = self._time - self._restoring_from if self._restoring_from else 0, 0
        if not self.is_bounded or behind <= NULLS_LAST_S:
            return True
        self.log.warning(
            "the local store is older than Kafka keeps word of who was evicted; it is rebuilt from the changelog",
            behind_s=behind,
        )
        self.discard()
        return False

    def moved(self, owner: Owner, position: int, *, forget: bool) -> list[EncodedBatch]:
        """Changelog entries of a person's decision, see `ratchet resume`. Nothing here changes.

        Args:
            owner: with the decision in it
            position: of the input, to read next
            forget: with an entry by which every identity before it is forgotten
        """
        before = self.progress or Progress(0, 0, 0, 0)
        entries: list[tuple[bytes, bytes | None]] = [(PROGRESS, before._replace(next=position, epoch=NO_EPOCH).pack())]
        if (last := self.intervals.last) is not None:
            # Positions of a policy topic that is gone mean nothing: the next policy is taken as it is then.
            entries.append(PolicyInterval(last.number + 1, True, position, position, 0, 0).pack())
        if forget:
            entries.append(forgetting.ENTRY)
        entries.append(owner.pack())  # the last: whoever knows the decision has seen all of it
        return encode_entries(entries, self.limit)

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
            if self._eviction is not None:
                self._eviction.tell()
            try:
                self._save()
            except StateError as error:
                self.log.warning("closed without a last snapshot; the changelog has the rest", reason=str(error))
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
