"""Committed contents of a table's partition, for readers outside of its transaction: a command, the page, a program.

Changes of the open transaction are invisible. Each call runs in the event loop without a pause, so no commit comes in
between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from kafka_ratchet.errors import TableError
from kafka_ratchet.tables.values.codec import EncodedValue
from kafka_ratchet.tables.values.table_partition import ABSENT, UNKNOWN, Find, TablePartition
from kafka_ratchet.tables.values.windows import WindowCodec, pack_start

RECENT_MOST: Final = 50_000
"""Maximum number of keys since the last snapshot to sort for one page; the event loop waits for it."""


StoreScan = Callable[[bytes, bytes], Generator[tuple[bytes, bytes], None, None]]
"""Function that scans the store's entries with a prefix, ordered by the keys' bytes, starting at a key."""

WINDOWS_MOST: Final = 5_000
"""Maximum number of windows searched for one key; the event loop waits for it."""


class CommittedTable:
    """Contents of one partition of one table, as of the last commit."""

    def __init__(
        self, table: TablePartition, find: Find, scan: StoreScan, unsaved: Collection[tuple[bytes, Any]]
    ) -> None:
        """Store the sources without reading from them.

        Args:
            table: partition of the table, including its pushed changes.
            find: function that looks a key up in the store.
            scan: function that scans the store.
            unsaved: table prefix and key, as the codec stores it, of persisted entries not in the store.
        """
        self.codec = table.codec
        self._table, self._find, self._scan, self._unsaved = table, find, scan, unsaved

    def get(self, kept: Any) -> bytes | None:
        """Return a key's value as bytes; None: the table lacks the key. kept: the key, as `Codec.check_key` returns it.

        Raises:
            StoreDamaged: the store cannot be read.
        """
        key = self.codec.key_bytes(kept)
        value = self._in_memory(kept)
        return self._find(self._table.prefix + key) if value is UNKNOWN else self._bytes(value)

    def value(self, kept: Any) -> Any:
        """Return a key's value for a program; ABSENT: the table lacks the key. kept: as in `get`.

        Raises:
            StoreDamaged: the store cannot be read.
            TableError: the value cannot be read.
        """
        value = self._in_memory(kept)
        if value is UNKNOWN:
            data = self._find(self._table.prefix + self.codec.key_bytes(kept))
            return ABSENT if data is None else self.codec.value(data)
        return self.codec.value(value) if type(value) is EncodedValue else value

    @property
    def is_complete(self) -> bool:
        """Return True if `entries` yields every key; False if very many new ones await the next snapshot."""
        return len(self._unsaved) <= RECENT_MOST

    def entries(self, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the bytes of keys and values, ordered by the keys' bytes.

        after: key that precedes the first one; None: begin with the first key.

        Raises:
            StoreDamaged: the store cannot be read.
        """
        prefix, first = self._table.prefix, itemgetter(0)
        skipped = len(prefix)
        with closing(self._scan(prefix, prefix if after is None else prefix + after + b"\0")) as found:
            stored = ((key[skipped:], value) for key, value in found)
            recent = ((key, None) for key in self._recent(after))
            for key, pairs in groupby(merge(stored, recent, key=first), key=first):
                value = self._value(key, [value for _, value in pairs if value is not None])
                if value is not None:
                    yield key, value

    def starts(self) -> tuple[list[int], bool]:
        """Return the starts of windows that may have keys, for a table with windows.

        Returns:
            The oldest `WINDOWS_MOST` starts in the store, with all starts that the store lacks; and True if there may
            be further starts.
        """
        codec, prefix = self.codec, self._table.prefix
        assert isinstance(codec, WindowCodec)  # noqa: S101 - asked of such a table
        found = {kept.start for of, kept in self._unsaved if of == prefix}
        first = prefix
        for _ in range(WINDOWS_MOST):
            with closing(self._scan(prefix, first)) as entries:
                if (entry := next(entries, None)) is None:
                    return sorted(found), False
            start = codec.kept_key(entry[0][len(prefix) :]).start
            found.add(start)
            first = prefix + pack_start(start + 1)
        return sorted(found), True

    def _recent(self, after: bytes | None) -> list[bytes]:
        """Return the sorted bytes of recent keys, which the store may lack."""
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
        """Return the persisted value from memory, as the table stores it; UNKNOWN: only the store may have the key."""
        value = self._table.before.get(kept, UNKNOWN)
        return self._table.values.get(kept, UNKNOWN) if value is UNKNOWN else value

    def _bytes(self, value: Any) -> bytes | None:
        return None if value is ABSENT else self.codec.value_bytes(value)
