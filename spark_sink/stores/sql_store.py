"""Commit of rows, offsets and generation in one transaction of a database.

`SqlStore` has the order of the steps: check the generation, stage the rows in Spark's tasks, then move them into their
table and store the offsets in one transaction. A subclass for each database stages and moves the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from kafka_ratchet.spark_sink.errors import (
    Fenced,
    Interrupted,
    RowsLost,
    SchemaDiffers,
    SequencesLost,
    StoreError,
    TablePutBack,
)
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.decision import RepairNote, StoreCheck
from kafka_ratchet.spark_sink.stores.sql_job_state import OFFSETS, SqlJobState
from kafka_ratchet.spark_sink.stores.store import rows_ahead, rows_lost
from kafka_ratchet.spark_sink.stores.stored_write_mode import require_write_mode, write_mode_text
from kafka_ratchet.spark_sink.stores.table_store import TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from kafka_ratchet.spark_sink.stores.decision import Replacement

Database = TypeVar("Database")
Columns = TypeVar("Columns")


class StagedRows(Protocol):
    """Rows that Spark's tasks have written for a coming commit, outside of their table."""

    @property
    def target(self) -> str:
        """Return the name of the table that the rows are moved into."""
        ...

    @property
    def rows(self) -> int:
        """Return the number of staged rows."""
        ...


Staged = TypeVar("Staged", bound=StagedRows)


