"""Orphans: files and tables that killed or fenced jobs left next to a result table; stores list them for `vacuum`."""

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
    """Name of the file within the table's folder; in a database, name of the staging table."""
    bytes: int
    modified_s: float | None = field(compare=False)
    """Time of the last write in seconds since 1970; None: the store does not know it."""
    remove: Callable[[], None] = field(repr=False, compare=False)


def file_orphan(folder: Folder, file: FileInfo, *folders: str) -> Orphan:
    """Return a file as an orphan; `folders` is the path from the table's folder to the file's folder."""
    name = "/".join([*folders, file.name])
    return Orphan(name, file.bytes, file.modified_s, partial(folder.remove, file.name, *folders))


def files_of_older_holders(folder: Folder, files: Iterable[FileInfo], newest: Callable[[str], int]) -> Iterator[Orphan]:
    """Yield the files written by tasks of fenced generations.

    Args:
        folder: the table's folder.
        files: files in the folder that no version of the table names.
        newest: function that returns a job's newest generation.
    """
    for file in files:
        written = FILE_NAME.fullmatch(file.name)  # every other file is another writer's
        if written and int(written["generation"]) < newest(written["job"]):
            yield file_orphan(folder, file)
