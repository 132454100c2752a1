"""Comparison of a topic with a table of one row per key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from kafka_ratchet.app.repair.plan import COORDINATES, RecordSet, RepairPlan
from kafka_ratchet.app.repair.records import (
    NO_BOUNDS,
    NOT_DUE,
    ComparedOffsets,
    ExpectedRows,
    HeldRecords,
    coordinates,
    places,
)
from kafka_ratchet.app.verify.findings import FindingKind, ResultsReport
from kafka_ratchet.app.verify.keys import HAS_NO_ROW, KeyedRows
from kafka_ratchet.app.verify.rows import RowOffsets
from kafka_ratchet.spark_sink.job.recount import Recount
from kafka_ratchet.spark_sink.rows.digests import row_digests
from kafka_ratchet.spark_sink.rows.identities import plain, tuples

Tuple = tuple[Any, ...]

KEY_SHOWN = 200
"""Maximum number of characters of a key in a finding."""

DOES_NOT_PARSE = "stands for a record that does not parse today; look at what has changed since, such as its schema"

COMPACTED = "is newer than the records that compaction has left of its key"

MAYBE_DELETED = "has no row, but the topic no longer has all records, and one of those may have deleted the key"

SEVERAL = "its records are in several partitions, and it is unknown which of them was committed last"

NO_REJECT = "is a reject, but its record must not be one; --remove-unexpected removes this reject"


@dataclass(frozen=True)
class HeldRow:
    """Row of the table: partition and offset of its record, and digests of its contents."""

    partition: int
    offset: int
    digest: int
    value_digest: int


class KeyTable:
    """Converter of keys from Python tuples to columns or text.

    Args:
        schema: schema of the key.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def table(self, keys: Iterable[Tuple]) -> pa.Table:
        """Return keys as columns with the types of the table's key."""
        columns = list(zip(*keys, strict=True)) or [()] * len(self.schema)
        made = []
        for values, field in zip(columns, self.schema, strict=True):
            empty: pa.Array = plain(pa.array([], field.type))
            made.append(pa.array(values, empty.type).cast(field.type))
        return pa.table(made, schema=self.schema)

    def text_of(self, key: Tuple) -> str:
        """Return a key as text for a finding, cut to `KEY_SHOWN` characters."""
        shown = zip(self.schema, self.table([key]).columns, strict=True)
        return ", ".join(f"{field.name}={_text(column[0])}" for field, column in shown)[:KEY_SHOWN]


def _text(value: pa.Scalar) -> str:
    is_time = pa.types.is_temporal(value.type)
    return str(value.cast(pa.string()).as_py()) if is_time else repr(value.as_py())


