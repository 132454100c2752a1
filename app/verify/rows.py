"""Comparison of a table's rows with the output: each record must have one row or reject."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kafka_ratchet.app.verify.identities import Flags, Numbers, OutputStates
from kafka_ratchet.app.verify.rule import RecordView

if TYPE_CHECKING:
    import pyarrow as pa

NOWHERE = -1
"""Number that stands for a null partition or offset."""

NO_ROWS = np.empty(0, np.int64)


class RowOffsets:
    """Kafka offsets of a table's rows, unordered, by Kafka partition: eight bytes a row."""

    def __init__(self) -> None:
        self._chunks: dict[int, list[Numbers]] = {}
        self.rows = 0

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add rows. Their columns must include `_kafka_partition` and `_kafka_offset`."""
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
        """Return the offsets of one partition, and remove them."""
        found = self.of(partition)
        self._chunks.pop(partition, None)
        return found

    def left(self) -> list[int]:
        """Return the partitions with offsets that `take` has not removed."""
        return sorted(self._chunks)


@dataclass(frozen=True)
class StoredOffsets:
    """Next Kafka offset stored with the table for one partition, before and after the reading."""

    before: int
    after: int
    first: int = 0
    """Offset where the job's first run began with `--start`; 0: it began at the topic's first offset."""

    @classmethod
    def of(
        cls, before: Mapping[int, int], after: Mapping[int, int], partition: int, first: Mapping[int, int]
    ) -> StoredOffsets:
        """Return the stored offsets of one partition; 0 where no offset is stored."""
        return cls(before.get(partition, 0), after.get(partition, 0), first.get(partition, 0))


@dataclass(frozen=True)
class RowsOfPartition:
    """Rows of one partition, assigned to its committed records."""

    steps: OutputStates
    early: Flags
    """True for each record with a row although the table's stored offset is not past the record."""
    left_out: Flags
    """True for each record before the `--start` of the job's first run, if it has no row."""
    unmatched: Numbers
    """Offsets of rows and rejects without a record, ascending."""
    unmatched_times: Numbers
    """Number of rows and rejects at each offset in `unmatched`."""


def match(
    records: Numbers, rows: Numbers, rejects: Numbers, stored: StoredOffsets, *, rejects_ahead: bool = False
) -> RowsOfPartition:
    """Assign a partition's rows and rejects to its records.

    Records below the offset stored before the table was read must have a row or reject. Records that the job committed
    during the reading may have one.

    Args:
        records: offsets of the committed records, ascending.
        rows: offsets of the rows, in any order.
        rejects: offsets of the rejects, in any order.
        stored: offsets stored with the table, before and after the read.
        rejects_ahead: True if the job commits rejects before the rows, so that they may be past the stored offset.
    """
    row_times, unmatched_rows = _times(records, rows)
    reject_times, unmatched_rejects = _times(records, rejects)
    times = row_times + reject_times
    unmatched, unmatched_times = np.unique(np.concatenate((unmatched_rows, unmatched_rejects)), return_counts=True)
    absent = times == 0
    left_out = absent & (records < min(stored.first, stored.before))
    lost = absent & (records < stored.before) & ~left_out
    return RowsOfPartition(
        OutputStates(row_times, reject_times, absent & (records >= stored.before), lost),
        ((row_times if rejects_ahead else times) > 0) & (records >= stored.after),
        left_out,
        unmatched,
        unmatched_times,
    )


def _times(records: Numbers, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Return each record's number of rows, and the offsets of rows without a record."""
    if not len(records):
        return NO_ROWS, rows
    at = np.minimum(np.searchsorted(records, rows), len(records) - 1)
    known = records[at] == rows
    return np.bincount(at[known], minlength=len(records)).astype(np.int64), rows[~known]


_length = struct.Struct(">q").pack


def content(record: RecordView, *, with_timestamp: bool = True) -> bytes:
    """Return a digest (16 bytes) of key, value and headers.

    It must be equal in input and output.

    with_timestamp: True to include the timestamp
    """
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
    """Return a digest (16 bytes) of identity and sequence.

    It is equal for an input record and its output record.
    """
    return hashlib.blake2b(_length(sequence) + identity, digest_size=16).digest()
