"""One entry of a Delta table's log: rows that are added or merged, and `txn` actions that say how far they reach."""

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
"""Stored as the number of rows where only the merge knows it; no table has as many."""


@dataclass(frozen=True)
class JobEntry:
    """What a job has to say in an entry."""

    job: str
    topic: str
    generation: int
    offsets: Mapping[int, int]
    """Next offset of each partition, for readers of the log."""
    note: Mapping[str, object]
    """More for readers of the log."""
    transactions: Mapping[str, int]
    """`txn` actions: what the job itself goes by."""


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
        table: as of the version that the caller has compared itself with.
        folder: of the table.
        entry: what the job says in it.
        written: files of rows: in the table's folder, or with a key, in the staging folder.
        write_mode: what the rows do to the table.
        partitions: of the files by name, where the table has partitions.

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
    """Commit the version after the one that the table was read as, with files that come and go.

    Args:
        table: at the version of the caller's comparison.
        entry: the job's words in it.
        actions: of files.

    Raises:
        CommitFailedError: another commit was first.
        DeltaError: the table cannot be read or written.
    """
    _commit(table, actions, _properties(table, entry, UNKNOWN_ROWS))


Range = tuple[Mapping[int, int], Mapping[int, int]]
"""First offset of each partition, and the one after the last."""


def replace_range(table: DeltaTable, folder: Folder, entry: JobEntry, files: Sequence[str], records: Range) -> None:
    """Commit the version after the one that the table was read as, with new rows of a range of records.

    Args:
        table: see `write_entry`; likewise folder and entry.
        folder: of the table.
        entry: of the job.
        files: staged Parquet files with the new rows.
        records: range of the rows that these replace.

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
        # Columns of others, which the files do not have, are null.
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
    """Return the condition for rows of these records; all of it is numbers and names of ours."""
    first, last = records
    return " OR ".join(
        f"(_kafka_partition = {partition} AND _kafka_offset >= {first[partition]} AND _kafka_offset < {end})"
        for partition, end in sorted(last.items())
    )


def _properties(table: DeltaTable, entry: JobEntry, rows: int) -> CommitProperties:
    """Return the properties of an entry of the job.

    Args:
        table: as of the version before.
        entry: of the job.
        rows: of the table after the commit.
    """
    from deltalake import CommitProperties
    from deltalake.transaction import Transaction

    # Other keys than userMetadata make the commit unreadable for delta-spark. No retries inside delta-rs: it
    # would put this commit behind one that it has not compared itself with.
    user_metadata = {
        "job": entry.job,
        "topic": entry.topic,
        "generation": entry.generation,
        "offsets": dict(entry.offsets),
    }
    user_metadata |= {"table": str(table.metadata().id), **entry.note}
    # Its own version, which is the next one or none; and how many rows the table then has, where that is known.
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
