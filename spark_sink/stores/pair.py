"""Result table and rejects table of a store that commits one table at a time: rows and rejects take two commits.

The rejects table has its own generation and offsets, and is committed first. If a job ends between the two commits, the
rejects table is ahead. The next run reads that range of records again for the result table, and leaves out the rejects
already stored. Committed records of Kafka do not change, but their parsing may. If a record of that range was a row at
the first reading and is a reject at the second, the commit is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Protocol, cast

from kafka_ratchet.spark_sink.errors import Fenced, OptionRefused, StoreError
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.decision import STORED, Decision, RepairNote, Replacement, StoreCheck
from kafka_ratchet.spark_sink.stores.judging_store import JudgingStore
from kafka_ratchet.spark_sink.stores.store import ResultStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from kafka_ratchet.spark_sink.rows.judging.task import Known

TAKE_OVER_ATTEMPTS = 100
"""Attempts of a take-over while other runs take over first; each failure means that another run has started."""


class NumberedStore(ResultStore, Protocol):
    """Store with generations that its caller may choose."""

    may_be_emptied: bool
    """True if an operator may remove all rows of the table (DELETE, TRUNCATE)."""

    def open(self, schema: StructType, generation: int | None = None) -> dict[int, int]:
        """Open the store, see `ResultStore.open`.

        Args:
            schema: the table's columns.
            generation: generation to take over with; None: one more than the newest.

        Raises:
            Fenced: the newest generation is not below `generation`; no job was fenced.
        """
        ...

    def make(self, schema: StructType) -> None:
        """Create a missing table without fencing any job; see `ResultStore.open`."""
        ...

    def reset_offsets(self, offsets: dict[int, int], decision: Decision, generation: int | None = None) -> int:
        """Reset the offsets with a chosen generation; see `ResultStore.reset_offsets` and `open`."""
        ...

    def scan_records(self, schema: pa.Schema, partition: int, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Read rows of a range of offsets, see `TableStore.scan_records`."""
        ...


