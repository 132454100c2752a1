"""Compares the rows of a table with the records of the output: one row for each record, and no other."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kafka_ratchet.app.verify.identities import Flags, Numbers, Steps
from kafka_ratchet.app.verify.rule import RecordView

if TYPE_CHECKING:
    import pyarrow as pa

NOWHERE = -1
"""Stand-in for a null partition or offset; no record has it."""

NO_ROWS = np.empty(0, np.int64)


class RowOffsets:
    """Offsets of a table's rows by Kafka partition: eight bytes a row, in no order."""

    def __init__(self) -> None:
        self._chunks: dict[int, list[Numbers]] = {}
        self.rows = 0

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take rows with the columns `_kafka_partition` and `_kafka_offset`."""
        for batch in batches:
            partitions, offsets = (
                batch.column(name).fill_null(NOWHERE).to_numpy(zero_copy_only=False).astype(np.int64)
                for name in ("_kafka_partition", "_kafka_offset")
            )
            self.rows += batch.num_rows
            for partition in np.unique(partitions).tolist():
                self._chunks.setdefault(partition, []).append(offsets[partitions == partition])

    def of(self, partition: int) -> Numbers:
        """Return the offsets of one partition."""
        chunks = self._chunks.get(partition)
        return np.concatenate(chunks) if chunks else NO_ROWS

    def take(self, partition: int) -> Numbers:
        """Return the offsets of one partition, which are removed here."""
        found = self.of(partition)
        self._chunks.pop(partition, None)
        return found

    def left(self) -> list[int]:
        """Return the partitions with offsets not taken yet."""
        return sorted(self._chunks)


@dataclass(frozen=True)
class StoredOffsets:
    """Stored offsets of the table for a partition, at the beginning and the end of its reading."""

    before: int
    after: int

    @classmethod
    def of(cls, before: Mapping[int, int], after: Mapping[int, int], partition: int) -> StoredOffsets:
        """Return those of one partition; one without an offset has no record in the table."""
        return cls(before.get(partition, 0), after.get(partition, 0))


@dataclass(frozen=True)
class RowsOfPartition:
    """Rows of one partition, next to the offsets of its committed records."""

    steps: Steps
    early: Flags
    """Records that are rows although the table's own offset is not past them."""
    unmatched: Numbers
    """Offsets of rows without a record, ascending."""
    unmatched_times: Numbers
    """Number of rows of each of those."""


def match(
    records: Numbers, rows: Numbers, rejects: Numbers, stored: StoredOffsets, *, rejects_ahead: bool = False
) -> RowsOfPartition:
    """Compare rows with records.

    Rows of commits made during the reading may be there or not; earlier ones must.

    Args:
        records: offsets of the committed records, ascending.
        rows: offsets of the rows, in any order.
        rejects: offsets of the rejects, likewise.
        stored: the table's own offset.
        rejects_ahead: rejects may be there before the offset is, because they are in a commit of their own.
    """
    row_times, unmatched_rows = _times(records, rows)
    reject_times, unmatched_rejects = _times(records, rejects)
    times = row_times + reject_times
    unmatched, unmatched_times = np.unique(np.concatenate((unmatched_rows, unmatched_rejects)), return_counts=True)
    absent = times == 0
    return RowsOfPartition(
        Steps(row_times, reject_times, absent & (records >= stored.before), absent & (records < stored.before)),
        ((row_times if rejects_ahead else times) > 0) & (records >= stored.after),
        unmatched,
        unmatched_times,
    )


def _times(records: Numbers, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Return the number of rows of each record, and the rows without a record."""
    if not len(records):
        return NO_ROWS, rows
    at = np.minimum(np.searchsorted(records, rows), len(records) - 1)
    known = records[at] == rows
    return np.bincount(at[known], minlength=len(records)).astype(np.int64), rows[~known]


_length = struct.Struct(">q").pack


def content(record: RecordView, *, with_timestamp: bool = True) -> bytes:
    """Return a digest of everything that must pass through untouched; 16 bytes."""
    digest = hashlib.blake2b(digest_size=16)
    fields: list[bytes | None] = [record.key, record.value]
    for name, value in record.headers:
        fields += [name.encode("utf-8", "surrogatepass"), value]
    for field in fields:
        digest.update(_length(-1 if field is None else len(field)))
        digest.update(field or b"")
    if with_timestamp:
        digest.update(_length(record.timestamp_ms))
    return digest.digest()


def identity_and_sequence(identity: bytes, sequence: int) -> bytes:
    """Return a digest of both in 16 bytes, to find the output record of an input record."""
    return hashlib.blake2b(_length(sequence) + identity, digest_size=16).digest()
