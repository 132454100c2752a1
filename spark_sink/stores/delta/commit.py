"""Entry of a Delta table's log: added or merged rows, with `txn` actions for their offsets."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.files.parquet import WrittenFile
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.delta.actions import rows_key, version_key
from kafka_ratchet.spark_sink.stores.delta.merge import merge
from kafka_ratchet.spark_sink.stores.delta.vacuum import STAGING

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

UNKNOWN_ROWS = 2**62
"""Number of rows noted in a merge's entry: only the merge knows the real one, and no table has as many."""


@dataclass(frozen=True)
class JobEntry:
    """Job's part of an entry."""

    job: str
    topic: str
    generation: int
    offsets: Mapping[int, int]
    """Next offset of each partition, for readers of the log."""
    note: Mapping[str, object]
    """Further facts for readers of the log."""
    transactions: Mapping[str, int]
    """`txn` actions, from which the job itself reads its state."""


def write_entry(
    table: DeltaTable,
    folder: Folder,
    entry: JobEntry,
    written: Sequence[WrittenFile],
    write_mode: WriteMode,
    partitions: Mapping[str, Mapping[str, str | None]] | None = None,
) -> None:
    """Commit the version after the one that the table was read as.

    Args:
        table: the table at the version of the caller's comparison.
        folder: the table's folder.
        entry: the job's part of the entry.
        written: files of rows: in the table's folder, or with a key, in the staging folder.
        write_mode: effect of the rows on the table.
        partitions: partition of each file by name, if the table has partitions.

    Raises:
        CommitFailedError: another commit was first.
        DeltaError: the table cannot be read or written.
    """
    from deltalake.transaction import AddAction, RemoveAction

    merged = write_mode.row_key and written
    rows = UNKNOWN_ROWS if merged else table.count() + sum(file.rows for file in written)
    properties = _properties(table, entry, rows)
    if write_mode.row_key and written:
        files = [folder.inside(STAGING, f"{entry.job}.{entry.generation}", file.name) for file in written]
        if merge(table, files, folder.filesystem, write_mode, properties):
            return
        written = []  # staged rows are no files of the table
    now_ms = int(time.time() * 1000)
    added: list[AddAction | RemoveAction] = [
        AddAction(file.name, file.bytes, (partitions or {}).get(file.name, {}), now_ms, True, file.statistics)
        for file in written
    ]
    _commit(table, added, properties)


def write_actions(table: DeltaTable, entry: JobEntry, actions: list[Any]) -> None:
    """Commit the version after the one that the table was read as, with changed files.

    Args:
        table: the table at the version of the caller's comparison.
        entry: the job's part of the entry.
        actions: additions and removals of files.

    Raises:
        CommitFailedError: another commit was first.
        DeltaError: the table cannot be read or written.
    """
    _commit(table, actions, _properties(table, entry, UNKNOWN_ROWS))


Range = tuple[Mapping[int, int], Mapping[int, int]]
"""First offset of each partition, and the one after the last."""


def replace_range(table: DeltaTable, folder: Folder, entry: JobEntry, files: Sequence[str], records: Range) -> None:
    """Commit the version after the one that the table was read as, with a range's new rows.

    Args:
        table: see `write_entry`; likewise folder and entry.
        folder: the table's folder.
        entry: the job's part of the entry.
        files: staged Parquet files with the new rows.
        records: range of the records with replaced rows.

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


def _within(records: Range) -> str:
    """Return the condition for rows of these records; it has only numbers and our own names."""
    first, last = records
    return " OR ".join(
        f"(_kafka_partition = {partition} AND _kafka_offset >= {first[partition]} AND _kafka_offset < {end})"
        for partition, end in sorted(last.items())
    )


def _properties(table: DeltaTable, entry: JobEntry, rows: int) -> CommitProperties:
    """Return the properties of an entry of the job.

    Args:
        table: the table at the version before.
        entry: the job's part of the entry.
        rows: rows of the table after the commit.
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
