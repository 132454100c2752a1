"""Table of a deduplicating job's last sequences, changed in the result's transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from kafka_ratchet.spark_sink.errors import SequencesLost
from kafka_ratchet.spark_sink.rows.judging.judge import sequences_schema
from kafka_ratchet.spark_sink.rows.judging.rule import JudgeRule
from kafka_ratchet.spark_sink.rows.judging.task import SEEN, Known
from kafka_ratchet.spark_sink.stores.postgres.tasks import Connection
from kafka_ratchet.spark_sink.stores.postgres.types import column_types, names
from kafka_ratchet.spark_sink.stores.sql_types import Column

if TYPE_CHECKING:
    from psycopg import sql
    from pyspark.sql import DataFrame

    from kafka_ratchet.spark_sink.stores.postgres.job_state import JobState
    from kafka_ratchet.spark_sink.stores.postgres.tables import Tables
    from kafka_ratchet.spark_sink.stores.postgres.types import Database

JOB: Final = "_job"
"""First column of the table: the job's name, because several jobs may fill one result table."""

KEY: Final = (JOB, "_kafka_partition", "_identity")
"""Columns of the primary key. An identity has at most 1,024 bytes, and PostgreSQL indexes values up to 2,700."""

PER_QUERY: Final = 10_000
"""Maximum number of identities in one query of a task."""


class SequenceTable:
    """Table of last sequences, limited to the rows of one job.

    Args:
        state: the job's state.
        name: name of the table.
        job: the job's name.
        rule: the job's rule for judging records.
    """

    def __init__(self, state: JobState, name: str, job: str, rule: JudgeRule) -> None:
        self._state, self.name, self._job, self._schema = state, name, job, sequences_schema(rule)
        self.columns = [Column(JOB, "text"), *column_types(self._schema)]

    def create(self, database: Database, tables: Tables) -> None:
        """Create the table in the caller's transaction, if it is missing.

        Raises:
            SchemaDiffers: a table of this name has other columns.
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
        tables.require_columns(database, self.name, self.columns)

    def require_none(self, database: Database) -> None:
        """Refuse stored sequences of a job without stored offsets.

        The job would take new records for known ones, and leave them out.

        Raises:
            SequencesLost: the table has sequences of the job.
        """
        if not self._state.has_table(database, self.name):
            return
        [(found,)] = self._state.run(
            database,
            "SELECT EXISTS (SELECT 1 FROM {table} WHERE _job = {job})",
            table=self._state.table(self.name),
        )
        if found:
            raise SequencesLost(
                f"{self._state.where}: table {self.name} has last sequences of job {self._job}, but the job's stored "
                "offsets are missing. The job would silently leave out records, because it would take them for known "
                "ones. Restore the whole database, or begin with another result table. If the job's rows are lost for "
                f"good, delete the rows with this job in column {JOB} from table {self.name} too"
            )

    def of_job(self, changes: DataFrame) -> DataFrame:
        """Return last sequences in the table's columns, with the job's name as the first column."""
        from pyspark.sql import functions as F

        return changes.select(F.lit(self._job).alias(JOB), *self._schema.names)

    def on_conflict(self) -> sql.Composed:
        """Return the ON CONFLICT clause that replaces an identity's sequences."""
        from psycopg import sql

        changed = [column for column in self.columns if column.name not in KEY]
        return sql.SQL("ON CONFLICT ({}) DO UPDATE SET {}").format(
            sql.SQL(", ").join(map(sql.Identifier, KEY)),
            sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(each.name)) for each in changed),
        )

    def known(self, connection: Connection) -> Known:
        """Return the function for Spark's tasks that looks up the job's last sequences."""
        select = self._state.text(
            "SELECT {columns} FROM {table} WHERE _job = {job} AND _kafka_partition = %s "
            "AND _identity = ANY(%s::bytea[])",
            columns=names(column.name for column in self.columns[2:]),
            table=self._state.table(self.name),
        ).as_string(None)
        return _lookup(connection, select, PER_QUERY, has_seen=SEEN in self._schema.names)

    def lost(self, what: str) -> SequencesLost:
        """Return the error for the loss of committed sequences, with the sentence `what` about it."""
        return SequencesLost(
            f"{self._state.where}: the last sequences of job {self._job} are not those of its rows: {what}. Without "
            "these sequences, known records would be added once more. Restore the whole database, or begin with "
            "another table"
        )


def _lookup(connection: Connection, select: str, per_query: int, *, has_seen: bool) -> Known:
    # A nested function with its own imports: cloudpickle sends it by value, so executors need psycopg and pyarrow.
    conninfo, application, lock_timeout_ms = connection.conninfo, connection.application, connection.lock_timeout_ms

    def look(partition: int, identities: Sequence[bytes]) -> Iterator[Any]:
        import psycopg

        with psycopg.connect(conninfo, client_encoding="UTF8", prepare_threshold=None) as database:
            database.execute(
                "SELECT set_config('lock_timeout', %s, true), set_config('row_security', 'off', true), "
                "set_config('application_name', %s, true)",
                (str(lock_timeout_ms), application),
            )
            with database.cursor(binary=True) as cursor:
                for begin in range(0, len(identities), per_query):
                    cursor.execute(select, (partition, list(identities[begin : begin + per_query])))
                    for row in cursor.fetchall():
                        yield row if has_seen else (*row, None)

    return look
