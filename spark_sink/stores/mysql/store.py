"""Results in MySQL or MariaDB: rows, offsets and generation are in one database, and change in one transaction.

Tasks write rows to a staging table; one transaction of the driver moves them into the result table and stores the
offsets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.rows.columns import DELETED, FINITE_TOO
from kafka_ratchet.spark_sink.rows.write_mode import APPEND
from kafka_ratchet.spark_sink.stores.decision import Decision, Replacement
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
"""Error number of the server for a deadlock, and the number of attempts of a commit. Two jobs with one table can cause
a deadlock."""


@dataclass(frozen=True)
class _Staged:
    """Rows in a staging table, written by tasks for one table and a coming commit."""

    table: str
    target: str
    """Table that the rows are moved into."""
    columns: list[Column]
    """Columns of that table."""
    statements: list[str]
    """Statements that move the rows into their table."""
    tokens: dict[str, int]
    """Number of rows by the token of the task that staged them. Rows with other tokens do not belong to the commit."""

    @property
    def rows(self) -> int:
        return sum(self.tokens.values())


class MysqlStore(SqlStore["Database", list[Column], _Staged]):
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
        self._columns = []

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

    def _require_write_mode(self, database: Database) -> None:
        super()._require_write_mode(database)
        if self._state.is_moved(database):
            raise StoreError(
                f"{self._where}: the table has rows and the id of a table of another database in its comment "
                "([ratchet ...]), and no job of this database has filled it. If the table was renamed or copied, the "
                "job would add the whole topic to its rows once more. Nothing was added. Move the tables "
                "ratchet_sink_* to this database too, or rename the table back. If no job wrote the rows, remove the "
                "id from the comment"
            )

    # -- holders

    def reset_offsets(self, offsets: dict[int, int], decision: Decision) -> int:
        """Store an operator's offsets as a new generation, and the decision in `ratchet_sink_decisions`.

        Returns:
            The new generation.
        """
        with self._state.database() as database:
            self._tables.create_bookkeeping(database)
            self._state.marks.give_ids(database)
            changed = self._state.inconsistency(database)
            self._state.end_sessions(database, self._state.generation(database))
            with transaction(database):
                write_mode = write_mode_text(self._write_mode)
                generation = self._state.reset(database, self._where, offsets, decision, write_mode, changed)
        return generation

    def open(self, schema: StructType) -> dict[int, int]:
        """Take over with a new generation, and create missing tables; see `ResultStore.open`.

        The session that commits for the older generation is ended first: the session of a frozen job would keep its
        locks.
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
                self._require_consistent(database)  # a TRUNCATE may have waited for the ended session
                self._state.marks.note(database)
            if self._evolve:  # every commit of an older holder is refused by now
                self._tables.evolve(database, self._result, tables[self._result])
            self._tables.drop_staging(database, generation - 1)
        self._columns, self._generation = tables[self._result], generation
        return stored

    # -- commits

    def _require_types(self, database: Database) -> None:
        if self._write_mode.key:
            self._tables.require_key(database, self._write_mode.key)
        for table in self._relations:
            self._tables.require_types(database, table, self._columns_at(table))

    def _in_transaction(self, generation: int, change: Callable[[Database], None]) -> None:
        import pymysql

        with self._state.database(generation) as database:
            for left in reversed(range(DEADLOCKS)):
                try:
                    with transaction(database):
                        change(database)
                    return
                except pymysql.OperationalError as error:
                    if error.args[0] != DEADLOCK or not left:
                        raise

    def _stage_replacement(self, generation: int, table: str, replacement: Replacement) -> _Staged:
        columns = self._columns if table == self._result else column_types(replacement.rows.schema)
        staged = self._stage_in(generation, table, columns, replacement.with_removals())
        replacement.require_staged(self._where, staged.rows - replacement.gone.num_rows)
        target, source = self._state.table(table), self._state.table(staged.table)
        keyed = table == self._result and bool(self._write_mode.key)
        removal = removal_of(target, source, staged.tokens, replacement.identity, keyed=keyed)
        insert = insertion(target, source, staged.tokens, columns, APPEND)
        return dataclass_replace(staged, statements=[removal, insert])

    def _replace(self, database: Database, replacement: Replacement, staged: _Staged) -> None:
        [(found,)] = execute(database, counted(self._state.table(staged.table), staged.tokens))
        self._tables.require_staged(staged.table, found, staged.rows)
        inserted = 0
        with database.cursor() as cursor:
            for statement in staged.statements:
                inserted = cursor.execute(statement)
        if inserted != replacement.count:
            raise StoreError(
                f"{self._where}: {staged.target} has stored {inserted} of {replacement.count} rows of a repair. "
                "Nothing was committed; check the triggers of the table"
            )

    def _stage(self, generation: int, table: str, dataframe: DataFrame) -> _Staged:
        return self._stage_in(generation, table, self._columns_at(table), dataframe)

    def _stage_in(self, generation: int, table: str, columns: list[Column], dataframe: DataFrame) -> _Staged:
        """Write rows with these columns into a new staging table, in Spark's tasks."""
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
        return _Staged(made, table, columns, statements, tokens)

    def _move(self, database: Database, staged: _Staged) -> None:
        import pymysql

        [(found,)] = execute(database, counted(self._state.table(staged.table), staged.tokens))
        self._tables.require_staged(staged.table, found, staged.rows)
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

    def _discard(self, staged: Sequence[_Staged], *, is_committed: bool) -> None:
        if not is_committed:
            return  # the server may not answer; the next holder drops the tables
        with suppress(StoreError), self._state.database() as database:
            for each in staged:
                self._tables.drop_table(database, each.table)


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
