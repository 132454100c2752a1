"""Files that no version of a Delta table names: left by killed jobs, or replaced by merges and compactions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.stores.delta.actions import newest_generation
from kafka_ratchet.spark_sink.stores.delta.table import open_table
from kafka_ratchet.spark_sink.stores.orphans import Orphan, file_orphan, files_of_older_holders

if TYPE_CHECKING:
    from deltalake import DeltaTable

STAGING = "_ratchet_staged"
"""Folder inside the table's folder for rows of a merge; Delta's own clean-up skips names that begin with an
underscore."""

PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""Pattern of file names that Delta's writers use."""


def orphans(folder: Folder, *, needed: bool) -> Iterator[Orphan]:
    """List the files of a table's folder that vacuum may remove, see `TableStore.orphans`."""
    if open_table(folder) is None:
        if needed:
            raise StoreError(f"{folder}: there is no result table. Check the path")
        return
    files = folder.files()
    staged = {name: folder.files(STAGING, name) for name in folder.folders(STAGING)}
    table = open_table(folder)
    if table is None:
        raise StoreError(
            f"{folder}: the result table was removed while vacuum listed its files. Nothing was removed; check the path"
        )
    removed, unnamed = _without_a_reader(table)
    newest = partial(newest_generation, table)
    yield from files_of_older_holders(folder, [file for file in files if file.name in unnamed], newest)
    for file in files:
        if file.name in removed and PLAIN_NAME.fullmatch(file.name):
            yield file_orphan(folder, file)
    for name, found in staged.items():
        job, _, generation = name.rpartition(".")
        if generation.isdecimal() and int(generation) < newest(job):
            yield from (file_orphan(folder, file, STAGING, name) for file in found)


def _without_a_reader(table: DeltaTable) -> tuple[set[str], set[str]]:
    """Return the names of files removed longer ago than the retention time, and those of files in no version.

    delta-rs only lists the files here. If it removed them itself, it would follow symbolic links and check no names.
    """
    ever_removed = set(table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=False))
    unneeded = set(table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=True))
    return set(table.vacuum(dry_run=True, full=False)), unneeded - ever_removed
