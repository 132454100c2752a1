"""Comparison of a table's values with the records' values, by digests of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_ratchet.app.verify.findings import ResultsReport
from kafka_ratchet.app.verify.identities import Flags, Numbers
from kafka_ratchet.spark_sink.rows.columns import RECORD_COLUMNS
from kafka_ratchet.spark_sink.rows.digests import row_digests
from kafka_ratchet.spark_sink.rows.timestamps import END_MS, FIRST_MS, NO_TIMESTAMP_MS, mixed_up_days

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NO_TIME: Final = -(2**63)
"""Number that stands for a null time."""

NOWHERE: Final = -1
"""Number that stands for a null partition or offset."""

DAY_MS: Final = 86_400_000

NO_VALUE: Final = int(row_digests([pa.nulls(1, pa.binary())])[0])
"""Digest of a null `_kafka_value`."""


@dataclass(frozen=True)
class ComparedColumns:
    """Choice of the columns to compare."""

    compared: list[str]
    """Names of the columns in each row's digest, in order."""
    left_out: list[str]
    has_time: bool
    has_value: bool

    @classmethod
    def of_table(cls, columns: StructType, *, nested: bool) -> ComparedColumns:
        """Choose the columns to compare among those of a table.

        Columns after the last `_kafka_...` column were added later and are left out: earlier rows have null there.

        Args:
            columns: columns of the table, in its order.
            nested: True if the table has lists, maps and structures as such; False if it has them as text.
        """
        names = columns.names
        last = max((names.index(name) for name in RECORD_COLUMNS if name in names), default=len(names) - 1)
        compared = [
            field.name
            for field in columns.fields[: last + 1]
            if (field.name not in RECORD_COLUMNS or field.name == "_kafka_key")
            and (nested or field.dataType.typeName() not in {"array", "map", "struct"})
        ]
        left_out = [name for name in names if name not in {*RECORD_COLUMNS, *compared}]
        return cls(compared, left_out, "_kafka_timestamp" in names, "_kafka_value" in names)

    def schema(self, columns: pa.Schema) -> pa.Schema:
        """Return the schema of the columns to read. columns: schema of the whole table."""
        names = [*self.compared, *["_kafka_timestamp"] * self.has_time, *["_kafka_value"] * self.has_value]
        return pa.schema([columns.field(name) for name in ("_kafka_partition", "_kafka_offset", *names)])


@dataclass(frozen=True)
class _Rows:
    """Rows of one Kafka partition."""

    offsets: Numbers
    digests: Numbers
    values: Numbers
    """Digests of `_kafka_value`."""
    times: Numbers
    """Values of `_kafka_timestamp` in microseconds since 1970, or `NO_TIME`."""

    @classmethod
    def concatenated(cls, parts: list[_Rows]) -> _Rows:
        return cls(
            *(np.concatenate([getattr(each, name) for each in parts]) for name in cls.__dataclass_fields__),
        )

    def at(self, which: Flags) -> _Rows:
        return _Rows(self.offsets[which], self.digests[which], self.values[which], self.times[which])


