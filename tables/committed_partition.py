"""One input partition as far as it is committed: read from the store and the changelog, and saved to the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import structlog

from kafka_ratchet.errors import Aborted, StateError, StoreDamaged
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.rule.windows import Kept
from kafka_ratchet.tables.activity import Tally
from kafka_ratchet.tables.edits import Edits, remaining_entries
from kafka_ratchet.tables.known import KnownIdentities
from kafka_ratchet.tables.map.map import LastSequence
from kafka_ratchet.tables.policy_intervals import PolicyIntervals
from kafka_ratchet.tables.recovery import Ownership, Replay, is_too_old, place_of, read_totals
from kafka_ratchet.tables.snapshots import SnapshotTimer, read_store
from kafka_ratchet.tables.totals import EVICTED, PROGRESS, Evicted, Progress
from kafka_ratchet.tables.values.committed import CommittedTable
from kafka_ratchet.tables.values.partition import ENTRY_BYTES, PartitionTables
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.changelog import Sighting
from kafka_ratchet.transport.client.topic_id import NO_EPOCH
from kafka_ratchet.transport.owner import Owner
from kafka_ratchet.transport.transactions.crash_points import crash_point

log = structlog.get_logger(__name__)


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
        kept: Kept,
        *,
        bounded: bool,
    ) -> None:
        """Start without reading; see `kafka_ratchet.tables.partition.SequencePartition`."""
        self.path, self.changelog, self.partition, self.identity = path, changelog, partition, identity
        self.log = log.bind(changelog=changelog, partition=partition)
        self.position = 0
        self.progress: Progress | None = None
        self.evicted = Evicted()
        self.intervals = PolicyIntervals()
        self.edits = Edits()
        """Operators' changes."""
        self.ownership = Ownership()
        self.tables = PartitionTables(self._find, self._scan, (changelog, partition), self._passed)
        """Tables of one's own, which the same transactions move."""
        self.tally: Tally | None = None
        """Activity of producers since the store was opened; None for other identities."""
        self.is_bounded = bounded
        """True if `evictions` belong to each transaction."""
        self.known = KnownIdentities(path, (changelog, partition), timed=bounded, room=room, kept=kept)
        self._time = 0
        """Broker time of the newest entry applied, in seconds; it only rises."""
        self._stamp = 0
        """The same without the rising: the time of a wrong clock does not stay."""
        self._evicted_before: Evicted | None = None
        """Evictions as of the beginning of the replay; None where it began with an empty state."""
        self._replay = Replay()
        self._stored = 0
        """Changelog offset below which the store has everything; `position` is that of the map."""
        self._stored_sighting: Sighting | None = None
        self._forgets = False
        """True if the next snapshot removes the store's identities."""
        self._timer = SnapshotTimer(clock)

    @property
    def input_position(self) -> int | None:
        """Next input offset as of `position`; None where nothing was ever committed."""
        return self.progress.next if self.progress else None

    def _passed(self) -> int | None:
        """Return the next input offset; None where no record was taken."""
        taken = self.progress is not None and (self.progress.judged or self.intervals.unjudged)
        return self.input_position if taken else None

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
        """Return the changelog's owner, as of `position`; None where no entry names one."""
        return self.ownership.owner

    @property
    def sighting(self) -> Sighting | None:
        """Return the last place in the changelog with a known leader epoch."""
        return self.ownership.sighting

    def sighted(self, sighting: Sighting) -> None:
        """Note the leader epoch after the last commit; the next snapshot keeps it, also without a commit."""
        self.ownership.sighting = sighting

    @property
    def is_open(self) -> bool:
        """Return True if its store is loaded."""
        return self.known.store is not None

    @property
    def is_made(self) -> bool:
        """Return True if its store has files; otherwise the first saved commit makes them."""
        return self.known.opened().is_made

    def make(self) -> None:
        """Make the store's files now; it may run in a thread.

        Raises:
            StateError: they cannot be made, or another process has made them; the next `open` is a fresh start.
        """
        try:
            self.known.opened().make()
        except StateError:
            self.known.release()
            raise

    @property
    def _is_timed(self) -> bool:
        """Return True if the store has to know its age: Kafka keeps nulls for a time only."""
        return self.is_bounded or self.tables.is_used

    def __len__(self) -> int:
        """Identities with a persisted sequence."""
        return len(self.known)

    @property
    def store_bytes(self) -> int | None:
        """Return the local store's bytes in files and on their way there.

        None: it is closed, or the size is unknown.
        """
        return self.known.store.bytes if self.known.store is not None else None

    @property
    def missing(self) -> int | None:
        """Return the number of missing sequences, as of `position`; None where they are not counted."""
        return self.known.map.missing if self.known.kept.dense else None

    def open(self) -> None:
        """Load the store, unless it is open already. A damaged one is removed and started again.

        Raises:
            StateError: the store cannot be used.
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
        if not self.position:
            self._replay.reset()
        self.tally = Tally(records.SECOND) if self.identity == Identity.PRODUCER else None
        self._timer.restart()
        self.known.open(found.store, found.map, found.beyond)

    def last(self, identity: bytes) -> LastSequence:
        """Return an identity's last sequence; -1 is none. It changes nothing, so another thread may open the store."""
        return self.known.last(identity)

    def seen(self, identity: bytes, sequence: int) -> tuple[bool, bool]:
        """Return True twice if a sequence was seen: see `LastSequences.seen`. It changes nothing, as `last`."""
        return self.known.seen(identity, sequence)

    def page(
        self, after: bytes | None, limit: int, prefix: bytes = b"", until: bytes | None = None
    ) -> tuple[list[bytes], bool]:
        """Return identities after `after` in the order of their bytes, pushed ones included.

        after: None: from the first; prefix: their first bytes; until: the last one, None: there is no end

        Returns:
            (at most limit of them; True if none can be missing: very many new ones wait for the next snapshot).

        Raises:
            StateError: the store is not open, or damaged.
        """
        return self.known.page(after, limit, prefix, until)

    def committed_table(self, name: str) -> CommittedTable:
        """Return the persisted entries of a program's table, for readers outside.

        Raises:
            StateError: the store is not open.
        """
        store = self.known.opened()
        return CommittedTable(self.tables.of(name), store.get, store.scan_from, self.tables.unsaved)

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

    def at_rest(self) -> None:
        """Make the postponed snapshot while no records come, so that a later crash leaves little to replay."""
        if self._is_unsaved and self._timer.is_due_at_rest:
            self._save()
        self.known.opened().flush_much()
        self.known.take_rest()

    @property
    def _is_unsaved(self) -> bool:
        return self.position > self._stored or self.sighting != self._stored_sighting

    def _save(self) -> None:
        """Write the entries persisted since the last snapshot, with their changelog position, in one WriteBatch."""
        self._timer.begin()
        if self._is_unsaved:
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
            # Remaining entries of the store would bring back identities that it does not know to be evicted.
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

    def apply(self, batch: RecordBatch) -> None:
        """Take over committed changelog entries, on recovery.

        A store without the newest decision of an operator is older than that, whatever its position. It is then
        started again, no entry is taken over, and `position` is 0.

        Raises:
            StateError: an entry is not one of Ratchet's.
        """
        self.known.opened()
        if self._replay.is_earlier and self.ownership.is_decided_in(batch):
            self.log.warning(
                "an operator has decided since the local store was written; it is rebuilt from the changelog"
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
                f"{place_of(batch, damaged)}: not an entry that Ratchet wrote. "
                "Is another program writing to this topic?"
            )
        self.progress, self.evicted = read_totals(batch, progress, evicted, (self.progress, self.evicted))
        if self._is_timed and batch.count:
            self._stamp = int(batch.timestamps[-1]) // 1000
            self._time = max(self._time, self._stamp)
        self.position = batch.next
        if self._forgets:
            self._save()
        else:
            self._save_in_time()

    def restoring(self) -> None:
        """Note the start of a replay of the changelog to its end."""
        self._replay.begin(self.position, self._stamp)
        self._evicted_before = self.evicted if self.position else None

    def restored(self) -> bool:
        """Note the end of the replay. False: the state was too old, and starts again from position 0."""
        behind = self._replay.end(self._stamp, self.position)
        # A store without a time is of a stream without bounds; since then it had some, and lost them again.
        has_evicted = self._evicted_before not in (None, self.evicted)
        if not is_too_old(behind) if self._is_timed else not has_evicted:
            return True
        self.log.warning(
            "the local store is older than Kafka keeps nulls; it is rebuilt from the changelog", behind_s=behind
        )
        self.discard()
        return False

    @property
    def is_unproven(self) -> bool:
        """True until the next commit has shown the age of the store under the last replay."""
        return self._is_timed and self._replay.unproven > 0

    def prove(self, seconds: int) -> None:
        """Compare the age of the store that the last replay went on from with how long Kafka keeps nulls.

        The newest entry does not tell it: since then, time may have passed without an entry.

        seconds: broker time at which that replay ended

        Raises:
            Aborted: the store was too old; it is rebuilt from the changelog.
            StateError: it cannot be removed.
        """
        behind, self._replay.unproven = seconds - self._replay.unproven, 0
        if is_too_old(behind):
            self.discard()
            raise Aborted(
                f"{self.changelog}, partition {self.partition}: the local store was {behind} s old, more than Kafka "
                "keeps nulls; it is rebuilt from the changelog"
            )

    def close(self) -> None:
        """Save the persisted state and release the store; `open` loads it again."""
        if self.is_open:
            try:
                self._save()
            except StateError as error:
                self.log.warning("closed without a last snapshot; the changelog has the rest", reason=str(error))
        self.known.release()
