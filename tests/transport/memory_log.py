"""One partition's log in memory: batches, markers, what is known of producers, and what an operator does to it."""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch

from kafka_ratchet.transport.client.cluster import FetchedPartition
from tests.transport.batch.known_batches import HEAD, Source, encode, marker, seal, stamped

INVALID_EPOCH, OUT_OF_ORDER = 47, 45
ABORT, COMMIT = 0, 1
COMPRESSED = 7
BATCHES_PER_FETCH = 3
"""Few, so that a backlog takes several fetches and several transactions."""


class Record(NamedTuple):
    """Record as a reader sees it, without its offset."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass
class Appended:
    """A batch in a log. committed: None while its transaction is open."""

    offset: int
    count: int
    data: bytes
    records: list[Record]
    producer: int
    committed: bool | None
    epoch: int = -1


def _leader_epoch(batch: Appended) -> int:
    """Return the leader epoch in a batch's header."""
    epoch: int = struct.unpack_from(">i", batch.data, 12)[0]
    return epoch


def only(batch: Appended, kept: list[Any]) -> Appended | None:
    """Return what compaction leaves of a batch, at the same offsets; None where it leaves nothing."""
    if not kept:
        return None
    before = HEAD.unpack_from(batch.data)
    data = encode([Source(r.key, r.value, tuple(r.headers), r.timestamp, r.offset - batch.offset) for r in kept])
    fields = list(HEAD.unpack_from(data))
    for field in (0, 2, 6, 8, 9, 10, 11):
        fields[field] = before[field]
    fields[5] = before[5] & ~COMPRESSED
    records = [Record(each.key, each.value, tuple(each.headers)) for each in kept]
    return replace(batch, data=seal(HEAD.pack(*fields) + data[HEAD.size :]), records=records)


