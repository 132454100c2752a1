"""Snapshot of a partition on disk: reading it at the start, and the time of the next one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from kafka_ratchet.errors import StoreDamaged
from kafka_ratchet.tables.edits import Edits
from kafka_ratchet.tables.known import KnownIdentities
from kafka_ratchet.tables.map.map import LastSequences
from kafka_ratchet.tables.policy_intervals import PolicyIntervals
from kafka_ratchet.tables.store import LAYOUT, Store
from kafka_ratchet.tables.totals import EvictedTotals, Progress

SNAPSHOT_EVERY_S: Final = 1.0
"""Seconds that the store on disk may be older than the last commit.

After a crash this much of the changelog is replayed, in a fraction of a second. Writing the store at every commit cost
a third of the worker's CPU (docs/decisions/0004-snapshots.md).
"""
SNAPSHOT_TAKES_S: Final = 0.02
SNAPSHOT_LATER: Final = 30.0
"""Maximum factor that lengthens the pause after a slow snapshot.

The pause is multiplied by the snapshot's duration divided by `SNAPSHOT_TAKES_S`: if a million keys change every second,
writing them would cost more than judging them. The partition does nothing else during a snapshot.
"""


class _WithoutTimes(Exception):
    """Store without times that the stream needs for bounds or tables, which it did not have before."""


class _WithoutCounts(Exception):
    """Store written without a count of missing sequences."""


class _OfNewerLayout(Exception):
    """Store written by a newer version."""


class StoreContents(NamedTuple):
    """Contents of a store.

    Args:
        store: open store.
        map: identities loaded from the store.
        beyond: number of identities not in the map.
        position: changelog offset below which the store contains everything.
        progress: progress of the partition.
        evicted: totals of evictions.
        intervals: policy intervals.
        seconds: broker time of the newest entry; 0: unknown.
        edits: operators' changes.
        unproven: age of the state before an unproven replay, see `Store.unproven`.
    """

    store: Store
    map: LastSequences
    beyond: int
    position: int
    progress: Progress | None
    evicted: EvictedTotals
    intervals: PolicyIntervals
    seconds: int
    edits: Edits
    unproven: int


def read_store(path: Path, known: KnownIdentities, *, timed: bool, log: Any) -> StoreContents:
    """Open and read a store; replace a damaged or unsuitable one by an empty one.

    The call does not change the state in memory.

    Args:
        path: folder of the store.
        known: identities of the partition, for the map's settings.
        timed: whether the stream needs the time of the store's newest entry.
        log: logger for the message about a removed store.

    Raises:
        StateError: the store cannot be opened, removed or made again, or a newer Ratchet wrote one of its entries.
    """
    try:
        return _read(path, known, timed=timed)
    except StoreDamaged as error:
        log.error("the local store is damaged; it is removed, and rebuilt from the changelog", reason=str(error))
    except _WithoutTimes:
        log.info("the local store has no times of activity, which the stream needs; it is rebuilt from the changelog")
    except _WithoutCounts:
        log.info("the local store has not counted missing sequences; it is rebuilt from the changelog")
    except _OfNewerLayout:
        log.warning("the local store was written by a newer Ratchet; it is rebuilt from the changelog", path=str(path))
    Store.remove(path)  # no other process has it: the worker holds a lock on the whole state folder
    return _read(path, known, timed=timed)


def _read(path: Path, known: KnownIdentities, *, timed: bool) -> StoreContents:
    store = Store(path)
    try:
        if store.layout > LAYOUT:
            raise _OfNewerLayout
        position, identities, seconds = store.stands_for
        if position and ((timed and seconds is None) or (known.timed and not store.is_timed)):
            raise _WithoutTimes
        if known.kept.dense and position and store.missing is None:
            raise _WithoutCounts
        _ = store.owner, store.sighting  # raises if an entry cannot be read
        totals = store.progress, store.evicted
        intervals = PolicyIntervals(store.intervals())
        loaded, beyond = known.load(store, identities)
        edits = Edits(store.edits())
        return StoreContents(store, loaded, beyond, position, *totals, intervals, seconds or 0, edits, store.unproven)
    except BaseException:
        store.close()
        raise


class SnapshotTimer:
    """Timer for a partition's snapshots."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start the timer.

        Args:
            clock: monotonic clock in seconds.
        """
        self._clock = clock
        self._saved_at, self._began = 0.0, 0.0
        self._factor = 1.0

    def restart(self) -> None:
        """Restart the timer for a newly opened store, as if it had just been written."""
        self._saved_at, self._factor = self._clock(), 1.0

    @property
    def is_due(self) -> bool:
        """Return True if a snapshot is due while records arrive."""
        return self._clock() >= self._saved_at + SNAPSHOT_EVERY_S * self._factor

    @property
    def is_due_at_rest(self) -> bool:
        """Return True if a snapshot is due while the lane is idle."""
        return self._clock() >= self._saved_at + SNAPSHOT_EVERY_S

    def begin(self) -> None:
        """Mark the snapshot as being written, until `end`."""
        self._began = self._clock()

    def end(self) -> None:
        """Mark the snapshot as written."""
        self._saved_at = self._clock()
        self._factor = min(max(1.0, (self._saved_at - self._began) / SNAPSHOT_TAKES_S), SNAPSHOT_LATER)
