"""The snapshot on disk: one RocksDB per partition that is always an exact committed prefix of the changelog.

Keys and values are those of the changelog, byte for byte:

    b"i" + identity   8-byte big-endian sequence
    b"p"              progress: see `kafka_ratchet.tables.totals.Progress`
    b"s" + number     see `PolicyInterval`
    b"g" + number     see `Edit`
    b"e"              how many were evicted: see `kafka_ratchet.tables.totals.Evicted`
    b"o"              whose changelog it is: see `kafka_ratchet.transport.owner.Owner`

but for the one that the changelog alone has (`kafka_ratchet.tables.edits`), and keys of the store's own:

    b"c"              8-byte big-endian changelog offset: the store stands for everything below it; how many
                      identities that is, 8 bytes too; and where the stream has bounds, as of when, in seconds
    b"m"              16-byte big-endian count of missing sequences, where a stream counts them
    b"l"              see `kafka_ratchet.transport.changelog.Sighting`: two 8-byte big-endian integers
    b"v"              a byte: the layout of this store; see `LAYOUT`

Where the stream has bounds, an identity's value has 4 bytes more: when it was last active, in seconds. In the changelog
that is the entry's timestamp.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Generator, Iterable
from typing import Final

from rocksdict import WriteBatch

from kafka_ratchet.errors import OwnerDiffers, StateError, StoreDamaged
from kafka_ratchet.tables.edits import EDIT, Edit
from kafka_ratchet.tables.policy_intervals import POLICY_INTERVAL, PolicyInterval
from kafka_ratchet.tables.rocksdb import Database
from kafka_ratchet.tables.totals import EVICTED, PROGRESS, Evicted, Progress
from kafka_ratchet.transport.changelog import Sighting
from kafka_ratchet.transport.owner import KEY as OWNER
from kafka_ratchet.transport.owner import Owner

_CHANGELOG: Final = b"c"
_SIGHTING: Final = b"l"
_MISSING: Final = b"m"
_LAYOUT: Final = b"v"
LAYOUT: Final = 1
"""How the store's own keys, and the seconds behind a value, are to be read. A store without the entry has layout 1. One
of a newer layout is rebuilt from the changelog."""
_MISSING_BYTES: Final = 16
"""Each of very many identities may miss 2^63."""
_SIGHTED: Final = struct.Struct(">qq")
_STANDS_FOR: Final = struct.Struct(">qq")
_STANDS_FOR_TIMED: Final = struct.Struct(">qqq")


class Store(Database):
    """The RocksDB of one partition. Nothing is written that is not committed."""

    @property
    def stands_for(self) -> tuple[int, int, int | None]:
        """What of the changelog it has: (everything below this offset, so many identities, as of this second).

        The time is None in a store that does not know when its identities were active.

        Raises:
            StoreDamaged: that entry is not one of ours.
        """
        value = self.get(_CHANGELOG)
        if value is None:
            return 0, 0, None
        if len(value) == _STANDS_FOR_TIMED.size:
            return _STANDS_FOR_TIMED.unpack(value)
        if len(value) != _STANDS_FOR.size:
            raise StoreDamaged(f"{self.path}: its changelog position has {len(value)} bytes")
        return *_STANDS_FOR.unpack(value), None

    @property
    def layout(self) -> int:
        """As of which `LAYOUT` it was written."""
        value = self.get(_LAYOUT)
        return 1 if value is None else int.from_bytes(value, "big")

    @property
    def missing(self) -> int | None:
        """Sequences that its identities have not had; None in a store that does not know.

        Raises:
            StoreDamaged: that entry is not one of ours.
        """
        value = self.get(_MISSING)
        if value is None:
            return None
        if len(value) != _MISSING_BYTES:
            raise StoreDamaged(f"{self.path}: its count of missing sequences has {len(value)} bytes")
        return int.from_bytes(value, "big")

    @property
    def progress(self) -> Progress | None:
        """The partition's progress; None before the first commit."""
        value = self.get(PROGRESS)
        try:
            return Progress.unpack(value) if value is not None else None
        except StateError as error:
            raise StateError(f"{self.path}: {error}") from None

    @property
    def evicted(self) -> Evicted:
        """How many were evicted."""
        value = self.get(EVICTED)
        try:
            return Evicted.unpack(value) if value is not None else Evicted()
        except StateError as error:
            raise StateError(f"{self.path}: {error}") from None

    @property
    def owner(self) -> Owner | None:
        """Whose changelog it is; None where no entry has said so yet.

        Raises:
            OwnerDiffers: a newer Ratchet wrote it.
        """
        value = self.get(OWNER)
        try:
            return Owner.unpack(value) if value is not None else None
        except OwnerDiffers as error:
            raise OwnerDiffers(f"{self.path}: {error}") from None

    @property
    def sighting(self) -> Sighting | None:
        """The last changelog offset whose leader epoch was known.

        Raises:
            StoreDamaged: that entry is not one of ours.
        """
        value = self.get(_SIGHTING)
        if value is None:
            return None
        if len(value) != _SIGHTED.size:
            raise StoreDamaged(f"{self.path}: the leader epoch of its changelog has {len(value)} bytes")
        return Sighting(*_SIGHTED.unpack(value))

    def find(self, identities: list[bytes]) -> list[tuple[bytes, bytes]]:
        """Entries of those identities that are there, key and value as in the changelog.

        Raises:
            StoreDamaged: a file is not what was written.
        """
        return self.get_many([b"i" + identity for identity in identities])

    def entries(self, begin: bytes = b"i") -> Generator[tuple[bytes, bytes], None, None]:
        """The identities' entries from a key on, in the order of keys.

        Raises:
            StoreDamaged: a file is not what was written.
        """
        return self.scan_from(b"i", begin)

    def intervals(self) -> list[PolicyInterval]:
        """Which offsets were judged, and which were not.

        Raises:
            StoreDamaged: a file is not what was written.
            StateError: an entry is not of this version.
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
        """What people have changed, with their numbers.

        Raises:
            StoreDamaged: a file is not what was written.
            StateError: an entry is not of this version.
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
        sighting: Sighting | None = None,
        *,
        columns: Iterable[tuple[list[bytes], list[bytes | None]]] = (),
        forget: bool = False,
        missing: int | None = None,
    ) -> None:
        """Entries (None removes one), and what the store stands for with them, as in `stands_for`: in one WriteBatch.

        columns: more entries, keys and values apart, each key once
        forget: without every identity that it has had before these entries
        missing: sequences that identities have not had; None: that is not known

        Raises:
            StateError: the disk is full or broken. RocksDB may refuse every later write, until it is opened again.
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
        if missing is None:
            batch.delete(_MISSING)
        else:
            batch.put(_MISSING, missing.to_bytes(_MISSING_BYTES, "big"))
        if sighting is not None:
            batch.put(_SIGHTING, _SIGHTED.pack(*sighting))
        self.apply(batch, count)


def _put(batch: WriteBatch, key: bytes, value: bytes | None) -> None:
    if value is None:
        batch.delete(key)
    else:
        batch.put(key, value)
