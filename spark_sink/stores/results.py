"""Functions that read a result table of any kind of store without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import OptionRefused, SinkError, StoreError, first_line
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.open_store import reader, rejects_location

if TYPE_CHECKING:
    import pyarrow as pa


def count(location: TableLocation) -> int:
    """Count the rows in the result table.

    Raises:
        SinkError: there is no such table, or it cannot be read.
    """
    return reader(location).count()


def read_rows(location: TableLocation, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Read some columns of a result table; the order of the rows is undefined.

    Raises:
        SinkError: there is no such table, or it cannot be read.
    """
    return reader(location).rows(columns)


def read_totals(location: TableLocation, group_by: str, sums: Sequence[str]) -> dict[str, dict[str, int]]:
    """Sum integer columns for each value of a text column.

    Args:
        location: location of the results.
        group_by: name of the grouping column; rows with null in it count under "".
        sums: names of the columns to add up; null counts as 0.

    Returns:
        Sum of each column, by group; groups are sorted.

    Raises:
        OptionRefused: the table has no such column.
        StoreError: there is no table, or it cannot be read.
    """
    columns = reader(location).columns()
    if columns is None:
        raise StoreError(f"{location}: there is no result table. Run the sink first, or check the path")
    for column in [group_by, *sums]:
        if column not in columns.names:
            raise OptionRefused(f"{location}: the table has no column {column!r} (it has: {', '.join(columns.names)})")
    totals: dict[str, dict[str, int]] = {}
    for group, *values in read_rows(location, [group_by, *sums]):
        total = totals.setdefault("" if group is None else str(group), dict.fromkeys(sums, 0))
        for column, value in zip(sums, values, strict=True):
            total[column] += int(value or 0)
    return dict(sorted(totals.items()))


def scan(
    location: TableLocation,
    schema: pa.Schema,
    *,
    rejects: bool = False,
    records: tuple[int, int, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield columns of the table in batches, in the types of `schema`; the order of the rows is undefined.

    No row becomes a Python object. The scan includes all rows or no row of a commit that happens during the scan. If
    the tasks of a PostgreSQL store commit, this is true for each Kafka partition of the commit.

    Args:
        location: location of the results.
        schema: names and types of the columns to read.
        rejects: True reads the table of rejects instead.
        records: Kafka partition, first offset and last offset; the store may leave out rows of other records. None: all
            rows.

    Raises:
        SinkError: there is no such table or column, or it cannot be read.
    """
    import pyarrow as pa

    try:
        store = reader(rejects_location(location) if rejects else location)
        for batch in store.scan(schema) if records is None else store.scan_records(schema, *records):
            yield pa.RecordBatch.from_arrays(
                [batch.column(name).cast(schema.field(name).type) for name in schema.names], schema=schema
            )
    except SinkError:
        raise
    except Exception as error:  # errors of Arrow, delta-rs, pyiceberg and the disk: a file or a column is missing
        raise StoreError(f"{location}: its rows cannot be read ({first_line(error)}). Check the table") from None


def partition_and_offset() -> pa.Schema:
    """Return a schema of the two columns that identify a row's record: Kafka partition and offset."""
    import pyarrow as pa

    return pa.schema([("_kafka_partition", pa.int32()), ("_kafka_offset", pa.int64())])
