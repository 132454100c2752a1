"""What killed and fenced jobs leave beside a result: invisible to readers, and never to become visible.

Everything that is on its way into a table carries the job and the generation of the holder that made it. A commit of
an older generation than the newest fails, so that what carries one can go; what carries the newest stays, however
old it is, because a holder that is frozen amid a commit looks like a dead one. Files are listed first and the table is
asked afterwards: what was committed in between is named by then.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import SinkError, StoreError, first_line
from kafka_ratchet.spark_sink.files.local import LocalFolder, Stored
from kafka_ratchet.spark_sink.files.parquet import FILE_NAME
from kafka_ratchet.spark_sink.stores.delta import log, sound
from kafka_ratchet.spark_sink.stores.delta import store as delta_store
from kafka_ratchet.spark_sink.stores.duckdb.store import DuckDBStore, staging_prefix
from kafka_ratchet.spark_sink.stores.iceberg import store as iceberg_store
from kafka_ratchet.spark_sink.stores.open_store import Place
from kafka_ratchet.spark_sink.stores.postgres.job_state import Book

if TYPE_CHECKING:
    from deltalake import DeltaTable

OLDER_THAN_S = 3600.0
"""Younger files are kept, in seconds. The generation decides; the age leaves time to look at what a crash has left."""

PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""What Delta's writers call their files."""


@dataclass(frozen=True)
class Orphan:
    """Something beside a table that no reader of it needs."""

    name: str
    """Within the table's folder; for PostgreSQL, a table's."""
    bytes: int
    modified_s: float | None = field(compare=False)
    """When it was last written, in seconds since 1970; None: the store does not know."""
    remove: Callable[[], None] = field(repr=False, compare=False)


def vacuum(place: Place, older_than_s: float = OLDER_THAN_S, *, dry_run: bool = False) -> list[Orphan]:
    """Remove what jobs of any name have left beside a result and its rejects.

    Args:
        place: the result.
        older_than_s: keep what was written in the last so many seconds. PostgreSQL does not know when a staging table
            was written, so that the generation alone decides there.
        dry_run: only look.

    Returns:
        What was removed, or would be.

    Raises:
        SinkError: there is no such table, or something could not be read or removed.
    """
    before_s = time.time() - older_than_s
    with _told(place):
        found = [orphan for orphan in _orphans(place) if orphan.modified_s is None or orphan.modified_s < before_s]
        for orphan in [] if dry_run else found:
            orphan.remove()
    return found


def _orphans(place: Place) -> Iterator[Orphan]:
    if place.kind == "postgres":
        yield from _in_postgres(place)
    elif place.kind == "duckdb":
        yield from _in_duckdb(Path(place.path).absolute(), place.table)
    elif place.kind == "iceberg":
        yield from _in_iceberg(place, needed=True)
        yield from _in_iceberg(replace(place, table=f"{place.table}_rejects"), needed=False)
    else:
        yield from _in_delta(delta_store.table_folder(place.path, place.storage_options), needed=True)
        rejects = f"{place.path.rstrip('/')}_rejects"
        yield from _in_delta(delta_store.table_folder(rejects, place.storage_options), needed=False)


def _in_delta(folder: log.Folder, *, needed: bool) -> Iterator[Orphan]:
    if delta_store.open_table(folder) is None:
        if needed:
            raise StoreError(f"{folder}: there is no result table. Look at the path")
        return
    files = folder.files()
    brought = {name: folder.files(delta_store.STAGING, name) for name in folder.folders(delta_store.STAGING)}
    table = delta_store.open_table(folder)
    if table is None:
        raise StoreError(f"{folder}: the result table has just been removed")
    removed, unnamed = _without_a_reader(table)
    newest = partial(sound.newest_generation, table)
    yield from _of_older_holders(folder, [file for file in files if file.name in unnamed], newest)
    for file in files:
        if file.name in removed and PLAIN_NAME.fullmatch(file.name):
            yield _orphan(folder, file)
    for name, found in brought.items():
        job, _, generation = name.rpartition(".")
        if generation.isdecimal() and int(generation) < newest(job):
            yield from (_orphan(folder, file, delta_store.STAGING, name) for file in found)


