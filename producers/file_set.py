"""Several files as one source: a list of files, or a folder that grows.

`open_files` makes a source of paths, as `ratchet publish PATHS...` does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from kafka_ratchet.errors import SettingsError, SourceError
from kafka_ratchet.producers.file_mark import BEFORE, FileMark, Finished, chained
from kafka_ratchet.producers.files import ANOTHER_NAME, FileSource, SequenceRefused
from kafka_ratchet.producers.folder import PresentFile, RotationUnclear, list_files, list_folder
from kafka_ratchet.producers.formats import FIELD_MARK, Format, RisingSequences, field_mark, require_field_mark
from kafka_ratchet.producers.headers import NOTHING_YET
from kafka_ratchet.producers.source import Record
from kafka_ratchet.producers.units import FilePosition, FileRecogniser

BYTE_BITS = 40
"""Bits of a sequence for the offset in a file: a sequence is the file's number, from 0, times 2^40, plus the byte. This
allows files of a terabyte, and eight million of them. The sequences of a file thus do not depend on the length of
earlier files, and none of these has to be opened to continue."""

LOOK_EVERY_S = 0.5
"""Seconds between two listings of a followed folder."""

UNCLEAR_FOR_S = 10.0
"""Seconds without any change after which an unfinished rotation counts as an error.

While a program rotates its logs, the files are for a moment in an order that no finished rotation leaves. A rotation
that copies or compresses a file changes sizes or times all the while, so it does not count as an error.
"""

QUIET_S = 2.0
"""Seconds without a write after which a renamed log counts as finished, once its successor has content or is renamed.

