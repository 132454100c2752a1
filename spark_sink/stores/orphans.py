"""Orphans that killed and fenced jobs leave next to a result table, as each store lists them for `vacuum`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.files.local import FileInfo
from kafka_ratchet.spark_sink.files.parquet import FILE_NAME


@dataclass(frozen=True)
class Orphan:
    """File or table that no reader of the result needs."""

    name: str
    """Name within the table's folder; in a database, a table's."""
    bytes: int
    modified_s: float | None = field(compare=False)
    """Time of the last write, in seconds since 1970; None: the store does not know."""
    remove: Callable[[], None] = field(repr=False, compare=False)


def file_orphan(folder: Folder, file: FileInfo, *folders: str) -> Orphan:
    """Return a file in the table's folder, or in these folders within it."""
    name = "/".join([*folders, file.name])
    return Orphan(name, file.bytes, file.modified_s, partial(folder.remove, file.name, *folders))


def files_of_older_holders(folder: Folder, files: Iterable[FileInfo], newest: Callable[[str], int]) -> Iterator[Orphan]:
    """Yield the files that a fenced holder's tasks have written.

    Args:
        folder: the table's folder.
        files: files in it that no version of the table names.
        newest: the newest generation of a job.
    """
    for file in files:
        written = FILE_NAME.fullmatch(file.name)  # every other file is another writer's
        if written and int(written["generation"]) < newest(written["job"]):
            yield file_orphan(folder, file)
