"""Activity counters of the producers in a partition since this worker took it over, for display only."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.rule.kernels import INVALID, hash_of
from kafka_ratchet.transport.batch.compiled import compiled
from kafka_ratchet.transport.batch.record_batch import RecordBatch

SAMPLE: Final = 256
"""Maximum number of records counted per fetched batch; of a larger batch, a random sample is counted.

Counting all 20,000 records of 2 MiB cost 30 to 150 ns each, while judging costs 80 to 120.
"""
MOST_IN_A_BATCH: Final = 128
"""Maximum number of producers to count in one fetched batch; usually there are a few."""
MOST_MOVED: Final = 1_000
"""Maximum number of changed identities in a transaction for noting all of its producers as seen, in about 1 ms.

After a larger transaction, only the producers in the samples are noted.
"""
TABLE: Final = 1 << 10
"""Number of slots in the hash table of a batch; at most an eighth is used."""
MOST_NAMES: Final = 10_000
"""Maximum number of producers remembered per partition, about 200 bytes each; the one silent for longest is forgotten
first."""


class Activity(NamedTuple):
    """Activity of a producer since the store was opened, or since the counter last forgot the producer.

    Args:
        last_seen: time of the last commit with a fresh record of the producer, or with a counted duplicate, in seconds
            since 1970 by the worker's clock.
        fresh: estimated number of fresh records, from up to `SAMPLE` records of each batch.
        duplicate: estimated number of duplicates, from the same samples.
    """

    last_seen: float
    fresh: float
    duplicate: float


class ActivityCounter:
    """Counter of the producers' activity in one partition: it counts each batch, and adds the counts at the commit."""

    def __init__(self, row: int, now: Callable[[], float] = time.time) -> None:
        """Start without counts.

        Args:
            row: row of a batch's columns with the start of the identity; the next row has its length.
            now: clock in seconds since 1970.
        """
        self.since: float | None = None
        """Time of the first judged batch in seconds since 1970, by the worker's clock; None: no batch yet."""
        self.not_tallied = 0
        """Number of judged records left uncounted, because their batches had too many producers."""
        self.forgotten = 0
        """Number of producers forgotten to make room for others."""
        self._row, self._now = row, now
        self._seed = np.uint64(secrets.randbits(64))
        self._firsts, self._counts = np.empty(MOST_IN_A_BATCH, np.int64), np.empty((MOST_IN_A_BATCH, 2), np.int64)
        self._draw = np.random.default_rng()
        self._pending: dict[bytes, list[float]] = {}
        self._pending_not_tallied = 0
        self._seen: dict[bytes, Activity] = {}

    def add(self, batch: RecordBatch, verdicts: NDArray[np.uint8]) -> None:
        """Count the fresh and duplicate records of a judged batch, by producer."""
        if not batch.count:
            return
        # At random: every n-th record might never be the second of two equal records in a row.
        sample = self._draw.integers(0, batch.count, SAMPLE) if batch.count > SAMPLE else np.arange(batch.count)
        if self.since is None:
            self.since = self._now()
        table = np.full(TABLE, -1, np.int32)
        found = tally(
            batch.data, batch.columns, self._row, verdicts, sample, self._seed, table, self._firsts, self._counts
        )
        if found < 0:
            self._pending_not_tallied += batch.count
            return
        data, weight = batch.data.data, batch.count / len(sample)
        for (fresh, duplicate), first in zip(self._counts[:found].tolist(), self._firsts[:found].tolist(), strict=True):
            start, length = int(batch.columns[self._row, first]), int(batch.columns[self._row + 1, first])
            counts = self._pending.setdefault(bytes(data[start : start + length]), [0.0, 0.0])
            counts[0] += fresh * weight
            counts[1] += duplicate * weight

    def commit(self, moved: Iterable[bytes] = ()) -> None:
        """Add the counts of the committed transaction to the producers' activity.

        Args:
            moved: all producers with fresh records in the transaction. Counts come from samples of the batches, which
                may miss some of these producers.
        """
        now = self._now()
        for name in moved:
            self._pending.setdefault(name, [0.0, 0.0])
        for name, (fresh, duplicate) in self._pending.items():
            before = self._seen.pop(name, Activity(now, 0, 0))
            self._seen[name] = Activity(now, before.fresh + fresh, before.duplicate + duplicate)
        while len(self._seen) > MOST_NAMES:
            del self._seen[next(iter(self._seen))]
            self.forgotten += 1
        self.not_tallied += self._pending_not_tallied
        self.rollback()

    def rollback(self) -> None:
        """Discard the counts of the aborted transaction; its records will be judged again."""
        self._pending.clear()
        self._pending_not_tallied = 0

    def of(self, name: bytes) -> Activity | None:
        """Return the activity of a producer; None: the producer is unknown or forgotten."""
        return self._seen.get(name)


@compiled()
def tally(
    data: Any, columns: Any, row: int, verdicts: Any, sample: Any, seed: np.uint64, table: Any, firsts: Any, counts: Any
) -> int:
    """Count fresh and duplicate records for each identity in a sample of a batch.

    Args:
        data: uint8[bytes] of a record batch.
        columns: int64[COLUMNS, count] of the record batch.
        row: row of `columns` with the start of the identity.
        verdicts: uint8[count]; only FRESH and DUPLICATE are counted.
        sample: int64[], indices of the records to count.
        seed: seed of the hash.
        table: int32[slots], all -1; a power of two, and more slots than identities.
        firsts: int64[identities], filled with the index of the first record of each identity.
        counts: int64[identities, 2], filled with the numbers of fresh and duplicate records of each identity.

    Returns:
        Number of identities found; -1: there are more than `firsts` has room for.
    """
    found, last = 0, -1
    mask = len(table) - 1
    for i in sample:
        if verdicts[i] >= INVALID:
            continue
        start, length = columns[row, i], columns[row + 1, i]
        # Records of one producer stand together: most often it is the one before.
        if last < 0 or not _same(data, columns, row, firsts[last], start, length):
            slot = np.int64(hash_of(data, start, length, seed) & np.uint64(mask))
            while table[slot] >= 0 and not _same(data, columns, row, firsts[table[slot]], start, length):
                slot = (slot + 1) & mask
            if table[slot] < 0:
                if found == len(firsts):
                    return -1
                table[slot] = found
                firsts[found] = i
                counts[found, 0] = 0
                counts[found, 1] = 0
                found += 1
            last = table[slot]
        counts[last, verdicts[i]] += 1
    return found


@compiled()
def _same(data: Any, columns: Any, row: int, other: int, start: int, length: int) -> bool:
    if columns[row + 1, other] != length:
        return False
    at = columns[row, other]
    for q in range(length):
        if data[at + q] != data[start + q]:
            return False
    return True
