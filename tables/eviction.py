"""Eviction of identities: those inactive for long, and the least recently active if there are too many.

An eviction is part of the transaction that decides on it: a tombstone in the changelog for each identity, together with
output and offset. A replay applies these decisions and makes none. An eviction loses no record, but later repeats of
the identity's records count as new. Time is Kafka's: the moment when it appended a transaction's entries to the
changelog, as recorded there (docs/decisions/0009-bounds.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import structlog
from numpy.typing import NDArray

from kafka_ratchet.tables.map.map import LastSequences
from kafka_ratchet.tables.store import Store
from kafka_ratchet.tables.totals import EvictedTotals
from kafka_ratchet.transport.batch.encoding import pack_entries

log = structlog.get_logger(__name__)

Take = Callable[[list[tuple[bytes, bytes]]], None]
"""Function that loads entries of the store into the map."""

SWEEP_SLOTS: Final = 1 << 16
"""Number of map slots searched per transaction for inactive identities, in 0.4 ms. Two million slots, for a million
identities, take 32 transactions."""
SWEEP_ENTRIES: Final = 1_000
"""Number of store entries searched per transaction if the map lacks some identities; takes a few ms."""
EVICT_MOST: Final = 10_000
"""Maximum number of inactive identities evicted per transaction, in about 1 ms.

The transaction also displaces at most as many, plus one for each identity that it adds.
"""
SAMPLE: Final = 8
SAMPLE_LEAST: Final = 4_096
"""Minimum number of map slots in a sample; a larger one has `SAMPLE` slots for each identity to displace.

The least recently active identities of a sample are displaced, at most one in eight. A map of up to 4,096 slots is
searched completely.
"""
SAMPLE_STORE: Final = 2
"""Number of store entries sampled for each identity to displace, if the map lacks some identities.

Identities missing in the map are less active anyway, and reading one from the store costs 3 µs.
"""
REFRESH_MOST_S: Final = 600
REFRESH_PART: Final = 8
"""Divisor of `inactive_s`; the result is the pause between two changelog entries about an identity's duplicates.

The pause is at most `REFRESH_MOST_S`. A duplicate counts as activity; without the pause each one would cost a changelog
entry.
"""
NULLS_LAST_S: Final = 24 * 3600
"""Seconds that a tombstone stays in a compacted topic for late readers.

It is Kafka's default of delete.retention.ms, and the minimum for a stream with bounds.
"""
TIMED_SIZES: Final = (4, 6)
"""Lengths modulo 8 of values that end with 4 bytes of seconds.

