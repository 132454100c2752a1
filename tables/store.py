"""Snapshot on disk: one RocksDB per partition, always an exact committed prefix of the changelog.

Keys and values are those of the changelog, byte for byte:

    b"i" + identity   8-byte big-endian sequence
    b"p"              progress: see `kafka_ratchet.tables.totals.Progress`
    b"s" + number     see `PolicyInterval`
    b"g" + number     see `Edit`
    b"e"              evicted identities: see `kafka_ratchet.tables.totals.EvictedTotals`
    b"o"              owner of the changelog: see `kafka_ratchet.transport.owner.Owner`
    b"t" + ...        entries of a program's tables: see `kafka_ratchet.tables.values.partition`

Only the changelog has the entry b"f" (`kafka_ratchet.tables.edits`). Only the store has these keys:

    b"c"              8-byte big-endian changelog offset: the store contains everything below it; the number of
                      identities, 8 bytes too; and where the stream has bounds or tables, the time, in seconds
    b"a"              the offset of b"c" once more, if the store has the last activity of each identity; see `is_timed`
    b"m"              16-byte big-endian count of missing sequences, where a stream counts them
    b"l"              see `kafka_ratchet.transport.changelog.KnownPosition`: two 8-byte big-endian integers
    b"u"              8-byte big-endian broker time in seconds: see `Store.unproven`
    b"v"              a byte: the layout of this store; see `LAYOUT`

Where the stream has bounds, an identity's value has 4 bytes more: its last activity, in seconds. In the changelog, the
last activity is the timestamp of the identity's entry.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import closing
from typing import Final

import msgspec
from rocksdict import WriteBatch

from kafka_ratchet.errors import OwnerDiffers, StateError, StoreDamaged
from kafka_ratchet.tables.edits import EDIT, Edit
from kafka_ratchet.tables.policy_intervals import POLICY_INTERVAL, PolicyInterval
from kafka_ratchet.tables.rocksdb import Database
from kafka_ratchet.tables.totals import EVICTED, PROGRESS, EvictedTotals, Progress
from kafka_ratchet.tables.values.own_table import OWN, windows_key
from kafka_ratchet.tables.values.table_partition import PREFIX
from kafka_ratchet.transport.changelog import KnownPosition
from kafka_ratchet.transport.owner import KEY as OWNER
from kafka_ratchet.transport.owner import Owner

_CHANGELOG: Final = b"c"
_SIGHTING: Final = b"l"
_TIMED: Final = b"a"
_MISSING: Final = b"m"
_UNPROVEN: Final = b"u"
_LAYOUT: Final = b"v"
LAYOUT: Final = 1
"""Layout of the store's own keys, and of the seconds after a value.