class SqlStore(TableStore, Generic[Database, Columns, Staged]):
    """Base of stores that keep result, rejects and job state in tables of one database.

    A subclass sets `_state`, `_result` and `_rejected` in `_prepare`, and `_columns` in `open`.
    """

    _state: SqlJobState[Database]
    _result: str
    """Name of the result table."""
    _rejected: str
    """Name of the rejects table: that of the result table with the suffix `_rejects`."""
    _columns: Columns
    """Columns of the job's rows."""

    # -- steps of each database

    def _reading(self) -> AbstractContextManager[Database]:
        """Connect to the database for the duration of one call.

        Raises:
            StoreError: the database cannot be read.
        """
        raise NotImplementedError

    def _columns_of(self, schema: StructType) -> Columns:
        """Return the columns of a table in the database's types.

        Raises:
            OptionRefused: the database does not support a column's name or type.
        """
        raise NotImplementedError

    def _require_columns(self, database: Database, table: str, columns: Columns) -> None:
        """Refuse an existing table with other columns.

        Raises:
            SchemaDiffers: the columns differ, and evolution is off for this table or cannot add them.
        """
        raise NotImplementedError

    def _require_types(self, database: Database) -> None:
        """Refuse a result or rejects table without the job's columns, before rows are added.

        Raises:
            SchemaDiffers: a column is missing, or has a type that cannot hold the job's values.
        """
        raise NotImplementedError

    def _stage(self, generation: int, table: str, dataframe: DataFrame) -> Staged:
        """Stage the rows of a commit in Spark's tasks, unseen by the table's readers."""
        raise NotImplementedError

    def _stage_sequences(self, generation: int, sequences: DataFrame, end: Mapping[int, int]) -> list[Staged]:
        """Stage last sequences for a commit up to `end`; only for a store with `keeps_sequences`."""
        raise NotImplementedError

    def _stage_replacement(self, generation: int, table: str, replacement: Replacement) -> Staged:
        """Stage the rows of a repair in Spark's tasks, unseen by the table's readers.

        Raises:
            StoreError: the staged rows are not as many as the repair has.
        """
        raise NotImplementedError

    def _in_transaction(self, generation: int, change: Callable[[Database], None]) -> None:
        """Run and commit a change in a transaction that a take-over can end.

        The change may run several times: again after each rollback by the database, such as after a deadlock.
        """
        raise NotImplementedError

    def _move(self, database: Database, staged: Staged) -> None:
        """Move staged rows into their table, in the caller's transaction.

        Raises:
            StoreError: staged rows are missing, or the table did not store every row.
        """
        raise NotImplementedError

    def _replace(self, database: Database, replacement: Replacement, staged: Staged) -> None:
        """Replace rows with a repair's identities by the staged rows, in the caller's transaction.

        Raises:
            StoreError: staged rows are missing, or the table did not store every row.
        """
        raise NotImplementedError

    def _discard(self, staged: Sequence[Staged], *, is_committed: bool) -> None:
        """Remove the staged rows after a commit or a failure. The next run removes rows that this run leaves."""

    def _explain(self, error: Exception) -> None:
        """Raise a clearer error for a failed commit, if the database has one."""

    # -- commits

    def commit(
        self,
        dataframe: DataFrame,
        start: dict[int, int],
        end: dict[int, int],
        rejects: DataFrame | None = None,
        sequences: DataFrame | None = None,
    ) -> int:
        generation = self._require_commit(start, end, rejects, sequences)

        def change(database: Database) -> None:
            self._require_unchanged(database, generation, start)
            for each in staged:
                self._move(database, each)
            self._state.commit(database, end, write_mode_text(self._write_mode))
            crash_points.passing("in-commit")

        with self._staging(generation, start) as staged:
            with self._fenced_first(generation):
                self._stage_rows(staged, generation, dataframe, rejects)
                if sequences is not None:
                    crash_points.passing("before-sequences")
                    staged += self._stage_sequences(generation, sequences, end)
            self._check_source()
            crash_points.passing("before-commit")
            with self._unless_committed(generation, end):
                self._in_transaction(generation, change)
        crash_points.passing("after-commit")
        return staged[0].rows

    def replace(
        self, dataframe: DataFrame, first: dict[int, int], last: dict[int, int], rejects: DataFrame | None = None
    ) -> int:
        generation = self._require_open()

        def change(database: Database) -> None:
            self._require_unchanged(database, generation, None)
            for each in staged:
                self._state.remove_records(database, each.target, first, last)
                self._move(database, each)
            self._state.marks.note(database)
            crash_points.passing("in-commit")

        with self._staging(generation, None) as staged:
            self._stage_rows(staged, generation, dataframe, rejects)
            self._check_source()
            crash_points.passing("before-commit")
            self._in_transaction(generation, change)
        crash_points.passing("after-commit")
        return staged[0].rows

    def repair(
        self, rows: Replacement | None, rejects: Replacement | None, start: Mapping[int, int], note: RepairNote
    ) -> None:
        generation, replaced = self._require_open(), self._replaced(rows, rejects)

        def change(database: Database) -> None:
            self._require_unchanged(database, generation, start)
            for (_, replacement), each in zip(replaced, staged, strict=True):
                self._replace(database, replacement, each)
                crash_points.passing("replaced")
            self._state.note_repair(database, note)
            crash_points.passing("in-commit")

        with self._staging(generation, start) as staged:
            for table, replacement in replaced:
                staged.append(self._stage_replacement(generation, table, replacement))
            self._check_source()
            crash_points.passing("before-commit")
            self._in_transaction(generation, change)
        crash_points.passing("after-commit")

    @contextmanager
    def _staging(self, generation: int, start: Mapping[int, int] | None) -> Iterator[list[Staged]]:
        """Check the generation, then collect the caller's staged rows, and discard them at the end.

        The check comes before the work, so that a fenced job stages nothing.
        """
        with self._reading() as database:
            self._require_unchanged(database, generation, start, locks=False)
        crash_points.passing("before-write")
        staged: list[Staged] = []
        is_committed = False
        try:
            yield staged
            is_committed = True
        finally:
            self._discard(staged, is_committed=is_committed)

    def _stage_rows(
        self, staged: list[Staged], generation: int, dataframe: DataFrame, rejects: DataFrame | None
    ) -> None:
        staged.append(self._stage(generation, self._result, dataframe))
        if rejects is not None and self._rejects is not None:
            staged.append(self._stage(generation, self._rejected, rejects))

    def _require_unchanged(
        self, database: Database, generation: int, start: Mapping[int, int] | None, *, locks: bool = True
    ) -> None:
        """Refuse a commit if another run or program has changed the table or its offsets.

        Args:
            database: connection, during the transaction of the commit if `locks`.
            generation: generation of this run.
            start: expected stored offsets; None: they are not compared.
            locks: True to keep other runs from taking over until the transaction ends.

        Raises:
            Fenced: another run has taken over.
            TablePutBack: the table was put back to an earlier state.
            RowsLost: the result or the rejects changed.
            SchemaDiffers: the columns changed.
            SequencesLost: the table of last sequences changed.
        """
        if locks:
            self._state.lock(database)
        self._require_holder(database, generation, start)
        self._require_consistent(database)
        self._require_types(database)

    @contextmanager
    def _fenced_first(self, generation: int) -> Iterator[None]:
        """Raise `Fenced` instead of the caller's error if another run has taken over.

        A take-over ends this run's tasks, which causes such errors.
        """
        try:
            yield
        except Exception as error:
            with suppress(StoreError), self._reading() as database:
                self._require_holder(database, generation, None)
            self._explain(error)
            raise

    @contextmanager
    def _unless_committed(self, generation: int, end: Mapping[int, int]) -> Iterator[None]:
        """Suppress an error of the caller's commit if the end offsets are stored nevertheless."""
        try:
            yield
        except (Fenced, Interrupted, RowsLost, SchemaDiffers, SequencesLost, TablePutBack):
            raise
        except Exception as error:
            try:
                is_committed = self._is_committed(generation, end)
            except StoreError:
                if isinstance(error, StoreError):
                    raise error from None  # it names the cause
                raise
            if not is_committed:
                self._explain(error)
                raise

    # -- questions

    def _columns_at(self, table: str) -> Columns:
        """Return the columns of the result table or the rejects table, by its name."""
        return self._columns if table == self._result or self._rejects is None else self._columns_of(self._rejects)

    def _wanted(self, schema: StructType) -> dict[str, Columns]:
        """Return the columns of each table, by its name; the result table is first."""
        tables = {self._result: self._columns_of(schema)}
        if self._rejects is not None:
            tables[self._rejected] = self._columns_of(self._rejects)
        return tables

    @property
    def _evolving(self) -> str | None:
        """Return the name of the table that may get further columns; None: evolution is off."""
        return self._result if self._evolve else None

    @property
    def _relations(self) -> list[str]:
        return [self._result, *([] if self._rejects is None else [self._rejected])]

    def count(self) -> int:
        with self._reading() as database:
            table = self._state.table(self._result)
            [(found,)] = self._state.run(database, "SELECT count(*) FROM {table}", table=table)
        return int(found)

    def rows(self, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        with self._reading() as database:
            return self._state.execute(database, self._select(columns))

    def _select(self, columns: Sequence[str]) -> Any:
        table = self._state.table(self._result)
        return self._state.text("SELECT {columns} FROM {table}", columns=self._state.names(columns), table=table)

    def require_fits(self, schema: StructType) -> None:
        tables = self._wanted(schema)
        with self._reading() as database:
            for table, columns in tables.items():
                self._require_columns(database, table, columns)

    def generation(self) -> int:
        with self._reading() as database:
            return self._state.generation(database)

    def offsets(self) -> dict[int, int]:
        with self._reading() as database:
            self._require_consistent(database)
            self._require_same_topic(database)
            return self._state.stored(database)

    def first_offsets(self) -> dict[int, int]:
        with self._reading() as database:
            return self._state.first(database)

    def other_jobs(self) -> list[str]:
        with self._reading() as database:
            return self._state.other_jobs(database)

    def other_sources(self) -> list[str]:
        with self._reading() as database:
            return self._state.other_sources(database)

    def _replaced(self, rows: Replacement | None, rejects: Replacement | None) -> list[tuple[str, Replacement]]:
        """Return the name of each table that a repair changes, and its replacement."""
        found = [] if rows is None else [(self._result, rows)]
        return found if rejects is None else [*found, (self._rejected, rejects)]

    def check(self) -> StoreCheck:
        with self._reading() as database:
            if not self._state.generation(database):
                raise StoreError(f"{self._where}: this job has never opened the table. Run the job first")
            stored, (relation, what) = self._state.stored(database), self._state.inconsistency(database)
            is_other = self._state.known_topic(database).is_other(self._topic_id)
            row_offsets = self._row_offsets(database, relation)
            trouble = str(self._lost(relation, what, row_offsets is not None)) if relation else ""
            return StoreCheck(stored, row_offsets, trouble, is_other, relation == OFFSETS)

    def _row_offsets(self, database: Database, changed: str) -> dict[int, int] | None:
        """Return each partition's next offset as rows and rejects show it; None: they do not show it.

        Args:
            database: connection.
            changed: name of the table that changed after the last commit; empty: no table changed.

        Returns:
            None if the stored offsets belong to another topic of the same name. Else the stored offsets if no table
            changed, and no offsets if the result table changed and both tables are empty. After any other change None,
            because the job would add the remaining rows again.
        """
        if self._state.known_topic(database).is_other(self._topic_id):
            return None
        if not changed:
            return self._state.stored(database)
        if changed != self._result or any(self._state.is_filled(database, name) for name in self._relations):
            return None
        return {}

    def require_write_mode(self) -> None:
        with self._reading() as database:
            self._require_write_mode(database)

    def close(self) -> None:
        self._generation = None  # no connection outlives a call

    def _require_write_mode(self, database: Database) -> None:
        if name := self._state.other_name(database):
            raise StoreError(
                f"{self._where}: a job has already filled table {self._state.result} under the name {name}, and its "
                "offsets are stored under that name. Under another name the topic would be read from its beginning "
                f"into the same table. Nothing was added. Write table = {name!r} (--table)"
            )
        if gone := self._state.gone_table(database):
            raise StoreError(
                f"{self._where}: table {self._state.result} has rows but no stored offsets. Offsets of topic "
                f"{self._topic} are stored for table {gone}, which does not exist any more. If {gone} was renamed to "
                f"{self._state.result}, the job would add the whole topic to its rows once more: rename the table and "
                "its rejects back. Otherwise choose a table without rows"
            )
        require_write_mode(self._where, self._name, self._state.write_mode(database), self._write_mode)

    def _require_same_topic(self, database: Database) -> None:
        self._require_topic_id(self._state.known_topic(database), self._state.stored(database))

    def _require_holder(self, database: Database, generation: int, start: Mapping[int, int] | None) -> None:
        newest, stored = self._state.generation(database), self._state.stored(database)
        self._require_generation(generation, newest, stored, start)

    def _require_consistent(self, database: Database) -> None:
        """Refuse a table emptied, dropped or replaced after the commit of its offsets.

        Raises:
            RowsLost: the result or the rejects changed.
            SequencesLost: the table of last sequences changed.
        """
        relation, what = self._state.inconsistency(database)
        if relation:
            raise self._lost(relation, what, self._row_offsets(database, relation) is not None)

    def _lost(self, relation: str, what: str, known: bool) -> RowsLost | SequencesLost:
        return rows_ahead(self._where, what) if relation == OFFSETS else rows_lost(self._where, what, known)

    def _is_committed(self, generation: int, end: Mapping[int, int]) -> bool:
        """Return whether the database has stored the end offsets although the commit raised an error.

        Raises:
            Fenced: another job has taken over.
            StoreError: the database cannot be read.
        """
        with self._reading() as database:
            self._require_holder(database, generation, None)
            return self._state.stored(database).items() >= end.items()
