"""Last sequences of a job that judges a raw topic itself, as a table beside the result's, in the same transactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from kafka_ratchet.spark_sink.errors import SequencesLost
from kafka_ratchet.spark_sink.rows.judging.judge import SEEN, sequences_schema
from kafka_ratchet.spark_sink.rows.judging.rule import JudgeRule
from kafka_ratchet.spark_sink.spark.python_worker import Task, map_batches
from kafka_ratchet.spark_sink.stores.postgres.tasks import Connection
from kafka_ratchet.spark_sink.stores.postgres.types import Column, column_types, names

if TYPE_CHECKING:
    from psycopg import sql
    from pyspark.sql import DataFrame, SparkSession

    from kafka_ratchet.spark_sink.stores.postgres.job_state import Database, JobState

JOB: Final = "_job"
"""Column in front of those of `sequences_schema`: jobs of several names may fill one result table."""

KEY: Final = (JOB, "_partition", "_identity")
"""An identity has 1,024 bytes at most, and PostgreSQL indexes 2,700."""

BATCH_ROWS: Final = 50_000
"""Rows that a task fetches at a time: the driver of the database hands them over as Python objects."""


class SequenceTable:
    """The table, as one job sees it.

    Args:
        state: of the job.
        name: of the table.
        job: the job's name.
        rule: by which it judges.
    """

    def __init__(self, state: JobState, name: str, job: str, rule: JudgeRule) -> None:
        self._state, self.name, self._job, self._schema = state, name, job, sequences_schema(rule)
        self.columns = [Column(JOB, "text"), *column_types(self._schema)]

    def create(self, database: Database) -> None:
        """Make it where it is not there, amid a transaction.

        Raises:
            SchemaDiffers: there is another table of the name.
        """
        from psycopg import sql

        definitions = [sql.Identifier(column.name) + sql.SQL(f" {column.type}") for column in self.columns]
        self._state.run(
            database,
            "CREATE TABLE IF NOT EXISTS {table} ({definitions}, PRIMARY KEY ({key}))",
            table=self._state.table(self.name),
            definitions=sql.SQL(", ").join(definitions),
            key=sql.SQL(", ").join(map(sql.Identifier, KEY)),
        )
        self._state.require_columns(database, self.name, self.columns)

    def of_job(self, changes: DataFrame) -> DataFrame:
        """The rows that a commit stages."""
        from pyspark.sql import functions as F

        return changes.select(F.lit(self._job).alias(JOB), *self._schema.names)

    def on_conflict(self) -> sql.Composed:
        """What becomes of an identity that has a row."""
        from psycopg import sql

        changed = [column for column in self.columns if column.name not in KEY]
        return sql.SQL("ON CONFLICT ({}) DO UPDATE SET {}").format(
            sql.SQL(", ").join(map(sql.Identifier, KEY)),
            sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(each.name)) for each in changed),
        )

    def read(self, spark: SparkSession, connection: Connection, partitions: Iterable[int]) -> DataFrame | None:
        """The job's sequences, read by a task for each Kafka partition; None: there are no partitions yet."""
        numbers = sorted(partitions)
        if not numbers:
            return None
        select = self._state.text(
            "SELECT {columns} FROM {table} WHERE _job = {job} AND _partition = %s",
            columns=names(self.columns[1:]),
            table=self._state.table(self.name),
        ).as_string(None)
        tasks = spark.range(0, len(numbers), 1, len(numbers))
        task = _reading(connection, select, numbers, BATCH_ROWS, has_seen=SEEN in self._schema.names)
        return map_batches(tasks, task, self._schema)

    def lost(self, what: str) -> SequencesLost:
        """The error for a table that is not the one that was committed to."""
        return SequencesLost(
            f"{self._state.where}: the last sequences of job {self._job} are not those of its rows: {what}. Without "
            "them, records that are in the table would be added once more. Restore the whole database, or begin with "
            "another table"
        )


def _reading(connection: Connection, select: str, partitions: list[int], batch_rows: int, *, has_seen: bool) -> Task:
    # A nested function with its own imports: cloudpickle sends it by value, so executors need psycopg and pyarrow.
    conninfo, application, lock_timeout_ms = connection.conninfo, connection.application, connection.lock_timeout_ms

    def read(batches: Iterable[Any]) -> Iterator[Any]:
        import psycopg
        import pyarrow as pa

        fields = [("_partition", pa.int32()), ("_identity", pa.binary()), ("_last", pa.int64())]
        schema = pa.schema([*fields, *([("_seen", pa.list_(pa.int64()))] if has_seen else [])])
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with psycopg.connect(conninfo, application_name=application, client_encoding="UTF8") as database:
                    database.execute(f"SET lock_timeout = {int(lock_timeout_ms)}")
                    with database.cursor("ratchet_sequences", binary=True) as cursor:
                        cursor.execute(select, (partitions[number],))
                        while rows := cursor.fetchmany(batch_rows):
                            columns = [
                                pa.array(column, field.type)
                                for column, field in zip(zip(*rows, strict=True), schema, strict=True)
                            ]
                            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return read
