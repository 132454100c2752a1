"""The snapshot on disk: one RocksDB per partition that is always an exact committed prefix of the changelog.

Keys and values are those of the changelog, byte for byte:

    b"i" + identity   8-byte big-endian sequence
    b"p"              progress: see `Progress`
    b"s" + number     see `PolicyInterval`
    b"g" + number     see `Edit`
    b"e"              how many were evicted: see `Evicted`
    b"o"              whose changelog it is: see `kafka_ratchet.transport.owner.Owner`

but for the one that the changelog alone has (`kafka_ratchet.tables.forgetting`), and keys of the store's own:

    b"c"              8-byte big-endian changelog offset: the store stands for everything below it; how many
                      identities that is, 8 bytes too; and where the stream has bounds, as of when, in seconds
    b"m"              16-byte big-endian count of missing sequences, where a stream counts them
    b"l"              see `kafka_ratchet.transport.changelog.Sighting`: two 8-byte big-endian integers
    b"v"              a byte: the layout of this store; see `LAYOUT`

Where the stream has bounds, an identity's value has 4 bytes more: when it was last active, in seconds. In the changelog
that is the entry's timestamp.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections import deque
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import structlog
from rocksdict import BlockBasedOptions, Options, Rdict, WriteBatch

from kafka_ratchet.errors import OwnerDiffers, StateError, StateFolderInUse, StoreDamaged
from kafka_ratchet.tables.edits import EDIT, Edit
from kafka_ratchet.tables.policy_intervals import POLICY_INTERVAL, PolicyInterval
from kafka_ratchet.transport.changelog import Sighting
from kafka_ratchet.transport.client.topic_id import NO_EPOCH
from kafka_ratchet.transport.owner import KEY as OWNER
from kafka_ratchet.transport.owner import Owner

log = structlog.get_logger(__name__)

PROGRESS: Final = b"p"
EVICTED: Final = b"e"
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
_EVICTED: Final = struct.Struct(">Bqq")
_PROGRESS: Final = {1: struct.Struct(">Bqqqq"), 2: struct.Struct(">Bqqqqq"), 3: struct.Struct(">Bqqqqqqq")}
"""By version; 1 was without the leader epoch. 3 has records that were too late, and conflicts; it is written only where
there were any, so that an earlier Ratchet reads what a stream without these settings writes."""
_PROGRESS_VERSION: Final = 3
_VERSION: Final = 1

BLOOM_BITS: Final = 10
"""Per identity: one in a hundred that are not there is looked for on disk (RocksDB's wiki, Bloom filters)."""
WRITE_BUFFER: Final = 16 << 20
"""bytes. A worker has a store for each of its partitions, and RocksDB fills two buffers of each: 64 MiB, its default,
would be more than the sequences themselves."""

FLUSH_WORTH: Final = 50_000
"""Entries in RocksDB's log from which on `flush_much` writes a file. At the next start the log is read again, 1 µs an
entry; and a file for every few entries would be merged with the others over and over."""

IN_MEMORY: Final = "cur-size-all-mem-tables"
"""RocksDB's property: bytes that are in its log and not in a file yet."""

_LOCKED: Final = ("While lock file", "lock hold by current process")
"""RocksDB's words (env/fs_posix.cc) for a lock that another process has, or another store of this one."""


_OUTSIDE: Final = tuple(
    os.strerror(number)
    for number in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
    )
)
"""What is wrong with the machine and not with the files: it passes, or a person mends it, and nothing is thrown away.
Whatever else keeps RocksDB from reading counts as damage: to rebuild from the changelog is always right."""


class Progress(NamedTuple):
    """What a partition has come to, committed with everything else: the totals are exact whatever crashes.

    next: input offset to read next; fresh, duplicate, invalid, late, conflict: records judged so since the beginning;
    epoch: leader epoch of the input batch that ends before `next`; -1 where it is not known
    """

    next: int
    fresh: int
    duplicate: int
    invalid: int
    epoch: int = NO_EPOCH
    late: int = 0
    conflict: int = 0

    @property
    def judged(self) -> int:
        """Records, whatever the verdict."""
        return self.fresh + self.duplicate + self.invalid + self.late + self.conflict

    def pack(self) -> bytes:
        """Version byte and five big-endian integers; seven where some were too late or in conflict."""
        if self.late or self.conflict:
            return _PROGRESS[3].pack(3, *self)
        return _PROGRESS[2].pack(2, *self[:5])

    @classmethod
    def unpack(cls, value: bytes) -> Progress:
        """Read what `pack` wrote.

        Raises:
            StateError: not a progress entry of this version.
        """
        form = _PROGRESS.get(value[0]) if value else None
        if form is None or len(value) != form.size:
            raise StateError(
                f"a progress entry of {len(value)} bytes, version {value[:1].hex()}; this Ratchet reads versions up to "
                f"{_PROGRESS_VERSION}"
            )
        return cls(*form.unpack(value)[1:])


