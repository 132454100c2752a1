"""Results in PostgreSQL: rows, offsets and generation are in one database, and change in one transaction.

Rows that are only added are committed by the tasks that read them, one transaction per Kafka partition. Everything
else is staged by the tasks and moved into the table by one transaction of the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import Fenced, OptionRefused, RowsLost, StoreError
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.write_mode import APPEND, Shape
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.decision import Decision, Held
from kafka_ratchet.spark_sink.stores.orphans import Orphan
from kafka_ratchet.spark_sink.stores.place import Place
from kafka_ratchet.spark_sink.stores.postgres.job_state import Book
from kafka_ratchet.spark_sink.stores.postgres.merge import deletions, on_conflict
from kafka_ratchet.spark_sink.stores.postgres.tasks import commit_partitions, stage, textual
from kafka_ratchet.spark_sink.stores.postgres.types import Column, column_types, names, spark_schema, table_parts
from kafka_ratchet.spark_sink.stores.rule import require_rule, rule_of
from kafka_ratchet.spark_sink.stores.store import TableStore, require_names, require_start, rows_lost

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg import sql
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from kafka_ratchet.spark_sink.stores.postgres.job_state import Database

BATCH_ROWS = 50_000
"""Rows that a scan fetches at a time: the driver hands them over as Python objects."""


class PostgresStore(TableStore):
    """A `ResultStore` over one table of a PostgreSQL database; jobs of different names may share it.

    Args:
        url: postgresql://user@host:port/database, or libpq's "host=... dbname=...".
        table: the result table, or schema.table; rejects go to the table with `_rejects` behind its name.
        name: the job's name; a job that opens the store fences the older one of its name.
        topic: the topic the offsets belong to.
        topic_identity: `TopicPlanner.identity()`; 0 switches the comparison off.
        shape: what the rows do to the table.
        rejects: columns of the rejects table; None: commits bring no rejects.
        password: wins over one in the url.
        in_tasks: commit per Kafka partition, inside the tasks. Each task must have the rows of one Kafka partition, as
            Spark's Kafka source hands them out; only for rows that are added, without rejects.

    Raises:
        OptionRefused: a name or the url cannot be used, or psycopg is not installed.
    """

    needs_path = False
    narrow = True

    def __init__(
        self,
        url: str,
        table: str,
        name: str,
        topic: str,
        topic_identity: int = 0,
        shape: Shape = APPEND,
        *,
        rejects: StructType | None = None,
        password: str | None = None,
        in_tasks: bool = False,
    ) -> None:
        require_names(name, topic)
        if in_tasks and (shape.kind != "append" or rejects is not None):
            raise OptionRefused("only rows that are added, without rejects, can be committed by the tasks")
        self._result = table_parts(table)[-1]
        self._rejected = table_parts(f"{table}_rejects")[-1]
        self._book = Book(url, password, table, name, topic, topic_identity)
        self._topic_identity = topic_identity
        self._name, self._shape, self._rejects, self._in_tasks = name, shape, rejects, in_tasks
        self._generation: int | None = None
        self._columns: list[Column] = []

    @classmethod
    def at(cls, place: Place, name: str, topic: str, topic_identity: int = 0, shape: Shape = APPEND,
           *, rejects: StructType | None = None, in_tasks: bool = False) -> PostgresStore:  # fmt: skip
        """See `TableStore.at`."""
        return cls(
            place.url,
            place.table,
            name,
            topic,
            topic_identity,
            shape,
            rejects=rejects,
            password=place.password,
            in_tasks=in_tasks,
        )

    def count(self) -> int:
        """See `TableStore.count`."""
        with self._book.database() as database:
            table = self._book.table(self._result)
            [(found,)] = self._book.run(database, "SELECT count(*) FROM {table}", table=table)
        return int(found)

    def rows(self, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """See `TableStore.rows`."""
        with self._book.database() as database:
            return database.execute(self._select(columns)).fetchall()

    def scan(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See `TableStore.scan`."""
        import pyarrow as pa

        with self._book.database() as database, database.transaction(), database.cursor("ratchet_scan") as cursor:
            cursor.execute(self._select(schema.names))
            while rows := cursor.fetchmany(BATCH_ROWS):
                columns = zip(zip(*rows, strict=True), schema, strict=True)
                arrays = [pa.array(column, field.type) for column, field in columns]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _select(self, columns: Sequence[str]) -> sql.Composed:
        wanted = names([Column(column, "") for column in columns])
        return self._book.text("SELECT {wanted} FROM {table}", wanted=wanted, table=self._book.table(self._result))

    def orphans(self, *, needed: bool = True) -> Iterator[Orphan]:
        """See `TableStore.orphans`. Staging tables have no time of their own: the generation alone decides."""
        with self._book.database() as database:
            for job, newest in self._book.generations(database).items():
                book = self._book.of_job(job)
                for table, size in book.staged(database, newest - 1):
                    yield Orphan(table, size, None, partial(book.drop_staged, table, newest - 1))

    def generation(self) -> int:
        """See `ResultStore.generation`."""
        with self._book.database() as database:
            return self._book.generation(database)

    def offsets(self) -> dict[int, int]:
        """See `ResultStore.offsets`."""
        with self._book.database() as database:
            self._require_sound(database)
            self._book.require_same_topic(database)
            return self._book.stored(database)

    def held(self) -> Held:
        """See `ResultStore.held`."""
        with self._book.database() as database:
            if not self._book.generation(database):
                raise StoreError(f"{self._book.where}: job and table have never met. Run the sink first")
            stored = self._book.stored(database)
            is_other = self._book.known_topic(database).is_other(self._topic_identity)
            relation, what = self._broken(database)
            of_rows = None if is_other or relation not in {"", self._result} else {} if relation else stored
            return Held(stored, of_rows, str(self._lost(relation, what)) if relation else "", is_other)

    def put(self, offsets: dict[int, int], decision: Decision) -> int:
        """See `ResultStore.put`; decisions are kept in the table `ratchet_sink_decisions`."""
        with self._book.database() as database:
            newest = self._book.generation(database)
            self._book.end_sessions(database, newest)
            with database.transaction():
                self._book.marks.create(database)
                generation = self._book.take_over(database)
                before = self._book.stored(database)
                decision.require_seen(self._book.where, before)
                self._book.forget(database)
                self._book.move(database, offsets)
                self._book.marks.note(database, self._relations)
                rules = (self._rule(database), rule_of(self._shape))
                self._book.marks.note_rule(database, rules[1])
                self._book.marks.decide(database, decision.as_json(before, offsets, rules))
            self._book.end_sessions(database, generation - 1)
        return generation

    def require_rule(self) -> None:
        """See `ResultStore.require_rule`."""
        with self._book.database() as database:
            self._require_rule(database)

    def _rule(self, database: Database) -> str:
        return self._book.marks.rule(database) if self._book.generation(database) else ""

    def _require_rule(self, database: Database) -> None:
        require_rule(self._book.where, self._name, self._rule(database), self._shape)

    @property
    def _relations(self) -> list[str]:
        return [self._result, *([] if self._rejects is None else [self._rejected])]

    def _broken(self, database: Database) -> tuple[str, str]:
        return self._book.marks.broken(database, self._relations) if self._book.stored(database) else ("", "")

    def _lost(self, relation: str, what: str) -> RowsLost:
        return rows_lost(self._book.where, what, relation == self._result)

    def _require_sound(self, database: Database) -> None:
        """Raise `RowsLost` where the table is not the one that the offsets were committed with."""
        relation, what = self._broken(database)
        if relation:
            raise self._lost(relation, what)

    def columns(self) -> StructType | None:
        """See `ResultStore.columns`."""
        with self._book.database() as database:
            found = self._book.columns(database, self._result)
        return spark_schema(found) if found else None

    def require_fits(self, schema: StructType) -> None:
        """See `ResultStore.require_fits`."""
        tables = {self._result: column_types(schema)}
        if self._rejects is not None:
            tables[self._rejected] = column_types(self._rejects)
        with self._book.database() as database:
            for table, columns in tables.items():
                if self._book.columns(database, table):
                    self._book.require_columns(database, table, columns)

    def open(self, schema: StructType) -> dict[int, int]:
        """See `ResultStore.open`. Ends the older holder's sessions: a frozen one would keep its locks for ever."""
        columns = column_types(schema)
        tables = {self._result: columns}
        if self._rejects is not None:
            tables[self._rejected] = column_types(self._rejects)
        with self._book.database() as database:
            self._require_sound(database)  # before a table that was dropped is made anew
            self._require_rule(database)  # before an index over another key
            with database.transaction():
                self._book.create_tables(database, tables, self._shape.key)
            self._book.require_same_topic(database)  # a refusal ends nobody's sessions
            self._book.end_sessions(database, self._book.generation(database))
            with database.transaction():
                self._book.require_same_topic(database)
                generation = self._book.take_over(database)
                self._require_rule(database)  # once more: the row of the job is ours until the transaction ends
                stored = self._book.stored(database)
                self._book.marks.note(database, self._relations)
            # Once more, for sessions that came in between; what they commit is refused, or in `stored`.
            self._book.end_sessions(database, generation - 1)
            self._book.drop_staging(database, generation - 1)
        self._columns, self._generation = columns, generation
        return stored

    def commit(
        self, dataframe: DataFrame, start: dict[int, int], end: dict[int, int], rejects: DataFrame | None = None
    ) -> int:
        """See `ResultStore.commit`. With `in_tasks`, the action is one per Kafka partition."""
        generation = require_start(self._generation, start, end)
        if (rejects is None) != (self._rejects is None):
            raise ValueError("rejects go to a store that was made with rejects")
        rows: list[int] = []
        try:
            with self._book.database(generation) as database:
                self._book.require_holder(database, generation, start)  # a fenced job stages nothing
                self._require_sound(database)
                crash_points.passing("before-write")
                if self._in_tasks:
                    self._note_rule(database, generation, start)
                    self._commit_in_tasks(database, dataframe, generation, start, end, rows)
                else:
                    self._commit_staged(database, dataframe, generation, start, end, rejects, rows)
        except (Fenced, RowsLost):
            raise
        except Exception:
            if not self._is_committed(generation, end):
                raise
        crash_points.passing("after-commit")
        return sum(rows)

    def close(self) -> None:
        """See `ResultStore.close`. No connection outlives a call."""
        self._generation = None

    def _note_rule(self, database: Database, generation: int, start: dict[int, int]) -> None:
        """Before the first task commits: whoever is killed amid them leaves rows of this rule."""
        if self._rule(database):
            return
        with database.transaction():
            self._book.lock(database)
            self._book.require_holder(database, generation, start)
            self._book.marks.note_rule(database, rule_of(self._shape))

    def _commit_in_tasks(
        self,
        database: Database,
        dataframe: DataFrame,
        generation: int,
        start: dict[int, int],
        end: dict[int, int],
        rows: list[int],
    ) -> None:
        copy = self._copy(self._result, self._columns)
        found = commit_partitions(
            textual(dataframe),
            self._book.connection(generation),
            self._book.task_statements(copy),
            generation,
            dataframe.columns.index("_partition"),
            start,
            end,
        )
        rows.extend(found.values())
        crash_points.passing("before-commit")
        with database.transaction():
            # What is left are partitions without a row: their range has markers and aborted records only.
            self._book.lock(database)
            self._book.require_holder(database, generation, {p: end[p] if p in found else start[p] for p in start})
            self._book.move(database, {partition: end[partition] for partition in end if partition not in found})
            self._book.marks.note(database, self._relations)
            crash_points.passing("in-commit")

    def _commit_staged(
        self,
        database: Database,
        dataframe: DataFrame,
        generation: int,
        start: dict[int, int],
        end: dict[int, int],
        rejects: DataFrame | None,
        rows: list[int],
    ) -> None:
        staged = [self._stage(database, generation, self._result, self._columns, dataframe)]
        rows.extend(staged[0][1].values())
        if rejects is not None and self._rejects is not None:
            staged.append(self._stage(database, generation, self._rejected, column_types(self._rejects), rejects))
        crash_points.passing("before-commit")
        with database.transaction():
            self._book.lock(database)
            self._book.require_holder(database, generation, start)
            for statements, _ in staged:
                for statement in statements:
                    database.execute(statement)
            self._book.move(database, end)
            self._book.marks.note(database, self._relations)
            self._book.marks.note_rule(database, rule_of(self._shape))
            crash_points.passing("in-commit")

    def _stage(
        self, database: Database, generation: int, table: str, columns: list[Column], dataframe: DataFrame
    ) -> tuple[list[sql.Composed], dict[str, int]]:
        """The statements that move the staged rows into their table, and the rows of each token that counts."""
        from psycopg import sql

        staging = self._book.new_staging(generation)
        self._book.run(
            database,
            "CREATE UNLOGGED TABLE {staging} (ratchet_token text, LIKE {table}, "
            "{deleted} boolean NOT NULL DEFAULT false)",
            staging=self._book.table(staging),
            table=self._book.table(table),
            deleted=sql.Identifier(DELETED),
        )
        deletes = [Column(DELETED, "boolean")] if DELETED in dataframe.columns else []
        copy = self._copy(staging, [Column("ratchet_token", "text"), *columns, *deletes])
        tokens = stage(textual(dataframe), self._book.connection(generation), copy)
        keyed = table == self._result and self._shape.key
        insert = self._book.text(
            "INSERT INTO {table} AS held ({columns}) SELECT {columns} FROM {staging} "
            "WHERE ratchet_token = ANY({tokens}) AND NOT {deleted} {conflict}",
            table=self._book.table(table),
            columns=names(columns),
            staging=self._book.table(staging),
            tokens=sql.Literal(list(tokens)),
            deleted=sql.Identifier(DELETED),
            conflict=on_conflict(columns, self._shape) if keyed else sql.SQL(""),
        )
        done = self._book.text("DROP TABLE {staging}", staging=self._book.table(staging))
        return [
            *(deletions(self._book, table, staging, list(tokens), self._shape) if deletes else []),
            insert,
            done,
        ], tokens

    def _copy(self, table: str, columns: list[Column]) -> str:
        return self._book.text(
            "COPY {table} ({columns}) FROM STDIN (FORMAT csv)", table=self._book.table(table), columns=names(columns)
        ).as_string(None)

    def _is_committed(self, generation: int, end: dict[int, int]) -> bool:
        """After an error, what the database itself says: a commit whose answer was lost is one all the same.

        Raises:
            Fenced: what looked like an error is a session that the new holder has ended.
            StoreError: the database is away, which is why there was an error.
        """
        with self._book.database() as database:
            self._book.require_holder(database, generation, None)
            return self._book.stored(database).items() >= end.items()