class Log:
    """One partition."""

    def __init__(self) -> None:
        self.batches: list[Appended] = []
        self.history: list[Appended] = []
        """All that was ever appended, for an oracle."""
        self.start = self.end = 0
        self.leader_epoch = 0
        self.aborted: list[tuple[int, int, int]] = []
        """(producer, first offset, offset of the marker)"""
        self.producers: dict[int, tuple[int, int]] = {}
        """(epoch, next sequence) by producer: what is known here even if no coordinator is asked."""
        self.marked_by: dict[int, int] = {}
        """The coordinator epoch of each producer's last marker."""
        self.first_cleaned_ms: dict[int, int] = {}
        """Time of the first compaction that met a null, by the null's offset."""

    def append(self, data: bytes, producer: int = -1, at_ms: int = -1) -> int:
        """Returns the offset of the first record. at_ms: what all are stamped with, if not -1."""
        fields = HEAD.unpack_from(data)
        placed = struct.pack(">q", self.end) + data[8:12] + struct.pack(">i", self.leader_epoch) + data[16:]
        if at_ms >= 0:
            placed = stamped(placed, at_ms)
        decoded = DefaultRecordBatch(bytearray(placed))
        assert decoded.validate_crc()
        records = [Record(r.key, r.value, tuple(r.headers)) for r in decoded]
        committed = True if producer < 0 else None
        self.batches.append(Appended(self.end, fields[6] + 1, placed, records, producer, committed, fields[10]))
        self.history.append(self.batches[-1])
        self.end += fields[6] + 1
        return self.batches[-1].offset

    def refuses(self, producer: int, epoch: int, base: int) -> int:
        """The error code for a batch that begins with this sequence; 0 if it fits."""
        known, following = self.producers.get(producer, (epoch, 0))
        if epoch < known:
            return INVALID_EPOCH
        return OUT_OF_ORDER if base != (following if epoch == known else 0) else 0

    def write_marker(self, producer: int, kind: int, epoch: int = 0, by: int = 0) -> None:
        """Write the marker that ends a producer's open transaction here, unless a newer coordinator has written one.

        Args:
            producer: whose
            kind: ABORT or COMMIT
            epoch: what the marker carries
            by: the epoch of the coordinator that writes it
        """
        known, following = self.producers.get(producer, (epoch, 0))
        if epoch < known or by < self.marked_by.get(producer, by):
            return
        self.marked_by[producer] = by
        self.producers[producer] = (epoch, following if epoch == known else 0)
        mine = [batch for batch in self.batches if batch.producer == producer and batch.committed is None]
        for batch in mine:
            batch.committed = kind == COMMIT
        if mine and kind == ABORT:
            self.aborted.append((producer, mine[0].offset, self.end))
        data = marker(self.end, producer, kind)
        data = data[:12] + struct.pack(">i", self.leader_epoch) + data[16:]
        self.batches.append(Appended(self.end, 1, data, [], -1, True))
        self.end += 1

    def delete_before(self, offset: int) -> None:
        """Delete the records before an offset, as retention does."""
        self.start = max(self.start, min(offset, self.end))
        self.batches = [batch for batch in self.batches if batch.offset + batch.count > offset]

    def truncate(self, offset: int) -> None:
        """Cut the log as an unclean leader election does: a leader with fewer records takes over."""
        self.leader_epoch += 1
        self.batches = [batch for batch in self.batches if batch.offset + batch.count <= offset]
        self.end = self.batches[-1].offset + self.batches[-1].count if self.batches else self.start
        self.aborted = [each for each in self.aborted if each[2] < self.end]
        self.first_cleaned_ms = {at: ms for at, ms in self.first_cleaned_ms.items() if at < self.end}
        self.producers.clear()
        self.marked_by.clear()

    def compact(self, now_ms: int = 0, nulls_last_ms: int = 2**62) -> None:
        """Remove the entries that a later one of their key replaces.

        A null stays for a while after the first compaction that met it (KIP-534): a reader that had read the value
        before it still meets the null.

        Args:
            now_ms: time of this compaction.
            nulls_last_ms: delete.retention.ms of the topic.
        """
        stable = self.stable_end
        below = [batch for batch in self.batches if batch.committed and batch.records and batch.offset < stable]
        decoded = [[*DefaultRecordBatch(bytearray(batch.data))] for batch in below]
        last = {record.key: record.offset for records in decoded for record in records}
        left = {}
        for batch, records in zip(below, decoded, strict=True):
            kept = [each for each in records if last[each.key] == each.offset]
            nulls = {each.offset for each in kept if each.value is None}
            gone = {at for at in nulls if self.first_cleaned_ms.setdefault(at, now_ms) + nulls_last_ms < now_ms}
            kept = [each for each in kept if each.offset not in gone]
            left[batch.offset] = batch if len(kept) == len(records) else only(batch, kept)
        self.batches = [found for batch in self.batches if (found := left.get(batch.offset, batch)) is not None]

    def diverges(self, position: int, last_epoch: int) -> bool:
        """Return True if this log differs from the one read up to position, in that leader epoch (KIP-595)."""
        if not 0 <= last_epoch <= self.leader_epoch:
            return False
        later = bisect_right(self.batches, last_epoch, key=_leader_epoch)  # leader epochs only rise
        end = self.batches[later].offset if later < len(self.batches) else self.end
        return end < position and (later > 0 or self.start < position)

    @property
    def stable_end(self) -> int:
        return next((batch.offset for batch in self.batches if batch.committed is None), self.end)

    def committed(self) -> list[Record]:
        """Return the records that a committed reader sees."""
        stable = self.stable_end
        return [r for batch in self.batches if batch.committed and batch.offset < stable for r in batch.records]

    def fetch(self, position: int, most: int = BATCHES_PER_FETCH) -> FetchedPartition:
        """Return the batches from a position on, at most so many; a fetch of one byte gets one, as in Kafka."""
        stable = self.stable_end
        found = [b for b in self.batches if b.offset + b.count > position and b.offset < stable][:most]
        if not found:
            return FetchedPartition(b"", [], stable, self.end)
        last = found[-1].offset + found[-1].count
        aborted = [(who, first) for who, first, end in self.aborted if first < last and end >= found[0].offset]
        return FetchedPartition(b"".join(batch.data for batch in found), aborted, stable, self.end)
