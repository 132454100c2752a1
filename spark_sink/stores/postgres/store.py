"""Results in PostgreSQL: rows, offsets and generation are in one database, and change in one transaction.

Appended rows are committed by the tasks that read them, in one transaction per Kafka partition. All other rows are
staged by the tasks, and one transaction of the driver moves them into the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import Fenced, OptionRefused, RowsLost, SchemaDiffers, SequencesLost
from kafka_ratchet.spark_sink.rows.columns import DELETED, RECORD, SHORT_KEYS
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.decision import Decision, RepairNote, Replacement
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.orphans import Orphan
from kafka_ratchet.spark_sink.stores.postgres.job_state import JobState
from kafka_ratchet.spark_sink.stores.postgres.marks import Marks
from kafka_ratchet.spark_sink.stores.postgres.merge import deletions, on_conflict, remaining
from kafka_ratchet.spark_sink.stores.postgres.repair import Staged, replace_staged
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


class PostgresStore(SqlStore["Database", list[Column]]):
    """Result store in one table of a PostgreSQL database, `table` or `schema.table`.

    The url is postgresql://user@host:port/database, or libpq's "host=... dbname=..."; the password of `location`
    replaces one in the url. With `in_tasks` the tasks commit: each must have rows of only one Kafka partition, as
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
        self._columns: list[Column] = []

    def _reading(self) -> AbstractContextManager[Database]:
        return self._state.database()

    def _lost(self, relation: str, what: str) -> RowsLost | SequencesLost:
        if self._sequences is not None and relation == self._sequences.name:
            return self._sequences.lost(what)
        return super()._lost(relation, what)

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
            newest = self._state.generation(database)
            self._state.end_sessions(database, newest)
            with self._state.transaction(database):
                self._tables.create_marks(database)
                write_mode = write_mode_text(self._write_mode)
                generation = self._state.reset(database, self._where, offsets, decision, write_mode)
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

        Sessions of older generations are ended, because those of a frozen job would keep their locks for ever.
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
        generation = self._require_commit(start, end, rejects, sequences)
        rows: list[int] = []
        try:
            with self._state.database() as database:
                self._require_holder(database, generation, start)  # a fenced job stages nothing
                table = self._state.marks.number(database, self._result)
                self._require_consistent(database)
                self._require_types(database)
                crash_points.passing("before-write")
                if self._in_tasks:
                    self._note_write_mode(database, generation, start)
                    self._commit_in_tasks(database, dataframe, generation, table, start, end, rows)
                else:
                    self._commit_staged(database, dataframe, generation, start, end, rejects, sequences, rows)
        except (Fenced, RowsLost, SchemaDiffers, SequencesLost):
            raise
        except Exception as error:
            if not self._is_committed(generation, end):
                self._state.refuse_rule_of_task(error)
                raise
        crash_points.passing("after-commit")
        return sum(rows)

    def replace(
        self, dataframe: DataFrame, first: dict[int, int], last: dict[int, int], rejects: DataFrame | None = None
    ) -> int:
        generation = self._require_open()
        with self._state.database() as database:
            self._require_holder(database, generation, None)
            self._require_consistent(database)
            crash_points.passing("before-write")
            staged = [self._stage(database, generation, self._result, self._columns, dataframe)]
            if rejects is not None and self._rejects is not None:
                staged.append(self._stage(database, generation, self._rejected, column_types(self._rejects), rejects))
            crash_points.passing("before-commit")
            with self._state.transaction(database, generation):
                self._state.lock(database)
                self._require_holder(database, generation, None)
                self._require_consistent(database)
                self._require_types(database)
                for each in staged:
                    self._state.remove_records(database, each.table, first, last)
                    self._move_staged(database, each)
                self._state.marks.note(database)
                crash_points.passing("in-commit")
        crash_points.passing("after-commit")
        return sum(staged[0].tokens.values())

    def repair(
        self, rows: Replacement | None, rejects: Replacement | None, start: Mapping[int, int], note: RepairNote
    ) -> None:
        generation = self._require_open()
        with self._state.database() as database:
            self._require_holder(database, generation, start)  # a fenced repair stages nothing
            self._require_consistent(database)
            self._require_types(database)
            crash_points.passing("before-write")
            staged = [(each, self._stage_repair(database, generation, *each)) for each in self._replaced(rows, rejects)]
            crash_points.passing("before-commit")
            with self._state.transaction(database, generation):
                self._state.lock(database)
                self._require_holder(database, generation, start)
                self._require_consistent(database)
                self._require_types(database)
                for (_, replacement), each in staged:
                    replace_staged(self._state, database, each, replacement)
                    crash_points.passing("replaced")
                self._state.note_repair(database, note)
                crash_points.passing("in-commit")
        crash_points.passing("after-commit")

    def _stage_repair(self, database: Database, generation: int, table: str, replacement: Replacement) -> Staged:
        from psycopg import sql

        columns = self._columns if table == self._result else column_types(replacement.rows.schema)
        frame = replacement.with_removals()
        staged = self._stage(database, generation, table, columns, frame, sql.SQL("").format())
        replacement.require_staged(self._where, sum(staged.tokens.values()) - replacement.gone.num_rows)
        return staged

    def _require_types(self, database: Database) -> None:
        self._tables.require_types(database, self._result, self._columns)
        if self._rejects is not None:
            self._tables.require_types(database, self._rejected, column_types(self._rejects))

    def _note_write_mode(self, database: Database, generation: int, start: dict[int, int]) -> None:
        """Store the write mode before the first task commits, because a killed job may leave rows of its tasks."""
        if self._state.write_mode(database):
            return
        with self._state.transaction(database, generation):
            self._state.lock(database)
            self._require_holder(database, generation, start)
            self._state.note_write_mode(database, write_mode_text(self._write_mode))

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
            self._state.task_statements(self._result, copy),
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
            crash_points.passing("in-commit")

    def _commit_staged(
        self,
        database: Database,
        dataframe: DataFrame,
        generation: int,
        start: dict[int, int],
        end: dict[int, int],
        rejects: DataFrame | None,
        sequences: DataFrame | None,
        rows: list[int],
    ) -> None:
        staged = [self._stage(database, generation, self._result, self._columns, dataframe)]
        rows.extend(staged[0].tokens.values())
        if rejects is not None and self._rejects is not None:
            staged.append(self._stage(database, generation, self._rejected, column_types(self._rejects), rejects))
        if sequences is not None and self._sequences is not None:
            crash_points.passing("before-sequences")
            kept = self._sequences
            staged.append(
                self._stage(database, generation, kept.name, kept.columns, kept.of_job(sequences), kept.on_conflict())
            )
        crash_points.passing("before-commit")
        with self._state.transaction(database, generation):
            self._state.lock(database)
            self._require_holder(database, generation, start)
            # Once more: the tasks may have taken minutes. This look locks the table against its clearing.
            self._require_consistent(database)
            self._require_types(database)
            for each in staged:
                self._move_staged(database, each)
            self._state.commit(database, end, write_mode_text(self._write_mode))
            crash_points.passing("in-commit")

    def _stage(
        self,
        database: Database,
        generation: int,
        table: str,
        columns: list[Column],
        dataframe: DataFrame,
        conflict: sql.Composed | None = None,
    ) -> Staged:
        """Write the rows into a new staging table, in Spark's tasks."""
        from psycopg import sql

        staging = self._tables.new_staging(generation)
        # Without the table's rules, so that each is broken in the table, under its name.
        self._state.run(
            database,
            "CREATE UNLOGGED TABLE {staging} AS SELECT NULL::text AS ratchet_token, {table}.*, false AS {deleted} "
            "FROM {table} WITH NO DATA",
            staging=self._state.table(staging),
            table=self._state.table(table),
            deleted=sql.Identifier(DELETED),
        )
        self._state.run(
            database,
            "ALTER TABLE {staging} ALTER {deleted} SET DEFAULT false",
            staging=self._state.table(staging),
            deleted=sql.Identifier(DELETED),
        )
        deletes = [DELETED] if DELETED in dataframe.columns else []
        copy = self._copy(staging, ["ratchet_token", *(column.name for column in columns), *deletes])
        tokens = stage(textual(dataframe), self._state.connection(generation), copy)
        if conflict is None and table == self._result and self._write_mode.row_key:
            conflict = on_conflict(columns, self._write_mode)
        insert = self._state.text(
            "INSERT INTO {table} AS target ({columns}) SELECT {columns} FROM {staging} "
            "WHERE ratchet_token = ANY({tokens}) AND NOT {deleted} {conflict}",
            table=self._state.table(table),
            columns=names(column.name for column in columns),
            staging=self._state.table(staging),
            tokens=sql.Literal(list(tokens)),
            deleted=sql.Identifier(DELETED),
            conflict=sql.SQL("") if conflict is None else conflict,
        )
        removals = deletions(self._state, table, staging, list(tokens), self._write_mode) if deletes else []
        key = RECORD if conflict is None else (KEY if table != self._result else self._write_mode.row_key)
        of_rows = [column.name for column in columns]
        return Staged(table, staging, tokens, removals, insert, key if set(of_rows).issuperset(key) else (), of_rows)

    def _move_staged(self, database: Database, staged: Staged) -> None:
        """Move staged rows into their table, in the caller's transaction.

        Raises:
            StoreError: staged rows are missing, or the table did not store every row.
        """
        from psycopg import sql

        staging = self._state.table(staged.staging)
        [(found, given)] = self._state.run(
            database,
            "SELECT count(*), count(*) FILTER (WHERE NOT {deleted}) FROM {staging} WHERE ratchet_token = ANY({tokens})",
            staging=staging,
            deleted=sql.Identifier(DELETED),
            tokens=sql.Literal(list(staged.tokens)),
        )
        self._tables.require_staged(staged.staging, found, sum(staged.tokens.values()))
        rows = self._state.text(
            "ratchet_token = ANY({tokens}) AND NOT {deleted}",
            tokens=sql.Literal(list(staged.tokens)),
            deleted=sql.Identifier(DELETED),
        )
        kind = self._write_mode.kind if staged.table == self._result else "append"
        # A trigger or rule that keeps the old row of a key shows in the values, since the row exists.
        altered = kind != "append" and can_alter(self._state, database, staged.table)
        searched = altered or (bool(staged.key) and can_lose_later(self._state, database, staged.table))
        compared = staged.columns if altered and kind == "upsert" else staged.key
        of_staged = (self._state, database, staged.table, staged.staging, rows)
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
                database, remaining(self._state, staged.table, staged.staging, tokens, self._write_mode)
            )
            require_deleted(self._state, database, staged.table, self._state.where, int(left[0][0]))
        stored = database.execute(staged.insert).rowcount
        if searched:
            stored = min(stored, present() - before)
        require_stored(self._state, database, staged.table, self._state.where, given, stored)
        if altered and kind == "totals":
            of_rows = (staged.staging, rows)
            require_added(self._state, database, staged.table, self._state.where, of_rows, total() - counted)
        self._state.run(database, "DROP TABLE {staging}", staging=staging)

    def _copy(self, table: str, columns: Sequence[str]) -> str:
        copy = self._state.text(
            "COPY {table} ({columns}) FROM STDIN (FORMAT csv)", table=self._state.table(table), columns=names(columns)
        )
        return str(copy.as_string(None))
