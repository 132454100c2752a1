"""Several files as one source: a list of them, or a folder that grows."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from errors import SettingsError, SourceError
from producers._files import FileSource
from producers._formats import Format
from producers._headers import NOTHING_YET
from producers._source import Record

BYTE_BITS = 40
"""A sequence is the file's number, from 0 on, times 2^40, plus the byte in it: files of a terabyte, eight million of
them. So where a file's records begin does not depend on how long the files before it are, and none of these has to be
opened to go on."""

LOOK_EVERY_S = 0.5
"""How often a folder that is followed is looked at, in seconds."""


class FileSet:
    """Files in an order, each as `FileSource` reads it.

    What was published must stay: a file that is missing, renamed, in another place or of another size than when it
    was read to its end is refused, because the numbers of what follows would no longer fit. Files may be appended.

    Args:
        paths: the files, in their order; or one folder: its files in the order of their names, those with a dot in
            front left out.
        follow: of a folder: wait for more, until `stop`. Of its last file only whole lines are read. Another file whose
            name comes after it says that it is finished; it must not be written to any more. Compressed files must be
            moved into the folder when they are whole.
        format: of every file, see `FileSource`.
        key: likewise.
        sequence_field: likewise; it must rise through all the files.

    Raises:
        SourceError: there are no files, or one of them cannot be read.
        SettingsError: `follow` without a folder, or as `FileSource`.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        follow: bool = False,
        format: Format | str | None = None,
        key: str | None = None,
        sequence_field: str | None = None,
    ) -> None:
        self._folder = paths[0] if len(paths) == 1 and paths[0].is_dir() else None
        if follow and self._folder is None:
            raise SettingsError(
                f"{', '.join(map(str, paths))}: only a folder can be followed; name one, and nothing else"
            )
        self.label = str(self._folder or f"{len(paths)} files")
        """What a display calls it."""
        self._follow, self._format, self._key, self._field = follow, format, key, sequence_field
        self._stop = threading.Event()
        self._files: list[FileSource] = []
        self._digests: list[bytes] = []
        """Of each file that is finished: what it and those before it are."""
        self._lock = threading.Lock()  # guards the two above
        self._at = 0
        self._add(self._listed() if self._folder else list(paths))
        if not self._files and not follow:
            raise SourceError(f"{self.label}: has no files")

    @property
    def size_bytes(self) -> int:
        """Of all files on disk, when last looked at."""
        return sum(file.size_bytes for file in self._files)

    @property
    def position_bytes(self) -> int:
        """How far `read` has come, in bytes on disk."""
        return sum(file.size_bytes for file in self._files[: self._at]) + sum(
            file.position_bytes for file in self._files[self._at : self._at + 1]
        )

    def stop(self) -> None:
        """End `read` after what is there."""
        self._stop.set()

    def here(self) -> tuple[Path, int]:
        """File and line of the record that was given last, where they are read from the beginning."""
        return self._files[self._at].here()

    def place(self, sequence: int) -> str:
        """Where that is, for people."""
        number, byte = divmod(sequence, 1 << BYTE_BITS)
        if self._field is not None or number >= len(self._files):
            return f"sequence {sequence}"
        return f"byte {byte} of {self._files[number].path.name}"

    def read(self, from_sequence: int) -> Iterator[Record]:
        """The records with this sequence or a higher one.

        Raises:
            SourceError: as FileSource; or the folder's files have changed.
        """
        number, byte = (0, 0) if self._field else divmod(max(0, from_sequence), 1 << BYTE_BITS)
        if not self._follow:  # what grows is checked row by row
            for index in range(number, len(self._files)):
                self._files[index].check_rows(byte if index == number else 0)
        while True:
            stopped, self._at = self._stop.is_set(), number
            if self._follow:
                self._look()
            if number < len(self._files):
                is_last = number == len(self._files) - 1
                for record in self._files[number].read_lines(byte, whole=self._follow and is_last):
                    yield from self._numbered(record, number, from_sequence)
                    byte = self._files[number].behind
                if not is_last:
                    number, byte = number + 1, 0
                    continue
            if not self._follow or stopped:
                return
            self._stop.wait(LOOK_EVERY_S)

    def mark(self, sequence: int) -> str:
        """What the files up to this sequence are: names, sizes and beginnings, and the mark of the one it is in.

        Raises:
            SourceError: there are fewer files, or the one it is in is too short.
        """
        if self._field is not None:
            return f"field:{self._field}"
        number, byte = divmod(sequence, 1 << BYTE_BITS) if sequence >= 0 else (0, NOTHING_YET)
        with self._lock:
            if number >= len(self._files):
                if sequence < 0:
                    return FileSource.NO_MARK
                raise SourceError(
                    f"{self.label}: under this producer name {number + 1} files have been published from, and there "
                    f"are {len(self._files)}. Put back what is missing, or publish under another producer name"
                )
            file = self._files[number]
            # In the first file the mark is the file's: one that was published alone may be continued by others.
            before = f"files:{self._digest(number - 1).hex()}:" if number else ""
            return before + file.mark(byte)

    def _numbered(self, record: Record, number: int, from_sequence: int) -> Iterator[Record]:
        if self._field is None:
            if record.sequence >> BYTE_BITS:
                raise SourceError(f"{self._files[number].path}: is longer than 2^{BYTE_BITS} bytes; split it")
            yield Record(number << BYTE_BITS | record.sequence, record.key, record.value)
        elif record.sequence >= from_sequence:
            yield record

    def _digest(self, number: int) -> bytes:
        """What this file and those before it are. The lock is held, and the file finished."""
        while len(self._digests) <= number:
            file = self._files[len(self._digests)]
            before = self._digests[-1] if self._digests else b""
            self._digests.append(hashlib.sha256(before + file.identity()).digest()[:16])
        return self._digests[number]

    def _listed(self) -> list[Path]:
        assert self._folder is not None  # noqa: S101 - asked by the callers
        try:
            return sorted(path for path in self._folder.iterdir() if path.is_file() and path.name[:1] != ".")
        except OSError as error:
            raise SourceError(f"{self._folder}: cannot be read: {error.strerror}") from None

    def _look(self) -> None:
        """Take up the files that have come to the folder."""
        listed = self._listed()
        known = [file.path for file in self._files]
        if listed[: len(known)] != known:
            odd = next((path for path in listed if path not in known), None)
            gone = next((path for path in known if path not in listed), None)
            what = f"{gone} is gone" if gone else f"{odd} has come, and its name stands before one that is known"
            raise SourceError(
                f"{self._folder}: {what}: the files of a folder are read in the order of their names. Put back what is "
                "missing, give what is new a later name, or publish under another producer name"
            )
        self._add(listed[len(known) :])

    def _add(self, paths: list[Path]) -> None:
        new = [FileSource(path, format=self._format, key=self._key, sequence_field=self._field) for path in paths]
        with self._lock:
            self._files += new


def open_files(
    paths: Sequence[Path],
    *,
    follow: bool = False,
    format: Format | str | None = None,
    key: str | None = None,
    sequence_field: str | None = None,
) -> FileSource | FileSet:
    """What `ratchet publish PATHS...` reads: one file, several in their order, or a folder. Arguments as `FileSet`."""
    if follow or len(paths) != 1 or paths[0].is_dir():
        return FileSet(paths, follow=follow, format=format, key=key, sequence_field=sequence_field)
    return FileSource(paths[0], format=format, key=key, sequence_field=sequence_field)


def records_of(
    paths: Sequence[Path],
    *,
    format: Format | str | None = None,
    key: str | None = None,
    sequence_field: str | None = None,
) -> Iterator[Record]:
    """Every record of these files as `ratchet publish` sends it, from the first on: sequence, key and value.

    Which partition it is sent to follows from its key, see `partition_of`.

    Raises:
        SourceError: as `FileSet` and its `read`.
        SettingsError: as `FileSet`.
    """
    yield from open_files(paths, format=format, key=key, sequence_field=sequence_field).read(0)
