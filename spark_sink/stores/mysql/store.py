"""Results in MySQL or MariaDB: rows, offsets and generation are in one database, and change in one transaction.

Tasks write rows to a staging table; one transaction of the driver moves them into the result table and stores the
offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import Fenced, RowsLost, SchemaDiffers, StoreError
from kafka_ratchet.spark_sink.rows.columns import DELETED, FINITE_TOO
from kafka_ratchet.spark_sink.rows.write_mode import APPEND
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.decision import Decision, RepairNote, Replacement
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.mysql.connection import execute, transaction
from kafka_ratchet.spark_sink.stores.mysql.job_state import JobState
from kafka_ratchet.spark_sink.stores.mysql.merge import counted, deletion, insertion, staging_columns
from kafka_ratchet.spark_sink.stores.mysql.merge import replacement as removal_of
from kafka_ratchet.spark_sink.stores.mysql.stored_rows import StoredRows
from kafka_ratchet.spark_sink.stores.mysql.tables import Tables
from kafka_ratchet.spark_sink.stores.mysql.tasks import literals, stage
from kafka_ratchet.spark_sink.stores.mysql.types import TOKEN, TYPES, column_types, names
from kafka_ratchet.spark_sink.stores.orphans import Orphan
from kafka_ratchet.spark_sink.stores.sql_store import SqlStore
from kafka_ratchet.spark_sink.stores.sql_types import Column, spark_schema
from kafka_ratchet.spark_sink.stores.stored_write_mode import write_mode_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from kafka_ratchet.spark_sink.stores.mysql.connection import Database

BATCH_ROWS = 50_000
"""Rows per fetch of a scan; the driver holds them as Python objects."""

SIGNAL = 1644
"""Error number of the server for an error raised by a trigger."""

DEADLOCK, DEADLOCKS = 1213, 10
"""Error number of the server for a rollback after a deadlock, and the number of attempts of a commit. Two jobs with one
table can cause a deadlock."""


class MysqlStore(SqlStore["Database", list[Column]]):
    """Result store in one table of a MySQL or MariaDB database, `table` or `database.table`.

    The url is mysql://user@host:port/database; the password of `location` replaces one in the url.
    """

    needs_path = False
    nested_columns = False
    restricted_values = FINITE_TOO
    evolves = True

    def _prepare(self, location: TableLocation) -> None:
        result = location.table.rpartition(".")[2]
        self._result, self._rejected = result, f"{result}_rejects"
        self._state: JobState = JobState(location, self._name, self._topic, self._topic_id, self._relations)
        self._state.marks.cleared = self._rejected
        self._tables = Tables(self._state)
        self._where = self._state.where
        self._columns: list[Column] = []

    def _reading(self) -> AbstractContextManager[Database]:
        return self._state.database()

    # -- readers

    def scan(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pymysql.cursors import SSCursor

        with self._reading() as database, database.cursor(SSCursor) as cursor:
            cursor.execute(self._select(schema.names))
            while rows := cursor.fetchmany(BATCH_ROWS):
                columns = zip(zip(*rows, strict=True), schema, strict=True)
                arrays = [_array(column, field.type) for column, field in columns]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def orphans(self, *, needed: bool = True) -> Iterator[Orphan]:
        with self._reading() as database:
            for job, newest in self._state.generations(database).items():
                tables = Tables(self._state.of_job(job))
                for table, size, made_s in tables.staged(database, newest - 1):
                    yield Orphan(table, size, made_s, partial(tables.drop_staged, table))

    def columns(self) -> StructType | None:
        with self._reading() as database:
            found = self._tables.columns(database, self._result)
        return spark_schema(found, TYPES) if found else None

    def column_names(self) -> list[str] | None:
        with self._reading() as database:
            return [each.name for each in self._tables.columns(database, self._result)] or None

    def _columns_of(self, schema: StructType) -> list[Column]:
        return column_types(schema)

    def _require_columns(self, database: Database, table: str, columns: list[Column]) -> None:
        if self._tables.columns(database, table):
            self._tables.require_fits(database, table, columns, evolves=table == self._evolving)

    # -- holders

    def reset_offsets(self, offsets: dict[int, int], decision: Decision) -> int:
        """Store an operator's offsets as a new generation, and the decision in `ratchet_sink_decisions`.

        Returns:
            The new generation.
        """
        with self._state.database() as database:
            self._tables.create_bookkeeping(database)
            self._state.marks.give_ids(database)
            self._state.end_sessions(database, self._state.generation(database))
            with transaction(database):
                write_mode = write_mode_text(self._write_mode)
                generation = self._state.reset(database, self._where, offsets, decision, write_mode)
        return generation

    def open(self, schema: StructType) -> dict[int, int]:
        """Take over with a new generation, and create missing tables; see `ResultStore.open`.

        The session that commits for the older generation is ended first: that of a frozen job would keep its locks.
        """
        tables = self._wanted(schema)
        with self._state.database() as database:
            self._require_consistent(database)  # before a dropped table is created again
            self._require_write_mode(database)  # before an index over another key
            self._tables.create_tables(database, tables, self._write_mode.key, self._evolving)
            self._require_same_topic(database)  # a refusal ends no session
            self._state.end_sessions(database, self._state.generation(database))
            with transaction(database):
                self._require_same_topic(database)
                generation = self._state.take_over(database)
                self._require_write_mode(database)  # once more: the row of the job is ours until the transaction ends
                stored = self._state.stored(database)
                self._state.marks.note(database)
            if self._evolve:  # every commit of an older holder is refused by now
                self._tables.evolve(database, self._result, tables[self._result])
            self._tables.drop_staging(database, generation - 1)
        self._columns, self._generation = tables[self._result], generation
        return stored

    def commit(
        self,
        dataframe: DataFrame,
        start: dict[int, int],
        end: dict[int, int],
        rejects: DataFrame | None = None,
        sequences: DataFrame | None = None,
    ) -> int:
        generation = self._require_commit(start, end, rejects, sequences)
        with self._reading() as database:
            self._require_holder(database, generation, start)  # a fenced job stages nothing
            self._require_consistent(database)
        crash_points.passing("before-write")
        staged, rows = self._stage(generation, self._result, self._columns, dataframe)
        if rejects is not None and self._rejects is not None:
            staged += self._stage(generation, self._rejected, column_types(self._rejects), rejects)[0]
        crash_points.passing("before-commit")
        try:
            with self._state.database(generation) as database:
                self._commit_staged(database, staged, generation, start, end)
        except (Fenced, RowsLost, SchemaDiffers):
            raise
        except Exception:
            if not self._is_committed(generation, end):
                raise
        crash_points.passing("after-commit")
        self._drop(staged)
        return rows

    def replace(
        self, dataframe: DataFrame, first: dict[int, int], last: dict[int, int], rejects: DataFrame | None = None
    ) -> int:
        generation = self._require_open()
        with self._reading() as database:
            self._require_holder(database, generation, None)
            self._require_consistent(database)
        crash_points.passing("before-write")
        staged, rows = self._stage(generation, self._result, self._columns, dataframe)
        if rejects is not None and self._rejects is not None:
            staged += self._stage(generation, self._rejected, column_types(self._rejects), rejects)[0]
        crash_points.passing("before-commit")
        with self._state.database(generation) as database:
            self._commit_staged(database, staged, generation, None, (first, last))
        crash_points.passing("after-commit")
        self._drop(staged)
        return rows

    def repair(
        self, rows: Replacement | None, rejects: Replacement | None, start: Mapping[int, int], note: RepairNote
    ) -> None:
        import pymysql

        generation = self._require_open()
        with self._reading() as database:
            self._require_holder(database, generation, start)  # a fenced repair stages nothing
            self._require_consistent(database)
        crash_points.passing("before-write")
        replaced = self._replaced(rows, rejects)
        staged = [self._stage_repair(generation, *each) for each in replaced]
        crash_points.passing("before-commit")
        for left in reversed(range(DEADLOCKS)):
            try:
                with self._state.database(generation) as database, transaction(database):
                    self._state.lock(database)
                    self._require_holder(database, generation, start)
                    self._require_consistent(database)
                    for (_, replacement), each in zip(replaced, staged, strict=True):
                        self._tables.require_types(database, each.target, each.columns)
                        self._replace(database, replacement, each)
                        crash_points.passing("replaced")
                    self._state.note_repair(database, note)
                    crash_points.passing("in-commit")
                break
            except pymysql.OperationalError as error:
                if error.args[0] != DEADLOCK or not left:
                    raise
        crash_points.passing("after-commit")
        self._drop(staged)

    def _stage_repair(self, generation: int, table: str, replacement: Replacement) -> _Staged:
        columns = self._columns if table == self._result else column_types(replacement.rows.schema)
        [staged], rows = self._stage(generation, table, columns, replacement.with_removals())
        replacement.require_staged(self._where, rows - replacement.gone.num_rows)
        target, source = self._state.table(table), self._state.table(staged.table)
        keyed = table == self._result and bool(self._write_mode.key)
        removal = removal_of(target, source, staged.tokens, replacement.identity, keyed=keyed)
        return dataclass_replace(
            staged, statements=[removal, insertion(target, source, staged.tokens, columns, APPEND)]
        )

    def _replace(self, database: Database, replacement: Replacement, staged: _Staged) -> None:
        """Delete the rows with the replacement's identities, and insert the staged rows.

        Raises:
            StoreError: staged rows are missing, or the table did not store every row.
        """
        [(found,)] = execute(database, counted(self._state.table(staged.table), staged.tokens))
        self._tables.require_staged(staged.table, found, sum(staged.tokens.values()))
        inserted = 0
        with database.cursor() as cursor:
            for statement in staged.statements:
                inserted = cursor.execute(statement)
        if inserted != replacement.count:
            raise StoreError(
                f"{self._where}: {staged.target} has stored {inserted} of {replacement.count} rows of a repair. "
                "Nothing was committed; check the triggers of the table"
            )

    def _stage(
        self, generation: int, table: str, columns: list[Column], dataframe: DataFrame
    ) -> tuple[list[_Staged], int]:
        """Write the rows into a new staging table, in Spark's tasks.

        Returns:
            The staged rows, and the number of rows to move.
        """
        deletes = DELETED in dataframe.columns
        # No connection is open while the tasks write: the server would end it.
        with self._state.database() as database:
            made = self._tables.new_staging(database, generation, staging_columns(map(self._tables.defined, columns)))
        into = names([TOKEN, *(column.name for column in columns), *([DELETED] if deletes else [])])
        insert = f"INSERT INTO {self._state.table(made)} ({into}) VALUES "  # noqa: S608
        tokens = stage(literals(dataframe), self._state.address, insert)
        target, source = self._state.table(table), self._state.table(made)
        write_mode = self._write_mode if table == self._result else APPEND
        statements = [deletion(target, source, tokens, write_mode)] if deletes else []
        statements.append(insertion(target, source, tokens, columns, write_mode))
        return [_Staged(made, table, columns, statements, tokens)], sum(tokens.values())

    def _commit_staged(
        self,
        database: Database,
        staged: list[_Staged],
        generation: int,
        start: dict[int, int] | None,
        end: dict[int, int] | tuple[dict[int, int], dict[int, int]],
    ) -> None:
        """Move staged rows into their tables and store the offsets, in one transaction.

        Args:
            database: connection of the holder's session.
            staged: rows of each table.
            generation: generation of this run.
            start: expected stored offsets; None: they are not compared.
            end: offsets after the commit; or the first and last offsets of the records to replace, which leaves the
                stored offsets unchanged.
        """
        import pymysql

        for left in reversed(range(DEADLOCKS)):
            try:
                with transaction(database):
                    self._state.lock(database)
                    self._require_holder(database, generation, start)
                    self._require_consistent(database)
                    if self._write_mode.key:
                        self._tables.require_key(database, self._write_mode.key)
                    for each in staged:
                        self._tables.require_types(database, each.target, each.columns)
                        [(found,)] = execute(database, counted(self._state.table(each.table), each.tokens))
                        self._tables.require_staged(each.table, found, sum(each.tokens.values()))
                        if isinstance(end, tuple):
                            self._state.remove_records(database, each.target, *end)
                        self._move(database, each)
                    if isinstance(end, tuple):
                        self._state.marks.note(database)
                    else:
                        self._state.commit(database, end, write_mode_text(self._write_mode))
                    crash_points.passing("in-commit")
                return
            except pymysql.OperationalError as error:
                if error.args[0] != DEADLOCK or not left:
                    raise

    def _move(self, database: Database, staged: _Staged) -> None:
        """Move staged rows into their table, in the caller's transaction.

        Raises:
            StoreError: the table did not store every row unchanged.
        """
        import pymysql

        write_mode = self._write_mode if staged.target == self._result else APPEND
        rows = StoredRows(self._state, database, staged.target, staged.table, staged.tokens, staged.columns, write_mode)
        inserted = 0
        try:
            with database.cursor() as cursor:
                for statement in staged.statements:
                    inserted = cursor.execute(statement)
        except pymysql.Error as error:
            if error.args[0] == SIGNAL:
                rows.refuse_signal(str(error.args[1]))
            raise
        rows.require(inserted)

    def _drop(self, staged: list[_Staged]) -> None:
        with suppress(StoreError), self._state.database() as database:  # the next holder drops the remaining tables
            for each in staged:
                self._tables.drop_table(database, each.table)


@dataclass(frozen=True)
class _Staged:
    """Rows of one table that the tasks wrote into a staging table for a coming commit."""

    table: str
    target: str
    """Table that the rows are moved into."""
    columns: list[Column]
    """Columns of that table."""
    statements: list[str]
    """Statements that move the rows into their table."""
    tokens: dict[str, int]
    """Number of rows by the token of the task that staged them. Rows with other tokens do not belong to the commit."""


def _array(values: tuple[Any, ...], data_type: pa.DataType) -> pa.Array:
    """Convert values of PyMySQL to an Arrow array of the requested type."""
    import pyarrow as pa

    if pa.types.is_boolean(data_type):
        return pa.array([None if value is None else bool(value) for value in values], data_type)
    if pa.types.is_nested(data_type):
        return pa.array([None if value is None else json.loads(value) for value in values], data_type)
    if pa.types.is_timestamp(data_type):  # without a zone, or in UTC if the type has one
        return pa.array(values, pa.timestamp("us")).cast(data_type)
    return pa.array(values, data_type)
