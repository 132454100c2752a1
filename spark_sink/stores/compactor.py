"""Interface of `compact` to a store of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kafka_ratchet.spark_sink.errors import Fenced

ATTEMPTS = 100
"""Attempts of a commit after other writers were first, as in `optimistic`."""


@dataclass(frozen=True)
class DataFile:
    """File of a table's newest version."""

    name: str
    bytes: int
    rows: int
    partition: str = ""
    """Partition of the file; files of different partitions are never merged."""
    entry: Any = field(default=None, compare=False, repr=False)
    """Entry of the file in the store's own form."""
    statistics: str = field(default="", compare=False, repr=False)
    """Statistics of a new file, see `files.statistics`."""


@dataclass(frozen=True)
class Replacement:
    """Old files, and the new one with their rows."""

    old: tuple[DataFile, ...]
    new: DataFile


class Compactor(Protocol):
    """Compaction steps of a store."""

    def look(self) -> list[DataFile]:
        """List the files of the newest version that may be merged."""
        ...

    def count(self) -> tuple[int, int]:
        """Return the files and bytes of the version that `look` read."""
        ...

    def take_over(self) -> int:
        """Commit a new generation, so that vacuum recognises the files of earlier runs.

        Raises:
            StoreError: the table cannot be written.
        """
        ...

    def rewrite(self, files: Sequence[DataFile], generation: int) -> DataFile:
        """Write the rows of `files` into one new file that no version names yet."""
        ...

    def replace(self, replacements: Sequence[Replacement], generation: int) -> bool:
        """Commit on the version that `look` read; False: another writer was first.

        Raises:
            Fenced: a newer run has taken over.
        """
        ...

    def remove(self, file: DataFile) -> None:
        """Remove a file that no version names."""
        ...


def require_newest(where: object, newest: int, generation: int) -> None:
    """Raise `Fenced` if another run has taken over."""
    if newest != generation:
        raise Fenced(
            f"{where}: another compaction (generation {newest}) has begun after this one ({generation}). This one has "
            "stopped; its finished replacements stay"
        )
