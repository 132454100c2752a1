"""Replacement of a Delta table's rows in one entry of its log: files without them, and files with the right ones.

Only files with such a row are rewritten, by pyarrow and batch by batch, with their other rows as they are.
A merge by delta-rs would name folders after the values of partitions.
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
class Rewritten:
    """File of the table, and the one with its other rows."""

    old: str
    """Path, as the log has it."""
    old_bytes: int
    partition: dict[str, str | None]
    new: WrittenFile | None
    """File with the other rows; None: no row is left."""


def require_repairable(table: DeltaTable, folder: Folder) -> None:
    """Refuse a table with files that no others can replace.

    Raises:
        OptionRefused: it has a feature, a property or a rule that forbids it.
    """
    require_no_rules(table, folder, True)
    require_plain_files(table, folder)


def rewrite(table: DeltaTable, folder: Folder, gone: Identities, file_prefix: str) -> list[Rewritten]:
    """Rewrite the files with one of the identities, without its rows.

    Args:
        table: the table at the version of the caller's comparison.
        folder: the table's folder.
        gone: identities of the removed rows.
        file_prefix: the holder's.
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
        found.append(Rewritten(action["path"], action["size_bytes"], partition, new))
        crash_points.passing("rewritten")
    return found


def _has(fragment: ds.Fragment, schema: pa.Schema, gone: Identities) -> bool:
    batches = fragment.to_batches(schema=schema, columns=gone.names, use_threads=False)
    return any(gone.among(batch).any() for batch in batches if batch.num_rows)


def _kept(fragment: ds.Fragment, schema: pa.Schema, in_file: pa.Schema, gone: Identities) -> Iterator[pa.RecordBatch]:
    """Yield the rows that stay, in the table's own types."""
    import pyarrow as pa

    for batch in fragment.to_batches(schema=schema, use_threads=False):
        stays = pa.array(~gone.among(batch)) if batch.num_rows else pa.array([], pa.bool_())
        kept = pa.Table.from_batches([batch.filter(stays)]).select(in_file.names).cast(in_file)
        yield from (each for each in kept.to_batches() if each.num_rows)


def actions_of(
    rewritten: Sequence[Rewritten],
    written: Sequence[WrittenFile],
    partitions: dict[str, dict[str, str | None]],
) -> list[Any]:
    """Make the actions of the entry.

    Args:
        rewritten: removed files, and those in their place.
        written: files with new rows.
        partitions: partition of each such file by name, if the table has partitions.
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
