"""Staging of rows in Spark's tasks: the tasks INSERT many rows at a time into a staging table.

The tasks are nested functions with their own imports: cloudpickle sends them by value, so executors need PyMySQL and
pyarrow, but not this package.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.spark.dialect import AS_JSON, in_utc
from kafka_ratchet.spark_sink.spark.python_worker import Task, map_batches
from kafka_ratchet.spark_sink.stores.mysql.connection import OF_SESSION, Address

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

STAGED = "token string, rows long"
"""Columns of a task's report about its staged rows; only rows with a reported token belong to the commit."""

STATEMENT_BYTES = 1 << 20
"""Maximum bytes of one INSERT, unless a single row is longer: room for many rows, and far below the server's limit of
16 MB."""

NOT_FINITE = "MySQL holds neither NaN nor infinity. Leave such numbers out, or make text of them"


def literals(dataframe: DataFrame) -> DataFrame:
    """Convert each row to one text: its values as SQL, separated by commas.

    Text and bytes are written in hexadecimal digits, so that no content can be read as SQL.
    """
    from pyspark.sql import functions as F

    renamed = dataframe.toDF(*[f"c{n}" for n in range(len(dataframe.columns))])
    values = [
        F.coalesce(_literal(F.col(f"c{n}"), field.dataType), F.lit("NULL"))
        for n, field in enumerate(dataframe.schema.fields)
    ]
    return renamed.select(F.concat_ws(",", *values).alias("row"))


def _literal(column: Column, data_type: DataType) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    def between(before: str, text: Column) -> Column:
        return F.concat(F.lit(f"{before}'"), text, F.lit("'"))

    if isinstance(data_type, T.StringType):
        return between("_utf8mb4 X", F.hex(column))
    if isinstance(data_type, T.BinaryType):
        return between("X", F.hex(column))
    if isinstance(data_type, T.ArrayType | T.MapType | T.StructType):
        return between("_utf8mb4 X", F.hex(F.to_json(column, AS_JSON)))
    if isinstance(data_type, T.BooleanType):
        return column.cast("int").cast("string")
    if isinstance(data_type, T.FloatType | T.DoubleType):
        number = column.cast("double")  # a float's own value, and not the shortest text for it
        is_finite = ~F.isnan(number) & (F.abs(number) != F.lit(float("inf")))
        return F.when(number.isNull() | is_finite, number.cast("string")).otherwise(F.raise_error(F.lit(NOT_FINITE)))
    if isinstance(data_type, T.IntegralType):
        return column.cast("string")
    if isinstance(data_type, T.TimestampType):
        column = in_utc(column)
    return between("", column.cast("string"))  # a decimal, date or time: the server reads its text exactly


def stage(dataframe: DataFrame, address: Address, insert: str) -> dict[str, int]:
    """Insert the rows into a staging table, each with the token of its task.

    Args:
        dataframe: the rows as `literals` returns them.
        address: address of the database.
        insert: INSERT statement up to and including VALUES; its first column is the token.

    Returns:
        Number of rows by token. Rows with other tokens come from attempts of tasks that failed or were not needed.
    """
    return {row.token: row.rows for row in map_batches(dataframe, _staging(address, insert), STAGED).collect()}


def _staging(address: Address, insert: str) -> Task:
    parameters, settings, most = dict(address.parameters), OF_SESSION, STATEMENT_BYTES

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        import contextlib
        import itertools
        import uuid

        import pyarrow as pa
        import pymysql

        token, rows = uuid.uuid4().hex, 0
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        with contextlib.closing(pymysql.connect(**parameters)) as database:
            cursor = database.cursor()
            for statement in settings:
                cursor.execute(statement)
            cursor.execute("SELECT @@max_allowed_packet")
            [(packet,)] = cursor.fetchall()
            head = len(insert.encode())
            pending: list[str] = []
            size = head

            def flush() -> None:
                # Each statement is a transaction: a task frozen between two keeps no lock.
                if pending:
                    cursor.execute(insert + ",".join(pending))
                    pending.clear()

            for batch in itertools.chain([first], filled):
                for text in batch.column(0).to_pylist():
                    row = f"('{token}',{text})"
                    if head + len(row) >= packet:
                        raise RuntimeError(
                            f"a row needs {len(row)} bytes as SQL, more than the server accepts "
                            f"(max_allowed_packet is {packet}). Raise max_allowed_packet, up to 1 GB"
                        )
                    if pending and size + len(row) + 1 > min(most, packet):
                        flush()
                        size = head
                    pending.append(row)
                    size += len(row) + 1
                    rows += 1
            flush()
        schema = pa.schema([("token", "string"), ("rows", "int64")])
        yield pa.RecordBatch.from_pydict({"token": [token], "rows": [rows]}, schema=schema)

    return write
