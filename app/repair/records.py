"""Comparison of a topic with a table of one row per record, and its rejects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_ratchet.app.repair.plan import RecordSet, RepairPlan
from kafka_ratchet.app.verify.identities import Flags, Numbers
from kafka_ratchet.app.verify.rows import NO_ROWS, RowOffsets
from kafka_ratchet.app.verify.values import NO_VALUE, ComparedColumns
from kafka_ratchet.spark_sink.job.recount import DueRecords
from kafka_ratchet.spark_sink.rows.digests import row_digests

NOWHERE: Final = -1
"""Number in place of a null partition or offset."""

NOT_DUE: Final = "the topic has no such record; --remove-unexpected removes the row"
REJECT_NOT_DUE: Final = "the topic has no such record; --remove-unexpected removes the reject"


@dataclass(frozen=True)
class ComparedOffsets:
    """Offsets that bound the comparison of a partition."""

    earliest: int
    stored: int
    reached: int
    """Offset that the table stored after the reading. The job committed rows from `stored` to here during the
    reading."""
    rejects_ahead: bool = False
    """True if the rejects may be one commit ahead of the rows; rejects from `stored` on are then not compared."""

    def judged(self, offsets: Numbers) -> Flags:
        """Return True for each row that can be checked, given the offsets of the rows.

        A row can be checked if the topic still has its record, and if the row was not committed during the reading.
        """
        found: Flags = (
            (offsets < 0) | ((offsets >= self.earliest) & (offsets < self.stored)) | (offsets >= self.reached)
        )
        return found

    def judged_rejects(self, offsets: Numbers) -> Flags:
        """Return True for each reject that can be checked, given the offsets of the rejects; see `judged`."""
        found = self.judged(offsets)
        return found & (offsets < self.stored) if self.rejects_ahead else found

    def before(self, offsets: Numbers) -> int:
        """Return the number of rows made from deleted records, given the offsets of the rows."""
        return int(np.count_nonzero((offsets >= 0) & (offsets < self.earliest)))


NO_BOUNDS: Final = ComparedOffsets(0, 0, 0)
"""Bounds of a partition that the topic does not have."""


class HeldRecords:
    """Digests of a table's rows by Kafka partition; each row takes 24 bytes of memory.

    Args:
        compared: columns to compare.
        columns: names of the Arrow columns of the rows.
    """

    def __init__(self, compared: ComparedColumns, columns: pa.Schema) -> None:
        self.columns = [*compared.compared, *["_kafka_timestamp"] * compared.has_time]
        """Names of the columns in a row's digest, in the digest's order."""
        self.schema, self._has_value = compared.schema(columns), compared.has_value
        self._held: dict[int, list[Numbers]] = {}

    def hold(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Store the digests of a table's rows, in place of digests from an earlier call."""
        self._held = {}
        for batch in batches:
            partitions, offsets = coordinates(batch)
            absent = np.full(batch.num_rows, NO_VALUE, np.int64)
            found = row_digests([batch.column(name) for name in self.columns]) if self.columns else absent
            values = row_digests([batch.column("_kafka_value")]) if self._has_value else absent
            rows = np.stack([offsets, found, values])
            for partition in np.unique(partitions).tolist():
                self._held.setdefault(partition, []).append(rows[:, partitions == partition])

    def partitions(self) -> set[int]:
        """Return the partitions with rows; `NOWHERE` stands for null."""
        return set(self._held)

    def of(self, partition: int) -> tuple[Numbers, Numbers, Numbers]:
        """Return three arrays for a partition: offsets, digests of the rows, and digests of the values."""
        pieces = self._held.get(partition)
        offsets, found, values = np.concatenate(pieces, axis=1) if pieces else np.empty((3, 0), np.int64)
        return offsets, found, values