class Evicted(NamedTuple):
    """Identities that were evicted since the beginning: after they were quiet for too long; because there were more."""

    inactive: int = 0
    displaced: int = 0

    def plus(self, more: Evicted) -> Evicted:
        """Both together."""
        return Evicted(self.inactive + more.inactive, self.displaced + more.displaced)

    def pack(self) -> bytes:
        """Version byte and two big-endian integers."""
        return _EVICTED.pack(_VERSION, *self)

    @classmethod
    def unpack(cls, value: bytes) -> Evicted:
        """Read what `pack` wrote.

        Raises:
            StateError: not a count of this version.
        """
        if len(value) != _EVICTED.size or value[0] != _VERSION:
            raise StateError(
                f"a count of evictions of {len(value)} bytes, version {value[:1].hex()}; this Ratchet reads version 1"
            )
        return cls(*_EVICTED.unpack(value)[1:])


class Store:
    """The RocksDB of one partition. Writes are atomic; nothing is written that is not committed."""

    def __init__(self, path: Path) -> None:
        """Open what is there. Where nothing is, RocksDB makes its files with the first write.

        A worker may have very many partitions without a record; each RocksDB takes 10 to 20 ms and six open files.

        Raises:
            StateFolderInUse: another process has it open.
            StoreDamaged: its files are not what was written.
            StateError: it cannot be opened: no room, no permission.
        """
        self.path = path
        self._in_log = 0
        """Entries written since the last `flush_much`; at most these are in RocksDB's log only."""
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            files = {file.name for file in path.iterdir()}
        except OSError as error:
            raise StateError(f"{path}: cannot be used: {error.strerror}. Choose another state_folder") from None
        if "CURRENT" not in files and any(name.endswith((".sst", ".log")) for name in files):
            # RocksDB would begin a new database, at the second try, with what the old one's log holds and nothing else.
            # It writes CURRENT before any of these, so a process killed while it made the database leaves none.
            raise self._unreadable("Corruption: the file CURRENT is missing")
        self._opened = self._open() if files else None

    def _open(self) -> Rdict:
        try:
            return Rdict(str(self.path), _options())
        except Exception as error:
            # rocksdict raises plain Exception for everything.
            if any(words in str(error) for words in _LOCKED):
                raise StateFolderInUse(
                    f"{self.path}: another process has this store open; give each worker its own folder"
                ) from None
            raise self._unreadable(error) from None

    @property
    def is_made(self) -> bool:
        """Whether there are files."""
        return self._opened is not None

    def make(self) -> None:
        """Have RocksDB make its files, where it has not: what the first write would do otherwise.

        Raises:
            StateError: they cannot be made.
        """
        _ = self._db

    @property
    def _db(self) -> Rdict:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _unreadable(self, error: Exception | str) -> StateError:
        if any(words in str(error) for words in _OUTSIDE):
            return StateError(f"{self.path}: RocksDB cannot open it: {error}. Make room, or let this user write here")
        return StoreDamaged(f"{self.path}: RocksDB cannot read it: {error}")

    def _get(self, key: bytes) -> bytes | None:
        if self._opened is None:
            return None
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise self._unreadable(error) from None
        return value

    @property
    def stands_for(self) -> tuple[int, int, int | None]:
        """What of the changelog it has: (everything below this offset, so many identities, as of this second).

        The time is None in a store that does not know when its identities were active.

        Raises:
            StoreDamaged: that entry is not one of ours.
        """
        value = self._get(_CHANGELOG)
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
        value = self._get(_LAYOUT)
        return 1 if value is None else int.from_bytes(value, "big")

    @property
    def missing(self) -> int | None:
        """Sequences that its identities have not had; None in a store that does not know.

        Raises:
            StoreDamaged: that entry is not one of ours.
        """
        value = self._get(_MISSING)
        if value is None:
            return None
        if len(value) != _MISSING_BYTES:
            raise StoreDamaged(f"{self.path}: its count of missing sequences has {len(value)} bytes")
        return int.from_bytes(value, "big")

    def find(self, identities: list[bytes]) -> list[tuple[bytes, bytes]]:
        """Entries of those identities that are there, key and value as in the changelog.

        Raises:
            StoreDamaged: a file is not what was written.
        """
        if self._opened is None:
            return []
        keys = [b"i" + identity for identity in identities]
        try:
            values = self._db.get(keys)
        except Exception as error:
            raise self._unreadable(error) from None
        return [(key, value) for key, value in zip(keys, values, strict=True) if value is not None]

    @property
    def progress(self) -> Progress | None:
        """The partition's progress; None before the first commit."""
        value = self._get(PROGRESS)
        try:
            return Progress.unpack(value) if value is not None else None
        except StateError as error:
            raise StateError(f"{self.path}: {error}") from None

    @property
    def evicted(self) -> Evicted:
        """How many were evicted."""
        value = self._get(EVICTED)
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
        value = self._get(OWNER)
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
        value = self._get(_SIGHTING)
        if value is None:
            return None
        if len(value) != _SIGHTED.size:
            raise StoreDamaged(f"{self.path}: the leader epoch of its changelog has {len(value)} bytes")
        return Sighting(*_SIGHTED.unpack(value))

    def entries(self, begin: bytes = b"i") -> Generator[tuple[bytes, bytes], None, None]:
        """The identities' entries from a key on, in the order of keys.

        Raises:
            StoreDamaged: a file is not what was written.
        """
        return self._entries(b"i", begin)

    def intervals(self) -> list[PolicyInterval]:
        """Which offsets were judged, and which were not.

        Raises:
            StoreDamaged: a file is not what was written.
            StateError: an entry is not of this version.
        """
        try:
            return [PolicyInterval.unpack(key, value) for key, value in self._entries(POLICY_INTERVAL, POLICY_INTERVAL)]
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
            return [Edit.unpack(key, value) for key, value in self._entries(EDIT, EDIT)]
        except StoreDamaged:
            raise
        except StateError as error:
            raise StateError(f"{self.path}: {error}") from None

    def _entries(self, prefix: bytes, first: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        if self._opened is None:
            return
        # Not Rdict.items(): it takes a damaged block for the end, and identities would be missing without a word.
        at = self._db.iter()
        try:
            at.seek(first)
            while at.valid() and (key := at.key()).startswith(prefix):
                yield key, at.value()
                at.next()
            at.status()
        except Exception as error:
            raise self._unreadable(error) from None
        finally:
            del at  # RocksDB keeps its lock for as long as there is an iterator

    def get(self, key: bytes) -> bytes | None:
        """The value of one entry; None where there is none.

        Raises:
            StoreDamaged: a file is not what was written.
        """
        return self._get(key)

    def scan_from(self, prefix: bytes, first: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        """The entries whose keys begin so, from a key on, in the order of keys.

        Raises:
            StoreDamaged: a file is not what was written.
        """
        return self._entries(prefix, first)

    @staticmethod
    def remove(path: Path) -> None:
        """Throw away a damaged store. Call it only where this process is known to be alone with the folder.

        Raises:
            StateError: the folder cannot be removed.
        """
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise StateError(f"{path}: is damaged and cannot be removed: {error.strerror}. Remove it by hand") from None

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
        batch = WriteBatch(raw_mode=True)
        batch.put(_LAYOUT, bytes([LAYOUT]))
        if forget:
            batch.delete_range(b"i", b"j")
        for keys, values in columns:
            self._in_log += len(keys)
            if None in values:
                for key, value in zip(keys, values, strict=True):
                    _put(batch, key, value)
            else:
                deque(map(batch.put, keys, values), maxlen=0)  # a loop without steps of Python's own
        for key, value in entries:
            self._in_log += 1
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
        db = self._db
        try:
            db.write(batch)
        except Exception as error:
            raise StateError(f"{self.path}: RocksDB cannot write: {error}. Is the disk full?") from None

    @property
    def bytes(self) -> int | None:
        """In files, and in memory on the way to them; None where RocksDB does not say."""
        if self._opened is None:
            return 0
        known = [self._db.property_int_value(f"rocksdb.{name}") for name in ("total-sst-files-size", IN_MEMORY)]
        return None if None in known else sum(known)

    def flush_much(self) -> None:
        """Have RocksDB bring much of its log into a file, beside whatever comes next.

        Raises:
            StateError: the disk is full or broken.
        """
        if self._in_log < FLUSH_WORTH:
            return
        try:
            self._db.flush(wait=False)
        except Exception as error:
            raise StateError(f"{self.path}: RocksDB cannot write: {error}. Is the disk full?") from None
        self._in_log = 0

    def close(self) -> None:
        """Release the folder."""
        if self._opened is None:
            return
        try:
            self._opened.close()
        except Exception as error:
            # RocksDB could not flush. What is missing on disk is in the changelog; the folder is released all the same.
            log.warning("store closed with an error", path=str(self.path), reason=str(error))
        finally:
            del self._opened


def _put(batch: WriteBatch, key: bytes, value: bytes | None) -> None:
    if value is None:
        batch.delete(key)
    else:
        batch.put(key, value)


def _options() -> Options:
    options, blocks = Options(raw_mode=True), BlockBasedOptions()
    blocks.set_bloom_filter(BLOOM_BITS, block_based=False)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_size(WRITE_BUFFER)
    return options