A store without this entry has layout 1. A store with a newer layout is rebuilt from the changelog.
"""
_MISSING_BYTES: Final = 16
"""Bytes of the count of missing sequences: each of very many identities may miss 2^63."""
_SECONDS: Final = struct.Struct(">q")
_POSITION: Final = struct.Struct(">q")
_SIGHTED: Final = struct.Struct(">qq")
_STANDS_FOR: Final = struct.Struct(">qq")
_STANDS_FOR_TIMED: Final = struct.Struct(">qqq")


class Store(Database):
    """RocksDB store of one partition, which contains only committed entries."""

    @property
    def stands_for(self) -> tuple[int, int, int | None]:
        """Return the part of the changelog that the store covers.

        Returns:
            Changelog offset below which the store contains everything, number of identities, and time in seconds; the
            time is None if the stream had neither bounds nor tables.

        Raises:
            StoreDamaged: the entry is damaged.
        """
        value = self.get(_CHANGELOG)
        if value is None:
            return 0, 0, None
        if len(value) == _STANDS_FOR_TIMED.size:
            return _STANDS_FOR_TIMED.unpack(value)
        if len(value) != _STANDS_FOR.size:
            raise StoreDamaged(
                f"{self.path}: the entry of its changelog position has {len(value)} bytes instead of "
                f"{_STANDS_FOR.size} or {_STANDS_FOR_TIMED.size}"
            )
        return *_STANDS_FOR.unpack(value), None

    @property
    def is_timed(self) -> bool:
        """Return True if each identity in the store has the time of its last activity."""
        # A version without this entry leaves it in place, with the position of an earlier snapshot.
        return self.get(_TIMED) == _POSITION.pack(self.stands_for[0])

    @property
    def layout(self) -> int:
        """Return the layout of the store's keys, see `LAYOUT`."""
        value = self.get(_LAYOUT)
        return 1 if value is None else int.from_bytes(value, "big")

    @property
    def missing(self) -> int | None:
        """Return the number of missing sequences of the store's identities; None: not counted in this store.

        Raises:
            StoreDamaged: Ratchet did not write the entry.
        """
        value = self.get(_MISSING)
        if value is None:
            return None
        if len(value) != _MISSING_BYTES:
            raise StoreDamaged(
                f"{self.path}: its count of missing sequences has {len(value)} bytes instead of {_MISSING_BYTES}"
            )
        return int.from_bytes(value, "big")

    @property
    def unproven(self) -> int:
        """Return the broker time of the newest entry before an interrupted or unproven replay; 0: no such replay.

        A store without times contains 1 if a replay that applied evictions was interrupted.

        Raises:
            StoreDamaged: the entry is damaged.
        """
        value = self.get(_UNPROVEN)
        if value is None:
            return 0
        if len(value) != _SECONDS.size:
            raise StoreDamaged(
                f"{self.path}: the age of its unproven replay has {len(value)} bytes instead of {_SECONDS.size}"
            )
        return int(_SECONDS.unpack(value)[0])

    @property
    def progress(self) -> Progress | None:
        """Return the partition's progress; None: nothing was committed.

        Raises:
            StateError: the entry is damaged, or of another version.
        """
        value = self.get(PROGRESS)
        try:
            return Progress.unpack(value) if value is not None else None
        except StateError as error:
            raise StateError(f"{self.path}: {error}") from None

    @property
    def evicted(self) -> EvictedTotals:
        """Return the totals of evictions.

        Raises:
            StateError: the entry is damaged, or of another version.
        """
        value = self.get(EVICTED)
        try:
            return EvictedTotals.unpack(value) if value is not None else EvictedTotals()
        except StateError as error:
            raise StateError(f"{self.path}: {error}") from None

    @property
    def owner(self) -> Owner | None:
        """Return the changelog's owner; None: no entry names an owner.

        Raises:
            OwnerDiffers: a newer Ratchet wrote it.
        """
        value = self.get(OWNER)
        try:
            return Owner.unpack(value) if value is not None else None
        except OwnerDiffers as error:
            raise OwnerDiffers(f"{self.path}: {error}") from None

    @property
    def sighting(self) -> KnownPosition | None:
        """Return the last changelog offset with a known leader epoch; None: unknown.

        Raises:
            StoreDamaged: the entry is damaged.
        """
        value = self.get(_SIGHTING)
        if value is None:
            return None
        if len(value) != _SIGHTED.size:
            raise StoreDamaged(
                f"{self.path}: the leader epoch of its changelog has {len(value)} bytes instead of {_SIGHTED.size}"
            )
        return KnownPosition(*_SIGHTED.unpack(value))

    def find(self, identities: list[bytes]) -> list[tuple[bytes, bytes]]:
        """Return key and value of the entry of each given identity that the store contains.

        Raises:
            StoreDamaged: a file is damaged.
        """
        return self.get_many([b"i" + identity for identity in identities])

    def entries(self, begin: bytes = b"i") -> Generator[tuple[bytes, bytes], None, None]:
        """Yield the identities' entries in the order of their keys, starting at a key.

        Raises:
            StoreDamaged: a file is damaged.
        """
        return self.scan_from(b"i", begin)

    def tables(self) -> list[str]:
        """Return the names of a program's tables with entries or windows here, even if the program lacks them now.

        Raises:
            StoreDamaged: a file is damaged.
        """
        windows = OWN + msgspec.json.encode(windows_key(""))[:-1]  # its keys are JSON, and end with a quote
        with closing(self.scan_from(windows, windows)) as entries:
            names = {key[len(windows) : -1] for key, _ in entries}
        first = OWN[:-1] + b"\1"  # the first one with a name
        while True:
            with closing(self.scan_from(PREFIX, first)) as entries:
                found = next(entries, None)
            if found is None:
                return sorted(name.decode(errors="replace") for name in names)
            prefix = found[0][: 2 + found[0][1]]
            names.add(prefix[2:])
            first = prefix[:-1] + bytes([prefix[-1] + 1])  # after this table; a name's last byte is not 255

    def intervals(self) -> list[PolicyInterval]:
        """Return the input's intervals of judged or unjudged records.

        Raises:
            StoreDamaged: a file is damaged.
            StateError: an entry is of another version.
        """
        try:
            return [
                PolicyInterval.unpack(key, value) for key, value in self.scan_from(POLICY_INTERVAL, POLICY_INTERVAL)
            ]
        except StoreDamaged:
            raise
        except StateError as error:
            raise StateError(f"{self.path}: {error}") from None

    def edits(self) -> list[tuple[int, Edit]]:
        """Return the operators' changes, each with its number.

        Raises:
            StoreDamaged: a file is damaged.
            StateError: an entry is of another version.
        """
        try:
            return [Edit.unpack(key, value) for key, value in self.scan_from(EDIT, EDIT)]
        except StoreDamaged:
            raise
        except StateError as error:
            raise StateError(f"{self.path}: {error}") from None

    def write(
        self,
        entries: Iterable[tuple[bytes, bytes | None]],
        position: int,
        identities: int,
        time: int | None = None,
        sighting: KnownPosition | None = None,
        *,
        columns: Iterable[tuple[list[bytes], list[bytes | None]]] = (),
        forget: bool = False,
        timed: bool = False,
        missing: int | None = None,
        unproven: int = 0,
    ) -> None:
        """Write entries, and the part of the changelog that the store covers now, in one WriteBatch.

        Args:
            entries: keys and values; a value None removes the entry.
            position: see `stands_for`.
            identities: see `stands_for`.
            time: see `stands_for`.
            sighting: last changelog offset with a known leader epoch; None: unchanged.
            columns: more entries as lists of keys and values, each key once.
            forget: whether to remove all earlier identities first.
            timed: see `is_timed`.
            missing: number of missing sequences; None: unknown.
            unproven: see `unproven`.

        Raises:
            StateError: the disk is full or broken. RocksDB may refuse every later write until it is opened again.
        """
        batch, count = WriteBatch(raw_mode=True), 0
        batch.put(_LAYOUT, bytes([LAYOUT]))
        if forget:
            batch.delete_range(b"i", b"j")
        for keys, values in columns:
            count += len(keys)
            if None in values:
                for key, value in zip(keys, values, strict=True):
                    _put(batch, key, value)
            else:
                deque(map(batch.put, keys, values), maxlen=0)  # a loop without steps of Python's own
        for key, value in entries:
            count += 1
            _put(batch, key, value)
        if time is None:
            batch.put(_CHANGELOG, _STANDS_FOR.pack(position, identities))
        else:
            batch.put(_CHANGELOG, _STANDS_FOR_TIMED.pack(position, identities, time))
        _put(batch, _TIMED, _POSITION.pack(position) if timed else None)
        _put(batch, _MISSING, None if missing is None else missing.to_bytes(_MISSING_BYTES, "big"))
        _put(batch, _UNPROVEN, _SECONDS.pack(unproven) if unproven else None)
        if sighting is not None:
            batch.put(_SIGHTING, _SIGHTED.pack(*sighting))
        self.apply(batch, count)


def _put(batch: WriteBatch, key: bytes, value: bytes | None) -> None:
    if value is None:
        batch.delete(key)
    else:
        batch.put(key, value)