class ExpectedRows:
    """Expected rows and rejects of the topic's records, by Kafka partition.

    Args:
        found: rows and rejects of all partitions.
        parses: True if values have columns, so that a row may lack `_kafka_value`.
        has_value: True if the table has a column `_kafka_value`.
    """

    def __init__(self, found: DueRecords, *, parses: bool, has_value: bool) -> None:
        self._rows: dict[int, tuple[Numbers, Numbers, Numbers]] = {}
        self._parses, self._has_value = parses, has_value
        for partition in pc.unique(found.rows["_kafka_partition"]).to_pylist():
            of_it = found.rows.filter(pc.equal(found.rows["_kafka_partition"], partition)).sort_by("_kafka_offset")
            names = ("_kafka_offset", "_digest", "_value_digest")
            offsets, digests, values = (of_it[name].to_numpy() for name in names)
            self._rows[partition] = offsets, digests, values
        self._rejects = RowOffsets()
        self._rejects.add(found.rejects.to_batches())

    def rows(self, partition: int) -> Numbers:
        """Return the ascending offsets of the partition's records that make a row."""
        return self._rows[partition][0] if partition in self._rows else NO_ROWS

    def rejects(self, partition: int) -> Numbers:
        """Return the ascending offsets of the partition's records that make a reject."""
        return np.sort(self._rejects.of(partition))

    def are_right(self, partition: int, at: Numbers, found: Numbers, values: Numbers) -> Flags:
        """Return True for each row with digests equal to those expected for its record.

        at: for each row, the position of its record in `rows(partition)`
        found: digests of the rows
        values: digests of the rows' values
        """
        _, wanted, wanted_values = self._rows.get(partition, (NO_ROWS, NO_ROWS, NO_ROWS))
        right: Flags = found == wanted[at]
        if self._has_value:
            # Whether the value is kept is a setting that may change.
            other = values != wanted_values[at]
            right &= ~(other & (values != NO_VALUE) if self._parses else other)
        return right


def coordinates(batch: pa.RecordBatch) -> tuple[Numbers, Numbers]:
    """Return partition and offset of each row's record as arrays, with `NOWHERE` for null."""
    partitions, offsets = (
        pc.fill_null(batch.column(name), NOWHERE).to_numpy(zero_copy_only=False).astype(np.int64)
        for name in ("_kafka_partition", "_kafka_offset")
    )
    return partitions, offsets


def places(among: Numbers, offsets: Numbers) -> tuple[Numbers, Flags]:
    """Return two arrays: each offset's index in the ascending array `among`, and True for each offset found there."""
    if not len(among):
        return np.zeros(len(offsets), np.int64), np.zeros(len(offsets), np.bool_)
    at = np.minimum(np.searchsorted(among, offsets), len(among) - 1)
    return at, among[at] == offsets


def times(among: Numbers, offsets: Numbers) -> Numbers:
    """Count how often each of the ascending offsets `among` occurs in `offsets`."""
    at, is_there = places(among, offsets)
    return np.bincount(at[is_there], minlength=len(among)).astype(np.int64)


