"""Comparison of one partition's tables in the replay with its tables in the changelog.

Both are stored in one temporary RocksDB, so that memory does not grow with them. The keys in it:

    b"t"...                 the replay's entries; keys and values as in the changelog
    b"v" + b"t"...          the changelog's newest entry of each key: its offset, 8-byte big-endian, and its value
    b"w" + b"t"...          the replay's entries at the input offset where the next run with `--state` continues
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from kafka_ratchet.app.verify.findings import Finding, FindingKind
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rule import RecordView
from kafka_ratchet.errors import TableError
from kafka_ratchet.tables.store import Store
from kafka_ratchet.tables.totals import EVICTED, PROGRESS, EvictedTotals, Progress
from kafka_ratchet.tables.values.codec import Codec
from kafka_ratchet.tables.values.own_table import OWN, TIME, begin_key, late_key
from kafka_ratchet.tables.values.partition import ENTRY_BYTES, PartitionTables
from kafka_ratchet.tables.values.table import Table
from kafka_ratchet.tables.values.table_partition import ABSENT, PREFIX, prefix_of

_VIEW: Final = b"v"
_SAVED: Final = b"w"
_FORMS: Final = OWN + b'"form '
"""Prefix of changelog keys made by `form_key`."""
_SHAPES: Final = OWN + b'"shape '
"""Prefix of changelog keys made by `shape_key`."""
_BEGINS: Final = OWN + b'"begin '
"""Prefix of changelog keys made by `begin_key`."""
_OFFSET: Final = struct.Struct(">q")
WRITTEN_AT_ONCE: Final = 10_000
"""Number of changelog entries or replayed records between two writes to the store."""
ANY_SIZE: Final = 1 << 30
"""Size limit of records in bytes, so high that it has no effect: workers have checked all sizes."""
SHOWN: Final = 200
"""Maximum number of characters of a key or a value in a finding."""

OWN_NAME: Final = "(Ratchet's own)"

Entry = tuple[bytes, bytes]


class ReplayTables:
    """Tables of one partition: those of the replay, and those read from the changelog."""

    def __init__(self, folder: Path, tables: Sequence[Table], memory_bytes: int) -> None:
        """Start with empty tables.

        Args:
            folder: place of the store; the caller removes it
            tables: tables of the program
            memory_bytes: memory for values; values beyond it are read from the store
        """
        self._store = Store(folder)
        self._codecs = {prefix_of(table.name): table.codec for table in tables}
        if any(table.window for table in tables):
            self._codecs[OWN] = Codec("", str, None, "json")  # how far the events' time has come
        self.partition = PartitionTables(self._store.get, self._scan)
        for table in tables:
            self.partition.add(table.codec, table.default, table.kind)
        self._most, self._unsaved = memory_bytes // ENTRY_BYTES, 0
        self._windowed = [table.name for table in tables if table.window]
        self._begins = {OWN + msgspec.json.encode(begin_key(table.name)): table.name for table in tables}
        self.begins: dict[str, int] = {}
        """Input offset where a later program version began with an empty table, by table."""
        self.position: int | None = None
        """Next input offset of the worker, as of the changelog's end; None: the changelog has no such offset."""
        self.is_compared = False
        self.evicted = 0
        """Number of identities that workers have evicted."""
        self._later: set[bytes] = set()
        """Keys with newer values in the changelog. They are not compared, because compaction may have removed the
        values to compare."""

    def _scan(self, prefix: bytes, first: bytes = b"") -> Iterator[Entry]:
        return self._store.scan_from(prefix, first or prefix)

    def close(self) -> None:
        """Release the store."""
        self._store.close()

    def put(self, entries: Iterable[Entry]) -> None:
        """Store the entries of an earlier run, to start with."""
        self._write((key, value) for key, value in entries)

    def commit(self, records: int) -> None:
        """Commit the tables after a batch of the replay. records: number of records in the batch.

        Raises:
            RatchetError: a value cannot be encoded.
        """
        self.partition.encode(ANY_SIZE)  # as a transaction does, which removes expired entries
        self.partition.commit()
        self._unsaved += records
        if self._unsaved >= WRITTEN_AT_ONCE:
            self._save()

    def _save(self) -> None:
        self._store.write(self.partition.unsaved_entries(), 0, 0)
        self.partition.saved(self._most)
        self._unsaved = 0

    def read_changelog(
        self, entries: Iterable[tuple[int, RecordView]], later: Iterable[tuple[int, RecordView]]
    ) -> None:
        """Read the table entries of the changelog.

        entries: entries to compare, each with its offset; later: entries written after `entries`, each with its offset.
        Keys in `later` are not compared.
        """
        self._write(self._seen(entries))
        self._later = {record.key for _, record in later if record.key is not None and record.key[:1] == PREFIX}

    def _seen(self, entries: Iterable[tuple[int, RecordView]]) -> Iterator[tuple[bytes, bytes | None]]:
        for offset, record in entries:
            key, value = record.key or b"", record.value
            if key == PROGRESS and value is not None:
                self.position = Progress.unpack(value).next
            elif key == EVICTED and value is not None:
                self.evicted = sum(EvictedTotals.unpack(value))
            elif key in self._begins and value is not None:
                self.begins[self._begins[key]] = msgspec.json.decode(value, type=int)
            elif key[:1] == PREFIX:
                yield _VIEW + key, None if value is None else _OFFSET.pack(offset) + value

    def begin_tables(self, offset: int) -> None:
        """Empty the tables that workers began at this input offset.

        Raises:
            RatchetError: a value cannot be encoded.
        """
        names = [name for name, begin in self.begins.items() if begin == offset]
        gone = [late_key(name) for name in names]
        if all(self.begins.get(name, -1) >= offset for name in self._windowed):
            gone.append(TIME)  # no table had used the events' time before
        with self.partition.opened():
            for name in names:
                self.partition.of(name).delete_all()
            own = self.partition.of("")
            for key in gone:
                if own.get(key) is not ABSENT:
                    own.delete(key)
        self.commit(0)

    def _write(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        waiting: list[tuple[bytes, bytes | None]] = []
        for entry in entries:
            waiting.append(entry)
            if len(waiting) == WRITTEN_AT_ONCE:
                self._store.write(waiting, 0, 0)
                waiting.clear()
        self._store.write(waiting, 0, 0)

    def compare(self, changelog: str, partition: int, report: Report) -> tuple[int, Counter[str]]:
        """Compare the replay's tables with the changelog's, and add findings to the report.

        Returns:
            (number of entries compared, number of entries by name of each table that the program lacks)
        """
        self._save()
        self.is_compared = True
        compared, unknown = 0, Counter[str]()
        view = ((key[len(_VIEW) :], value) for key, value in self._scan(_VIEW + PREFIX))
        for key, mine, theirs in merged(self._scan(PREFIX), view):
            if key.startswith((_FORMS, _SHAPES, _BEGINS)):
                continue  # written for the worker; of the program that runs here, no event makes them
            prefix = key[: 2 + key[1]] if len(key) > 1 else key
            if prefix not in self._codecs:
                unknown[repr(prefix[2:].decode("utf-8", "backslashreplace"))] += 1
                continue
            if key in self._later:
                report.pending += 1
                continue
            compared += 1
            offset = None if theirs is None else _OFFSET.unpack(theirs[: _OFFSET.size])[0]
            value = None if theirs is None else theirs[_OFFSET.size :]
            if mine != value and not self._are_equal(prefix, mine, value):
                kind: FindingKind = "lost" if value is None else "unexpected" if mine is None else "altered"
                detail = (
                    f"table {self._codecs[prefix].table or OWN_NAME} key {self._text(prefix, key)}: "
                    f"{_value(mine)} in the replay, {_value(value)} in the changelog"
                )
                if offset is None:
                    detail = f"partition {partition}: {detail}"
                report.add(Finding(kind, changelog, partition=partition, offset=offset, detail=detail))
        return compared, unknown

    def _are_equal(self, prefix: bytes, mine: bytes | None, theirs: bytes | None) -> bool:
        """Return True if two values decode to equal objects.

        Their bytes may differ, as those of a set in another order.
        """
        if mine is None or theirs is None:
            return False
        try:
            codec = self._codecs[prefix]
            return bool(codec.value(mine) == codec.value(theirs))
        except TableError:
            return False

    def _text(self, prefix: bytes, key: bytes) -> str:
        try:
            codec = self._codecs[prefix]
            return f"{codec.key(codec.kept_key(key[len(prefix) :]))!r:.{SHOWN}}"
        except (TableError, ValueError):
            return _value(key[len(prefix) :])

    def keep_state(self) -> None:
        """Copy the present entries. `state` returns the copy later."""
        self._save()
        self._write((_SAVED + key, value) for key, value in self._scan(PREFIX))

    def state(self) -> Iterator[Entry]:
        """Return the entries saved by `keep_state`."""
        return ((key[len(_SAVED) :], value) for key, value in self._scan(_SAVED + PREFIX))


def merged(mine: Iterator[Entry], theirs: Iterator[Entry]) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Merge two iterators sorted by key; yield key and both values, None for a side without the key."""
    left, right = next(mine, None), next(theirs, None)
    while left is not None or right is not None:
        key = min(each[0] for each in (left, right) if each is not None)
        here = left[1] if left is not None and left[0] == key else None
        there = right[1] if right is not None and right[0] == key else None
        yield key, here, there
        left = next(mine, None) if here is not None else left
        right = next(theirs, None) if there is not None else right


def _value(data: bytes | None) -> str:
    return "nothing" if data is None else data[:SHOWN].decode("utf-8", "backslashreplace").__repr__()
