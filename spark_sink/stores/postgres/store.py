"""Results in PostgreSQL: rows, offsets and generation are in one database, and change in one transaction.

Tasks write rows to staging tables, and one transaction of the driver moves the rows into their tables and stores the
offsets. With `in_tasks`, each task instead commits appended rows and the offset of one Kafka partition itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import OptionRefused, RowsLost, SequencesLost
from kafka_ratchet.spark_sink.rows.columns import DELETED, RECORD, SHORT_KEYS
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.decision import Decision, Replacement
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.orphans import Orphan
from kafka_ratchet.spark_sink.stores.postgres.job_state import JobState
from kafka_ratchet.spark_sink.stores.postgres.marks import Marks
from kafka_ratchet.spark_sink.stores.postgres.merge import deletions, on_conflict, remaining
from kafka_ratchet.spark_sink.stores.postgres.repair import StagedTable, replace_staged
from kafka_ratchet.spark_sink.stores.postgres.sequences import KEY, SequenceTable
from kafka_ratchet.spark_sink.stores.postgres.stored_rows import (
    can_alter,
    can_lose_later,
    count_present,
    count_records,
    require_added,
    require_deleted,
    require_every_row,
    require_stored,
    sum_of_keys,
)
from kafka_ratchet.spark_sink.stores.postgres.tables import Tables
from kafka_ratchet.spark_sink.stores.postgres.tasks import commit_partitions, stage, textual
from kafka_ratchet.spark_sink.stores.postgres.types import TYPES, column_types, names, table_parts
from kafka_ratchet.spark_sink.stores.sql_store import SqlStore
from kafka_ratchet.spark_sink.stores.sql_types import Column, spark_schema
from kafka_ratchet.spark_sink.stores.stored_write_mode import write_mode_text

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg import sql
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from kafka_ratchet.spark_sink.rows.judging.task import Known
    from kafka_ratchet.spark_sink.stores.postgres.types import Database

BATCH_ROWS = 50_000
"""Rows per fetch of a scan; the driver holds them as Python objects."""


class PostgresStore(SqlStore["Database", list[Column], StagedTable]):
    """Result store in one table of a PostgreSQL database, `table` or `schema.table`.

    The url is postgresql://user@host:port/database, or libpq's "host=... dbname=..."; the password of `location`
    replaces one in the url. With `in_tasks` the tasks commit: each task must have rows of only one Kafka partition, as
    Spark's Kafka source provides, and the job must append rows and have no rejects.
    """

    needs_path = False
    nested_columns = False
    keeps_sequences = True
    restricted_values = SHORT_KEYS
    evolves = True
    all_totals = True

    def _prepare(self, location: TableLocation) -> None:
        if self._in_tasks and (self._write_mode.kind != "append" or self._rejects is not None):
            raise OptionRefused(
                "in_tasks: tasks can commit only rows of kind append, without rejects. Leave in_tasks out"
            )
        table = location.table
        self._result, self._rejected = table_parts(table)[-1], table_parts(f"{table}_rejects")[-1]
        of_sequences, rule = table_parts(f"{table}_sequences")[-1], self._write_mode.judged
        relations = [*self._relations, *([] if rule is None else [of_sequences])]
        self._state: JobState = JobState(location, self._name, self._topic, self._topic_id, relations)
        self._state.marks.cleared = self._rejected
        self._tables = Tables(self._state)
        self._sequences = None if rule is None else SequenceTable(self._state, of_sequences, self._name, rule)
        self._where = self._state.where
        self._columns = []

    def _reading(self) -> AbstractContextManager[Database]:
        return self._state.database()

    def _lost(self, relation: str, what: str, known: bool) -> RowsLost | SequencesLost:
        if self._sequences is not None and relation == self._sequences.name:
            return self._sequences.lost(what)
        return super()._lost(relation, what, known)

    def _require_consistent(self, database: Database) -> None:
        require_every_row(self._state, database, self._relations, self._state.where)
        super()._require_consistent(database)
        if self._sequences is not None and not self._state.stored(database):
            self._require_write_mode(database)  # another topic is the better sentence
            self._sequences.require_none(database)

    def require_sequences(self) -> None:
        """See `JudgingStore`."""
        with self._state.database() as database:
            if self._sequences is not None and self._state.stored(database):
                marks = Marks(self._state, self._topic_id, [self._sequences.name])
                if what := marks.inconsistency(database)[1]:
                    raise self._sequences.lost(what)

    def known_sequences(self) -> Known | None:
        """See `JudgingStore`."""
        if self._sequences is None or self._generation is None:
            return None
        return self._sequences.known(self._state.connection(self._generation))

    def scan(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with (
            self._state.database() as database,
            self._state.transaction(database),
            database.cursor("ratchet_scan") as cursor,
        ):
            cursor.execute(self._select(schema.names))
            while rows := cursor.fetchmany(BATCH_ROWS):
                columns = zip(zip(*rows, strict=True), schema, strict=True)
                arrays = [pa.array(column, field.type) for column, field in columns]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def orphans(self, *, needed: bool = True) -> Iterator[Orphan]:
        """List the staging tables of older generations; PostgreSQL does not record when they were written."""
        with self._state.database() as database:
            for job, newest in self._state.generations(database).items():
                tables = Tables(self._state.of_job(job))
                for table, size in tables.staged(database, newest - 1):
                    yield Orphan(table, size, None, partial(tables.drop_staged, table, newest - 1))

    def reset_offsets(self, offsets: dict[int, int], decision: Decision) -> int:
        """Store an operator's offsets as a new generation, and the decision in `ratchet_sink_decisions`.

        Returns:
            The new generation.
        """
        with self._state.database() as database:
            newest, changed = self._state.generation(database), self._state.inconsistency(database)
            self._state.end_sessions(database, newest)
            with self._state.transaction(database):
                self._tables.create_marks(database)
                write_mode = write_mode_text(self._write_mode)
                generation = self._state.reset(database, self._where, offsets, decision, write_mode, changed)
            self._state.end_sessions(database, generation - 1)
        return generation

    def columns(self) -> StructType | None:
        with self._state.database() as database:
            found = self._tables.columns(database, self._result)
        return spark_schema(found, TYPES) if found else None

    def column_names(self) -> list[str] | None:
        with self._state.database() as database:
            return [each.name for each in self._tables.columns(database, self._result)] or None

    def _columns_of(self, schema: StructType) -> list[Column]:
        return column_types(schema)

    def _require_columns(self, database: Database, table: str, columns: list[Column]) -> None:
        if self._tables.columns(database, table):
            self._tables.require_fits(database, table, columns, evolves=table == self._evolving)

    def open(self, schema: StructType) -> dict[int, int]:
        """Take over with a new generation, and create missing tables; see `ResultStore.open`.

        Sessions of older generations are ended, because sessions of a frozen job would keep their locks for ever.
        """
        tables = self._wanted(schema)
        with self._state.database() as database:
            self._require_consistent(database)  # before a dropped table is created again
            self._require_write_mode(database)  # before an index over another key
            with self._state.transaction(database):
                self._tables.create_tables(database, tables, self._write_mode.row_key, self._evolving)
                if self._sequences is not None:
                    self._sequences.create(database, self._tables)
            self._require_same_topic(database)  # a refusal ends no sessions
            self._state.end_sessions(database, self._state.generation(database))
            with self._state.transaction(database):
                self._require_same_topic(database)
                generation = self._state.take_over(database)
                self._require_write_mode(database)  # once more: the row of the job is ours until the transaction ends
                stored = self._state.stored(database)
                if self._evolve:  # the older holder's sessions are ended, or this would wait for a frozen one
                    self._tables.evolve(database, self._result, tables[self._result])
                self._require_consistent(database)  # a TRUNCATE may have waited for an ended session
                self._state.marks.note(database)
            # Once more, for sessions that came in between; their commits are refused, or in `stored`.
            self._state.end_sessions(database, generation - 1)
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
        """Commit rows and offsets; with `in_tasks`, in one transaction per Kafka partition."""
        if not self._in_tasks:
            return super().commit(dataframe, start, end, rejects, sequences)
        generation = self._require_commit(start, end, rejects, sequences)
        rows: list[int] = []
        with self._unless_committed(generation, end), self._state.database() as database:
            table = self._state.marks.number(database, self._result)
            self._require_unchanged(database, generation, start, locks=False)  # a fenced job writes nothing
            crash_points.passing("before-write")
            self._commit_in_tasks(database, dataframe, generation, table, start, end, rows)
        crash_points.passing("after-commit")
        return sum(rows)

    def _explain(self, error: Exception) -> None:
        self._state.refuse_rule_of_task(error)

    def _in_transaction(self, generation: int, change: Callable[[Database], None]) -> None:
        with self._state.database() as database, self._state.transaction(database, generation):
            change(database)

    def _stage(self, generation: int, table: str, dataframe: DataFrame) -> StagedTable:
        conflict = None
        if table == self._result and self._write_mode.row_key:
            conflict = on_conflict(self._columns, self._write_mode)
        return self._stage_in(generation, table, self._columns_at(table), dataframe, conflict)

    def _stage_sequences(self, generation: int, sequences: DataFrame, end: Mapping[int, int]) -> list[StagedTable]:
        kept = self._sequences
        if kept is None:
            return []
        changes = kept.of_job(sequences)
        return [self._stage_in(generation, kept.name, kept.columns, changes, kept.on_conflict())]

    def _stage_replacement(self, generation: int, table: str, replacement: Replacement) -> StagedTable:
        columns = self._columns if table == self._result else column_types(replacement.rows.schema)
        with self._reading() as database:
            self._tables.require_collations(database, table, replacement.identity)
        staged = self._stage_in(generation, table, columns, replacement.with_removals(), None)
        replacement.require_staged(self._where, staged.rows - replacement.gone.num_rows)
        return staged

    def _replace(self, database: Database, replacement: Replacement, staged: StagedTable) -> None:
        replace_staged(self._state, database, staged, replacement)

    def _require_types(self, database: Database) -> None:
        self._tables.require_collations(database, self._result, self._write_mode.row_key)
        for table in self._relations:
            self._tables.require_types(database, table, self._columns_at(table))

    def _commit_in_tasks(
        self,
        database: Database,
        dataframe: DataFrame,
        generation: int,
        table: tuple[int, int],
        start: dict[int, int],
        end: dict[int, int],
        rows: list[int],
    ) -> None:
        copy = self._copy(self._result, [column.name for column in self._columns])
        found = commit_partitions(
            textual(dataframe),
            self._state.connection(generation),
            self._state.task_statements(self._result, copy, write_mode_text(self._write_mode)),
            generation,
            table,
            dataframe.columns.index("_kafka_partition"),
            start,
            end,
        )
        rows.extend(found.values())
        crash_points.passing("before-commit")
        with self._state.transaction(database, generation):
            # The rest are partitions without a row: their range has only markers and aborted records.
            self._state.lock(database)
            self._require_holder(database, generation, {p: end[p] if p in found else start[p] for p in start})
            self._require_consistent(database)  # emptied since the last task
            self._state.move(database, {partition: end[partition] for partition in end if partition not in found})
            self._state.marks.note(database)
            self._state.note_write_mode(database, write_mode_text(self._write_mode))
            crash_points.passing("in-commit")

    def _stage_in(
        self,
        generation: int,
        table: str,
        columns: list[Column],
        dataframe: DataFrame,
        conflict: sql.Composed | None,
    ) -> StagedTable:
        """Write rows into a new staging table, in Spark's tasks.

        Args:
            generation: generation of this run.
            table: table that the rows are for.
            columns: columns of the rows.
            dataframe: the rows.
            conflict: ON CONFLICT clause of the statement that moves the rows; None: the statement has no such clause.
        """
        from psycopg import sql

        staging = self._tables.new_staging(generation)
        deleted = sql.Identifier(DELETED)
        with self._state.database() as database:
            # Without the table's rules, so that each is broken in the table, under its name.
            self._state.run(
                database,
                "CREATE UNLOGGED TABLE {staging} AS SELECT NULL::text AS ratchet_token, {table}.*, false AS {deleted} "
                "FROM {table} WITH NO DATA",
                staging=self._state.table(staging),
                table=self._state.table(table),
                deleted=deleted,
            )
            self._state.run(
                database,
                "ALTER TABLE {staging} ALTER {deleted} SET DEFAULT false",
                staging=self._state.table(staging),
                deleted=deleted,
            )
        deletes = [DELETED] if DELETED in dataframe.columns else []
        copy = self._copy(staging, ["ratchet_token", *(column.name for column in columns), *deletes])
        tokens = stage(textual(dataframe), self._state.connection(generation), copy)
        insert = self._state.text(
            "INSERT INTO {table} AS target ({columns}) SELECT {columns} FROM {staging} "
            "WHERE ratchet_token = ANY({tokens}) AND NOT {deleted} {conflict}",
            table=self._state.table(table),
            columns=names(column.name for column in columns),
            staging=self._state.table(staging),
            tokens=sql.Literal(list(tokens)),
            deleted=deleted,
            conflict=sql.SQL("") if conflict is None else conflict,
        )
        removals = deletions(self._state, table, staging, list(tokens), self._write_mode) if deletes else []
        key = RECORD if conflict is None else (KEY if table != self._result else self._write_mode.row_key)
        of_rows = [column.name for column in columns]
        return StagedTable(
            table, staging, tokens, removals, insert, key if set(of_rows).issuperset(key) else (), of_rows
        )

    def _move(self, database: Database, staged: StagedTable) -> None:
        from psycopg import sql

        staging = self._state.table(staged.staging)
        [(found, given)] = self._state.run(
            database,
            "SELECT count(*), count(*) FILTER (WHERE NOT {deleted}) FROM {staging} WHERE ratchet_token = ANY({tokens})",
            staging=staging,
            deleted=sql.Identifier(DELETED),
            tokens=sql.Literal(list(staged.tokens)),
        )
        self._tables.require_staged(staged.staging, found, staged.rows)
        rows = self._state.text(
            "ratchet_token = ANY({tokens}) AND NOT {deleted}",
            tokens=sql.Literal(list(staged.tokens)),
            deleted=sql.Identifier(DELETED),
        )
        kind = self._write_mode.kind if staged.target == self._result else "append"
        # A trigger or rule that keeps the old row of a key shows in the values, since the row exists.
        altered = kind != "append" and can_alter(self._state, database, staged.target)
        searched = altered or (bool(staged.key) and can_lose_later(self._state, database, staged.target))
        compared = staged.columns if altered and kind == "upsert" else staged.key
        of_staged = (self._state, database, staged.target, staged.staging, rows)
        is_appended = kind == "append" and staged.key == RECORD
        present = partial(count_records if is_appended else partial(count_present, key=compared), *of_staged)
        total = partial(sum_of_keys, *of_staged, staged.key)
        # An appended row may have the coordinates of another topic's row.
        before = present() if searched and is_appended else 0
        counted = total() if altered and kind == "totals" else 0
        for removal in staged.removals:
            database.execute(removal)
        if staged.removals:
            tokens = list(staged.tokens)
            left = self._state.execute(
                database, remaining(self._state, staged.target, staged.staging, tokens, self._write_mode)
            )
            require_deleted(self._state, database, staged.target, self._state.where, int(left[0][0]))
        stored = database.execute(staged.insert).rowcount
        if searched:
            stored = min(stored, present() - before)
        require_stored(self._state, database, staged.target, self._state.where, given, stored)
        if altered and kind == "totals":
            of_rows = (staged.staging, rows)
            require_added(self._state, database, staged.target, self._state.where, of_rows, total() - counted)
        self._state.run(database, "DROP TABLE {staging}", staging=staging)

    def _copy(self, table: str, columns: Sequence[str]) -> str:
        copy = self._state.text(
            "COPY {table} ({columns}) FROM STDIN (FORMAT csv)", table=self._state.table(table), columns=names(columns)
        )
        return str(copy.as_string(None))
