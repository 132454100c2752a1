"""Resumable sources: objects that can be read again from any sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable


class Record(NamedTuple):
    """Record to publish."""

    sequence: int
    key: bytes | None
    value: bytes | None


class Source(Protocol):
    """Replayable source, which yields the same records with the same sequences each time it is read.

    Any object with these two methods is a source, such as the rows of a table with an increasing id. Ids must become
    visible in their order: with several writers, read only rows older than the oldest running transaction, or use
    change data capture (docs/guide/debezium.md)::

        class Orders:
            def __init__(self, database: sqlite3.Connection) -> None:
                self.database = database

            def read(self, from_sequence: int) -> Iterator[Record]:
                rows = self.database.execute(
                    "SELECT id, customer, total FROM orders WHERE id >= ? ORDER BY id", (from_sequence,)
                )
                for id, customer, total in rows:
                    yield Record(id, customer.encode(), json.dumps({"total": total}).encode())

            def mark(self, sequence: int) -> str:
                return "orders"  # or a digest of the row with this id, to notice another database

        source = Orders(sqlite3.connect("shop.db", check_same_thread=False))
        with Producer("orders.raw", "shop", options={...}, source=source) as producer:
            publish(source, producer)
    """

    def read(self, from_sequence: int) -> Iterator[Record]:
        """Yield the records with this sequence or a higher one, in increasing order; gaps are allowed.

        Raises:
            SourceError: a record cannot be read. It is raised after all records before it were yielded, so that they
                are published.
        """
        ...

    def mark(self, sequence: int) -> str:
        """Return a short text that identifies the content up to this sequence, such as a digest.

        The text is stored with the producer's progress. If the source returns another text for the same sequence when
        publishing resumes, it has changed under its name. The method is called from several threads.

        Raises:
            SourceError: the source is too short to contain this sequence.
        """
        ...


@runtime_checkable
class NumberedFiles(Source, Protocol):
    """Source with sequences that depend on the number of each file."""

    def require_all_files(self, sequence: int, mark: str) -> None:
        """Require that all files up to a stored position are present, so that each has its former number.

        Raises:
            SourceError: rotation has removed a file, or the source has changed.
        """
        ...


@runtime_checkable
class CheckedSource(Source, Protocol):
    """Source that compares itself with a stored mark, and explains a difference.

    For other sources, the stored mark must equal the new one.
    """

    def check(self, sequence: int, mark: str) -> str | None:
        """Require that the source still has the content identified by a stored mark.

        Returns:
            A notice for the user, or None; publishing continues in either case.

        Raises:
            SourceError: the source has changed; the error names the change.
        """
        ...
