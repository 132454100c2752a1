"""Data files of an Iceberg table: functions that list them, read their rows, and write new ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.files.parquet import write_batches

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.typedef import Record


def live_files(table: Table) -> list[FileScanTask]:
    """Return the data files of `table`'s snapshot, with their delete files."""
    return list(table.scan().plan_files())


def data_location(table: Table) -> str:
    """Return the folder for new files of the table: `write.data.path`, or a folder next to its metadata.

    Several tables may have the same `write.data.path`, so each uses a folder of its own below it.
    """
    path = table.properties.get("write.data.path", "").rstrip("/")
    return f"{path}/{table.metadata.table_uuid}" if path else f"{table.location()}/data"


def file_name(path: str) -> str:
    """Return the last part of a file's path."""
    return path.rpartition("/")[2]


def arrow_schema_of(schema: Schema, *, with_ids: bool) -> pa.Schema:
    """Return the Arrow schema of the table's files.

    Args:
        schema: the table's schema.
        with_ids: True includes the id of each field, so that readers find a renamed column in the file.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(schema, include_field_ids=with_ids)


def rows_of(table: Table, tasks: Sequence[FileScanTask], columns: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some files without deleted rows, in the table's columns and types.

    Args:
        table: the table.
        tasks: files as returned by `live_files`; they are read one at a time.
        columns: names of the columns to read; empty: all.
    """
    import pyarrow as pa
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    wanted = table.schema().select(*columns) if columns else table.schema()
    schema = arrow_schema_of(wanted, with_ids=False)
    scan = ArrowScan(table.metadata, table.io, wanted, AlwaysTrue())
    for task in tasks:
        for batch in scan.to_record_batches([task]):
            yield from pa.Table.from_batches([batch]).select(schema.names).cast(schema).to_batches()


def write_rows(
    table: Table, folder: Folder, batches: Iterable[pa.RecordBatch], file_prefix: str, partition: Record
) -> DataFile:
    """Write rows into one new file that no snapshot names yet.

    Args:
        table: the table.
        folder: folder of the table's files.
        batches: rows in the table's own columns and types.
        file_prefix: start of the file's name, see `parquet.file_prefix`.
        partition: partition values of all rows, by the table's current spec.
    """
    import pyarrow as pa

    schema = arrow_schema_of(table.schema(), with_ids=True)
    tables = (pa.Table.from_batches([batch]).select(schema.names).cast(schema) for batch in batches)
    named = (each for rows in tables for each in rows.to_batches())
    name = write_batches(named, schema, folder.inside(), file_prefix, folder.filesystem).name
    return data_file(table, f"{data_location(table)}/{name}", partition)


def data_file(
    table: Table, path: str, partition: Record, sort_order: int | None = None, *, by_ids: bool = False
) -> DataFile:
    """Return a snapshot's entry for a Parquet file, with size and column bounds.

    pyiceberg's own `add_files` infers the partition from the bounds, which are missing for long values.

    Args:
        table: the table.
        path: path of the file.
        partition: partition values of all rows in the file.
        sort_order: id of the rows' sort order; None: the rows are not sorted.
        by_ids: True finds the columns by the field ids in the file, because the file may name them differently.
    """
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    found = table.io.new_input(path)
    with found.open() as stream:
        footer = pq.read_metadata(stream)
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(table.schema(), table.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema_of(footer) if by_ids else table.schema()),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=len(found),
        sort_order_id=sort_order,
        spec_id=table.metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def schema_of(footer: pq.FileMetaData) -> Schema:
    """Return the columns of a Parquet file with the names and field ids in the file."""
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    return pyarrow_to_schema(footer.schema.to_arrow_schema())
