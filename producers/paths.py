"""Paths as a source, as `ratchet publish PATHS...` takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kafka_ratchet.producers.file_set import FileSet
from kafka_ratchet.producers.files import FileSource
from kafka_ratchet.producers.formats import Format
from kafka_ratchet.producers.source import Record


def open_files(
    paths: Sequence[Path],
    *,
    follow: bool = False,
    format: Format | str | None = None,
    key: str | None = None,
    sequence_field: str | None = None,
) -> FileSource | FileSet:
    """One file, several in their order, or a folder. Arguments and errors as `FileSet`."""
    if follow or len(paths) != 1 or paths[0].is_dir():
        return FileSet(paths, follow=follow, format=format, key=key, sequence_field=sequence_field)
    return FileSource(paths[0], format=format, key=key, sequence_field=sequence_field)


def records_of(
    paths: Sequence[Path],
    *,
    format: Format | str | None = None,
    key: str | None = None,
    sequence_field: str | None = None,
) -> Iterator[Record]:
    """Every record of these files as `ratchet publish` sends it, from the first on: sequence, key and value.

    Which partition it is sent to follows from its key, see `partition_of`.

    Raises:
        SourceError: as `FileSet` and its `read`.
        SettingsError: as `FileSet`.
    """
    yield from open_files(paths, format=format, key=key, sequence_field=sequence_field).read(0)
