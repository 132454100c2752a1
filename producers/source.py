"""Resumable sources: anything that can be read again from a sequence on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable


class Record(NamedTuple):
    """One record to publish."""

    sequence: int
    key: bytes | None
    value: bytes | None


class Source(Protocol):
    """Replayable source: it gives the same records with the same sequences, however often it is read.

    Anything with these two methods is one. The rows of a table with a rising id, for instance::

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
        """Yield the records with this sequence or a higher one, in rising order; gaps are allowed.

        Raises:
            SourceError: a record cannot be read. All records before it have been given, so that they are published.
        """
        ...

    def mark(self, sequence: int) -> str:
        """Return a short text that stands for the content before this sequence, such as a digest.

        It is kept with the producer's progress. When publishing resumes, another text for the same sequence means
        that
        the source has changed under its name. Called from several threads.

        Raises:
            SourceError: the source has become too short to have this sequence.
        """
        ...


@runtime_checkable
class CheckedSource(Source, Protocol):
    """Source that also explains a change, and may take other marks than its own."""

    def check(self, sequence: int, mark: str) -> str | None:
        """Verify that the source made this mark for this sequence.

        Returns:
            A sentence for the user, if there is anything to say.

        Raises:
            SourceError: it is another source; the error names the change.
        """
        ...
