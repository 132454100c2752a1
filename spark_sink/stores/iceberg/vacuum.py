"""Files of an Iceberg table's folder that no snapshot names."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.stores.iceberg.commit import newest_generation
from kafka_ratchet.spark_sink.stores.orphans import Orphan, files_of_older_holders

if TYPE_CHECKING:
    from pyiceberg.table import Table


def orphans(table: Table, folder: Folder) -> Iterator[Orphan]:
    """See `TableStore.orphans`.

    Args:
        table: the table.
        folder: of its files.
    """
    files = folder.files() if folder.is_there() else []
    table.refresh()
    # Of every snapshot, because readers may look at older ones; most manifests are in many of them.
    manifests = {m.manifest_path: m for snapshot in table.snapshots() for m in snapshot.manifests(table.io)}
    entries = (entry for manifest in manifests.values() for entry in manifest.fetch_manifest_entry(table.io))
    named = {entry.data_file.file_path.rpartition("/")[2] for entry in entries}
    unnamed = [file for file in files if file.name not in named]
    yield from files_of_older_holders(folder, unnamed, partial(newest_generation, table))
