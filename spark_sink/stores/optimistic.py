"""Common part of stores that commit versions of a table, unless another writer was first.

The run that opened the store last is the job's holder. Before each attempt the holder reads the newest version and
checks that it still is the holder, and that the table's rows are those of the stored offsets. If another writer commits
a version after this check, the attempt fails and the holder checks again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kafka_ratchet.spark_sink.errors import OptionRefused, RowsAhead, SinkError, StoreError
from kafka_ratchet.spark_sink.files.parquet import Values, WrittenFile
from kafka_ratchet.spark_sink.rows.partition_by import require_columns_of
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.decision import Decision, RepairNote, Replacement, StoreCheck
from kafka_ratchet.spark_sink.stores.sequence_files import SequenceFiles
from kafka_ratchet.spark_sink.stores.store import (
    RUN_FIRST,
    next_generation,
)
from kafka_ratchet.spark_sink.stores.stored_write_mode import require_write_mode
from kafka_ratchet.spark_sink.stores.table_store import REPLACING, TableStore
from kafka_ratchet.spark_sink.topic_ids import StoredTopicId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from kafka_ratchet.spark_sink.rows.judging.rule import JudgeRule
    from kafka_ratchet.spark_sink.rows.judging.task import Known

COMMIT_ATTEMPTS = 100
"""Attempts of a commit while other writers of the table commit first. Each failure means that another job or a
compaction succeeded, so this many in a row point to a fault."""

REFUSALS = 3
"""Number of failures without a newer version after which a commit ends with an error. Such a failure comes from the
table's library itself, and not from another writer."""

FILE_BYTES = 8 * 1024 * 1024
"""Approximate minimum size of a file in bytes, if the commit has so many bytes. Small files make readers slow; large
files let few tasks share the work."""

TASK_OFFSETS = 200_000
"""Maximum number of offsets per task, which parses about as many in a second."""

OFFSET_BYTES = 1024.0
"""Assumed bytes per offset in a file, before the first commit of a run."""

Table = TypeVar("Table")


@dataclass(frozen=True)
class Staged:
    """Rows of a coming commit, which no reader sees yet."""

    rows: int
    files: list[WrittenFile] = field(default_factory=list)
    """Files written by Spark's tasks."""
    partitions: dict[str, Values] = field(default_factory=dict)
    """Partition values of each file by name, if the table has partitions."""
    arrow: Any = None
    """Rows of the commit, if the driver writes them into the table."""
    aside: bool = False
    """True if the files are in a staging folder, and the commit writes the table's own files."""
    sequences: int = 0
    """Number of the manifest of last sequences, see `SequenceFiles`; 0: the job does not judge records."""


def least_tasks(offsets: int) -> int:
    """Return the minimum number of tasks for a commit of the given number of offsets."""
    return math.ceil(offsets / TASK_OFFSETS)