class AppendedTable:
    """Comparison of a table with one row per record, and of its rejects.

    Args:
        plan: plan that receives the findings.
        remove_unexpected: True to remove rows without a record in the topic.
        has_rejects: True if rejects have a table.
    """

    def __init__(self, plan: RepairPlan, *, remove_unexpected: bool, has_rejects: bool) -> None:
        self._plan, self._remove_unexpected, self._has_rejects = plan, remove_unexpected, has_rejects
        self._gone, self._put_in = RecordSet(), RecordSet()
        self._rejects_gone, self._rejects_put_in = RecordSet(), RecordSet()

    def compare(
        self, held: HeldRecords, rejects: RowOffsets, due: ExpectedRows, bounds: Mapping[int, ComparedOffsets]
    ) -> None:
        """Compare all partitions, and add the findings to the plan."""
        for partition in sorted({*held.partitions(), *rejects.left(), *bounds}):
            self._compare(partition, held, rejects, due, bounds.get(partition, NO_BOUNDS))
        plan = self._plan
        plan.gone, plan.put_in = self._gone.table(), self._put_in.table()
        plan.rejects_gone, plan.rejects_put_in = self._rejects_gone.table(), self._rejects_put_in.table()

    def _compare(
        self, partition: int, held: HeldRecords, rejects: RowOffsets, due: ExpectedRows, bounds: ComparedOffsets
    ) -> None:
        plan = self._plan
        offsets, found, values = held.of(partition)
        kept = rejects.of(partition)
        plan.before += bounds.before(offsets) + bounds.before(kept)
        judged = bounds.judged(offsets)
        offsets, found, values = offsets[judged], found[judged], values[judged]
        kept = kept[bounds.judged_rejects(kept)]
        rows, to_reject = due.rows(partition), due.rejects(partition)
        at, is_due = places(rows, offsets)
        right = due.are_right(partition, at[is_due], found[is_due], values[is_due])
        count = np.bincount(at[is_due], minlength=len(rows)).astype(np.int64)
        good = np.bincount(at[is_due], weights=right, minlength=len(rows)).astype(np.int64)
        self._rows(partition, rows, count, good, times(rows, kept))
        others = offsets[~is_due]
        self._unexpected_rows(partition, np.unique(others[~np.isin(others, to_reject)]))
        if self._has_rejects:
            self._rejects(partition, to_reject, times(to_reject, others), times(to_reject, kept))
            neither = kept[~np.isin(kept, to_reject) & ~np.isin(kept, rows)]
            self._unexpected_rejects(partition, np.unique(neither))

    def _rows(self, partition: int, rows: Numbers, count: Numbers, good: Numbers, rejected: Numbers) -> None:
        """Plan the changes for records that must have a row.

        Each array has one element for each such record: `rows` has the record's offset, `count` the number of its rows
        in the table, `good` the number of right rows among these, and `rejected` the number of the record's rejects.
        """
        add = self._plan.add_offsets
        lost = rows[(count == 0) & (rejected == 0)]
        add("lost", "put in", partition, lost, "has no row")
        altered = rows[(count == 1) & (good == 0)]
        add("altered", "replace", partition, altered, "its row has other values than the record")
        doubled = rows[(count > 1) & (good == count)]
        add("doubled", "replace", partition, doubled, "has more than one row; one is left")
        mixed = rows[(count > 1) & (good < count)]
        self._put_in.add(partition, [*lost.tolist(), *altered.tolist(), *doubled.tolist()])
        self._gone.add(partition, [*altered.tolist(), *doubled.tolist()])
        if self._remove_unexpected:
            why = "has more than one row, and not all have its values; one is left"
            add("doubled", "replace", partition, mixed, why)
            self._put_in.add(partition, mixed.tolist())
            self._gone.add(partition, mixed.tolist())
        else:
            why = "has more than one row, and not all have its values; --remove-unexpected leaves the right one"
            add("doubled", "stays", partition, mixed, why)
        both = rows[(count > 0) & (rejected > 0)]
        add("doubled", "remove", partition, both, "is a row and a reject, and parses", rejects=True)
        self._rejects_gone.add(partition, both.tolist())
        again = rows[(count == 0) & (rejected > 1)]
        add("doubled", "stays", partition, again, "is a reject more than once, and parses today", rejects=True)

    def _unexpected_rows(self, partition: int, offsets: Numbers) -> None:
        if self._remove_unexpected:
            self._plan.add_offsets("unexpected", "remove", partition, offsets, "the topic has no such record")
            self._remove(self._gone, partition, offsets)
        else:
            self._plan.add_offsets("unexpected", "stays", partition, offsets, NOT_DUE)

    def _unexpected_rejects(self, partition: int, offsets: Numbers) -> None:
        add = self._plan.add_offsets
        if self._remove_unexpected:
            add("unexpected", "remove", partition, offsets, "the topic has no such record", rejects=True)
            self._remove(self._rejects_gone, partition, offsets)
        else:
            add("unexpected", "stays", partition, offsets, REJECT_NOT_DUE, rejects=True)

    def _remove(self, chosen: RecordSet, partition: int, offsets: Numbers) -> None:
        """Choose rows to remove, including rows with null coordinates."""
        found = offsets.tolist()
        nowhere: list[int | None] = [*found, *[None] * (NOWHERE in found)]
        chosen.add(partition, nowhere)
        if partition == NOWHERE:
            chosen.add(None, nowhere)

    def _rejects(self, partition: int, offsets: Numbers, rows: Numbers, count: Numbers) -> None:
        """Plan the changes for records that must have a reject.

        Each array has one element for each such record: `offsets` has the record's offset, `rows` the number of its
        rows, and `count` the number of its rejects.
        """
        add = self._plan.add_offsets
        lost = offsets[(rows == 0) & (count == 0)]
        add("lost", "put in", partition, lost, "does not parse, but is not among the rejects", rejects=True)
        doubled = offsets[count > 1]
        add("doubled", "replace", partition, doubled, "is a reject more than once; one is left", rejects=True)
        self._rejects_put_in.add(partition, [*lost.tolist(), *doubled.tolist()])
        self._rejects_gone.add(partition, doubled.tolist())
        both = offsets[(rows > 0) & (count > 0)]
        add("doubled", "remove", partition, both, "is a row and a reject, and does not parse")
        self._gone.add(partition, both.tolist())
        again = offsets[(rows > 1) & (count == 0)]
        add("doubled", "stays", partition, again, "has more than one row, and does not parse today")
