"""Going through a result table of any kind without Spark and without a Python object for each row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import SinkError, StoreError, first_line
from kafka_ratchet.spark_sink.stores.duckdb.store import DuckDBStore, quoted
from kafka_ratchet.spark_sink.stores.iceberg.store import iceberg_table
from kafka_ratchet.spark_sink.stores.open_store import Place, rejects_place
from kafka_ratchet.spark_sink.stores.postgres.job_state import Book
from kafka_ratchet.spark_sink.stores.postgres.types import Column, names, table_parts
from kafka_ratchet.spark_sink.stores.results import delta_table

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 50_000
"""Rows that PostgreSQL hands over at a time; the only store whose rows come as Python objects."""


def scan(place: Place, schema: pa.Schema, *, rejects: bool = False) -> Iterator[pa.RecordBatch]:
    """Those columns of the table, batch by batch, in no order and in these types.

    Rows that a job commits meanwhile are among them or not, each commit as a whole; of PostgreSQL's plain rows, each
    Kafka partition of a commit.

    Args:
        place: where the results are.
        schema: the columns that are wanted.
        rejects: look into the table of rejects instead.

    Raises:
        SinkError: there is no such table or column, or it cannot be read.
    """
    import pyarrow as pa

    try:
        for batch in _batches(rejects_place(place) if rejects else place, schema):
            yield pa.RecordBatch.from_arrays(
                [batch.column(name).cast(schema.field(name).type) for name in schema.names], schema=schema
            )
    except SinkError:
        raise
    except Exception as error:  # errors of Arrow, delta-rs, pyiceberg and the disk: a file is gone, a column is missing
        raise StoreError(f"{place}: its rows cannot be read ({first_line(error)}). Look at the table") from None


def _batches(place: Place, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if place.kind == "delta":
        yield from delta_table(place.path, place.storage_options).to_pyarrow_dataset().to_batches(columns=schema.names)
    elif place.kind == "iceberg":
        found = iceberg_table(place.path, place.table, place.storage_options, place.catalog)
        yield from found.scan(selected_fields=tuple(schema.names)).to_arrow_batch_reader()
    elif place.kind == "duckdb":
        columns = ", ".join(map(quoted, schema.names))
        with DuckDBStore(place.path, place.table, "reader", "none").reading() as database:
            # All at once: while the file is open no job can commit to it.
            whole = database.sql(f"SELECT {columns} FROM {quoted(place.table)}").to_arrow_table()  # noqa: S608
        yield from whole.to_batches()
    else:
        yield from _postgres(place, schema)


def _postgres(place: Place, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    book = Book(place.url, place.password, place.table, "reader", "none", 0)
    wanted = names([Column(column, "") for column in schema.names])
    query = book.text("SELECT {wanted} FROM {table}", wanted=wanted, table=book.table(table_parts(place.table)[-1]))
    with book.database() as database, database.transaction(), database.cursor("ratchet_scan") as cursor:
        cursor.execute(query)
        while rows := cursor.fetchmany(BATCH_ROWS):
            yield pa.RecordBatch.from_arrays(
                [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)],
                schema=schema,
            )


def partition_and_offset() -> pa.Schema:
    """The two columns that say which record a row is."""
    import pyarrow as pa

    return pa.schema([("_partition", pa.int32()), ("_offset", pa.int64())])