class OptimisticStore(TableStore, Generic[Table]):
    """Base of stores that commit versions of a table; a subclass finds, reads and writes its tables."""

    rejects_apart = True

    splits = True

    may_be_emptied = False
    """True if an operator may remove all rows, see `pair.NumberedStore`."""

    may_coalesce = False
    """True if tasks may be joined until each writes `FILE_BYTES`; False if a user's function runs in them."""

    _offset_bytes = OFFSET_BYTES

    _table: Table | None = None
    """Open table; None: the store is not open."""
    _sequence_files: SequenceFiles | None = None
    """Files of last sequences; None: the store is not open, or the job does not judge records."""

    # -- the table, by a subclass

    def _find(self) -> Table | None:
        """Return the table at its newest version; None: there is no table."""
        raise NotImplementedError

    def _find_or_make(self, schema: StructType) -> Table:
        """Return the table, after creating it if it is missing.

        Raises:
            SchemaDiffers: an existing table has other columns.
        """
        raise NotImplementedError

    def _refresh(self, table: Table) -> None:
        """Refresh the table to its newest version."""
        raise NotImplementedError

    def _require_fits(self, table: Table, schema: StructType) -> None:
        """Refuse a table with other columns than the job's.

        Raises:
            SchemaDiffers: the columns differ.
        """
        raise NotImplementedError

    def _version_of(self, table: Table) -> object:
        """Return the version of the table; None: unknown."""
        return None

    # -- the job's state in the table

    def _newest(self, table: Table) -> int:
        """Return the job's newest generation; 0: no run has taken over yet."""
        raise NotImplementedError

    def _stored(self, table: Table) -> dict[int, int]:
        """Return the stored next offset of each partition."""
        raise NotImplementedError

    def _stored_id(self, table: Table) -> StoredTopicId:
        """Return the id of the topic that the stored offsets belong to."""
        raise NotImplementedError

    def _stored_write_mode(self, table: Table) -> str:
        raise NotImplementedError

    def _stored_sequences(self, table: Table) -> int:
        """Return the number of the sequence manifest that belongs to the stored offsets; 0: there is none."""
        raise NotImplementedError

    def _files_of_sequences(self, table: Table, rule: JudgeRule) -> SequenceFiles:
        """Return the reader and writer of the files of last sequences; only for a store that `keeps_sequences`."""
        raise NotImplementedError

    def _require_consistent(self, table: Table) -> None:
        """Raise `RowsLost` if the table's rows do not match the stored offsets."""
        raise NotImplementedError

    def _row_offsets(self, table: Table) -> dict[int, int] | None:
        """Return each partition's next offset, derived from the table's rows; None: no row shows an offset."""
        raise NotImplementedError

    # -- changes

    def _is_conflict(self, error: Exception) -> bool:
        """Return whether an error of `_write` or `_write_take_over` means that another writer was first."""
        raise NotImplementedError

    def _is_failure(self, error: Exception) -> bool:
        """Return whether an error comes from the table or the disk; the version may have been written nevertheless."""
        return True

    def _write_take_over(
        self, table: Table, generation: int, offsets: Mapping[int, int] | None, decision: Decision | None
    ) -> None:
        """Write a version with a new generation; with an operator's `decision`, also `offsets` and the write mode."""
        raise NotImplementedError

    def _stage(self, table: Table, dataframe: DataFrame, generation: int) -> Staged:
        """Write the rows of a commit so that no reader sees them yet."""
        raise NotImplementedError

    def _write(self, table: Table, staged: Staged, generation: int, end: Mapping[int, int]) -> None:
        """Write a version with the staged rows, the offsets and the write mode."""
        raise NotImplementedError

    def _stage_replacement(self, table: Table, dataframe: DataFrame, generation: int) -> Staged:
        """Write rows for `_write_replacement`, so that no reader sees them yet.

        Raises:
            OptionRefused: the table has rows with null as partition or offset, which a replacement would not find.
        """
        raise self._replaces_nothing()

    def _write_replacement(
        self, table: Table, staged: Staged, generation: int, first: Mapping[int, int], last: Mapping[int, int]
    ) -> None:
        """Write a version with the staged rows in place of a range of records; the stored offsets stay."""
        raise self._replaces_nothing()

    def _replaces_nothing(self) -> OptionRefused:
        return OptionRefused(f"{self._where}: this kind of store replaces no rows. Choose {REPLACING}")

    def _require_repairable(self, table: Table) -> None:
        """Raise `OptionRefused` if rows of the table cannot be replaced."""
        raise self._repairs_nothing()

    def _stage_repair(self, table: Table, rows: Replacement, generation: int) -> Staged:
        """Write the rows of a repair so that no reader sees them yet."""
        raise NotImplementedError

    def _write_repair(self, table: Table, rows: Replacement, staged: Staged, generation: int, note: RepairNote) -> None:
        """Write a version with a repair's rows in place of those with its identities; the stored offsets stay."""
        raise NotImplementedError

    def _require_staged(self, table: Table, staged: Staged) -> None:
        """Raise `StoreError` if a clean-up has removed staged files."""

    def _after_take_over(self, table: Table, schema: StructType) -> None:
        """Complete a take-over; called after its version is written."""

    def _after_commit(self) -> None:
        """Complete a commit; called as soon as its version is written."""

    def _finish(self, table: Table, staged: Staged) -> None:
        """Finish a commit: check its files, and remove staged ones outside the table.

        Raises:
            StoreError: committed files are missing.
        """

    # -- common steps

    def generation(self) -> int:
        table = self._find()
        return 0 if table is None else self._newest(table)

    def is_there(self) -> bool:
        return self._find() is not None

    def offsets(self) -> dict[int, int]:
        table = self._find()
        if table is None:
            return {}
        self._require_consistent(table)
        self._require_same_topic(table)
        stored = self._stored(table)
        if self.judges and self._newest(table):
            self.require_write_mode()
            self._require_sequences(table)
        return stored

    def first_offsets(self) -> dict[int, int]:
        table = self._find()
        return {} if table is None else self._first(table)

    def _first(self, table: Table) -> dict[int, int]:
        """Return the first offsets of a table; see `first_offsets`."""
        return {}

    def require_sequences(self) -> None:
        """See `JudgingStore`."""
        table = self._find()
        if table is not None and self._newest(table):
            self._require_sequences(table)

    def _require_sequences(self, table: Table) -> None:
        if (rule := self._write_mode.judged) is not None:
            self._files_of_sequences(table, rule).require(self._stored_sequences(table), self._stored(table))

    def check(self) -> StoreCheck:
        table = self._existing()
        stored, is_other = self._stored(table), self._stored_id(table).is_other(self._topic_id)
        try:
            self._require_consistent(table)
        except SinkError as error:
            row_offsets = None if is_other else self._row_offsets(table)
            return StoreCheck(stored, row_offsets, str(error), is_other, isinstance(error, RowsAhead))
        return StoreCheck(stored, None if is_other else stored, "", is_other)

    def reset_offsets(self, offsets: dict[int, int], decision: Decision, generation: int | None = None) -> int:
        return self._take_over(self._existing(), generation, offsets, decision)

    def make(self, schema: StructType) -> None:
        self._find_or_make(schema)

    def require_fits(self, schema: StructType) -> None:
        require_columns_of(self._partition_by, schema)
        table = self._find()
        if table is not None:
            self._require_fits(table, schema)

    def require_write_mode(self) -> None:
        table = self._find()
        if table is not None:
            require_write_mode(self._where, self._name, self._stored_write_mode(table), self._write_mode)

    def open(self, schema: StructType, generation: int | None = None) -> dict[int, int]:
        require_columns_of(self._partition_by, schema)
        self.require_write_mode()  # before the columns: another kind of result may have other columns
        table = self._find_or_make(schema)
        if (rule := self._write_mode.judged) is not None:
            self._sequence_files = self._files_of_sequences(table, rule)
            self._require_sequences(table)  # before any holder is fenced
        self._generation = self._take_over(table, generation)
        self._table = table
        self._after_take_over(table, schema)
        stored = self._stored(table)
        if self._sequence_files is not None:
            self._sequence_files.open(self._stored_sequences(table), stored)
        return stored

    def known_sequences(self) -> Known | None:
        """See `JudgingStore`."""
        return None if self._sequence_files is None else self._sequence_files.known()

    def commit(
        self,
        dataframe: DataFrame,
        start: dict[int, int],
        end: dict[int, int],
        rejects: DataFrame | None = None,
        sequences: DataFrame | None = None,
    ) -> int:
        generation, table = self._require_commit(start, end, rejects, sequences), self._table
        if table is None:
            raise RuntimeError("commit() after close()")
        self._refresh(table)
        self._require_holder(table, start)  # before the work, so that a fenced job writes no more files
        crash_points.passing("before-write")
        offsets = sum(offset - start.get(partition, 0) for partition, offset in end.items())
        if self.may_coalesce and not self._write_mode.row_key:
            tasks = math.ceil(offsets * self._offset_bytes / FILE_BYTES)
            dataframe = dataframe.coalesce(max(1, tasks, least_tasks(offsets)))
        try:
            staged = self._stage(table, dataframe, generation)
            if staged.files:
                self._offset_bytes = sum(file.bytes for file in staged.files) / max(1, offsets)
            if sequences is not None and self._sequence_files is not None:
                crash_points.passing("before-sequences")
                staged = replace(staged, sequences=self._sequence_files.stage(sequences, generation, end))
        except Exception:
            self._refresh(table)
            self._require_holder(table, start)  # a successor removes files that were staged before it
            raise
        self._check_source()
        crash_points.passing("before-commit")
        self._attempt_until_written(table, staged, lambda: self._write(table, staged, generation, end), start, end)
        self._after_commit()
        if self._sequence_files is not None:
            self._sequence_files.adopt_staged()
        crash_points.passing("after-commit")
        self._finish(table, staged)
        return staged.rows

    def require_repairable(self) -> None:
        table = self._find()
        if table is not None:
            self._require_repairable(table)

    def repair(
        self, rows: Replacement | None, rejects: Replacement | None, start: Mapping[int, int], note: RepairNote
    ) -> None:
        generation, table = self._require_open(), self._table
        if table is None or rows is None or rejects is not None:
            raise RuntimeError("repair() of one open table")
        self._refresh(table)
        self._require_holder(table, start)
        self._require_repairable(table)
        crash_points.passing("before-write")
        staged = self._stage_repair(table, rows, generation)
        rows.require_staged(self._where, staged.rows)
        self._check_source()
        crash_points.passing("before-commit")
        # A version in place has no end offsets to recognise it by, and is written again, without an effect.
        write = partial(self._write_repair, table, rows, staged, generation, note)
        self._attempt_until_written(table, staged, write, start)
        self._after_commit()
        crash_points.passing("after-commit")

    def _attempt_until_written(
        self,
        table: Table,
        staged: Staged,
        write: Callable[[], None],
        start: Mapping[int, int],
        end: Mapping[int, int] | None = None,
    ) -> None:
        """Call `write` until it has committed its version; after each failed attempt, refresh and check the table.

        Args:
            table: the table.
            staged: rows to write.
            write: function that commits the rows as the version after the newest one.
            start: expected stored offsets.
            end: offsets that this version stores; after a failure they show whether the version was committed
                nevertheless. None: the version stores no offsets, and can be written twice without harm.
        """
        refused, generation = 0, self._generation
        for _ in range(COMMIT_ATTEMPTS):
            self._require_staged(table, staged)
            seen = self._version_of(table)
            try:
                write()
                return
            except Exception as error:
                if not self._is_failure(error):
                    raise
                failure = error
            self._refresh(table)
            if end is not None and self._newest(table) == generation and self._stored(table) == end:
                return  # the version is in place; the failure came after it
            self._require_holder(table, start)
            if isinstance(failure, SinkError):
                raise failure  # a check before the commit, with its own remedy
            # A conflict without another writer's version is a refusal by the library.
            refused += seen is not None and self._version_of(table) == seen
            if refused >= REFUSALS:
                self._refuse(failure, "the rules and writer features of the table")
            if not self._is_conflict(failure):
                self._refuse(failure)
        raise self._others_were_faster()

    def replace(
        self, dataframe: DataFrame, first: dict[int, int], last: dict[int, int], rejects: DataFrame | None = None
    ) -> int:
        table, generation = self._table, self._generation
        if table is None or generation is None:
            raise RuntimeError("replace() before open()")
        self._refresh(table)
        self._require_holder(table, None)
        crash_points.passing("before-write")
        staged = self._stage_replacement(table, dataframe, generation)
        self._check_source()
        crash_points.passing("before-commit")
        for _ in range(COMMIT_ATTEMPTS):
            try:
                self._write_replacement(table, staged, generation, first, last)
            except Exception as error:
                if not self._is_failure(error):
                    raise
                failure = error
            else:
                crash_points.passing("after-commit")
                return staged.rows
            self._refresh(table)
            self._require_holder(table, None)
            if isinstance(failure, SinkError):
                raise failure  # a check before the version, with its own remedy
            if not self._is_conflict(failure):
                self._refuse(failure)
        raise self._others_were_faster()

    def close(self) -> None:
        self._table = None

    def _take_over(
        self,
        table: Table,
        wanted: int | None,
        offsets: Mapping[int, int] | None = None,
        decision: Decision | None = None,
    ) -> int:
        for _ in range(COMMIT_ATTEMPTS):
            self._refresh(table)
            if decision is None:
                self._require_consistent(table)
                self._require_same_topic(table)
                require_write_mode(self._where, self._name, self._stored_write_mode(table), self._write_mode)
            else:
                decision.require_seen(self._where, self._stored(table))
            taken = next_generation(self._newest(table), wanted, f"job {self._name} on {self._where}")
            try:
                self._write_take_over(table, taken, offsets, decision)
            except Exception as error:
                if self._is_conflict(error):
                    continue  # another writer was first; it may have taken the same generation
                if not self._is_failure(error):
                    raise
                self._refuse(error)
            return taken
        raise self._others_were_faster()

    def _existing(self, remedy: str = "Check the path") -> Table:
        table = self._find()
        if table is None:
            raise StoreError(f"{self._where}: there is no result table. {remedy}")
        return table

    def _for_reading(self) -> Table:
        return self._existing(RUN_FIRST)

    def _require_holder(self, table: Table, start: Mapping[int, int] | None) -> None:
        self._require_generation(self._generation, self._newest(table), self._stored(table), start)
        self._require_consistent(table)

    def _require_same_topic(self, table: Table) -> None:
        self._require_topic_id(self._stored_id(table), self._stored(table))

    def _others_were_faster(self) -> StoreError:
        return StoreError(
            f"{self._where}: other writers committed first {COMMIT_ATTEMPTS} times in a row. Run the job or command "
            "again"
        )
