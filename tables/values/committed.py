"""What is committed of a table's partition, for who reads it from outside: a command, the page, another program.

What the open transaction has pushed is not seen. It is read in the event loop in one go, so no commit comes between.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from contextlib import closing
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Protocol

from kafka_ratchet.errors import TableError
from kafka_ratchet.tables.values.partition import ABSENT, UNKNOWN, Find, TablePartition

RECENT_MOST: Final = 50_000
"""Keys since the last snapshot that are sorted for one page: nothing else runs meanwhile."""


class StoreScan(Protocol):
    """The store's entries whose keys begin so, behind one of them, in the order of their bytes."""

    def __call__(self, prefix: bytes, after: bytes | None = None) -> Generator[tuple[bytes, bytes], None, None]:
        """See `kafka_ratchet.tables.rocksdb.Store.scan`."""


class CommittedTable:
    """One partition of one table, as of its last commit."""

    def __init__(
        self, table: TablePartition, find: Find, scan: StoreScan, unsaved: Collection[tuple[bytes, Any]]
    ) -> None:
        """Nothing is read yet.

        Args:
            table: as it is pushed
            find: looks a key up in the store
            scan: reads the store
            unsaved: (prefix, key as the codec keeps it) of what is persisted and not in the store
        """
        self.codec = table.codec
        self._table, self._find, self._scan, self._unsaved = table, find, scan, unsaved

    def get(self, kept: Any) -> bytes | None:
        """The value's bytes, of a key as the codec keeps it; None where it is not in the table.

        Raises:
            StoreDamaged: the store cannot be read.
        """
        key = self.codec.key_bytes(kept)
        value = self._in_memory(kept)
        return self._find(self._table.prefix + key) if value is UNKNOWN else self._bytes(value)

    @property
    def is_complete(self) -> bool:
        """Whether `entries` has every key: very many new ones wait for the next snapshot."""
        return len(self._unsaved) <= RECENT_MOST

    def entries(self, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Bytes of keys and values, in the order of the keys' bytes, from behind one on (None: from the first).

        Raises:
            StoreDamaged: the store cannot be read.
        """
        skipped, first = len(self._table.prefix), itemgetter(0)
        with closing(self._scan(self._table.prefix, after)) as found:
            stored = ((key[skipped:], value) for key, value in found)
            recent = ((key, None) for key in self._recent(after))
            for key, pairs in groupby(merge(stored, recent, key=first), key=first):
                value = self._value(key, [value for _, value in pairs if value is not None])
                if value is not None:
                    yield key, value

    def _recent(self, after: bytes | None) -> list[bytes]:
        """Keys that the store may not have."""
        if not self.is_complete:
            return []
        mine = (self.codec.key_bytes(kept) for prefix, kept in self._unsaved if prefix == self._table.prefix)
        return sorted(key for key in mine if after is None or key > after)

    def _value(self, key: bytes, stored: list[bytes]) -> bytes | None:
        try:
            value = self._in_memory(self.codec.kept_key(key))
        except TableError:
            value = UNKNOWN  # of an earlier key_type: the program has not touched it
        if value is UNKNOWN:
            return stored[0] if stored else None
        return self._bytes(value)

    def _in_memory(self, kept: Any) -> Any:
        """What is persisted, as the codec keeps it, where it stands in memory."""
        value = self._table.before.get(kept, UNKNOWN)
        return self._table.values.get(kept, UNKNOWN) if value is UNKNOWN else value

    def _bytes(self, value: Any) -> bytes | None:
        return None if value is ABSENT else self.codec.value_bytes(value)
