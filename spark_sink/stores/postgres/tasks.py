"""Staging and committing of rows in Spark's tasks, which write to the database by COPY.

The tasks are nested functions with their own imports: cloudpickle sends them by value, so executors need psycopg and
pyarrow, but not this package.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.spark.dialect import AS_JSON, in_utc
from kafka_ratchet.spark_sink.spark.python_worker import Task, map_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STAGED = "token string, rows long"
"""Columns of a task's report about its staged rows; only rows with a reported token belong to the commit."""

WRITTEN = "partition int, rows long"
"""Columns of a task's report about the Kafka partition that it has committed."""


@dataclass(frozen=True)
class Connection:
    """Data that a task needs to connect to the database."""

    conninfo: str = field(repr=False)
    application: str
    lock_timeout_ms: int


def textual(dataframe: DataFrame) -> DataFrame:
    """Convert the rows to columns c0, c1, ... of types that COPY's CSV format represents exactly."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    nested = T.ArrayType | T.MapType | T.StructType
    as_they_are = T.BooleanType | T.NumericType | T.StringType
    columns = []
    for each, name in zip(dataframe.schema.fields, (f"c{n}" for n in range(len(dataframe.columns))), strict=True):
        column = F.col(name)
        if isinstance(each.dataType, T.BinaryType):
            column = F.concat(F.lit("\\x"), F.hex(column))
        elif isinstance(each.dataType, nested):
            column = F.to_json(column, AS_JSON)
        elif isinstance(each.dataType, T.TimestampType):
            # With its zone: the database would take it for a time in its own.
            column = F.concat(in_utc(column).cast("string"), F.lit("+00"))
        elif isinstance(each.dataType, T.DecimalType) or not isinstance(each.dataType, as_they_are):
            column = column.cast("string")
        columns.append(column.alias(name))
    return dataframe.toDF(*[f"c{n}" for n in range(len(columns))]).select(*columns)


def stage(dataframe: DataFrame, connection: Connection, copy: str) -> dict[str, int]:
    """Copy the rows into a staging table, each with the token of its task.

    Args:
        dataframe: the rows as `textual` returns them.
        connection: connection to the database.
        copy: the COPY statement; its first column is the token.

    Returns:
        Number of rows by token. Rows with other tokens come from attempts of tasks that failed or were not needed.
    """
    return {row.token: row.rows for row in map_batches(dataframe, _staging(connection, copy), STAGED).collect()}


def commit_partitions(
    dataframe: DataFrame,
    connection: Connection,
    statements: Mapping[str, str],
    generation: int,
    table: tuple[int, int],
    position: int,
    start: Mapping[int, int],
    end: Mapping[int, int],
) -> dict[int, int]:
    """Let each task commit rows and offset of its Kafka partition in one transaction.

    Args:
        dataframe: the rows as `textual` returns them; each of its tasks has rows of one Kafka partition only.
        connection: connection to the database.
        statements: see `JobState.task_statements`.
        generation: generation of this run.
        table: oid and file number of the table, as the driver read them. A task refuses a table emptied or recreated
            since: the task's rows would hide that the rows of an earlier task are missing.
        position: index of the column with the Kafka partition.
        start: the offsets that must be stored.
        end: the offsets to store.

    Returns:
        Number of rows by partition, without partitions that had none.
    """
    task = _committing(connection, dict(statements), generation, table, position, dict(start), dict(end))
    return {row.partition: row.rows for row in map_batches(dataframe, task, WRITTEN).collect()}


def _staging(connection: Connection, copy_statement: str) -> Task:
    conninfo, application, lock_timeout_ms = connection.conninfo, connection.application, connection.lock_timeout_ms

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        import io
        import uuid

        import psycopg
        import pyarrow as pa
        import pyarrow.csv

        form = pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid")
        token, rows = uuid.uuid4().hex, 0
        with psycopg.connect(conninfo, client_encoding="UTF8", prepare_threshold=None) as database:
            # Within the transaction: a pooler gives the session to others after it.
            database.execute(
                "SELECT set_config('lock_timeout', %s, true), set_config('row_security', 'off', true), "
                "set_config('application_name', %s, true)",
                (str(lock_timeout_ms), application),
            )
            with database.cursor() as cursor, cursor.copy(copy_statement) as copy:
                for batch in batches:
                    if batch.num_rows:
                        columns = [pa.repeat(token, batch.num_rows), *batch.columns]
                        text = io.BytesIO()
                        named = pa.table(columns, names=[str(n) for n in range(len(columns))])
                        pyarrow.csv.write_csv(named, text, form)
                        copy.write(text.getbuffer())
                        rows += batch.num_rows
        if rows:
            schema = pa.schema([("token", "string"), ("rows", "int64")])
            yield pa.RecordBatch.from_pydict({"token": [token], "rows": [rows]}, schema=schema)

    return write


def _committing(
    connection: Connection,
    statements: dict[str, str],
    generation: int,
    table: tuple[int, int],
    position: int,
    start: dict[int, int],
    end: dict[int, int],
) -> Task:
    conninfo, application, lock_timeout_ms = connection.conninfo, connection.application, connection.lock_timeout_ms

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        import io
        import itertools

        import psycopg
        import pyarrow as pa
        import pyarrow.compute
        import pyarrow.csv

        form = pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid")
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        partition, rows = first.column(position)[0].as_py(), 0
        with psycopg.connect(conninfo, client_encoding="UTF8", prepare_threshold=None) as database:
            # Within the transaction: a pooler gives the session to others after it.
            database.execute(
                "SELECT set_config('lock_timeout', %s, true), set_config('row_security', 'off', true), "
                "set_config('application_name', %s, true)",
                (str(lock_timeout_ms), application),
            )
            # Locked until this transaction ends, so that a take-over waits for it, or ends it.
            holder = database.execute(statements["holder"]).fetchone()
            if holder is None or holder[0] != generation:
                raise RuntimeError(
                    f"fenced: generation {generation} no longer holds the job (the newest generation is "
                    f"{holder[0] if holder else 'none'})"
                )
            database.execute(statements["first"], (partition, start[partition]))
            stored = database.execute(statements["stored"], (partition,)).fetchone()
            # A repeated task finds the commit of its first attempt, if that came so far.
            done = stored is not None and stored[0] == end[partition]
            if not done and (stored is None or stored[0] != start[partition]):
                raise RuntimeError(f"fenced: partition {partition} is stored up to {stored}, not {start[partition]}")
            with database.cursor() as cursor:
                if not done:
                    # The table is searched only if a trigger or rule may remove rows that COPY has counted.
                    searched = cursor.execute(statements["later"]).fetchone()
                    of_range = (partition, start[partition], end[partition])
                    before = cursor.execute(statements["present"], of_range).fetchone() if searched == (True,) else None
                    with cursor.copy(statements["copy"]) as copy:
                        for batch in itertools.chain([first], filled):
                            if pyarrow.compute.any(pyarrow.compute.not_equal(batch[position], partition)).as_py():
                                raise RuntimeError("a task has rows of more than one Kafka partition")
                            text = io.BytesIO()
                            pyarrow.csv.write_csv(pa.Table.from_batches([batch]), text, form)
                            copy.write(text.getbuffer())
                            rows += batch.num_rows
                    stored_rows = cursor.rowcount
                    if before is not None:
                        cursor.execute(statements["deferred"])
                        after = cursor.execute(statements["present"], of_range).fetchone()
                        stored_rows = min(stored_rows, after[0] - before[0]) if after else 0
                    if stored_rows != rows:  # a trigger or rule removed rows, without an error
                        names = cursor.execute(statements["takers"]).fetchone()
                        raise RuntimeError(
                            f"the table has stored {stored_rows} of {rows} rows of partition {partition}. The table "
                            f"has: {names[0] if names else 'no trigger or rule'}. Nothing of the partition was "
                            "committed. Drop or change the one that removes rows"
                        )
                else:
                    rows = first.num_rows + sum(batch.num_rows for batch in filled)
                # COPY's lock on the table keeps all sessions from emptying it after this look.
                now = cursor.execute(statements["table"]).fetchone()
                if now != table:
                    raise RuntimeError(
                        f"the table was emptied, rewritten or recreated during the task (oid and file number were "
                        f"{table}, and are {now}). Nothing of the task was committed. Run the job again"
                    )
                cursor.execute(statements["move"], (end[partition], partition))
                if cursor.rowcount != 1:
                    raise RuntimeError(
                        f"the offset of partition {partition} was not stored: a trigger or rule of "
                        "table ratchet_sink_offsets has refused it. Drop that trigger or rule"
                    )
                cursor.execute(statements["deferred"])
                kept = cursor.execute(statements["stored"], (partition,)).fetchone()
                if kept is None or kept[0] != end[partition]:
                    raise RuntimeError(
                        f"the offset of partition {partition} was not stored as given ({kept}): a trigger or rule of "
                        "table ratchet_sink_offsets has changed it. Drop that trigger or rule"
                    )
                cursor.execute(statements["filled"])
                cursor.execute(statements["rule"])
        schema = pa.schema([("partition", "int32"), ("rows", "int64")])
        yield pa.RecordBatch.from_pydict({"partition": [partition], "rows": [rows]}, schema=schema)

    return write