class LastRows:
    """Comparison of a table that has the last record of each key in one row.

    Args:
        plan: plan that receives the findings.
        keys: converter of the table's keys.
        remove_unexpected: True to remove rows without a record in the topic.
        is_compacted: True if compaction may have removed records from the middle of the topic.
        deletes: True if records without a value delete the row of their key.
    """

    def __init__(
        self, plan: RepairPlan, keys: KeyTable, *, remove_unexpected: bool, is_compacted: bool, deletes: bool
    ) -> None:
        self._plan, self._keys, self._remove_unexpected = plan, keys, remove_unexpected
        self._is_compacted, self._deletes = is_compacted, deletes
        self._held: dict[Tuple, list[HeldRow]] = {}
        self._gone: list[Tuple] = []
        self._put_in = RecordSet()
        self._bounds: Mapping[int, ComparedOffsets] = {}
        self._rejects: dict[int, set[int]] = {}

    def hold(self, batches: Iterable[pa.RecordBatch], columns: HeldRecords) -> None:
        """Store the rows of the table in memory, in place of an earlier call's.

        Args:
            batches: rows, with the key and the columns of `columns`.
            columns: columns to compare.
        """
        self._held = {}
        for batch in batches:
            partitions, offsets = coordinates(batch)
            found = row_digests([batch.column(name) for name in columns.columns])
            values = row_digests([batch.column("_kafka_value")]) if "_kafka_value" in batch.schema.names else found
            rows = zip(partitions.tolist(), offsets.tolist(), found.tolist(), values.tolist(), strict=True)
            for key, row in zip(tuples(batch.select(self._keys.schema.names)), rows, strict=True):
                self._held.setdefault(key, []).append(HeldRow(*row))

    def compare(self, found: Recount, due: ExpectedRows, bounds: Mapping[int, ComparedOffsets]) -> None:
        """Compare all keys, and add the findings to the plan."""
        self._bounds = bounds
        for partition, offset in tuples(found.rejects.select(COORDINATES.names)):
            self._rejects.setdefault(partition, set()).add(offset)
        last, deleted = self._by_key(found.keys), self._by_key(found.deleted)
        for key in {**last, **deleted}:
            self._compare(key, last.get(key, {}), deleted.get(key, {}), self._held.pop(key, []), due)
        for key, rows in self._held.items():
            self._without_record(key, rows)
        self._plan.gone, self._plan.put_in = self._keys.table(self._gone), self._put_in.table()

    def _by_key(self, found: pa.Table) -> dict[Tuple, dict[int, int]]:
        """Return the last offset of each key in each partition."""
        by_key: dict[Tuple, dict[int, int]] = {}
        width = len(self._keys.schema)
        for row in tuples(found.select([*self._keys.schema.names, *COORDINATES.names])):
            by_key.setdefault(row[:width], {})[row[width]] = row[width + 1]
        return by_key

    def _compare(
        self, key: Tuple, last: dict[int, int], deleted: dict[int, int], rows: list[HeldRow], due: ExpectedRows
    ) -> None:
        """Compare one key's rows with its last record; add the findings to the plan.

        last: by partition, the offset of the key's last record, if that record sets the row
        deleted: by partition, the offset of the key's last record, if that record deletes the row
        """
        if any(row.offset in self._rejects.get(row.partition, ()) for row in rows):
            self._stays(key, "altered", DOES_NOT_PARSE, rows)
            return
        candidates = {*last.items(), *deleted.items()}
        right = {(row.partition, row.offset) for row in rows} & set(last.items())
        foreign = any(row.partition not in {*last, *deleted} and self._is_before(row) for row in rows)
        if len(right) == 1:
            [wanted] = right
        elif self._is_compacted and any(self._is_newest(row, last, deleted) for row in rows):
            self._stays(key, "altered", COMPACTED, rows)
            return
        elif not rows and deleted:
            return  # the last commit may have been one that deletes
        elif not rows and self._may_be_deleted({*last}):
            self._stays(key, "lost", MAYBE_DELETED, rows)
            return
        elif len(candidates) == 1 and not foreign:
            [wanted] = candidates
        else:
            kind: FindingKind = "doubled" if len(rows) > 1 else "altered" if rows else "lost"
            self._stays(key, kind, SEVERAL, rows)
            return
        self._mend(key, wanted, last.get(wanted[0]) == wanted[1], rows, due)

    def _is_newest(self, row: HeldRow, last: dict[int, int], deleted: dict[int, int]) -> bool:
        """Return True if a row is newer than all records that its partition still has of its key."""
        return row.offset > max(last.get(row.partition, -1), deleted.get(row.partition, -1))

    def _may_be_deleted(self, partitions: set[int]) -> bool:
        """Return True if a record that the topic no longer has may have deleted a key's row.

        A deletion in the same partition would be there: it came later, so retention and compaction keep it longer.

        partitions: partitions with records of the key
        """
        if not self._deletes:
            return False
        others = (bounds.earliest for partition, bounds in self._bounds.items() if partition not in partitions)
        return any(self._is_compacted or earliest > 0 for earliest in others)

    def _mend(self, key: Tuple, wanted: tuple[int, int], is_row: bool, rows: list[HeldRow], due: ExpectedRows) -> None:
        """Plan the change that leaves a key only the row of its last record.

        wanted: partition and offset of the last record
        is_row: True if the last record makes a row; False if it deletes the key's row
        """
        named = self._keys.text_of(key)
        if not is_row:
            if rows:
                self._gone.append(key)
                self._plan.add("lost", "remove", wanted, "this record deletes the key, and it has a row", key=named)
            return
        if not rows:
            self._plan.add("lost", "put in", wanted, "has no row", key=named)
        elif len(rows) > 1:
            self._plan.add("doubled", "replace", wanted, f"has {len(rows)} rows", key=named)
        elif (rows[0].partition, rows[0].offset) != wanted:
            detail = f"has the row of offset {rows[0].offset}, and this is its last record"
            self._plan.add("altered", "replace", wanted, detail, key=named)
        elif not self._is_right(rows[0], due):
            self._plan.add("altered", "replace", wanted, "its row has other values than the record", key=named)
        else:
            return
        self._put_in.add(wanted[0], [wanted[1]])
        if rows:
            self._gone.append(key)

    def _is_right(self, row: HeldRow, due: ExpectedRows) -> bool:
        partition = row.partition
        at, is_there = places(due.rows(partition), np.array([row.offset], np.int64))
        if not is_there[0]:
            return False
        found, values = np.array([row.digest], np.int64), np.array([row.value_digest], np.int64)
        return bool(due.are_right(partition, at, found, values)[0])

    def _is_before(self, row: HeldRow) -> bool:
        """Return True if retention may have deleted the record that the row was made from."""
        bounds = self._bounds.get(row.partition)
        return bounds is not None and 0 <= row.offset < bounds.earliest

    def _without_record(self, key: Tuple, rows: list[HeldRow]) -> None:
        """Plan the change for the rows of a key without any record in the topic."""
        if any(row.offset in self._rejects.get(row.partition, ()) for row in rows):
            self._stays(key, "unexpected", DOES_NOT_PARSE, rows)
        elif any(self._is_before(row) for row in rows):
            self._plan.before += len(rows)
        elif self._remove_unexpected:
            self._gone.append(key)
            place = rows[0].partition, rows[0].offset
            self._plan.add("unexpected", "remove", place, "the topic has no record of it", key=self._keys.text_of(key))
        else:
            self._stays(key, "unexpected", NOT_DUE, rows)

    def _stays(self, key: Tuple, kind: FindingKind, why: str, rows: list[HeldRow]) -> None:
        place = (rows[0].partition, rows[0].offset) if rows else (None, None)
        self._plan.add(kind, "stays", place, why, key=self._keys.text_of(key))


