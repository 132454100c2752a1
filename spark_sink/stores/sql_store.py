"""Common part of stores that change rows, offsets and generation in one transaction of a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kafka_ratchet.spark_sink.errors import RowsLost, SequencesLost, StoreError
from kafka_ratchet.spark_sink.stores.decision import StoreCheck
from kafka_ratchet.spark_sink.stores.sql_job_state import SqlJobState
from kafka_ratchet.spark_sink.stores.store import rows_lost
from kafka_ratchet.spark_sink.stores.stored_write_mode import require_write_mode
from kafka_ratchet.spark_sink.stores.table_store import TableStore

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from kafka_ratchet.spark_sink.stores.decision import Replacement

Database = TypeVar("Database")
Columns = TypeVar("Columns")


class SqlStore(TableStore, Generic[Database, Columns]):
    """Base of stores that keep result, rejects and job state in tables of one database.

    A subclass sets the following fields in `_prepare`.
    """

    _state: SqlJobState[Database]
    _result: str
    """Name of the result table."""
    _rejected: str
    """Name of the rejects table: that of the result table with the suffix `_rejects`."""

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
            row_offsets = None if is_other or relation not in {"", self._result} else {} if relation else stored
            return StoreCheck(stored, row_offsets, str(self._lost(relation, what)) if relation else "", is_other)

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
                f"{self._where}: table {self._state.result} has rows, and no stored offsets; table {gone}, which has "
                f"offsets of topic {self._topic}, is missing. After a rename, the job would add the whole topic to "
                "its rows once more: rename the table and its rejects back. Otherwise choose a table without rows"
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
            raise self._lost(relation, what)

    def _lost(self, relation: str, what: str) -> RowsLost | SequencesLost:
        return rows_lost(self._where, what, relation == self._result)

    def _is_committed(self, generation: int, end: Mapping[int, int]) -> bool:
        """Return whether the database has stored the end offsets although the commit raised an error.

        Raises:
            Fenced: another job has taken over.
            StoreError: the database cannot be read.
        """
        with self._reading() as database:
            self._require_holder(database, generation, None)
            return self._state.stored(database).items() >= end.items()
