"""What `compact` asks of a store that is made of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kafka_ratchet.spark_sink.errors import Fenced

ATTEMPTS = 100
"""How often a commit is tried again after another writer was first, as in `optimistic`."""


@dataclass(frozen=True)
class DataFile:
    """One file of a table's newest version."""

    name: str
    bytes: int
    rows: int
    partition: str = ""
    """Says which partition of the table the file is in; files of different ones are never put together."""
    entry: Any = field(default=None, compare=False, repr=False)
    """What the store keeps of it."""
    statistics: str = field(default="", compare=False, repr=False)
    """Statistics of a new file, see `files.statistics`."""


@dataclass(frozen=True)
class Replacement:
    """Files, and the one that has their rows."""

    old: tuple[DataFile, ...]
    new: DataFile


class Compactor(Protocol):
    """What a store does of it."""

    def look(self) -> list[DataFile]:
        """The files of the newest version that may be put together; the others are left out."""
        ...

    def count(self) -> tuple[int, int]:
        """Files and bytes of the version that was looked at."""
        ...

    def take_over(self) -> int:
        """Commit a new generation, so that vacuum knows the files of earlier runs for what they are.

        Raises:
            StoreError: the table cannot be written.
        """
        ...

    def rewrite(self, files: Sequence[DataFile], generation: int) -> DataFile:
        """Write the rows of `files` into one new file that no version names yet."""
        ...

    def replace(self, replacements: Sequence[Replacement], generation: int) -> bool:
        """One commit on the version that was looked at. False: another writer was first.

        Raises:
            Fenced: a newer run has taken over.
        """
        ...

    def remove(self, file: DataFile) -> None:
        """Remove a file that no version names."""
        ...


def require_newest(where: object, newest: int, generation: int) -> None:
    """Raise `Fenced` where another run has taken over."""
    if newest != generation:
        raise Fenced(
            f"{where}: another compaction (generation {newest}) has begun after this one ({generation}). This one has "
            "stopped; what it had replaced stays replaced"
        )
