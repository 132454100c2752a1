"""The snapshot on disk: one RocksDB per partition that is always an exact committed prefix of the changelog.

Keys and values are those of the changelog, byte for byte:

    b"i" + identity   8-byte big-endian sequence
    b"p"              progress: see `Progress`

and one key of the store's own:

    b"c"              8-byte big-endian changelog offset: the store stands for everything below it
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from rocksdict import Options, Rdict, WriteBatch

from errors import StateError, StateFolderInUse

PROGRESS: Final = b"p"
_CHANGELOG: Final = b"c"
_OFFSET: Final = struct.Struct(">q")
_PROGRESS: Final = struct.Struct(">Bqqqq")
_VERSION: Final = 1


class Progress(NamedTuple):
    """What a partition has come to, committed with everything else: the totals are exact whatever crashes.

    next: input offset to read next; fresh, duplicate, invalid: records judged so since the beginning
    """

    next: int
    fresh: int
    duplicate: int
    invalid: int

    def pack(self) -> bytes:
        """Version byte and four big-endian integers."""
        return _PROGRESS.pack(_VERSION, *self)

    @classmethod
    def unpack(cls, value: bytes) -> Progress:
        """Read what `pack` wrote.

        Raises:
            StateError: not a progress entry of this version.
        """
        if len(value) != _PROGRESS.size or value[0] != _VERSION:
            raise StateError(
                f"a progress entry of {len(value)} bytes, version {value[:1].hex()}; this Ratchet reads version 1"
            )
        return cls(*_PROGRESS.unpack(value)[1:])


class Store:
    """The RocksDB of one partition. Writes are atomic; nothing is written that is not committed."""

    def __init__(self, path: Path) -> None:
        """Open or create.

        Raises:
            StateFolderInUse: another process has it open.
            StateError: it cannot be opened.
        """
        self.path = path
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self._db = Rdict(str(path), Options(raw_mode=True))
        except Exception as error:
            # rocksdict raises plain Exception for everything.
            if "lock" in str(error).lower():
                raise StateFolderInUse(
                    f"{path}: another process has this store open; give each worker its own folder"
                ) from None
            raise StateError(
                f"{path}: RocksDB cannot open it: {error}. Delete this folder and start again: the changelog has everything"
            ) from None

    @property
    def position(self) -> int:
        """The store stands for every changelog offset below this."""
        value = self._db.get(_CHANGELOG)
        return _OFFSET.unpack(value)[0] if value else 0

    @property
    def progress(self) -> Progress | None:
        """The partition's progress; None before the first commit."""
        value = self._db.get(PROGRESS)
        return Progress.unpack(value) if value else None

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """All identities' entries, key and value as in the changelog."""
        for key, value in self._db.items(from_key=b"i"):
            if not key.startswith(b"i"):
                return
            yield key, value

    def write(self, entries: Iterable[tuple[bytes, bytes]], position: int) -> None:
        """Entries and the changelog position they stand for, in one WriteBatch."""
        batch = WriteBatch(raw_mode=True)
        for key, value in entries:
            batch.put(key, value)
        batch.put(_CHANGELOG, _OFFSET.pack(position))
        self._db.write(batch)

    def close(self) -> None:
        """Release the folder."""
        self._db.close()
