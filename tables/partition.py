"""Last sequences of one input partition, as a transaction changes them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.errors import StoreDamaged
from kafka_ratchet.rule import kernels
from kafka_ratchet.rule.identities import Identities, in_columns
from kafka_ratchet.rule.identity import MAX_IDENTITY_BYTES, Identity
from kafka_ratchet.rule.windows import PLAIN, StateOptions
from kafka_ratchet.tables.activity import MOST_MOVED
from kafka_ratchet.tables.committed_partition import CommittedPartition
from kafka_ratchet.tables.edits import edits_of, entries_of_decision
from kafka_ratchet.tables.eviction import Eviction, EvictionLimits
from kafka_ratchet.tables.invalid_share import RecentShare
from kafka_ratchet.tables.jumps import JumpReport
from kafka_ratchet.tables.map.map import UNASKED
from kafka_ratchet.tables.replays import LETTER, Replays
from kafka_ratchet.tables.totals import EVICTED, PROGRESS, EvictedTotals, Progress
from kafka_ratchet.transport.batch.encoding import EncodedBatch, encode_entries
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.client.topic_id import NO_EPOCH
from kafka_ratchet.transport.owner import Owner
from kafka_ratchet.transport.policy import ForgetRequest

VERDICTS: Final = kernels.CONFLICT + 1
"""Number of different verdicts."""


class SequencePartition(CommittedPartition):
    """State of a partition that a lane's transaction changes.

    Each identity has two last sequences (PIP-6): the *persisted* one of the committed transactions, and the *pushed*
    one, which includes the open transaction.
    """

    def __init__(
        self,
        path: Path,
        changelog: str,
        partition: int,
        identity: Identity,
        limit: int,
        room: Callable[[], int] = lambda: sys.maxsize,
        bounds: EvictionLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        kept: StateOptions = PLAIN,
    ) -> None:
        """Store the settings without reading the store.

        Args:
            path: folder of the store.
            changelog: name of the changelog topic.
            partition: number of the partition in the input and in the changelog.
            identity: identity that the stream deduplicates by.
            limit: maximum bytes of a batch, max.message.bytes of the changelog.
            room: memory budget of the map in bytes, read after each commit.
            bounds: limits above which identities are evicted.
            clock: monotonic clock in seconds, for the intervals of snapshots and log lines.
            kept: which further state of each identity to keep.
        """
        super().__init__(path, changelog, partition, identity, room, clock, kept, bounded=bounds is not None)
        self.limit = limit
        self.jumps = JumpReport(clock)
        self.recent = RecentShare(clock)
        self._eviction = Eviction(bounds, clock, changelog=changelog, partition=partition) if bounds else None
        self._judged = np.zeros(VERDICTS, np.int64)
        self.counted = np.zeros(VERDICTS + 1, np.int64)
        """Numbers of records that this worker has committed since its start: one for each verdict, and last the number
        forwarded unjudged. They never decrease, and do not include commits of other workers."""
        self._pending, self._pending_evicted = Progress(0, 0, 0, 0), EvictedTotals()

    @property
    def recognised_for_s(self) -> int | None:
        """Return the minimum number of seconds that an identity was recognised here after its last record.

        Returns:
            None if identities are kept for ever and none was displaced, or if other workers displaced some.
        """
        return self._eviction.recognised_for_s(self.evicted.displaced) if self._eviction else None

    def judge(
        self,
        batch: RecordBatch,
        sequences: NDArray[np.int64],
        reasons: NDArray[np.uint8],
        against: NDArray[np.int64] = UNASKED,
        identities: Identities | None = None,
        letters: bytes = b"",
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Judge a batch against the pushed state, and push the fresh records.

        Args:
            batch: the records.
            sequences: int64[batch.count], sequence of each record; -1: none.
            reasons: uint8[batch.count], NONE if the sequence is valid; reasons about identities are added here.
            against: int64[batch.count], filled with the last sequence before each record, or -1; pass UNASKED if it is
                not needed.
            identities: identity of each record; None: it is in the columns of the batch.
            letters: prefix of the names of this stream's dead letters, see `kafka_ratchet.tables.replays`.

        Returns:
            Verdicts as uint8[batch.count], see `kafka_ratchet.rule.kernels`; and reasons as uint8[batch.count], 0
            unless invalid.
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
        """Return True if a request to forget was applied and committed.

        Args:
            request: id of the request.
        """
        return self.edits.has(request)

    def forget(self, requests: Sequence[ForgetRequest], position: int) -> None:
        """Apply requests to forget identities as part of the open transaction, before any record in it is judged.

        Args:
            requests: requests not applied yet, in the order of their application
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

    def changes(self, next_offset: int, epoch: int = NO_EPOCH) -> list[EncodedBatch]:
        """Return the open transaction's changelog entries: progress, every changed identity, and other changes.

        Args:
            next_offset: next input offset
            epoch: leader epoch of the input batch that ends before `next_offset`
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

    def evictions(self, at_ms: int, judged_until_ms: int | None) -> list[EncodedBatch]:
        """Evict identities in a stream with bounds, and return the changelog entries of these changes.

        Each evicted identity gets a tombstone. If an identity had duplicates but no fresh record, and its recorded
        activity is old, its entry is written again with the new time.

        Args:
            at_ms: Kafka's append time of the batch's changelog entries, in milliseconds since 1970
            judged_until_ms: input watermark in milliseconds since 1970: every earlier record has its verdict. None: the
                watermark is unknown, and no identity counts as inactive

        Raises:
            StoreDamaged: the store cannot be read, and is removed.
        """
        if self._eviction is None:
            return []
        self._time = max(self._time, at_ms // 1000)
        judged_until_s = None if judged_until_ms is None else min(self._time, judged_until_ms // 1000)
        begin = self.known.map.changes
        self.known.map.refresh(max(0, self._time - self._eviction.bounds.refresh_s))
        known = len(self) + self.known.map.additions - self.known.map.removals
        store = self.known.opened() if self.known.beyond else None
        try:
            gone = self._eviction.choose(self.known.map, store, self.known.take_in, known, self._time, judged_until_s)
        except StoreDamaged:
            self.known.discard()
            raise
        if self.known.map.changes == begin:
            return []
        self._pending_evicted = self.evicted.plus(gone)
        head = (EVICTED, self._pending_evicted.pack()) if any(gone) else None
        return self.known.map.encode_changes(head, self.limit, begin)

    def committed(self, changelog_next: int, at_ms: int = -1) -> None:
        """Make the pushed state persisted after the commit, and write a snapshot if one is due.

        This is step 6 of `kafka_ratchet.transport.lane`.

        Args:
            changelog_next: offset after the transaction's last entry in the changelog
            at_ms: Kafka's append time of that entry in milliseconds since 1970; -1: unknown
        """
        if self.tally is not None:
            moved = self.known.map.changed_entries() if self.known.map.changes <= MOST_MOVED else ()
            self.tally.commit(key[1:] for key, value in moved if value is not None and not key.startswith(LETTER, 1))
        if at_ms >= 0:
            self._time = max(self._time, at_ms // 1000)
        self._stamp = at_ms // 1000 if at_ms >= 0 else self._time
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
        """Do the work of `CommittedPartition.at_rest`, unless a transaction is open."""
        if self._judged.any():
            return  # a transaction is open, and its changes must not be saved
        super().at_rest()

    def rollback(self) -> None:
        """Reset the pushed state to the persisted state."""
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

    def moved(self, owner: Owner, position: int, *, forget: bool) -> list[EncodedBatch]:
        """Return the changelog entries of an operator's decision (`ratchet resume`), without changing this state.

        Args:
            owner: owner entry that includes the decision
            position: next input offset
            forget: whether to add the entry that forgets all earlier identities
        """
        before = self.progress or Progress(0, 0, 0, 0)
        progress = before._replace(next=position, epoch=NO_EPOCH).pack()
        entries = entries_of_decision((PROGRESS, progress), self.intervals.last, position, owner, forget=forget)
        return encode_entries(entries, self.limit)

    def close(self) -> None:
        """Roll back the pushed state, save the persisted one, and release the store; `open` loads it again."""
        if self.is_open:
            try:
                self.rollback()
            except BaseException:
                self.known.release()  # not to be saved, and the next `open` must not take it for loaded
                raise
            if self._eviction is not None:
                self._eviction.log_evicted()
        super().close()
