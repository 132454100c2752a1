"""Eviction of identities: the long inactive ones, and the quietest where there are too many.

An eviction is part of the transaction that decides it: a null in the changelog for each identity, together with the
output and the offset. A replay applies these decisions and makes none. Time is Kafka's: the moment at which it
appended a transaction's entries to the changelog, as written there (docs/decisions/0009-bounds.md).
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
from kafka_ratchet.tables.totals import Evicted
from kafka_ratchet.transport.batch.encoding import pack_entries

log = structlog.get_logger(__name__)

Take = Callable[[list[tuple[bytes, bytes]]], None]
"""Takes entries of the store into the map."""

SWEEP_SLOTS: Final = 1 << 16
"""Slots of the map looked at per transaction for who was quiet for too long; 0.4 ms. Two million slots, which hold
a million identities, take 32 transactions."""
SWEEP_ENTRIES: Final = 1_000
"""Entries of the store looked at per transaction, where not all are in the map: some ms."""
EVICT_MOST: Final = 10_000
"""Most identities evicted in one transaction, in addition to one for each added; 1 ms."""
SAMPLE: Final = 8
SAMPLE_LEAST: Final = 4_096
"""Factor and smallest size of the sample from which the quietest are displaced.

So an evicted identity was quieter than seven of eight; a map of up to four thousand is sampled completely.
"""
SAMPLE_STORE: Final = 2
"""The same where some are not in the map. Those are the quieter ones already, and reading one costs 3 µs."""
REFRESH_MOST_S: Final = 600
REFRESH_PART: Final = 8
"""Part of `inactive_s` after which a duplicate's activity is written to the changelog, ten minutes at most.

A duplicate is activity too. So it seldom costs an entry.
"""
NULLS_LAST_S: Final = 24 * 3600
"""Seconds that a null stays in a compacted topic for late readers.

It is Kafka's default of delete.retention.ms, and the least for a stream with bounds.
"""
TIMED_SIZES: Final = (4, 6)
"""Bytes, modulo 8, of a value with seconds: after 8 of a sequence, or 10 and some eights where more is kept."""
TOLD_EVERY_S: Final = 60.0
NAMES_TOLD: Final = 3
NAME_TOLD: Final = 60
"""Most bytes of a name in a message."""


class Bounds(NamedTuple):
    """Limits of a partition. most: identities; inactive_s: seconds without a record of an identity."""

    most: int | None = None
    inactive_s: int | None = None

    @property
    def refresh_s(self) -> int:
        """Return the allowed age of a known activity against an identity's last record, in seconds."""
        if self.inactive_s is None:
            return REFRESH_MOST_S
        return min(max(1, self.inactive_s // REFRESH_PART), REFRESH_MOST_S)


class Eviction:
    """Evictions of a partition, chosen in each transaction, counted and logged."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float] = time.monotonic, **where: Any) -> None:
        """Start without evictions.

        Args:
            bounds: limits of the partition
            clock: seconds that only rise; only for the interval of messages
            where: fields of the partition for log lines
        """
        self.bounds = bounds
        self._clock = clock
        self.log = log.bind(**where)
        self._slot, self._key = 0, b"i"
        self._chosen = Evicted()
        self._quiet_s: int | None = None
        """Least seconds without activity of the identities that the open transaction displaces.

        None: it displaces none.
        """
        self._displaced, self._displaced_after_s = 0, 0
        """Number of identities displaced here, and the least such time."""
        self._names: list[bytes] = []
        self._told_at = -TOLD_EVERY_S
        self._untold, self._untold_names = Evicted(), list[bytes]()

    def choose(
        self,
        table: LastSequences,
        store: Store | None,
        take: Take,
        known: int,
        now: int,
        judged_until: int | None,
    ) -> Evicted:
        """Evict as part of the open transaction.

        Args:
            table: the map.
            store: where there are identities beyond the map; else None.
            take: function that takes entries of the store into the map.
            known: number of identities, those added by the transaction included.
            now: seconds, time of this transaction.
            judged_until: seconds, input watermark for evicting inactive identities; None: none are.

        Returns:
            number of evicted identities.

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
        self._chosen = Evicted(quiet, displaced)
        return self._chosen

    def _next(self, table: LastSequences, store: Store, most: int) -> list[tuple[bytes, bytes]]:
        """Return the next entries of the store, without those in the map, which is newer."""
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
        self._names += table.slots.identities(slots[: NAMES_TOLD - len(self._names)])
        return len(slots)

    def committed(self) -> None:
        """Count the chosen identities as evicted, after the commit. Logged at most every TOLD_EVERY_S."""
        chosen, self._chosen = self._chosen, Evicted()
        if not any(chosen):
            return
        if self._quiet_s is not None:
            self._displaced_after_s = min(self._displaced_after_s, self._quiet_s) if self._displaced else self._quiet_s
            self._displaced += chosen.displaced
        self._untold = self._untold.plus(chosen)
        self._untold_names += self._names[: NAMES_TOLD - len(self._untold_names)]
        if self._clock() >= self._told_at + TOLD_EVERY_S:
            self.tell()

    def recognised_for_s(self, displaced: int) -> int | None:
        """Return how many seconds after its last record each identity was recognised, at least.

        None: identities are kept for ever, and none was displaced; or some were displaced by other workers, so that
        it is unknown. displaced: number of identities displaced by all workers so far.
        """
        if not displaced:
            return self.bounds.inactive_s
        if displaced != self._displaced:
            return None
        inactive_s = self.bounds.inactive_s
        return self._displaced_after_s if inactive_s is None else min(inactive_s, self._displaced_after_s)

    def rollback(self) -> None:
        """Drop the choice: the transaction is lost."""
        self._chosen = Evicted()

    def tell(self) -> None:
        """Log how many were evicted since the last time, if any, and a few names."""
        if any(self._untold):
            # repr, of bytes: nothing in a name can reach a terminal.
            names = [repr(name[:NAME_TOLD]) for name in self._untold_names]
            self.log.info("identities evicted", **self._untold._asdict(), some=names)
            self._told_at = self._clock()
            self._untold, self._untold_names = Evicted(), []


def _seen(entry: tuple[bytes, bytes]) -> int:
    value = entry[1]
    return int.from_bytes(value[-4:], "big") if len(value) % 8 in TIMED_SIZES else 0
