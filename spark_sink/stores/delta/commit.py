"""Log entry of a Delta table that changes rows, with `txn` actions for their offsets."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.files.parquet import WrittenFile
from kafka_ratchet.spark_sink.rows.columns import RECORD
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.delta.actions import rows_key, version_key
from kafka_ratchet.spark_sink.stores.delta.merge import merge
from kafka_ratchet.spark_sink.stores.delta.vacuum import STAGING

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

UNKNOWN_ROWS = 2**62
"""Row count stored by an entry that merges, replaces or repairs rows: the real count is unknown before the commit. No
table has as many rows."""


@dataclass(frozen=True)
class JobEntry:
    """Part of a log entry that describes the job."""

    job: str
    topic: str
    generation: int
    offsets: Mapping[int, int]
    """Next offset of each partition, for readers of the log."""
    note: Mapping[str, object]
    """Further facts for readers of the log, such as a repair or a replay."""
    transactions: Mapping[str, int]
    """`txn` actions with the state that the job itself reads."""


def write_entry(
    table: DeltaTable,
    folder: Folder,
    entry: JobEntry,
    written: Sequence[WrittenFile],
    write_mode: WriteMode,
    partitions: Mapping[str, Mapping[str, str | None]] | None = None,
) -> None:
    """Commit rows as the version after `table`'s.

    Args:
        table: the table at the version that the caller has checked.
        folder: the table's folder.
        entry: the job's part of the entry.
        written: files of rows; they are in the staging folder if the write mode has a key, else in the table's folder.
        write_mode: effect of the rows on the table.
        partitions: partition of each file by name, if the table has partitions.

    Raises:
        StoreError: the table has several rows of one key of the new rows.
        CommitFailedError: another commit was first.
        DeltaError: the table cannot be read or written.
    """
    from deltalake.transaction import AddAction, RemoveAction

    merges = bool(write_mode.row_key and written)
    rows = UNKNOWN_ROWS if merges else table.count() + sum(file.rows for file in written)
    properties = _properties(table, entry, rows)
    if merges:
        files = [folder.inside(STAGING, f"{entry.job}.{entry.generation}", file.name) for file in written]
        if merge(table, files, folder.filesystem, write_mode, properties, folder):
            return
        written = []  # staged rows are no files of the table
    now_ms = int(time.time() * 1000)
    added: list[AddAction | RemoveAction] = [
        AddAction(file.name, file.bytes, (partitions or {}).get(file.name, {}), now_ms, True, file.statistics)
        for file in written
    ]
    _commit(table, added, properties)


def write_actions(table: DeltaTable, entry: JobEntry, actions: list[Any]) -> None:
    """Commit added and removed files as the version after `table`'s.

    Args:
        table: the table at the version that the caller has checked.
        entry: the job's part of the entry.
        actions: additions and removals of files.

    Raises:
        CommitFailedError: another commit was first.
        DeltaError: the table cannot be read or written.
    """
    _commit(table, actions, _properties(table, entry, UNKNOWN_ROWS))


Range = tuple[Mapping[int, int], Mapping[int, int]]
"""First offset of each partition, and the offset after the last offset of each partition."""


def replace_range(table: DeltaTable, folder: Folder, entry: JobEntry, files: Sequence[str], records: Range) -> None:
    """Replace the rows of a range of records, in the version after `table`'s.

    Args:
        table: the table at the version that the caller has checked.
        folder: the table's folder.
        entry: the job's part of the entry.
        files: staged Parquet files with the new rows.
        records: range of offsets; the rows of their records are replaced.

    Raises:
        CommitFailedError: another commit was first.
        DeltaError: the table cannot be read or written.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds
    from deltalake import write_deltalake

    schema = pa.schema(table.schema().to_arrow())
    rows = pa.RecordBatchReader.from_batches(schema, [])
    if files:
        # Other jobs' columns, which the files lack, are null.
        found = ds.dataset(list(files), schema, format="parquet", filesystem=folder.filesystem)
        cast = (
            each for batch in found.to_batches() for each in pa.Table.from_batches([batch]).cast(schema).to_batches()
        )
        rows = pa.RecordBatchReader.from_batches(schema, cast)
    write_deltalake(
        table,
        rows,
        partition_by=table.metadata().partition_columns or None,
        mode="overwrite",
        predicate=_within(records),
        commit_properties=_properties(table, entry, UNKNOWN_ROWS),
    )


def has_row_without_record(table: DeltaTable) -> bool:
    """Return whether a row has null as the partition or offset of its record."""
    import pyarrow.dataset as ds

    partition, offset = (ds.field(name) for name in RECORD)
    found = table.to_pyarrow_dataset().head(1, columns=list(RECORD), filter=partition.is_null() | offset.is_null())
    return bool(found.num_rows)


def _within(records: Range) -> str:
    """Return the SQL condition for rows of the given records; it contains only numbers and fixed column names."""
    first, last = records
    return " OR ".join(
        f"(_kafka_partition = {partition} AND _kafka_offset >= {first[partition]} AND _kafka_offset < {end})"
        for partition, end in sorted(last.items())
    )


def _properties(table: DeltaTable, entry: JobEntry, rows: int) -> CommitProperties:
    """Return the commit properties of a log entry of the job.

    Args:
        table: the table at the preceding version.
        entry: the job's part of the entry.
        rows: number of rows in the table after the commit, or `UNKNOWN_ROWS`.
    """
    from deltalake import CommitProperties
    from deltalake.transaction import Transaction

    # Other keys than userMetadata make the commit unreadable for delta-spark. No retries inside delta-rs: a retry would
    # place this commit after one that it has not compared itself with.
    user_metadata = {
        "job": entry.job,
        "topic": entry.topic,
        "generation": entry.generation,
        "offsets": dict(entry.offsets),
    }
    user_metadata |= {"table": str(table.metadata().id), **entry.note}
    # The entry's own version, which is the next one or none; and the table's number of rows then, if it is known.
    transactions = {**entry.transactions, version_key(entry.job): table.version() + 1, rows_key(entry.job): rows}
    return CommitProperties(
        custom_metadata={"userMetadata": json.dumps(user_metadata)},
        max_commit_retries=0,
        app_transactions=[Transaction(key, version) for key, version in transactions.items()],
    )


def _commit(table: DeltaTable, actions: list[Any], properties: CommitProperties) -> None:
    table.create_write_transaction(
        actions,
        mode="append",
        schema=table.schema(),
        partition_by=table.metadata().partition_columns,
        commit_properties=properties,
    )