def _without_a_reader(table: DeltaTable) -> tuple[set[str], set[str]]:
    """Files removed by merges and compactions longer ago than the table keeps them; and files no version names.

    delta-rs only says which. To remove them it would follow symbolic links, and it asks for no names.
    """
    ever_removed = set(table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=False))
    unneeded = set(table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=True))
    return set(table.vacuum(dry_run=True, full=False)), unneeded - ever_removed


def _in_iceberg(place: Place, *, needed: bool) -> Iterator[Orphan]:
    store = iceberg_store.IcebergStore(
        place.path, place.table, "vacuum", "none", storage_options=place.storage_options, catalog=place.catalog
    )
    table = store.existing()
    if table is None:
        if needed:
            raise StoreError(f"{place}: there is no result table {place.table}. Look at the path")
        return
    folder = store.data_folder(table)
    files = folder.files() if folder.is_there() else []
    table.refresh()
    # Of every snapshot, because readers may look at older ones; most manifests are in many of them.
    manifests = {m.manifest_path: m for snapshot in table.snapshots() for m in snapshot.manifests(table.io)}
    entries = (entry for manifest in manifests.values() for entry in manifest.fetch_manifest_entry(table.io))
    named = {entry.data_file.file_path.rpartition("/")[2] for entry in entries}
    unnamed = [file for file in files if file.name not in named]
    yield from _of_older_holders(folder, unnamed, partial(iceberg_store.newest_generation, table))


def _in_duckdb(path: Path, table: str) -> Iterator[Orphan]:
    if not path.is_file():
        raise StoreError(f"{path}: there is no result file. Look at the path")
    beside = LocalFolder(path.parent)
    staged = beside.folders()
    for job, newest in DuckDBStore(str(path), table, "vacuum", "none").generations().items():
        prefix = staging_prefix(path, table, job)
        for name in staged:
            generation = name.removeprefix(prefix).partition("-")[0]
            if name.startswith(prefix) and generation.isdecimal() and int(generation) < newest:
                files = beside.files(name)
                modified_s = max((file.modified_s for file in files), default=0.0)
                remove = partial(shutil.rmtree, path.parent / name)
                yield Orphan(name, sum(file.bytes for file in files), modified_s, remove)


def _in_postgres(place: Place) -> Iterator[Orphan]:
    def book_of(job: str) -> Book:
        return Book(place.url, place.password, place.table, job, "none", 0)

    def drop(book: Book, table: str, newest: int) -> None:
        with book.database() as database:
            book.end_sessions(database, newest)  # one that is frozen amid a COPY would keep the table
            book.run(database, "DROP TABLE IF EXISTS {table}", table=book.table(table))

    with book_of("vacuum").database() as database:
        jobs = book_of("vacuum").generations(database)
        for job, newest in jobs.items():
            book = book_of(job)
            for table, size in book.staged(database, newest - 1):
                yield Orphan(table, size, None, partial(drop, book, table, newest - 1))


def _of_older_holders(folder: log.Folder, files: list[Stored], newest: Callable[[str], int]) -> Iterator[Orphan]:
    for file in files:
        written = FILE_NAME.fullmatch(file.name)  # every other file is somebody else's
        if written and int(written["generation"]) < newest(written["job"]):
            yield _orphan(folder, file)


def _orphan(folder: log.Folder, file: Stored, *folders: str) -> Orphan:
    name = "/".join([*folders, file.name])
    return Orphan(name, file.bytes, file.modified_s, partial(folder.remove, file.name, *folders))


@contextmanager
def _told(place: Place) -> Iterator[None]:
    """Errors of Delta's and Iceberg's libraries, and of the disk, as sentences."""
    try:
        yield
    except SinkError:
        raise
    except Exception as error:
        raise StoreError(
            f"{place}: {first_line(error)}. Look at the table and the rights in it, then run again"
        ) from None
