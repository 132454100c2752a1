"""Committed state of one input partition: loaded from the store, replayed from the changelog, and saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import structlog

from kafka_ratchet.errors import Aborted, StateError, StoreDamaged
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.rule.windows import StateOptions
from kafka_ratchet.tables.activity import ActivityCounter
from kafka_ratchet.tables.edits import IMPORT, Edits, remaining_entries
from kafka_ratchet.tables.known import KnownIdentities
from kafka_ratchet.tables.map.map import LastSequence
from kafka_ratchet.tables.policy_intervals import PolicyIntervals
from kafka_ratchet.tables.recovery import Ownership, Replay, is_too_old, place_of, read_totals
from kafka_ratchet.tables.snapshots import SnapshotTimer, read_store
from kafka_ratchet.tables.totals import EVICTED, PROGRESS, EvictedTotals, Progress
from kafka_ratchet.tables.values.committed import CommittedTable
from kafka_ratchet.tables.values.partition import ENTRY_BYTES, PartitionTables
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.changelog import KnownPosition
from kafka_ratchet.transport.client.topic_id import NO_EPOCH
from kafka_ratchet.transport.owner import Owner
from kafka_ratchet.transport.transactions.crash_points import crash_point

log = structlog.get_logger(__name__)

FEW_OFFSETS: Final = 6
"""Changelog offsets that a start reads again rather than keep a store, while no record was processed.