Without the seconds, a plain value has 8 bytes, and a longer one has 10 bytes plus a multiple of eight.
"""
LOG_EVERY_S: Final = 60.0
MAX_NAMES: Final = 3
MAX_NAME_BYTES: Final = 60
"""Maximum bytes of an identity in a log line."""


class EvictionLimits(NamedTuple):
    """Limits of a partition.

    Args:
        most: maximum number of identities; None: no limit.
        inactive_s: seconds without a record after which an identity may be evicted; None: never.
    """

    most: int | None = None
    inactive_s: int | None = None

    @property
    def refresh_s(self) -> int:
        """Return the greatest lag, in seconds, of an identity's recorded activity behind its last record."""
        if self.inactive_s is None:
            return REFRESH_MOST_S
        return min(max(1, self.inactive_s // REFRESH_PART), REFRESH_MOST_S)


class Eviction:
    """Evictions of a partition: chosen in each transaction, counted and logged."""

    def __init__(self, bounds: EvictionLimits, clock: Callable[[], float] = time.monotonic, **where: Any) -> None:
        """Start without evictions.

        Args:
            bounds: limits of the partition
            clock: monotonic clock in seconds, for the interval of log lines
            where: fields that name the partition in log lines
        """
        self.bounds = bounds
        self._clock = clock
        self.log = log.bind(**where)
        self._slot, self._key = 0, b"i"
        self._chosen = EvictedTotals()
        self._quiet_s: int | None = None
        """Least inactivity, in seconds, among the identities that the open transaction displaces.

        None: it displaces none.
        """
        self._displaced, self._displaced_after_s = 0, 0
        """Number of identities that this worker displaced, and the minimum seconds of their inactivity."""
        self._names: list[bytes] = []
        self._logged_at = -LOG_EVERY_S
        self._pending, self._pending_names = EvictedTotals(), list[bytes]()

    def choose(
        self,
        table: LastSequences,
        store: Store | None,
        take: Take,
        known: int,
        now: int,
        judged_until: int | None,
    ) -> EvictedTotals:
        """Choose identities to evict, and evict them as part of the open transaction.

        Args:
            table: the map.
            store: the store, if it contains identities outside of the map; else None.
            take: function that loads entries of the store into the map.
            known: number of identities, including those added by the transaction.
            now: time of this transaction in seconds.
            judged_until: input watermark in seconds, to find inactive identities; None: no identity counts as inactive.

        Returns:
            Numbers of evicted identities.

        Raises:
            StoreDamaged: the store cannot be read.
        """
        self._names.clear()
        quiet = 0
        if judged_until is not None and self.bounds.inactive_s is not None:
            before = max(0, judged_until - self.bounds.inactive_s - self.bounds.refresh_s)
            if store is not None:
                entries = self._next(table, store, SWEEP_ENTRIES)
                quiet = self._evict_entries(table, take, [entry for entry in entries if _seen(entry) < before])
            slots, self._slot = table.slots.quiet(before, self._slot, EVICT_MOST - quiet, SWEEP_SLOTS)
            quiet += self._evict(table, slots)
        displaced, newest_s = 0, 0
        excess = known - quiet - self.bounds.most if self.bounds.most is not None else 0
        if excess > 0:
            excess = min(excess, EVICT_MOST + table.additions)
            if store is not None:
                entries = self._next(table, store, max(SAMPLE_STORE * excess, SWEEP_ENTRIES))
                chosen = sorted(entries, key=_seen)[:excess]
                newest_s = max(map(_seen, chosen), default=0)
                displaced = self._evict_entries(table, take, chosen)
            if displaced < excess:
                slots, self._slot = table.slots.quiet(now + 1, self._slot, max(SAMPLE * excess, SAMPLE_LEAST))
                oldest = table.slots.oldest(slots, excess - displaced)
                newest_s = max(newest_s, table.slots.newest_s(oldest))
                displaced += self._evict(table, oldest)
        self._quiet_s = max(0, now - newest_s - self.bounds.refresh_s) if displaced else None
        self._chosen = EvictedTotals(quiet, displaced)
        return self._chosen

    def _next(self, table: LastSequences, store: Store, most: int) -> list[tuple[bytes, bytes]]:
        """Return the next entries of the store, without those of identities in the map."""
        with closing(store.entries(self._key)) as entries:
            found = list(islice(entries, most))
        self._key = found[-1][0] + b"\0" if len(found) == most else b"i"
        absent = set(table.absent_entries(pack_entries("", 0, found)))
        return [entry for entry in found if entry[0][1:] in absent]

    def _evict_entries(self, table: LastSequences, take: Take, entries: list[tuple[bytes, bytes]]) -> int:
        if not entries:
            return 0
        take(entries)
        return self._evict(table, table.slots.of([key[1:] for key, _ in entries]))

    def _evict(self, table: LastSequences, slots: NDArray[np.int64]) -> int:
        table.evict(slots)
        self._names += table.slots.identities(slots[: MAX_NAMES - len(self._names)])
        return len(slots)

    def committed(self) -> None:
        """Count the chosen identities as evicted after the commit, and log them at most every LOG_EVERY_S."""
        chosen, self._chosen = self._chosen, EvictedTotals()
        if not any(chosen):
            return
        if self._quiet_s is not None:
            self._displaced_after_s = min(self._displaced_after_s, self._quiet_s) if self._displaced else self._quiet_s
            self._displaced += chosen.displaced
        self._pending = self._pending.plus(chosen)
        self._pending_names += self._names[: MAX_NAMES - len(self._pending_names)]
        if self._clock() >= self._logged_at + LOG_EVERY_S:
            self.log_evicted()

    def recognised_for_s(self, displaced: int) -> int | None:
        """Return the minimum number of seconds that an identity was recognised after its last record.

        Args:
            displaced: number of identities displaced by all workers so far.

        Returns:
            None if identities are kept for ever and none was displaced, or if other workers displaced some.
        """
        if not displaced:
            return self.bounds.inactive_s
        if displaced != self._displaced:
            return None
        inactive_s = self.bounds.inactive_s
        return self._displaced_after_s if inactive_s is None else min(inactive_s, self._displaced_after_s)

    def rollback(self) -> None:
        """Discard the chosen evictions, because the transaction was aborted."""
        self._chosen = EvictedTotals()

    def log_evicted(self) -> None:
        """Log the number of identities evicted since the last log line, with a few of their names."""
        if any(self._pending):
            # repr of bytes escapes control characters, so that none reaches a terminal.
            names = [repr(name[:MAX_NAME_BYTES]) for name in self._pending_names]
            self.log.info("identities evicted", **self._pending._asdict(), some=names)
            self._logged_at = self._clock()
            self._pending, self._pending_names = EvictedTotals(), []


def _seen(entry: tuple[bytes, bytes]) -> int:
    value = entry[1]
    return int.from_bytes(value[-4:], "big") if len(value) % 8 in TIMED_SIZES else 0
