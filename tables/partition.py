"""The last sequences of one input partition: the map in memory, the store on disk, the changelog between them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from kafka_ratchet.errors import StateError, StoreDamaged
from kafka_ratchet.tables import forgetting
from kafka_ratchet.tables.activity import MOST_MOVED, Tally
from kafka_ratchet.tables.edits import Edits, edits_of
from kafka_ratchet.tables.eviction import Bounds, Eviction
from kafka_ratchet.tables.identities import Identities, in_columns
from kafka_ratchet.tables.identity import MAX_IDENTITY_BYTES, Identity
from kafka_ratchet.tables.invalid_share import RecentShare
from kafka_ratchet.tables.jumps import JumpReport
from kafka_ratchet.tables.known import KnownIdentities
from kafka_ratchet.tables.map import kernels
from kafka_ratchet.tables.map.map import UNASKED, LastSequence
from kafka_ratchet.tables.map.windows import PLAIN, Kept
from kafka_ratchet.tables.ownership import Ownership
from kafka_ratchet.tables.policy_intervals import PolicyIntervals
from kafka_ratchet.tables.recovery import Replay, is_too_old, place_of, read_totals
from kafka_ratchet.tables.replays import LETTER, Replays
from kafka_ratchet.tables.snapshots import SnapshotTimer, read_store
from kafka_ratchet.tables.totals import EVICTED, PROGRESS, Evicted, Progress
from kafka_ratchet.tables.values.committed import CommittedTable
from kafka_ratchet.tables.values.partition import ENTRY_BYTES, PartitionTables
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.encoding import EncodedBatch, encode_entries
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.changelog import Sighting
from kafka_ratchet.transport.client.topic_id import NO_EPOCH
from kafka_ratchet.transport.owner import Owner
from kafka_ratchet.transport.policy import Forget
from kafka_ratchet.transport.transactions.crash_points import crash_point

log = structlog.get_logger(__name__)

VERDICTS: Final = kernels.CONFLICT + 1
"""How many there are."""


class SequencePartition:
    """What a lane's transaction moves: satisfies `kafka_ratchet.transport.partition_state.PartitionState`.

    Two views of every sequence (PIP-6): *pushed*, what the open transaction has judged, and *persisted*, what is
    committed.
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
        clock: Callable[[], float] = time.monotonic,
        kept: Kept = PLAIN,
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
            clock: seconds that only rise; by it snapshots are taken and lines of the log are spared
            kept: of each identity, beside its last sequence
        """
        self.path, self.changelog, self.partition = path, changelog, partition
        self.identity, self.limit = identity, limit
        self.log = log.bind(changelog=changelog, partition=partition)
        self.position = 0
        self.progress: Progress | None = None
        self.evicted = Evicted()
        self.intervals = PolicyIntervals()
        self.edits = Edits()
        """What people have changed."""
        self.jumps = JumpReport(clock)
        self.recent = RecentShare(clock)
        self.ownership = Ownership()
        self.tables = PartitionTables(self._find, self._scan, (changelog, partition))
        """Tables of one's own, which the same transactions move."""
        self.tally: Tally | None = None
        """Who was active since the store was opened; None where that is not by producer."""
        self._eviction = Eviction(bounds, clock, changelog=changelog, partition=partition) if bounds else None
        self.known = KnownIdentities(path, (changelog, partition), timed=bounds is not None, room=room, kept=kept)
        self._time = 0
        """Broker time of the newest entry applied, in seconds."""
        self._replay = Replay()
        self._judged = np.zeros(VERDICTS, np.int64)
        self.counted = np.zeros(VERDICTS + 1, np.int64)
        """Records committed here since this worker began, by verdict, and those forwarded unjudged; it only rises. What
        other workers have committed is not in it."""
        self._pending, self._pending_evicted = Progress(0, 0, 0, 0), Evicted()
        self._stored = 0
        """Changelog offset below which the store has everything; `position` is that of the map."""
        self._stored_sighting: Sighting | None = None
        self._forgets = False
        """Whether the identities in the store are to go with the next snapshot."""
        self._timer = SnapshotTimer(clock)

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
        return self.known.store is not None

    @property
    def is_made(self) -> bool:
        """Whether its store has files; without, the first commit that is saved makes them."""
        return self.known.opened().is_made

    def make(self) -> None:
        """Make them now, for which a thread may be used.

        Raises:
            StateError: they cannot be made.
        """
        self.known.opened().make()

    @property
    def is_bounded(self) -> bool:
        """Whether `evictions` belong to each transaction."""
        return self._eviction is not None

    @property
    def recognised_for_s(self) -> int | None:
        """Seconds after its last record for which each identity was recognised here, at least.

        None: identities are kept for ever; or have been, so far; or some were displaced while others had the partition.
        """
        return self._eviction.recognised_for_s(self.evicted.displaced) if self._eviction else None

    @property
    def _is_timed(self) -> bool:
        """Whether the store has to know how old it is: Kafka keeps nulls for a time only."""
        return self.is_bounded or self.tables.is_used

    def __len__(self) -> int:
        """Identities with a persisted sequence."""
        return len(self.known)

    @property
    def store_bytes(self) -> int | None:
        """What the local store has written to files and is about to; None: it is not open, or does not say."""
        return self.known.store.bytes if self.known.store is not None else None

    @property
    def missing(self) -> int | None:
        """Sequences that identities have not had, as of `position`; None where nobody counts."""
        return self.known.map.missing if self.known.kept.dense else None

    def open(self) -> None:
        """Load the store, unless it is open already. One that is damaged is removed and begun anew.

        Raises:
            StateError: it cannot be used.
        """
        if self.is_open:
            return
        found = read_store(self.path, self.known, timed=self._is_timed, log=self.log)
        self.tables.closed()
        # Only now: this runs in a thread of its own, and the map may be looked at meanwhile.
        self.position, self.progress, self.evicted = found.position, found.progress, found.evicted
        self.intervals, self.edits, self._time = found.intervals, found.edits, found.seconds
        self.ownership = Ownership(found.store.owner, found.store.sighting)
        self._stored, self._stored_sighting, self._forgets = self.position, found.store.sighting, False
        if not self.position:
            self._replay.reset()
        self.tally = Tally(records.SECOND) if self.identity == Identity.PRODUCER else None
        self._timer.restart()
        self.known.open(found.store, found.map, found.beyond)

    def judge(
        self,
        batch: RecordBatch,
        sequences: NDArray[np.int64],
        reasons: NDArray[np.uint8],
        against: NDArray[np.int64] = UNASKED,
        identities: Identities | None = None,
        letters: bytes = b"",
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Judge a batch against what is pushed, and push what is fresh.

        Args:
            batch: the records
            sequences: int64[batch.count], -1 where there is none
            reasons: uint8[batch.count], NONE where the sequence is good; reasons of the identity are added here
            against: int64[batch.count], filled here with the last sequence that each record was judged against, -1 for
                none; UNASKED where nobody wants to know
            identities: whose each record is; None: the columns of the batch have it
            letters: what the names of this stream's dead letters begin with; see `kafka_ratchet.tables.replays`

        Returns:
            (verdicts uint8[batch.count] as in `kafka_ratchet.tables.map.kernels`; reasons uint8[batch.count], 0 unless
            invalid)
        """
        known, replays = self.known, None
        if identities is None:
            identities = in_columns(batch, self.identity)
        if len(batch.replays):
            replays = Replays.of(batch, letters)
            identities, sequences = replays.stand_in(identities, sequences, reasons)
        if known.beyond:
            known.look_up(known.map.absent(identities, MAX_IDENTITY_BYTES))
        verdicts = known.map.judge(identities, MAX_IDENTITY_BYTES, sequences, reasons, against, batch)
        if replays is not None:
            replays.keep(verdicts, reasons)
        self._judged += np.bincount(verdicts, minlength=VERDICTS)
        if (jumps := known.map.jumps).number:
            of = None if self.identity == Identity.PARTITION else identities.of(jumps.record)
            self.jumps.note(batch, of, sequences, jumps)
        if self.tally is not None:
            self.tally.add(batch, verdicts if replays is None else replays.own(verdicts))
        return verdicts, reasons

    def is_done(self, request: str) -> bool:
        """Whether a request to forget was applied and committed. request: its id."""
        return self.edits.has(request)

    def forget(self, requests: Sequence[Forget], position: int) -> None:
        """Apply requests as part of the open transaction, which has judged nothing.

        Args:
            requests: not yet applied, in their order
            position: next input offset

        Raises:
            StoreDamaged: the store cannot be read, and is removed.
        """
        known = self.known
        if known.beyond:
            known.look_up(list({each.identity for each in requests if not known.map.holds(each.identity)}))
        edits, lowered = edits_of(requests, position, lambda identity: known.map.get(identity).persisted)
        known.map.put_back(lowered)
        self.edits.push(edits)

    def last(self, identity: bytes) -> LastSequence:
        """Last sequence of an identity; -1 is none. Changes nothing: it may be asked while another thread opens."""
        return self.known.last(identity)

    def seen(self, identity: bytes, sequence: int) -> tuple[bool, bool]:
        """Whether a sequence was seen: see `LastSequences.seen`. Changes nothing, as `last`."""
        return self.known.seen(identity, sequence)

    def page(
        self, after: bytes | None, limit: int, prefix: bytes = b"", until: bytes | None = None
    ) -> tuple[list[bytes], bool]:
        """Identities behind `after` in the order of their bytes (None: from the first), pushed ones included.

        prefix: what they begin with; until: the last that is wanted, None: there is no end

        Returns:
            (at most limit of them; whether none can be missing: very many new ones wait for the next snapshot)

        Raises:
            StateError: the store is not open, or damaged.
        """
        return self.known.page(after, limit, prefix, until)

    def changes(self, next_offset: int, epoch: int = NO_EPOCH) -> list[EncodedBatch]:
        """The open transaction's changelog entries: progress and every identity it has moved.

        Args:
            next_offset: of the input, to read next
            epoch: leader epoch of the input batch that ends before it
        """
        fresh, duplicate, invalid, late, conflict = (int(n) for n in self._judged)
        before = self.progress or Progress(0, 0, 0, 0)
        self._pending = Progress(
            next_offset,
            before.fresh + fresh,
            before.duplicate + duplicate,
            before.invalid + invalid,
            epoch,
            before.late + late,
            before.conflict + conflict,
        )
        self._pending_evicted = self.evicted
        return [
            *self.ownership.encode(),
            *self.known.map.encode_changes((PROGRESS, self._pending.pack()), self.limit),
            *self.intervals.encode(),
            *self.edits.encode(),
            *self.tables.encode(self.limit),
        ]

    def evictions(self, at_ms: int, *, caught_up: bool) -> list[EncodedBatch]:
        """More changelog entries of the open transaction, where the stream has bounds.

        A null for each identity that it evicts, and an entry for each whose last activity has to be written down again
        because it has sent nothing but duplicates for long.

        Args:
            at_ms: when Kafka has appended what `changes` returned
            caught_up: whether the transaction ends where the input does. Before that an identity that seems inactive
                may have records waiting

        Raises:
            StoreDamaged: the store cannot be read, and is removed.
        """
        if self._eviction is None:
            return []
        self._time = max(self._time, at_ms // 1000)
        begin = self.known.map.changes
        self.known.map.refresh(max(0, self._time - self._eviction.bounds.refresh_s))
        known = len(self) + self.known.map.additions - self.known.map.removals
        store = self.known.opened() if self.known.beyond else None
        try:
            gone = self._eviction.choose(
                self.known.map, store, self.known.take_in, known, self._time, inactive=caught_up
            )
        except StoreDamaged:
            self.known.discard()
            raise
        if self.known.map.changes == begin:
            return []
        self._pending_evicted = self.evicted.plus(gone)
        head = (EVICTED, self._pending_evicted.pack()) if any(gone) else None
        return self.known.map.encode_changes(head, self.limit, begin)

    def committed(self, changelog_next: int) -> None:
        """Step 6: the transaction is committed. Pushed becomes persisted, and a snapshot is made if one is due.

        changelog_next: offset behind the transaction's last entry
        """
        if self.tally is not None:
            moved = self.known.map.changed_entries() if self.known.map.changes <= MOST_MOVED else ()
            self.tally.commit(key[1:] for key, value in moved if value is not None and not key.startswith(LETTER, 1))
        if self._is_timed and not self.is_bounded:
            self._time = max(self._time, int(time.time()))
        self.known.map.commit(self._time)
        self.tables.commit()
        unjudged = self.intervals.unjudged
        self.intervals.commit()
        self.counted[:VERDICTS] += self._judged
        self.counted[VERDICTS] += self.intervals.unjudged - unjudged
        self.edits.commit()
        self.jumps.commit()
        self.ownership.commit()
        self.recent.note(self.progress, self._pending)
        self.position, self.progress, self.evicted = changelog_next, self._pending, self._pending_evicted
        if self._eviction is not None:
            self._eviction.committed()
        self._judged[:] = 0
        self._save_in_time()
        self.known.take_rest()

    def at_rest(self) -> None:
        """No records come: make the snapshot that was put off, so that a later crash leaves little to replay."""
        if self._judged.any():
            return  # a transaction is open: what it has moved is not to be saved
        if self._is_unsaved and self._timer.is_due_at_rest:
            self._save()
        self.known.opened().flush_much()
        self.known.take_rest()

    def discard(self) -> None:
        """Remove the store, which does not belong to the changelog as it is now, and begin with an empty one.

        Raises:
            StateError: it cannot be removed, or not be made again.
        """
        self.known.discard()
        self._replay.is_earlier = False
        self.open()

    def _save_in_time(self) -> None:
        outgrown = self.known.has_outgrown
        if outgrown or self._timer.is_due:
            self._save()
        if outgrown:
            self.known.leave_to_store()

    @property
    def _is_unsaved(self) -> bool:
        return self.position > self._stored or self.sighting != self._stored_sighting

    def _save(self) -> None:
        """What was persisted since the last snapshot, and the changelog position it stands for, in one WriteBatch."""
        self._timer.begin()
        if self._is_unsaved:
            totals = [(PROGRESS, self.progress.pack())] if self.progress else []
            totals += [(EVICTED, self.evicted.pack())] if any(self.evicted) else []
            totals += self.ownership.unsaved_entries()
            stands_for = self.position, len(self), self._time if self._is_timed else None, self.sighting
            unsaved = (each.unsaved_entries() for each in (self.intervals, self.edits, self.tables))
            try:
                self.known.opened().write(
                    chain(*unsaved, totals),
                    *stands_for,
                    columns=self.known.map.unsaved_columns(),
                    forget=self._forgets,
                    missing=self.missing,
                )
            except StateError:
                self.known.release()  # the next `open` is a fresh start
                raise
            self._forgets = False
            self.known.map.saved()
            self.intervals.saved()
            self.edits.saved()
            self.ownership.saved()
            self.tables.saved(self.known.room() // ENTRY_BYTES)
            self._stored, self._stored_sighting = self.position, self.sighting
            crash_point("saved")
            # What is still to be taken from the store would bring back whom it has not heard is gone.
            if self.known.map.slots.is_wasteful and not self.known.has_rest:
                self.known.map.slots.pack()
        self._timer.end()

    def _find(self, key: bytes) -> bytes | None:
        try:
            return self.known.opened().get(key)
        except StoreDamaged:
            self.known.discard()
            raise

    def _scan(self, prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from self.known.opened().scan_from(prefix, first or prefix)
        except StoreDamaged:
            self.known.discard()
            raise

    def committed_table(self, name: str) -> CommittedTable:
        """What is persisted of a table of one's own, for who reads it from outside.

        Raises:
            StateError: the store is not open.
        """
        store = self.known.opened()
        return CommittedTable(self.tables.of(name), store.get, store.scan_from, self.tables.unsaved)

    def rollback(self) -> None:
        """Pushed falls back to persisted, for every identity."""
        self.tables.rollback()
        self.known.map.rollback()
        self.intervals.rollback()
        self.edits.rollback()
        self.jumps.rollback()
        if self.tally is not None:
            self.tally.rollback()
        self._judged[:] = 0
        if self._eviction is not None:
            self._eviction.rollback()

    def apply(self, batch: RecordBatch) -> None:
        """Take over committed changelog entries, on recovery.

        Where an operator has decided something that the store does not know of, the store is from before that, whatever
        its position says: it is begun anew, nothing is taken over, and `position` is 0.

        Raises:
            StateError: an entry that Ratchet did not write.
        """
        self.known.opened()
        if self._replay.is_earlier and self.ownership.is_decided_in(batch):
            self.log.warning(
                "an operator has decided since the local store was written; it is rebuilt from the changelog"
            )
            self.discard()
            return
        batch = self.edits.apply(self.tables.apply(self.intervals.apply(self.ownership.apply(batch))))
        if (remaining := forgetting.remaining(batch)) is not None:
            self.known.forget()
            self._forgets = True
            batch = remaining
        if self.known.beyond:
            self.known.look_up(self.known.map.absent_entries(batch))  # for the count: which of them are new
        damaged, progress, evicted = self.known.map.load(batch, saved=False, since=self._time)
        if damaged >= 0:
            raise StateError(
                f"{place_of(batch, damaged)}: not an entry that Ratchet wrote. "
                "Is another program writing to this topic?"
            )
        self.progress, self.evicted = read_totals(batch, progress, evicted, (self.progress, self.evicted))
        if self._is_timed and batch.count:
            self._time = max(self._time, int(batch.timestamps[-1]) // 1000)
        self.position = batch.next
        if self._forgets:
            self._save()
        else:
            self._save_in_time()

    def restoring(self) -> None:
        """A replay of the changelog to its end begins."""
        self._replay.begin(self.position, self._time)

    def restored(self) -> bool:
        """The replay is done. False: the state was too old for it to be enough, and is begun anew from position 0."""
        behind = self._replay.end(self._time)
        if not self._is_timed or not is_too_old(behind):
            return True
        self.log.warning(
            "the local store is older than Kafka keeps word of who was evicted; it is rebuilt from the changelog",
            behind_s=behind,
        )
        self.discard()
        return False

    def moved(self, owner: Owner, position: int, *, forget: bool) -> list[EncodedBatch]:
        """Changelog entries of an operator's decision (`ratchet resume`). Nothing here changes.

        Args:
            owner: with the decision in it
            position: of the input, to read next
            forget: with an entry by which every identity before it is forgotten
        """
        before = self.progress or Progress(0, 0, 0, 0)
        progress = before._replace(next=position, epoch=NO_EPOCH).pack()
        entries = forgetting.entries_of_decision(
            (PROGRESS, progress), self.intervals.last, position, owner, forget=forget
        )
        return encode_entries(entries, self.limit)

    def close(self) -> None:
        """Save what is persisted and release the store; `open` loads it again. What is pushed is rolled back first."""
        if self.is_open:
            self.rollback()
            if self._eviction is not None:
                self._eviction.tell()
            try:
                self._save()
            except StateError as error:
                self.log.warning("closed without a last snapshot; the changelog has the rest", reason=str(error))
        self.known.release()