A first start writes three: owner, progress and end marker. So does a changed owner. A store costs 10 to 20 ms and six
open files, and a worker may have a thousand partitions without a record (docs/decisions/0066).
"""


class CommittedPartition:
    """Persisted state of a partition (PIP-6), in memory and on disk."""

    def __init__(
        self,
        path: Path,
        changelog: str,
        partition: int,
        identity: Identity,
        room: Callable[[], int],
        clock: Callable[[], float],
        kept: StateOptions,
        *,
        bounded: bool,
    ) -> None:
        """Store the settings without reading the store; `SequencePartition` describes the arguments."""
        self.path, self.changelog, self.partition, self.identity = path, changelog, partition, identity
        self.log = log.bind(changelog=changelog, partition=partition)
        self.position = 0
        self.progress: Progress | None = None
        self.evicted = EvictedTotals()
        self.intervals = PolicyIntervals()
        self.edits = Edits()
        """Operators' changes of identities."""
        self.ownership = Ownership()
        self.tables = PartitionTables(self._find, self._scan, (changelog, partition), self._passed)
        """Tables of a user's program, changed by the same transactions."""
        self.tally: ActivityCounter | None = None
        """Activity of producers since the store was opened; None: the identity is not the producer."""
        self.is_bounded = bounded
        """True if identities are evicted, so that transactions contain `evictions`."""
        self.known = KnownIdentities(path, (changelog, partition), timed=bounded, room=room, kept=kept)
        self._time = 0
        """Greatest broker time of the applied entries, in seconds."""
        self._stamp = 0
        """Broker time of the newest applied entry in seconds; less than `_time` after a broker's clock was ahead."""
        self._evicted_before: EvictedTotals | None = None
        """Totals of evictions at the start of the replay; None: the replay started with an empty state."""
        self._replay = Replay()
        self._stored = 0
        """Changelog offset below which the store contains everything; `position` is the same for the map in memory."""
        self._stored_sighting: KnownPosition | None = None
        self._forgets = False
        """True if the next snapshot has to remove all identities from the store."""
        self._timer = SnapshotTimer(clock)

    @property
    def input_position(self) -> int | None:
        """Return the next input offset as of changelog offset `position`; None: nothing was ever committed."""
        return self.progress.next if self.progress else None

    @property
    def has_processed(self) -> bool:
        """Return True if a record was processed, judged or not, or state was imported."""
        return self._passed() is not None or len(self) > 0 or any(edit.kind == IMPORT for edit in self.edits)

    def _passed(self) -> int | None:
        """Return the next input offset; None: no record was processed yet."""
        taken = self.progress is not None and (self.progress.judged or self.intervals.unjudged)
        return self.input_position if taken else None

    @property
    def progress_epoch(self) -> int:
        """Return the leader epoch of the input batch before `input_position`; NO_EPOCH: unknown."""
        return self.progress.epoch if self.progress else NO_EPOCH

    @property
    def policy_position(self) -> int:
        """Return the next offset of the policy topic, as of changelog offset `position`."""
        last = self.intervals.last
        return last.policy if last else 0

    @property
    def owner(self) -> Owner | None:
        """Return the owner of the changelog as of `position`; None: no entry names an owner."""
        return self.ownership.owner

    @property
    def sighting(self) -> KnownPosition | None:
        """Return the last changelog offset with a known leader epoch."""
        return self.ownership.sighting

    def sighted(self, sighting: KnownPosition) -> None:
        """Record the changelog's leader epoch after the last commit.

        The next snapshot stores it, even without another commit.
        """
        self.ownership.sighting = sighting

    @property
    def is_open(self) -> bool:
        """Return True if the store is loaded."""
        return self.known.store is not None

    @property
    def is_made(self) -> bool:
        """Return True if the store has files; otherwise the first snapshot creates them."""
        return self.known.opened().is_made

    def make(self) -> None:
        """Create the store's files now; it may be called in a thread.

        Raises:
            StateError: the files cannot be created, or another process has created them. The store is released; `open`
                loads it again.
        """
        try:
            self.known.opened().make()
        except StateError:
            self.known.release()
            raise

    @property
    def _is_timed(self) -> bool:
        """Return True if the store records broker times, for a stream with bounds or tables.

        They show if the store is so old that it may lack tombstones which Kafka has deleted since.
        """
        return self.is_bounded or self.tables.is_used

    def __len__(self) -> int:
        """Return the number of identities with a persisted sequence."""
        return len(self.known)

    @property
    def store_bytes(self) -> int | None:
        """Return the size of the local store in bytes, including entries in memory that await a file.

        Returns:
            None if the store is closed, or RocksDB does not report its size.
        """
        return self.known.store.bytes if self.known.store is not None else None

    @property
    def missing(self) -> int | None:
        """Return the number of missing sequences as of `position`; None: not counted in this stream."""
        return self.known.map.missing if self.known.kept.dense else None

    def open(self) -> None:
        """Load the store, unless it is loaded; replace a damaged or unsuitable one by an empty one.

        Raises:
            StateError: the store cannot be opened, removed or made again, or a newer Ratchet wrote one of its entries.
        """
        if self.is_open:
            return
        found = read_store(self.path, self.known, timed=self._is_timed, log=self.log)
        self.tables.closed()
        # Only now: this runs in a thread of its own, and others may read the map in between.
        self.position, self.progress, self.evicted = found.position, found.progress, found.evicted
        self.intervals, self.edits, self._time = found.intervals, found.edits, found.seconds
        self._stamp = found.seconds
        self.ownership = Ownership(found.store.owner, found.store.sighting)
        self._stored, self._stored_sighting, self._forgets = self.position, found.store.sighting, False
        self._replay.opened(self.position, found.unproven)
        self.tally = ActivityCounter(records.SECOND) if self.identity == Identity.PRODUCER else None
        self._timer.restart()
        self.known.open(found.store, found.map, found.beyond)

    def last(self, identity: bytes) -> LastSequence:
        """Return an identity's last sequence; -1: the identity has none.

        The call changes nothing, so another thread may open the store at the same time.
        """
        return self.known.last(identity)

    def seen(self, identity: bytes, sequence: int) -> tuple[bool, bool]:
        """Return whether a sequence was seen, as (persisted, pushed); see `LastSequences.seen`.

        The call changes nothing, so another thread may open the store at the same time.
        """
        return self.known.seen(identity, sequence)

    def page(
        self, after: bytes | None, limit: int, prefix: bytes = b"", until: bytes | None = None
    ) -> tuple[list[bytes], bool]:
        """Return identities after a given one, ordered by their bytes and including pushed ones.

        Args:
            after: identity before the first to return; None: start at the first.
            limit: maximum number of identities.
            prefix: bytes that each identity begins with.
            until: last identity to return; None: no end.

        Returns:
            The identities, and True if none can be missing. If very many were added since the last snapshot, some are
            missing.

        Raises:
            StateError: the store is not open, or damaged.
        """
        return self.known.page(after, limit, prefix, until)

    def committed_table(self, name: str) -> CommittedTable:
        """Return the persisted entries of a program's table, for readers outside of the transaction.

        Raises:
            StateError: the store is not open.
        """
        store = self.known.opened()
        return CommittedTable(self.tables.of(name), store.get, store.scan_from, self.tables.unsaved)

    def stored_tables(self) -> list[str]:
        """Return the names of the tables with persisted entries or windows, even if the program lacks them now.

        Raises:
            StateError: the disk is full or broken; this method saves the state first.
        """
        self.save()
        return self.known.opened().tables()

    def discard(self) -> None:
        """Replace the store by an empty one, because it does not match the changelog.

        Raises:
            StateError: the store cannot be removed, or not be created again.
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

    def at_rest(self) -> None:
        """Use the time while no records arrive: write a postponed snapshot, and load further identities.

        After the snapshot, a crash leaves little to replay.
        """
        if self._is_unsaved and self._timer.is_due_at_rest:
            self._save()
        self.known.opened().flush_much()
        self.known.take_rest()

    @property
    def _is_unsaved(self) -> bool:
        return self.position > self._stored or self.sighting != self._stored_sighting

    @property
    def _is_worth_files(self) -> bool:
        """Return True if the store has files, or the next start would read much without them."""
        return self.is_made or self.has_processed or self.position > FEW_OFFSETS

    def _save(self) -> None:
        """Write the entries persisted since the last snapshot and their changelog position, in one WriteBatch."""
        self._timer.begin()
        if self._is_unsaved and self._is_worth_files:
            totals = [(PROGRESS, self.progress.pack())] if self.progress else []
            totals += [(EVICTED, self.evicted.pack())] if any(self.evicted) else []
            totals += self.ownership.unsaved_entries()
            stands_for = self.position, len(self), self._stamp if self._is_timed else None, self.sighting
            unsaved = (each.unsaved_entries() for each in (self.intervals, self.edits, self.tables))
            try:
                self.known.opened().write(
                    chain(*unsaved, totals),
                    *stands_for,
                    columns=self.known.map.unsaved_columns(),
                    forget=self._forgets,
                    timed=self.known.timed,
                    missing=self.missing,
                    unproven=self._earlier,
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
            # Remaining entries of the store would bring back identities that it does not know to be evicted.
            if self.known.map.slots.is_wasteful and not self.known.has_rest:
                self.known.map.slots.pack()
        self._timer.end()

    @property
    def _earlier(self) -> int:
        """Return the value to save as `Store.unproven`; 0: no replay is interrupted or unproven."""
        if self._is_timed:
            return self._replay.earlier
        # A state without times has no age. Only evictions show that it was too old, so 1 stands for them.
        return int(not self._replay.has_ended and (self._replay.unproven > 0 or self._has_replayed_evictions))

    @property
    def _has_replayed_evictions(self) -> bool:
        """Return True if the replay began with an older state and applied evictions to it."""
        return self._evicted_before not in (None, self.evicted)

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

    def apply(self, batch: RecordBatch) -> None:
        """Apply a batch of committed changelog entries, in a replay or on a standby.

        A store that lacks an operator's decision in the batch is outdated, whatever its position. This method then
        replaces the store by an empty one, applies no entry, and sets `position` to 0.

        Raises:
            StateError: Ratchet did not write an entry.
        """
        self.known.opened()
        if self._replay.is_earlier and self.ownership.is_decided_in(batch):
            self.log.warning(
                "the changelog has an operator's decision that the local store lacks; the store is rebuilt "
                "from the changelog"
            )
            self.discard()
            return
        batch = self.edits.apply(self.tables.apply(self.intervals.apply(self.ownership.apply(batch))))
        if (remaining := remaining_entries(batch)) is not None:
            self.known.forget()
            self._forgets = True
            batch = remaining
        if self.known.beyond:
            self.known.look_up(self.known.map.absent_entries(batch))  # for the count: which of them are new
        damaged, progress, evicted = self.known.map.load(batch, saved=False, since=self._time)
        if damaged >= 0:
            raise StateError(
                f"{place_of(batch, damaged)}: the record is not an entry that Ratchet wrote. Check that no other "
                "program writes to this topic"
            )
        self.progress, self.evicted = read_totals(batch, progress, evicted, (self.progress, self.evicted))
        if self._is_timed and batch.count:
            self._stamp = int(batch.timestamps[-1]) // 1000
            self._time = max(self._time, self._stamp)
            if self.is_unproven and self._replay.has_ended:
                self.prove(self._stamp)  # a standby's first entry after its replay is not older than the replay's end
        self.position = batch.next
        if self._forgets:
            self._save()
        else:
            self._save_in_time()

    def restoring(self) -> None:
        """Record the start of a replay from `position` to the changelog's end."""
        # A state without times has no age, although a commit of this process has a time.
        self._replay.begin(self.position, self._stamp if self._is_timed else 0)
        self._evicted_before = self.evicted if self.position else None

    def restored(self) -> bool:
        """Record the end of the replay, and check the age of the state that it started from.

        Returns:
            False if that state was too old: it was discarded, and the replay has to start again at offset 0.
        """
        # A store without a time is of a stream without bounds; since then it had some, and lost them again.
        has_evicted = self._replay.unproven > 0 or self._has_replayed_evictions
        behind = self._replay.end(self._stamp, self.position)
        if not is_too_old(behind) if self._is_timed else not has_evicted:
            return True
        if self._is_timed:
            self.log.warning(
                "the local store is older than Kafka keeps tombstones; it is rebuilt from the changelog",
                behind_s=behind,
            )
        else:
            self.log.warning(
                "the local store may lack evictions, and has no time that shows its age; it is rebuilt from the "
                "changelog"
            )
        self.discard()
        return False

    @property
    def is_unproven(self) -> bool:
        """Return True until a broker time shows that the store was recent enough at the start of the last replay."""
        return self._is_timed and self._replay.unproven > 0

    def prove(self, seconds: int) -> None:
        """Check that the store's age at the last replay was below the lifetime of tombstones.

        The newest changelog entry does not show the store's age, because time may have passed without entries.

        Args:
            seconds: broker time at which the last replay ended, or a slightly later one.

        Raises:
            Aborted: the store was too old; it is rebuilt from the changelog.
            StateError: the store cannot be removed.
        """
        behind, self._replay.unproven = seconds - self._replay.unproven, 0
        if is_too_old(behind):
            self.discard()
            raise Aborted(
                f"{self.changelog}, partition {self.partition}: the local store was {behind} s old, and Kafka keeps "
                "tombstones for a shorter time (delete.retention.ms); it is rebuilt from the changelog"
            )

    def save(self) -> None:
        """Write the persisted state to the store now, for a reader of the store.

        `close` saves as well, but only logs a failure: a worker can read the newest entries from the changelog.

        Raises:
            StateError: the disk is full or broken.
        """
        self.known.opened()
        self._save()

    def close(self) -> None:
        """Save the persisted state and release the store; `open` loads it again."""
        if self.is_open:
            try:
                self._save()
            except StateError as error:
                self.log.warning(
                    "the local store was closed without a last snapshot; its next start "
                    "reads the newest entries from the changelog",
                    reason=str(error),
                )
        self.known.release()
