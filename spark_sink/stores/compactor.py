"""Interface that a store made of files implements for `compact`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kafka_ratchet.spark_sink.errors import Fenced

ATTEMPTS = 100
"""Attempts to commit while other writers commit first; the same number as in `optimistic`."""


@dataclass(frozen=True)
class DataFile:
    """Data file of a table's newest version."""

    name: str
    bytes: int
    rows: int
    partition: str = ""
    """Partition of the file; files of different partitions are never merged."""
    entry: Any = field(default=None, compare=False, repr=False)
    """Store's own object for the file, such as a scan task of pyiceberg."""
    statistics: str = field(default="", compare=False, repr=False)
    """Column statistics of a new file, see `files.statistics`."""


@dataclass(frozen=True)
class Replacement:
    """Old files, and the new file that contains their rows."""

    old: tuple[DataFile, ...]
    new: DataFile


class Compactor(Protocol):
    """Steps of a compaction, as a store implements them."""

    def look(self) -> list[DataFile]:
        """List the files of the newest version that may be merged."""
        ...

    def count(self) -> tuple[int, int]:
        """Return the number of files and of bytes in the version that `look` read."""
        ...

    def take_over(self) -> int:
        """Commit a new generation, so that vacuum recognises the files of earlier runs.

        Raises:
            StoreError: the table cannot be written.
        """
        ...

    def rewrite(self, files: Sequence[DataFile], generation: int) -> DataFile:
        """Write the rows of `files` into one new file that no table version names yet."""
        ...

    def replace(self, replacements: Sequence[Replacement], generation: int) -> bool:
        """Commit the replacements on top of the version that `look` read.

        Returns:
            False if another writer committed first.

        Raises:
            Fenced: a newer run has taken over.
        """
        ...

    def remove(self, file: DataFile) -> None:
        """Delete a file that no table version names."""
        ...


def require_newest(where: object, newest: int, generation: int) -> None:
    """Refuse to continue after another compaction has taken over.

    Args:
        where: the table, for the message.
        newest: newest generation in the table.
        generation: generation of this run.

    Raises:
        Fenced: the generations differ.
    """
    if newest != generation:
        raise Fenced(
            f"{where}: another compaction (generation {newest}) has begun after this one (generation {generation}). "
            "Earlier commits of this run stay. Let the other compaction finish"
        )
