"""Repair of a Delta table: rows are replaced in one log entry.

The entry replaces each file that contains a wrong row by a copy without it, and adds files with the right rows. pyarrow
copies the other rows batch by batch, unchanged. A merge by delta-rs is not used, because it would name folders after
partition values.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.files.parquet import WrittenFile, write_batches
from kafka_ratchet.spark_sink.rows.identities import Identities
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.delta.compact import require_plain_files
from kafka_ratchet.spark_sink.stores.delta.partitions import as_text
from kafka_ratchet.spark_sink.stores.delta.rules import require_no_rules

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from deltalake import DeltaTable


@dataclass(frozen=True)
class RewrittenFile:
    """File that a repair replaces, and the new file with its remaining rows."""

    old: str
    """Path of the old file, as the log names it."""
    old_bytes: int
    partition: dict[str, str | None]
    new: WrittenFile | None
    """File with the remaining rows; None: no row remains."""


def require_repairable(table: DeltaTable, folder: Folder) -> None:
    """Refuse a table if its files cannot be replaced by others.

    Raises:
        OptionRefused: the table has a feature, a property or a rule that forbids replacing files.
    """
    require_no_rules(table, folder, True)
    require_plain_files(table, folder)


def rewrite(table: DeltaTable, folder: Folder, gone: Identities, file_prefix: str) -> list[RewrittenFile]:
    """Write a copy of each file that contains rows to remove, without these rows.

    Args:
        table: the table at the version that the caller has checked.
        folder: the table's folder.
        gone: identities of the rows to remove.
        file_prefix: start of the new files' names, see `parquet.file_prefix`.
    """
    import pyarrow as pa

    actions = {unquote(each["path"]): each for each in pa.table(table.get_add_actions(flatten=True)).to_pylist()}
    columns = table.metadata().partition_columns
    whole = pa.schema(table.schema().to_arrow())
    in_file = pa.schema([field for field in whole if field.name not in columns])  # the log has the others
    found = []
    dataset = table.to_pyarrow_dataset()
    for fragment in dataset.get_fragments():
        if not _has(fragment, dataset.schema, gone):
            continue
        action = actions[fragment.path]
        kept = _kept(fragment, dataset.schema, in_file, gone)
        first = next(kept, None)
        new = None
        if first is not None:
            rest = (batch for batches in ([first], kept) for batch in batches)
            new = write_batches(rest, in_file, folder.inside(), file_prefix, folder.filesystem)
        partition = {name: as_text(action[f"partition.{name}"]) for name in columns}
        found.append(RewrittenFile(action["path"], action["size_bytes"], partition, new))
        crash_points.passing("rewritten")
    return found


def _has(fragment: ds.Fragment, schema: pa.Schema, gone: Identities) -> bool:
    batches = fragment.to_batches(schema=schema, columns=gone.names, use_threads=False)
    return any(gone.among(batch).any() for batch in batches if batch.num_rows)


def _kept(fragment: ds.Fragment, schema: pa.Schema, in_file: pa.Schema, gone: Identities) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows without identities in `gone`, in the table's own types."""
    import pyarrow as pa

    for batch in fragment.to_batches(schema=schema, use_threads=False):
        stays = pa.array(~gone.among(batch)) if batch.num_rows else pa.array([], pa.bool_())
        kept = pa.Table.from_batches([batch.filter(stays)]).select(in_file.names).cast(in_file)
        yield from (each for each in kept.to_batches() if each.num_rows)


def actions_of(
    rewritten: Sequence[RewrittenFile],
    written: Sequence[WrittenFile],
    partitions: dict[str, dict[str, str | None]],
) -> list[Any]:
    """Return the actions of the log entry that carries out the repair.

    Args:
        rewritten: files to remove, and the files that replace them.
        written: files with new rows.
        partitions: partition values of each file in `written` by name, if the table has partitions.
    """
    from deltalake.transaction import AddAction, RemoveAction

    now_ms = int(time.time() * 1000)
    added = [(each.new, each.partition) for each in rewritten if each.new is not None]
    added += [(file, partitions.get(file.name, {})) for file in written]
    actions: list[Any] = [
        AddAction(file.name, file.bytes, partition, now_ms, True, file.statistics) for file, partition in added
    ]
    actions += [RemoveAction(each.old, True, now_ms, each.old_bytes, each.partition) for each in rewritten]
    return actions