class PairedStore:
    """Pair of stores used as one `ResultStore`: rows go to one, rejects to the other.

    Args:
        rows: store of the rows; its offsets count as those of the pair.
        rejects: store of the rejects, which are appended; for the same job and topic.
        rejects_schema: columns of the rejects.
    """

    def __init__(self, rows: NumberedStore, rejects: NumberedStore, rejects_schema: StructType) -> None:
        self._rows, self._rejects, self._rejects_schema = rows, rejects, rejects_schema
        self.restricted_values, self.needs_local_master = rows.restricted_values, rows.needs_local_master
        self.judges = rows.judges
        self._rejects.may_be_emptied = True
        self._reached: dict[int, int] = {}
        """Next offset stored with the rejects, by partition. If it is above the rows' offset, the rejects up to it are
        already stored. If it is below the rows' offset, the records in between had no rejects."""

    def generation(self) -> int:
        return self._rows.generation()

    def offsets(self) -> dict[int, int]:
        self._require_rejects_of_these_rows()  # a replaced rejects table is noticed as well
        return self._rows.offsets()

    def first_offsets(self) -> dict[int, int]:
        return self._rows.first_offsets()

    def _require_rejects_of_these_rows(self) -> None:
        """Refuse a table of rejects if no job has ever opened the result table.

        A job opens the result table first, so such rejects belong to another result table. With these rejects, a record
        would be in both tables if it was rejected by other columns or another rule, and is a row today.

        Raises:
            StoreError: the rejects have offsets, and the result table has no generation.
        """
        reached = self._rejects.offsets()
        if reached and not self._rows.generation():
            raise StoreError(
                f"the table of rejects has rejects up to offsets {reached}, and no job of this name has ever opened "
                "the result table: the result table was removed or moved. Put the result table back. To begin again, "
                "remove both tables, or choose another path or table"
            )

    def check_before_commit(self, check: Callable[[], object]) -> None:
        self._rows.check_before_commit(check)
        self._rejects.check_before_commit(check)

    def check(self) -> StoreCheck:
        rows, rejects = self._rows.check(), self._check_rejects()
        if rejects.trouble and rows.row_offsets is not None:
            # Rejects come back only with the rows of their range: those have to begin where the rejects end, or before.
            reached = rejects.row_offsets
            if reached is None or any(reached.get(p, 0) < offset for p, offset in rows.row_offsets.items()):
                return replace(rows, row_offsets=None, trouble=" ".join(filter(None, [rows.trouble, rejects.trouble])))
        return replace(rows, trouble=" ".join(filter(None, [rows.trouble, rejects.trouble])))

    def reset_offsets(self, offsets: dict[int, int], decision: Decision) -> int:
        """Reset the offsets of the result table, but keep usable offsets of the rejects table.

        Offsets are usable if they belong to this topic and match the rejects in the table.
        """
        rows, rejects = self._rows.check(), self._check_rejects()
        reached = rejects.stored
        if rows.is_other_topic or rejects.is_other_topic:
            reached = offsets
        elif rejects.trouble and decision.source != STORED:
            reached = rejects.row_offsets or {}
        generation = max(self._rows.generation(), self._rejects.generation()) + 1
        # Rows first: a process that ends in between leaves rejects that are still refused.
        taken = self._rows.reset_offsets(offsets, decision, generation)
        self._rejects.make(self._rejects_schema)
        self._rejects.reset_offsets(reached, replace(decision, seen=None), generation)
        return taken

    def _check_rejects(self) -> StoreCheck:
        return StoreCheck({}, {}, "") if self._rejects.columns() is None else self._rejects.check()

    def other_jobs(self) -> list[str]:
        return self._rows.other_jobs()

    def columns(self) -> StructType | None:
        return self._rows.columns()

    def column_names(self) -> list[str] | None:
        return self._rows.column_names()

    def require_fits(self, schema: StructType) -> None:
        self._rows.require_fits(schema)
        self._rejects.require_fits(self._rejects_schema)

    def require_write_mode(self) -> None:
        """Refuse a write mode other than that of the stored rows; rejects are always appended."""
        self._rows.require_write_mode()

    def open(self, schema: StructType) -> dict[int, int]:
        """Open both tables with one generation, so that one of two competing jobs gets both."""
        self._require_rejects_of_these_rows()  # and those of another topic, before any holder is fenced
        for _ in range(TAKE_OVER_ATTEMPTS):
            generation = max(self._rows.generation(), self._rejects.generation()) + 1
            try:
                stored = self._rows.open(schema, generation)
            except Fenced:
                continue  # another take-over came in between; the next number is above it
            self._reached = self._rejects.open(self._rejects_schema, generation)
            return stored
        raise StoreError(
            f"another run of the job took over the tables of rows and rejects first {TAKE_OVER_ATTEMPTS} times in a "
            "row. Start only one run of a job of this name"
        )

    def require_sequences(self) -> None:
        """See `JudgingStore`."""
        cast("JudgingStore", self._rows).require_sequences()

    def known_sequences(self) -> Known | None:
        return cast("JudgingStore", self._rows).known_sequences()

    def commit(
        self,
        dataframe: DataFrame,
        start: dict[int, int],
        end: dict[int, int],
        rejects: DataFrame | None = None,
        sequences: DataFrame | None = None,
    ) -> int:
        """Commit the rejects, then the rows with their last sequences; each commit stores its end offsets.

        Raises:
            Fenced: another job has taken over. No row of this call is visible; rejects of the call may be, each once.
            StoreError: a table cannot be written. No row of this call is visible; rejects of the call may be, each
                once.
        """
        self._commit_rejects(start, end, rejects)
        return self._rows.commit(dataframe, start, end, None, sequences)

    def _commit_rejects(self, start: dict[int, int], end: dict[int, int], rejects: DataFrame | None) -> None:
        if rejects is None:
            raise ValueError("a store with rejects needs them in every commit")
        self._require_rejects_again(start, rejects)
        new = rejects.where(_from(self._reached))
        if new.count():  # a commit without rejects is not worth a log entry: a second read finds none either
            reached = {p: max(end.get(p, 0), self._reached.get(p, 0)) for p in {**end, **self._reached}}
            self._rejects.commit(new, {**start, **self._reached}, reached)
            self._reached = reached
        crash_points.passing("between-commits")

    def _require_rejects_again(self, start: Mapping[int, int], rejects: DataFrame) -> None:
        """Refuse a record that was a row at its first reading and is a reject now.

        Each reject among the records read again must already be stored as a reject. A value that one run has parsed may
        not parse in the next run, because a schema was deleted or a setting changed. The record would then be in
        neither table (decision 0061).

        Raises:
            StoreError: a reject of this reading is not stored; nothing of this commit is visible.
        """
        if not any(offset > start.get(partition, 0) for partition, offset in self._reached.items()):
            return
        again = rejects.where(~_from(self._reached)).select("_kafka_partition", "_kafka_offset").collect()
        read: dict[int, set[int]] = {}
        for partition, offset in again:
            read.setdefault(partition, set()).add(offset)
        for partition, offsets in sorted(read.items()):
            if missing := offsets - self._stored_rejects(partition, min(offsets), max(offsets)):
                raise StoreError(
                    f"partition {partition}, offset {min(missing)} ({len(missing)} such records): the record was a "
                    "row when the rejects of its commit were stored, and does not parse now, so that neither table "
                    "would have the record. Find and undo the change since then, such as a deleted schema or other "
                    "options of the format, and run the job again. Without from_input, 'ratchet sink resume' can set "
                    "other offsets"
                )

    def _stored_rejects(self, partition: int, first: int, last: int) -> set[int]:
        """Return the offsets of a partition's stored rejects, from `first` to `last` inclusive."""
        import pyarrow as pa

        schema = pa.schema([("_kafka_partition", pa.int32()), ("_kafka_offset", pa.int64())])
        found: set[int] = set()
        for batch in self._rejects.scan_records(schema, partition, first, last):
            of = zip(
                batch.column("_kafka_partition").to_pylist(), batch.column("_kafka_offset").to_pylist(), strict=True
            )
            found.update(offset for each, offset in of if each == partition)
        return found

    def other_sources(self) -> list[str]:
        return self._rows.other_sources()

    def replace(
        self, dataframe: DataFrame, first: dict[int, int], last: dict[int, int], rejects: DataFrame | None = None
    ) -> int:
        """Refuse a replacement: a record may move between rows and rejects, and no commit covers both tables."""
        raise OptionRefused(
            "this store keeps rejects in a separate table, and no single commit changes both tables: a former reject "
            "that is a row now would be in both, or in neither. Choose a database (postgres, mysql, duckdb), or a job "
            "without rejects"
        )

    def require_repairable(self) -> None:
        self._rows.require_repairable()
        self._rejects.require_repairable()

    def repair(
        self, rows: Replacement | None, rejects: Replacement | None, start: Mapping[int, int], note: RepairNote
    ) -> None:
        """Repair the rejects first, then the rows, each in a commit of its own."""
        if rejects is not None:
            self._rejects.repair(rejects, None, self._reached, note)
            crash_points.passing("between-commits")
        if rows is not None:
            self._rows.repair(rows, None, start, note)

    def close(self) -> None:
        self._rows.close()
        self._rejects.close()


def _from(offsets: Mapping[int, int]) -> Column:
    """Return the condition for records not below `offsets`, including all records of other partitions."""
    from pyspark.sql import functions as F

    below = [(F.col("_kafka_partition") == p) & (F.col("_kafka_offset") < offset) for p, offset in offsets.items()]
    return ~reduce(lambda one, other: one | other, below, F.lit(False))
