"""One entry of a Delta table's log: rows that are added or merged, and `txn` actions that say how far they reach."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.delta.actions import rows_key, version_key
from kafka_ratchet.spark_sink.stores.delta.merge import merge
from kafka_ratchet.spark_sink.stores.delta.vacuum import STAGING

if TYPE_CHECKING:
    from deltalake import DeltaTable

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
    written: Sequence[tuple[str, int, int]],
    write_mode: WriteMode,
    partitions: Mapping[str, Mapping[str, str | None]] | None = None,
) -> None:
    """Commit the version after the one that the table was read as.

    Args:
        table: as of the version that the caller has compared itself with.
        folder: of the table.
        entry: what the job says in it.
        written: name, rows and bytes of each file of rows: in the table's folder, or with a key, in the staging folder.
        write_mode: what the rows do to the table.
        partitions: of the files by name, where the table has partitions.

    Raises:
        CommitFailedError: another commit was first.
        DeltaError: the table cannot be read or written.
    """
    from deltalake import CommitProperties
    from deltalake.transaction import AddAction, RemoveAction, Transaction

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
    transactions = {**entry.transactions, version_key(entry.job): table.version() + 1}
    merged = write_mode.row_key and written
    rows = UNKNOWN_ROWS if merged else table.count() + sum(rows for _, rows, _ in written)
    transactions[rows_key(entry.job)] = rows
    properties = CommitProperties(
        custom_metadata={"userMetadata": json.dumps(user_metadata)},
        max_commit_retries=0,
        app_transactions=[Transaction(key, version) for key, version in transactions.items()],
    )
    if write_mode.row_key and written:
        files = [folder.inside(STAGING, f"{entry.job}.{entry.generation}", name) for name, _, _ in written]
        if merge(table, files, folder.filesystem, write_mode, properties):
            return
        written = []  # staged rows are no files of the table
    now_ms = int(time.time() * 1000)
    added: list[AddAction | RemoveAction] = [
        AddAction(name, size, (partitions or {}).get(name, {}), now_ms, True, json.dumps({"numRecords": rows}))
        for name, rows, size in written
    ]
    table.create_write_transaction(
        added,
        mode="append",
        schema=table.schema(),
        partition_by=table.metadata().partition_columns,
        commit_properties=properties,
    )