A program continues writing to a renamed log until it opens the new one. If the log grows later nevertheless, reading
fails.
"""


@dataclass(slots=True)
class _Unit:
    """File of a `FileSet`. Its index in the list is its number, which stays when the file is renamed or compressed."""

    file: FileSource | None
    """Reader of the file; None: the file is finished and acknowledged, and rotation has removed it."""
    found: PresentFile | None
    """File as listed last; None: rotation has removed it."""
    finished: Finished | None = None


class FileSet:
    """Ordered files as one source, each read as `FileSource` reads it.

    Published files must stay, byte for byte: a file that is missing, moved or changed since it was read is refused,
    because the following numbers would be wrong. The last file may grow, and files may be appended. A file may be
    renamed and compressed, because it is recognised by its content.

    In a folder, `app.log.1`, `app.log-20260131` or `app-20260131.log.gz` count as rotated from `app.log`. They are read
    before it, oldest first, and may be removed once read.

    Args:
        paths: files in the order to read; or one folder, for its files in the order of their names, without those that
            begin with a dot.
        follow: True waits for more content in a folder, or in one log and its rotated files, until `stop`. Of the
            last file only whole lines are read. A file with a later name finishes the one before, which must not be
            written to any more. Compressed files must be complete when they are moved into the folder.
        format: format of every file, see `FileSource`.
        key: field with the record's key, see `FileSource`.
        sequence_field: field with the sequence, see `FileSource`; it must increase through all files.
        delimiter: delimiter of CSV, see `FileSource`.

    Raises:
        SourceError: there are no files, or one of them cannot be read.
        SettingsError: `follow` is set for several files, or as `FileSource`.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        follow: bool = False,
        format: Format | str | None = None,
        key: str | None = None,
        sequence_field: str | None = None,
        delimiter: str | None = None,
    ) -> None:
        if follow and len(paths) != 1:
            raise SettingsError(
                f"{', '.join(map(str, paths))}: --follow takes a single folder or a single log. Name only one"
            )
        self._paths = list(paths)
        self._folder = paths[0] if len(paths) == 1 and paths[0].is_dir() else paths[0].parent if follow else None
        self._log = paths[0].name if follow and self._folder != paths[0] else None
        self.label = str(paths[0] if len(paths) == 1 else f"{len(paths)} files")
        """Name of the source, for display."""
        self._follow, self._format, self._key, self._field = follow, format, key, sequence_field
        self._delimiter = delimiter
        self._stop = threading.Event()
        self._units: list[_Unit] = []
        """Files by number; the list is replaced when files move, so that other threads may read it."""
        self._recognised = FileRecogniser(self.label)
        self._is_tracked = False
        self._at = 0
        self._marked = 0
        """Number of the file with the newest mark: later files may still have to give one."""
        self._seen: list[tuple[str, int, int]] = []
        self._unclear: tuple[object, float] | None = None
        self._since: dict[object, float] = {}
        """Time of the listing since which a file has not changed, by its state."""
        self._units = [_Unit(self._source(file), file) for file in self._listed()]
        if not self._units and (self._log or not follow):
            raise SourceError(f"{self.label}: {'there is no such file' if self._log else 'has no files'}")

    @property
    def size_bytes(self) -> int:
        """Return the size of all files on disk, at the last listing."""
        return sum(unit.file.size_bytes for unit in self._units if unit.file and unit.found)

    @property
    def position_bytes(self) -> int:
        """Return the bytes on disk that `read` has passed, in all files together."""
        files = [unit.file if unit.found else None for unit in self._units]
        return sum(file.size_bytes for file in files[: self._at] if file) + sum(
            file.position_bytes for file in files[self._at : self._at + 1] if file
        )

    def stop(self) -> None:
        """Make `read` end once it has yielded the present content."""
        self._stop.set()

    def here(self) -> tuple[Path, int]:
        """Return file and line of the newest record; valid only if the files are read from the beginning."""
        return self._there(self._units[self._at]).here()

    def origin(self) -> str:
        """Return file, line and byte of the newest record, as text."""
        return self._there(self._units[self._at]).origin()

    def place(self, sequence: int) -> str:
        """Return the place of a sequence in the source, as text for a message."""
        number, byte = divmod(sequence, 1 << BYTE_BITS)
        if self._field is not None or number >= len(self._units):
            return f"sequence {sequence}"
        unit = self._units[number]
        name = unit.file.path.name if unit.file else unit.finished.name if unit.finished else ""
        return f"byte {byte} of {name}"

    def read(self, from_sequence: int) -> Iterator[Record]:
        """Yield the records with this sequence or a higher one.

        Raises:
            SourceError: as `FileSource.read`; or a file changed or disappeared before it was read to its end.
        """
        number, byte = (0, 0) if self._field else divmod(max(0, from_sequence), 1 << BYTE_BITS)
        rising = RisingSequences()
        if self._follow:
            self._track()
        else:
            for index, unit in enumerate(self._units[number:]):  # what grows is checked row by row
                self._there(unit).check_rows(0 if index else byte)
        while True:
            stopped, self._at = self._stop.is_set(), number
            if self._follow and not self._find_changes(number, stopped):
                self._pause()
                continue
            if number < len(self._units):
                file, is_over = self._there(self._units[number]), self._is_over(number, stopped)
                try:
                    is_read = yield from self._pass(number, byte, from_sequence, rising, is_over)
                except SourceError as error:
                    if isinstance(error, SequenceRefused) or not self._follow or file.still_ends_as_read():
                        raise
                    self._seen = []  # it moved while it was read: see where to
                    byte = file.behind
                    continue
                byte = max(byte, file.behind)
                if not is_read:
                    continue
                if is_over and number < len(self._units) - 1:
                    self._finish(number)
                    number, byte = number + 1, 0
                    continue
            if not self._follow or stopped:
                return
            self._pause()

    def _pass(
        self, number: int, byte: int, from_sequence: int, rising: RisingSequences, is_over: bool
    ) -> Generator[Record, None, bool]:
        """Yield the present records of a file from a byte on.

        Returns:
            False if a caller took a record for so long that the files have to be listed before the next one.
        """
        # Each pass checks the columns: the first one may have seen only the line of the names.
        file, is_first = self._there(self._units[number]), True
        whole = self._follow and not is_over
        may_wait = not whole or file.compression != ""  # another pass decompresses the file from its beginning
        with closing(file.read_lines(byte, whole=whole)) as records:
            for record in records:
                if is_first:
                    self._check_columns(number)
                    is_first = False
                if self._field is not None:
                    file.require_rising(record, rising)
                began = time.monotonic()
                yield from self._numbered(record, number, from_sequence)
                if not may_wait and time.monotonic() - began > LOOK_EVERY_S:
                    return False
        return True

    def mark(self, sequence: int) -> str:
        """Return a mark of the files up to the end of a record, with a digest of each file's bytes.

        Raises:
            SourceError: there are too few files, or the record's file is too short.
        """
        if self._field is not None:
            return field_mark(self._field, self._key)
        self._track()
        number, byte = divmod(sequence, 1 << BYTE_BITS) if sequence >= 0 else (0, NOTHING_YET)
        units = self._units
        if number >= len(units):
            if sequence < 0:
                return FileSource.NO_MARK
            raise self._too_few(number)
        mark = self._there(units[number]).file_mark(byte)
        if mark is None:
            return FileSource.NO_MARK
        self._marked = number
        before = [self._finish(each) for each in range(number)]
        chain = ""
        for finished in before[:-BEFORE]:
            chain = chained(chain, finished)
        return replace(mark, number=number, before=tuple(before[-BEFORE:]), chain=chain).encode()

    def check(self, sequence: int, mark: str) -> str | None:
        """Require that the files still contain the published bytes that a mark describes.

        The files' names may have changed.

        Raises:
            SourceError: a file differs; the error names it, and the bytes that contain the change.
        """
        self._track()
        if self._field is not None or sequence < 0 or mark.startswith(FIELD_MARK):
            return require_field_mark(self.label, mark, self._field, self._key) if sequence >= 0 else None
        number, byte = divmod(sequence, 1 << BYTE_BITS)
        made = FileMark.decode(mark)
        if made is None:
            raise SourceError(
                f"{self.label}: has a stored position that this version cannot read ({mark[:100]}). {ANOTHER_NAME}"
            )
        if number >= len(self._units) and self._folder is None:
            raise self._too_few(number)
        if (made.number, made.sequence) != (number, byte):
            raise SourceError(
                f"{self.label}: was published up to sequence {made.number << BYTE_BITS | made.sequence}, and the "
                f"producer name has since reached {sequence} with another source. Publish it under another producer "
                "name"
            )
        place = FilePosition(made.end, made.digest, made.name, made.device, made.inode, made)
        while not self._settle(
            number,
            made.before,
            made.number - len(made.before),
            made.chain,
            place,
            not self._follow or self._stop.is_set(),
        ):
            self._pause()
        unit = self._units[number]
        digest = self._recognised.digest(unit.found, made.end) if unit.found else None
        self._there(unit).compare(replace(made, number=0, before=(), chain=""), digest)
        return None

    def require_all_files(self, sequence: int, mark: str) -> None:
        """Require all files up to a stored position, so that all lines are sent again with their sequences.

        Without the stored position, the remaining files would be numbered from 0. Their lines would get sequences
        of earlier files, and the worker would drop them as duplicates.

        Raises:
            SourceError: rotation has removed a file, or a file differs.
        """
        self.check(sequence, mark)
        gone = [unit.finished.name for unit in self._units if unit.found is None and unit.finished]
        if gone:
            raise SourceError(
                f"{self.label}: {len(gone)} of the files published under this producer name are missing "
                f"({', '.join(name or 'an older one' for name in gone[:3])}), so that the others cannot be sent again "
                "with the same sequences. Put them back, go on after the stored position (--topic-replaced keep), or "
                "publish the present files under another producer name"
            )

    def _pause(self) -> None:
        self._stop.wait(LOOK_EVERY_S)

    def _track(self) -> None:
        self._is_tracked = True
        for unit in self._units:
            if unit.file:
                unit.file.is_tracked = True

    def _numbered(self, record: Record, number: int, from_sequence: int) -> Iterator[Record]:
        if self._field is None:
            if record.sequence >> BYTE_BITS:
                raise SourceError(f"{self.label}: file {number} is longer than 2^{BYTE_BITS} bytes; split it")
            yield Record(number << BYTE_BITS | record.sequence, record.key, record.value)
        elif record.sequence >= from_sequence:
            yield record

    def _check_columns(self, number: int) -> None:
        """Refuse a restarted CSV log without column names, because its first row would be read as names."""
        this, before = self._units[number], self._units[number - 1] if number else None
        if before is None or before.file is None or this.file is None or before.found is None or this.found is None:
            return
        if this.found.base == before.found.base and before.file.columns not in (None, this.file.columns):
            raise SourceError(
                f"{this.file.path}: line 1: does not name the columns of {before.file.path.name}, the log before "
                "it. Write the same column names into line 1 of each log, or publish with --format lines"
            )

    def _finish(self, number: int) -> Finished:
        unit = self._units[number]
        if unit.finished is None:
            place = unit.found.place if unit.found else None
            unit.finished = replace(self._there(unit).finished(), place=place)
        return unit.finished

    def _there(self, unit: _Unit) -> FileSource:
        if unit.file is None:
            raise self._missing(unit.finished.name if unit.finished else "a file")
        return unit.file

    def _missing(self, name: str) -> SourceError:
        return SourceError(
            f"{self.label}: {name} was published and is missing: it cannot be published again. Put it back"
        )

    def _is_over(self, number: int, stopped: bool) -> bool:
        """Return True if no more lines will be added to a file."""
        if number >= len(self._units) - 1:
            return not self._follow
        this, following = self._units[number].found, self._units[number + 1].found
        if not self._follow or this is None or following is None or this.base != following.base:
            return True
        # An empty successor rotated in its turn proves nothing, unless it is newer: then the program wrote nothing to
        # this file for a whole period. Otherwise rotation would remove a quiet log's lines before it counts as read.
        is_begun = any(unit.found and unit.found.size for unit in self._units[number + 1 :])
        is_begun |= following.tag is not None and this.changed_ns <= following.changed_ns
        return is_begun and (stopped or time.monotonic() - self._since.get(this.state, time.monotonic()) >= QUIET_S)

    def _listed(self) -> list[PresentFile]:
        if self._folder is None:
            return list_files(self._paths)
        known = {unit.found.base for unit in self._units if unit.found}
        found, now = list_folder(self._folder, known, self._log), time.monotonic()
        # Not by the files' times: a file server's clock may be slow.
        self._since = {file.state: self._since.get(file.state, now) for file in found}
        return found

    def _find_changes(self, number: int, stopped: bool) -> bool:
        """Search for moved and new files.

        Returns:
            False while a rotation is in progress.

        Raises:
            SourceError: the rotation does not end, or a file to send again is missing.
        """
        try:
            if self._seems_unmoved(self._listed(), number):
                return True
        except RotationUnclear:
            pass  # `_settle` waits for the end of it
        before = [self._finish(each) for each in range(min(number, len(self._units)))]
        # Files of an earlier run, to be sent again, keep their numbers too.
        for unit in self._units[number:]:
            if unit.finished is None:
                break
            before.append(unit.finished)
        reached, place = len(before), FilePosition(0, "", "", 0, 0)
        if reached < len(self._units):
            unit = self._units[reached]
            file = self._there(unit)
            digest = file.digest
            place = FilePosition(digest.size, digest.text, file.path.name, file.device, file.inode)
            if not place.end and unit.found:
                place = replace(place, unread=unit.found.place)
        if not self._settle(reached, before, 0, "", place, stopped):
            return False
        for unit in self._units[number:reached]:
            if unit.found is None and unit.finished:
                raise self._missing(unit.finished.name)
        return True

    def _seems_unmoved(self, found: list[PresentFile], number: int) -> bool:
        """Return True if the files are as at the last listing, apart from added lines.

        Of the growing file, only the last lines read are compared.
        """
        seen = [(file.path.name, file.device, file.inode) for file in found]
        now = {(file.path.name, file.device, file.inode): file for file in found}
        units = self._units
        if seen != self._seen or self._unclear:
            return False
        for unit in units[:number]:
            if unit.found and now[unit.found.path.name, unit.found.device, unit.found.inode].state != unit.found.state:
                return False
        for unit in units[number:]:
            if unit.found:
                unit.found = now[unit.found.path.name, unit.found.device, unit.found.inode]
        return number >= len(units) or self._there(units[number]).still_ends_as_read()

    def _settle(
        self, number: int, before: Sequence[Finished], older: int, chain: str, place: FilePosition, at_once: bool
    ) -> bool:
        found: list[PresentFile] = []
        try:
            found = self._listed()
            places, index = self._recognised.find(found, before, older, chain, place)
            self._number_files(found, places, index, [*self._unlisted_files(places[:older]), *before], number, place)
        except RotationUnclear as error:
            state = [(file.path.name, file.state) for file in found]
            if self._unclear is None or self._unclear[0] != state:
                self._unclear = state, time.monotonic()
            if at_once or time.monotonic() - self._unclear[1] >= UNCLEAR_FOR_S:
                raise SourceError(str(error)) from None
            return False
        self._unclear = None
        self._recognised.forget(found)
        self._seen = [(file.path.name, file.device, file.inode) for file in found]
        return True

    def _number_files(
        self,
        found: list[PresentFile],
        places: list[PresentFile | None],
        index: int,
        finished: list[Finished],
        number: int,
        place: FilePosition,
    ) -> None:
        """Number the files: first the finished files, then the file being read, then later files.

        Args:
            found: present files, in their order.
            places: present file of each finished one; None: rotation has removed it.
            index: index in `found` of the file being read.
            finished: finished files, from the first.
            number: number of the file being read.
            place: position in that file.
        """
        units = [self._unit(each, at, known) for at, (each, known) in enumerate(zip(places, finished, strict=True))]
        if place.end and place.mark is None:
            current = self._units[number]
            self._move(self._there(current), found[index].path)
            current.found = found[index]
            units.append(current)
            index += 1
        self._units = units + [_Unit(self._source(file), file) for file in found[index:]]

    def _unlisted_files(self, places: Sequence[PresentFile | None]) -> Iterator[Finished]:
        """Yield a description of each finished file that a mark does not list.

        These are the oldest ones; the mark covers them by one digest.

        A file that rotation has removed has an empty name.
        """
        for found in places:
            digest = self._recognised.digest(found) if found else None
            yield Finished(found.path.name, digest.size, digest.text) if found and digest else Finished("", 0, "")

    def _unit(self, found: PresentFile | None, number: int, finished: Finished) -> _Unit:
        if number < len(self._units):
            unit = self._units[number]
            if unit.file and unit.finished is finished:  # this run has numbered the file
                if found is None:
                    # Records in flight still need its digests.
                    return _Unit(unit.file if number >= self._marked else None, None, finished)
                self._move(unit.file, found.path)
                return _Unit(unit.file, found, finished)
            if unit.file and found and unit.found and unit.found.path == found.path:
                return _Unit(unit.file, found, finished)
        return _Unit(self._source(found) if found else None, found, finished)

    def _move(self, file: FileSource, path: Path) -> None:
        try:
            file.moved_to(path)
        except SourceError as error:  # renamed once more since it was listed
            raise RotationUnclear(str(error)) from None

    def _source(self, found: PresentFile) -> FileSource:
        if self._folder and not found.path.exists():
            raise RotationUnclear(f"{found.path}: there is no such file")
        file = FileSource(
            found.path,
            format=self._format,
            key=self._key,
            sequence_field=self._field,
            delimiter=self._delimiter,
        )
        file.is_tracked = self._is_tracked
        return file

    def _too_few(self, number: int) -> SourceError:
        return SourceError(
            f"{self.label}: {number + 1} files have been published under this producer name, and there "
            f"are {len(self._units)}. Put back the missing files, or publish under another producer name"
        )


def open_files(
    paths: Sequence[Path],
    *,
    follow: bool = False,
    format: Format | str | None = None,
    key: str | None = None,
    sequence_field: str | None = None,
    delimiter: str | None = None,
) -> FileSource | FileSet:
    """Open one file, several files in their order, or a folder; see `FileSet` for arguments and errors."""
    if follow or len(paths) != 1 or paths[0].is_dir():
        return FileSet(paths, follow=follow, format=format, key=key, sequence_field=sequence_field, delimiter=delimiter)
    return FileSource(paths[0], format=format, key=key, sequence_field=sequence_field, delimiter=delimiter)


def records_of(
    paths: Sequence[Path],
    *,
    format: Format | str | None = None,
    key: str | None = None,
    sequence_field: str | None = None,
    delimiter: str | None = None,
) -> Iterator[Record]:
    """Yield every record of some files, from the first, as `ratchet publish` sends it.

    A record has sequence, key and value; `partition_of` returns its partition.

    Raises:
        SourceError: as `FileSet` and its `read`.
        SettingsError: as `FileSet`.
    """
    yield from open_files(paths, format=format, key=key, sequence_field=sequence_field, delimiter=delimiter).read(0)