class Totals(KeyedRows):
    """Comparison of a table that has the totals of each key in one row. `verify` uses the same base class.

    Args:
        plan: plan that receives the findings.
        keys: converter of the table's keys.
        schema: see `KeyedRows`.
        rounded: see `KeyedRows`.
        remove_unexpected: True to remove the rows of keys that no record of the topic has.
    """

    def __init__(
        self, plan: RepairPlan, keys: KeyTable, schema: pa.Schema, rounded: set[str], *, remove_unexpected: bool
    ) -> None:
        report = ResultsReport(plan.table, plan.job, plan.kind, 0, "keys")
        super().__init__(schema, len(keys.schema), report, rounded, self._remember)
        self._plan, self._keys, self._remove_unexpected = plan, keys, remove_unexpected
        self._found: dict[Tuple, tuple[FindingKind, str]] = {}

    def plan(self, found: Recount) -> None:
        """Compare all keys, and add the findings to the plan."""
        self.compare_totals(found.keys)
        gone: list[Tuple] = []
        put_in: list[Tuple] = []
        for key, (kind, detail) in self._found.items():
            named = self._keys.text_of(key)
            if kind == "unexpected":
                if self._remove_unexpected:
                    gone.append(key)
                    self._plan.add(kind, "remove", (None, None), "the topic has no record of it", key=named)
                else:
                    self._plan.add(kind, "stays", (None, None), NOT_DUE, key=named)
                continue
            put_in.append(key)
            if detail.startswith(HAS_NO_ROW):
                self._plan.add(kind, "put in", (None, None), detail, key=named)
            else:
                gone.append(key)
                self._plan.add(kind, "replace", (None, None), detail, key=named)
        self._plan.gone, self._plan.put_in = self._keys.table(gone), self._keys.table(put_in)

    def _remember(self, kind: FindingKind, key: Tuple, detail: str) -> None:
        # Of a key of several rows, the comparison of the first comes first.
        if self._found.get(key, (kind, ""))[0] != "unexpected":
            self._found[key] = kind, detail


def compare_rejects(
    plan: RepairPlan,
    due: pa.Table,
    there: RowOffsets,
    bounds: Mapping[int, ComparedOffsets],
    *,
    remove_unexpected: bool,
) -> None:
    """Compare the topic with the rejects of a table with one row per key; add the findings to the plan.

    Args:
        plan: plan that receives the findings.
        due: `_kafka_partition` and `_kafka_offset` of each reject that the table must have.
        there: offsets of the rejects that the table has.
        bounds: bounds of each partition.
        remove_unexpected: True to remove rejects outside of `due`.
    """
    wanted, gone, put_in = RowOffsets(), RecordSet(), RecordSet()
    wanted.add(due.to_batches())
    for partition in sorted({*wanted.left(), *there.left()}):
        limits = bounds.get(partition, NO_BOUNDS)
        found, must = there.of(partition), np.sort(wanted.of(partition))
        plan.before += limits.before(found)
        found = found[limits.judged_rejects(found)]
        lost = np.setdiff1d(must, found)
        plan.add_offsets(
            "lost", "put in", partition, lost, "does not parse, but is not among the rejects", rejects=True
        )
        counts = Counter(found.tolist())
        doubled = np.array(sorted(offset for offset in must.tolist() if counts[offset] > 1), np.int64)
        plan.add_offsets("doubled", "replace", partition, doubled, "is a reject more than once", rejects=True)
        put_in.add(partition, [*lost.tolist(), *doubled.tolist()])
        gone.add(partition, doubled.tolist())
        others = np.setdiff1d(found, must)
        if remove_unexpected:
            plan.add_offsets(
                "unexpected", "remove", partition, others, "is a reject, but its record must not be one", rejects=True
            )
            gone.add(partition, others.tolist())
        else:
            plan.add_offsets("unexpected", "stays", partition, others, NO_REJECT, rejects=True)
    plan.rejects_gone, plan.rejects_put_in = gone.table(), put_in.table()
