"""Repair of an Iceberg table in one snapshot: files are rewritten without wrong rows, and right rows added."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.rows.identities import Identities
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.iceberg.compact import NEWEST_FORMAT
from kafka_ratchet.spark_sink.stores.iceberg.files import live_files, rows_of, write_rows
from kafka_ratchet.spark_sink.stores.iceberg.partitions import require_partitions_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table


def require_repairable(where: object, table: Table) -> None:
    """Refuse a table if its files cannot be replaced by others.

    Raises:
        OptionRefused: the table's format forbids rewriting files.
    """
    if table.metadata.format_version > NEWEST_FORMAT:
        raise OptionRefused(
            f"{where}: the table has format {table.metadata.format_version} with row numbers, which Ratchet would "
            "lose when it rewrites files. Nothing was repaired; repair the table with the engine that chose the format"
        )


def rewrite(
    where: object, table: Table, folder: Folder, gone: Identities, file_prefix: str
) -> tuple[list[FileScanTask], list[DataFile]]:
    """Write a copy of each file that contains rows to remove, without these rows.

    Args:
        where: the catalog, as messages name it.
        table: the table at the snapshot that the caller has checked.
        folder: folder of the table's files.
        gone: identities of the rows to remove.
        file_prefix: start of the new files' names, see `parquet.file_prefix`.

    Returns:
        Files to remove, and the files that replace them.

    Raises:
        OptionRefused: a file to rewrite has other partitions than the table has now.
    """
    old: list[FileScanTask] = []
    new: list[DataFile] = []
    for task in live_files(table):
        if not any(gone.among(batch).any() for batch in rows_of(table, [task], gone.names) if batch.num_rows):
            continue
        require_partitions_of(where, table, task, "Nothing was repaired")
        old.append(task)
        kept = _kept(table, task, gone)
        first = next(kept, None)
        if first is not None:
            rest = (batch for batches in ([first], kept) for batch in batches)
            new.append(write_rows(table, folder, rest, file_prefix, task.file.partition))
        crash_points.passing("rewritten")
    return old, new


def _kept(table: Table, task: FileScanTask, gone: Identities) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, except those with an identity in `gone`."""
    import pyarrow as pa

    for batch in rows_of(table, [task]):
        if batch.num_rows and (kept := batch.filter(pa.array(~gone.among(batch)))).num_rows:
            yield kept
