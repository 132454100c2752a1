"""Comparison of a table of one row per key with rows computed from the topic."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kafka_ratchet.app.verify.findings import FindingKind, ResultsReport
from kafka_ratchet.app.verify.rows import RowOffsets
from kafka_ratchet.spark_sink.job.recount import list_digest

KEY_SHOWN = 200
"""Maximum number of characters of a key in a finding; a key may be a megabyte long."""

VALUE_SHOWN = 200
"""Maximum number of characters of a value in a finding."""

ROUNDING = 1e-12
"""Largest relative difference of equal averages: the rounding error of a quotient of two doubles."""

Tuple = tuple[Any, ...]

HAS_NO_ROW: Final = "has no row"
"""Beginning of the detail of a lost key; `repair` puts its row in, and replaces other rows."""


class KeyedRows:
    """Comparison of expected rows with a table that has one row for each key.

    Args:
        schema: columns of the key, then the compared columns: totals, or `_kafka_partition` and `_kafka_offset`.
        width: number of key columns.
        report: receives counts and findings.
        rounded: names of columns with averages. Their last digits may differ, as each store rounds in its own way.
        on_key: function called with each finding: its kind, the values of the key, and a text.
    """

    def __init__(
        self,
        schema: pa.Schema,
        width: int,
        report: ResultsReport,
        rounded: Collection[str] = frozenset(),
        on_key: Callable[[FindingKind, Tuple, str], None] | None = None,
    ) -> None:
        self._schema, self._width, self._report, self._on_key = schema, width, report, on_key
        self._is_rounded = [name in rounded for name in schema.names[width:]]
        self._held: dict[Tuple, Tuple] = {}
        self._again: Counter[Tuple] = Counter()
        self.misplaced: list[tuple[int, int]] = []
        """Partition and offset in each row that does not come from the last record of its key."""

    def hold(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Store the rows of the table. Rows of an earlier call are removed."""
        self._held, self._again = {}, Counter()
        for key, values in self._tuples(batches):
            if key in self._held:
                self._again[key] += 1
            else:
                self._held[key] = values
        self._report.rows = len(self._held) + self._again.total()

    def compare_totals(self, expected: pa.Table) -> None:
        """Compare each key's totals with the expected ones.

        Losses and repeats are counted in records, because a row of totals stands for many records.
        """
        for key, values in self._tuples(expected.to_batches()):
            held = self._held.pop(key, None)
            if held is not None and self._are_same(held, values):
                continue
            if held is None:
                self._add("lost", key, f"{HAS_NO_ROW}; the topic has {self._text(values)}", times=values[0])
                continue
            missing = values[0] - (held[0] or 0)
            kind: FindingKind = "lost" if missing > 0 else "doubled" if missing < 0 else "altered"
            detail = f"the table says {self._text(held)}, and the topic {self._text(values)}"
            self._add(kind, key, detail, times=abs(missing) or 1)
        self._finish()

    def _are_same(self, held: Tuple, values: Tuple) -> bool:
        if held == values:
            return True
        return all(
            one == other
            or (isinstance(one, float) and isinstance(other, float) and _is_near(one, other, is_rounded=is_rounded))
            for one, other, is_rounded in zip(held, values, self._is_rounded, strict=True)
        )

    def compare_last(self, expected: pa.Table, deleted: pa.Table) -> None:
        """Check that each key's row comes from the key's last record in some Kafka partition.

        A key needs no row if its last record in any partition is a delete.

        Args:
            expected: last record of each key in each partition, if that record has a value.
            deleted: last record of each key in each partition, if that record has no value.
        """
        last = self._by_key(expected)
        gone = self._by_key(deleted)
        for key in {**last, **gone}:
            candidates, deletions = last.get(key, {}), gone.get(key, {})
            self._report.several += len(candidates) + len(deletions) > 1
            held = self._held.pop(key, None)
            if held is None:
                if not deletions:
                    partition, offset = max(candidates.items(), key=lambda item: item[1])
                    self._add("lost", key, "has no row, and this is its last record", partition, offset)
                continue
            partition, offset = held
            newest = candidates.get(partition, deletions.get(partition))
            if newest is not None and offset is not None and offset < newest:
                self.misplaced.append((partition, offset))
                what = "this record is later" if partition in candidates else "this record deletes it"
                self._add("lost", key, f"has the row of offset {offset}, and {what}", partition, newest)
            elif offset != candidates.get(partition):
                self.misplaced.append((partition, offset))
                self._add("unexpected", key, "has the row of another key's record", partition, offset)
        self._finish()

    def _by_key(self, table: pa.Table) -> dict[Tuple, dict[int, int]]:
        """Return, for each key, the offset of its record by partition."""
        found: dict[Tuple, dict[int, int]] = {}
        for key, (partition, offset) in self._tuples(table.to_batches()):
            found.setdefault(key, {})[partition] = offset
        return found

    def compare_rejects(self, expected: pa.Table, rejects: RowOffsets, end: Mapping[int, int]) -> None:
        """Check that the rejects are exactly the records with an unparsable value.

        end: first offset after the compared rejects, by partition
        """
        wanted = RowOffsets()
        wanted.add(expected.to_batches())
        for partition in sorted({*wanted.left(), *rejects.left()}):
            due, there = wanted.of(partition), rejects.of(partition)
            there = there[there < end.get(partition, 0)]
            for offset in np.setdiff1d(due, there).tolist():
                self._report.find("lost", "does not parse, but is not among the rejects", partition, offset)
            for offset in np.setdiff1d(there, due).tolist():
                detail = "is a reject, and the topic has no such record that does not parse"
                self._report.find("unexpected", detail, partition, offset)

    def _finish(self) -> None:
        """Report rows of keys that the topic does not have, and keys with several rows."""
        for key in self._held:
            self._add("unexpected", key, "has a row, and the topic has no record of it")
        for key, times in self._again.items():
            self._add("doubled", key, f"has {times + 1} rows", times=times)

    def _tuples(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Tuple, Tuple]]:
        for batch in batches:
            columns = [_plain(batch.column(field.name), field.type).to_pylist() for field in self._schema]
            for row in zip(*columns, strict=True):
                yield row[: self._width], row[self._width :]

    def _add(
        self,
        kind: FindingKind,
        key: Tuple,
        detail: str,
        partition: int | None = None,
        offset: int | None = None,
        times: int = 1,
    ) -> None:
        if self._on_key is not None:
            self._on_key(kind, key, detail)
        named = ", ".join(
            f"{field.name}={_shown(value, field.type)}" for field, value in zip(self._schema, key, strict=False)
        )
        self._report.find(kind, f"key {named[:KEY_SHOWN]} {detail}", partition, offset, times)

    def _text(self, values: Tuple) -> str:
        fields = list(self._schema)[self._width :]
        return ", ".join(
            f"{field.name} {_shown(value, field.type) if isinstance(value, int | str) else value}"[:VALUE_SHOWN]
            for field, value in zip(fields, values, strict=True)
        )


def _is_near(one: float, other: float, *, is_rounded: bool) -> bool:
    """Return True if two floats count as equal: both are NaN, or they differ by rounding only."""
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return is_rounded and math.isclose(one, other, rel_tol=ROUNDING)


def _plain(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert a column to comparable values: times and dates to integers, lists to digests.

    Python's own dates cannot represent all years of the tables.
    """
    if pa.types.is_list(wanted) and pa.types.is_string(column.type):
        return column  # it is the digest already
    column = column.cast(wanted)
    if pa.types.is_list(wanted):
        return pa.array(
            [None if numbers is None else list_digest(numbers) for numbers in column.to_pylist()], pa.string()
        )
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column


def _shown(value: Any, data_type: pa.DataType) -> str:
    if isinstance(value, int) and (pa.types.is_timestamp(data_type) or pa.types.is_date32(data_type)):
        number = pa.int64() if pa.types.is_timestamp(data_type) else pa.int32()
        return str(pa.scalar(value, number).cast(data_type).cast(pa.string()).as_py())
    return repr(value)