class TableValues:
    """Comparison of row digests; memory: 32 bytes for each row, and 28 for each record.

    Args:
        compared: columns to compare.
        columns: Arrow schema of the rows.
        parses: True if the value of a record is parsed into columns, so that a row may lack `_kafka_value`.
        report: receives findings and counts.
    """

    def __init__(self, compared: ComparedColumns, columns: pa.Schema, report: ResultsReport, *, parses: bool) -> None:
        self._columns, self._report, self._parses = compared, report, parses
        self.columns = compared.compared
        self.schema = compared.schema(columns)
        """Schema of the columns to read."""
        self._rows: dict[int, list[_Rows]] = {}
        self._expected: dict[int, pa.Table] = {}
        self._is_computed = False
        self._unparsed = 0
        self._left_out: dict[int, set[int]] = {}

    def hold(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Store the digests of the table's rows, and yield each batch unchanged.

        Digests of an earlier call are removed.
        """
        self._rows = {}
        for batch in batches:
            partitions, offsets = (
                pc.fill_null(batch.column(name), NOWHERE).to_numpy(zero_copy_only=False).astype(np.int64)
                for name in ("_kafka_partition", "_kafka_offset")
            )
            absent = np.full(batch.num_rows, NO_VALUE, np.int64)
            rows = _Rows(
                offsets,
                row_digests([batch.column(name) for name in self.columns]) if self.columns else absent,
                row_digests([batch.column("_kafka_value")]) if self._columns.has_value else absent,
                _microseconds(batch.column("_kafka_timestamp")) if self._columns.has_time else absent,
            )
            for partition in np.unique(partitions).tolist():
                self._rows.setdefault(partition, []).append(rows.at(partitions == partition))
            yield batch

    def expect(self, digests: pa.Table) -> None:
        """Store the digests of the expected rows.

        digests: columns `_kafka_partition`, `_kafka_offset`, `_digest` and `_value_digest`
        """
        self._is_computed = True
        for partition in pc.unique(digests["_kafka_partition"]).to_pylist():
            of_it = digests.filter(pc.equal(digests["_kafka_partition"], partition))
            self._expected[partition] = of_it.sort_by("_kafka_offset")

    def leave_out(self, rows: Iterable[tuple[int, int]]) -> None:
        """Exclude rows that have another finding already. rows: partition and offset of each."""
        for partition, offset in rows:
            self._left_out.setdefault(partition, set()).add(offset)

    def drop(self, partition: int) -> None:
        """Remove the rows of a Kafka partition without comparing them."""
        self._rows.pop(partition, None)
        self._expected.pop(partition, None)

    def compare(self, partition: int, records: Numbers, timestamps_ms: Numbers) -> None:
        """Compare the rows of one Kafka partition, and remove them.

        Args:
            partition: number of the partition.
            records: ascending offsets of the records, read by another client than Spark's.
            timestamps_ms: Kafka's timestamp of each record, in milliseconds.
        """
        parts, digests = self._rows.pop(partition, None), self._expected.pop(partition, None)
        if not parts:
            return
        rows = _Rows.concatenated(parts)
        if left_out := self._left_out.get(partition):
            rows = rows.at(~np.isin(rows.offsets, list(left_out)))
        if self._is_computed:
            self._count_unparsed(rows, records, digests)
        if digests is not None:
            rows = self._compare_values(partition, rows, digests)
        if self._columns.has_time:
            self._compare_times(partition, rows, records, timestamps_ms)

    def _count_unparsed(self, rows: _Rows, records: Numbers, digests: pa.Table | None) -> None:
        """Count the rows of records without an expected row: their values cannot be compared."""
        is_there = _found(records, rows.offsets)[1]
        if digests is not None:
            is_there &= ~_found(digests["_kafka_offset"].to_numpy(), rows.offsets)[1]
        self._unparsed += int(np.count_nonzero(is_there))
        if self._unparsed:
            self._report.values_unproven = f"{self._unparsed:,} rows stand for records that do not parse today"

    def _compare_values(self, partition: int, rows: _Rows, digests: pa.Table) -> _Rows:
        """Compare the digests of rows with the expected ones; return the rows that have an expected row."""
        at, is_there = _found(digests["_kafka_offset"].to_numpy(), rows.offsets)
        rows, at = rows.at(is_there), at[is_there]
        self._report.values_compared += len(at)
        differ = rows.digests != digests["_digest"].to_numpy()[at] if self.columns else np.zeros(len(at), np.bool_)
        if self._columns.has_value:
            # If values are parsed into columns, a row may lack `_kafka_value`: a setting decides, and may change.
            other = rows.values != digests["_value_digest"].to_numpy()[at]
            differ |= other & (rows.values != NO_VALUE) if self._parses else other
        for offset in np.sort(rows.offsets[differ]).tolist():
            self._report.find("altered", "its row has other values than the record", partition, offset)
        return rows

    def _compare_times(self, partition: int, rows: _Rows, records: Numbers, timestamps_ms: Numbers) -> None:
        at, is_there = _found(records, rows.offsets)
        rows, kafka_ms = rows.at(is_there), timestamps_ms[at[is_there]]
        is_held = (kafka_ms >= FIRST_MS) & (kafka_ms < END_MS) & (kafka_ms != NO_TIMESTAMP_MS)
        wanted = np.where(is_held, np.where(is_held, kafka_ms, 0) * 1000, NO_TIME)
        # Spark's source cannot tell some pairs of days apart, so rows of these days have no time.
        is_mixed_up = (rows.times == NO_TIME) & np.isin(kafka_ms // DAY_MS, list(mixed_up_days()))
        self._report.without_time += int(np.count_nonzero((rows.times == NO_TIME) & (~is_held | is_mixed_up)))
        for index in np.flatnonzero((rows.times != wanted) & ~is_mixed_up).tolist():
            held = "null" if rows.times[index] == NO_TIME else f"{int(rows.times[index])} us"
            detail = f"its row has the _kafka_timestamp {held}, and Kafka's own is {int(kafka_ms[index])} ms since 1970"
            self._report.find("altered", detail, partition, int(rows.offsets[index]))


def _microseconds(column: pa.Array) -> Numbers:
    found: Numbers = pc.fill_null(column.cast(pa.int64()), NO_TIME).to_numpy(zero_copy_only=False)
    return found


def _found(offsets: Numbers, wanted: Numbers) -> tuple[Numbers, Flags]:
    """Find offsets in an ascending array.

    Returns:
        index in `offsets` of each wanted offset, and for each True if it is there
    """
    if not len(offsets):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
    at = np.minimum(np.searchsorted(offsets, wanted), len(offsets) - 1)
    return at, offsets[at] == wanted
