"""RocksDB with errors of this package for damage, a lock, or a full disk."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Final

import structlog
from rocksdict import BlockBasedOptions, Options, Rdict, WriteBatch

from kafka_ratchet.errors import StateError, StateFolderInUse, StoreDamaged

log = structlog.get_logger(__name__)

BLOOM_BITS: Final = 10
"""Bits per identity in a Bloom filter: one in a hundred absent identities is searched on disk (RocksDB's wiki, Bloom
filters)."""
WRITE_BUFFER: Final = 16 << 20
"""Bytes of a write buffer. A worker has a store for each of its partitions, and RocksDB fills two buffers for each. Its
default of 64 MiB would take more memory than the sequences themselves."""

FLUSH_WORTH: Final = 50_000
"""Minimum number of entries in RocksDB's log for `flush_much` to write a file.

The next start reads the log again, at 1 µs an entry; a file for every few entries would be merged again and again.
"""

IN_MEMORY: Final = "cur-size-all-mem-tables"
"""RocksDB's property for the bytes in its log, but in no file yet."""

_LOCKED: Final = ("While lock file", "lock hold by current process")
"""RocksDB's texts (env/fs_posix.cc) about a lock of another process, or of another store in this process."""


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
"""Texts of the machine's errors, which do not show damage of the files. Such an error passes, or an operator removes
its cause, so the store is kept.

Any other failure to read counts as damage, because rebuilding from the changelog is always correct.
"""


class Database:
    """RocksDB database in a folder, with atomic writes."""

    def __init__(self, path: Path) -> None:
        """Open the files in a folder; in an empty folder, the first write creates them.

        A worker may have very many partitions without a record, and each RocksDB takes 10 to 20 ms and six open files.

        Raises:
            StateFolderInUse: another process has the store open.
            StoreDamaged: a file is damaged.
            StateError: the store cannot be opened, for lack of disk space, memory, open files or permission.
        """
        self.path = path
        self._in_log = 0
        """Number of entries written since the last file of `flush_much`: an upper bound of the entries only in the log.
        """
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            files = {file.name for file in path.iterdir()}
        except OSError as error:
            raise StateError(
                f"{path}: the folder cannot be used: {error.strerror}. Choose another state_folder"
            ) from None
        if "CURRENT" not in files and any(name.endswith((".sst", ".log")) for name in files):
            # RocksDB would start a new database, at the second try, with the contents of the old log alone.
            # It writes CURRENT before any of these, so a process killed while it made the database leaves
            # none.
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
        """Return True if the store has files."""
        return self._opened is not None

    def make(self) -> None:
        """Create the files now, as the first write would.

        Raises:
            StateError: the files cannot be created, or another process has created them.
        """
        _ = self._db

    @property
    def _db(self) -> Rdict:
        if self._opened is None:
            made = self._open()
            if not _is_empty(made):  # no lock was held until now
                made.close()
                raise StateFolderInUse(
                    f"{self.path}: another process has created this store in the meantime; give each worker its own "
                    "folder"
                )
            self._opened = made
        return self._opened

    def _unreadable(self, error: Exception | str) -> StateError:
        if any(words in str(error) for words in _OUTSIDE):
            return StateError(
                f"{self.path}: RocksDB cannot use the store: {error}. Depending on this cause, free disk space or "
                "memory, allow more open files (ulimit -n), or let this user write there"
            )
        return StoreDamaged(f"{self.path}: RocksDB cannot read the store: {error}")

    def get(self, key: bytes) -> bytes | None:
        """Return the value of an entry; None: there is no such entry.

        Raises:
            StoreDamaged: a file is damaged.
        """
        if self._opened is None:
            return None
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise self._unreadable(error) from None
        return value

    def get_many(self, keys: list[bytes]) -> list[tuple[bytes, bytes]]:
        """Return key and value of each entry that exists among the given keys.

        Raises:
            StoreDamaged: a file is damaged.
        """
        if self._opened is None:
            return []
        try:
            values = self._db.get(keys)
        except Exception as error:
            raise self._unreadable(error) from None
        return [(key, value) for key, value in zip(keys, values, strict=True) if value is not None]

    def scan_from(self, prefix: bytes, first: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        """Yield the entries with a prefix in the order of their keys, starting at a key.

        Raises:
            StoreDamaged: a file is damaged.
        """
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

    def apply(self, batch: WriteBatch, entries: int) -> None:
        """Write a whole batch, or nothing of it.

        Args:
            batch: the batch.
            entries: approximate number of its entries.

        Raises:
            StateError: the disk is full or broken. RocksDB may refuse every later write until it is opened again.
        """
        self._in_log += entries
        db = self._db
        try:
            db.write(batch)
        except Exception as error:
            raise StateError(
                f"{self.path}: RocksDB cannot write: {error}. Check that the disk has space and works"
            ) from None

    @property
    def bytes(self) -> int | None:
        """Return the store's size in files and in memory, in bytes; None: RocksDB does not report it."""
        if self._opened is None:
            return 0
        known = [self._db.property_int_value(f"rocksdb.{name}") for name in ("total-sst-files-size", IN_MEMORY)]
        return None if None in known else sum(known)

    def flush_much(self) -> None:
        """Write RocksDB's log into a file in the background, if the log has many entries.

        Raises:
            StateError: the disk is full or broken.
        """
        if self._in_log < FLUSH_WORTH:
            return
        try:
            self._db.flush(wait=False)
        except Exception as error:
            raise StateError(
                f"{self.path}: RocksDB cannot write: {error}. Check that the disk has space and works"
            ) from None
        self._in_log = 0

    def close(self) -> None:
        """Close the database, and release its folder."""
        if self._opened is None:
            return
        try:
            self._opened.close()
        except Exception as error:
            # RocksDB could not flush. The missing entries are in the changelog; the folder is released all
            # the same.
            log.warning("store closed with an error", path=str(self.path), reason=str(error))
        finally:
            del self._opened

    @staticmethod
    def remove(path: Path) -> None:
        """Remove the folder of a store before rebuilding the store; no other process may use the folder.

        Raises:
            StateError: the folder cannot be removed.
        """
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise StateError(
                f"{path}: the store has to be rebuilt, but its folder cannot be removed: {error.strerror}. Remove the "
                "folder; the worker then rebuilds the store from the changelog"
            ) from None


def _is_empty(db: Rdict) -> bool:
    at = db.iter()
    at.seek_to_first()
    return not at.valid()


def _options() -> Options:
    options, blocks = Options(raw_mode=True), BlockBasedOptions()
    blocks.set_bloom_filter(BLOOM_BITS, block_based=False)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_size(WRITE_BUFFER)
    return options
