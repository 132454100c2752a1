"""Files as sources: one record per line, its sequence the byte offset at which the line begins, uncompressed.

Here is by what a file is known again; `lines.py` reads it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kafka_ratchet.errors import SourceError
from kafka_ratchet.producers.compression import READ_ERRORS, compression_of, decompressed, go_to
from kafka_ratchet.producers.file_mark import ContentDigest, FileMark, Finished, compare, read_digest
from kafka_ratchet.producers.lines import FileLines
from kafka_ratchet.producers.old_marks import NO_MARK, check_old_mark

ANOTHER_NAME = "Put back what was published, or publish under another producer name"


class FileSource(FileLines):
    """The records of a file, plain or compressed with gzip or zstd.

    A line ends at LF or CR LF, which are not part of the value. The last one may lack it; a program that still writes
    the file must not add to a line that has been published. Lines must be UTF-8.

    The file is recognised by a digest of all bytes up to the end of the last record that was published (`mark` and
    `check`), however it is compressed. From the first of these calls on, `read` keeps the digest at each record until
    `mark` asks for it or a later one.

    A plain file is resumed by seeking, however long it is. Of a compressed one everything before has to be
    decompressed again, and with `sequence_field` everything is read again from the beginning.

    Args:
        path: the file.
        format: None: by the name, "ndjson" for .ndjson and .jsonl, "csv" for .csv (each perhaps with .gz or .zst), else
            "lines". See `LineFormat`.
        key: the member of each JSON object, or the column, whose text is the record's key.
        sequence_field: the member or column that is the record's sequence, in place of its byte offset. It must rise.

    Raises:
        SourceError: there is no such file, it is a folder, or it cannot be read.
        SettingsError: a field is asked for, but lines have none.
    """

    NO_MARK = NO_MARK
    _known: FileMark | None = None
    """The newest mark."""

    def mark(self, sequence: int) -> str:
        """What the file is up to the end of this record: a digest of all its bytes, and what it was called.

        With `sequence_field` the data say what they are, and the mark is the field's name.

        Raises:
            SourceError: the file is shorter than that.
        """
        if self._lines.sequence_field is not None:
            return f"field:{self._lines.sequence_field}"
        mark = self.file_mark(sequence)
        return mark.encode() if mark else NO_MARK

    def check(self, sequence: int, mark: str) -> str | None:
        """Find the file to be the one that this mark was made of: the same bytes up to there, whatever comes behind.

        Reads all of these bytes, and no more than a megabyte of them into memory.

        Returns:
            A sentence for the user, where the mark is of an earlier version and says less.

        Raises:
            SourceError: it is another; with the bytes between which it has changed.
        """
        self.is_tracked = True
        if self._lines.sequence_field is not None or mark.startswith("field:"):
            if mark != self.mark(sequence):
                raise self.changed(f"was published with other sequences ({mark[:100]})")
            return None
        if sequence < 0:
            return None
        made = FileMark.decode(mark)
        if made is None:
            said = check_old_mark([self], 0, sequence, mark)
            self._known, self.digest = self._mark_by_reading(sequence)
            return said
        if made.sequence != sequence:
            raise self.changed(f"was left at byte {made.sequence}, and the name went on to {sequence} without it")
        if made.number:
            raise self.changed(f"is one file, and {made.number + 1} have been read under this producer name")
        self.compare(made)
        return None

    def compare(self, mark: FileMark, digest: ContentDigest | None = None) -> None:
        """As `check`, with a mark of this file alone; `digest`: all up to there has just been read, and is right."""
        if self._known == mark:
            return
        if mark.form != self._form:
            raise self.changed(
                f"was published with another --format or --key ({mark.form}, and now {self._form}): records that are "
                "sent again would not meet their first copies"
            )
        try:
            with self.path.open("rb") as raw:
                stream = decompressed(raw, self.compression)
                if digest is None:
                    self.digest = compare(stream, mark, self.changed)
                else:
                    go_to(stream, 0, mark.end, self.compression)
                    self.digest = digest.copy()
                if not mark.ended and not b"\r\n".startswith(following := stream.read(2)) and following[:1] != b"\n":
                    raise self.changed(
                        f"has more in the line at byte {mark.sequence} than when that was published, up to byte "
                        f"{mark.end} and without an end"
                    )
        except READ_ERRORS as error:
            raise self._unreadable(mark.end, error) from None
        self.is_tracked, self._known = True, mark

    def file_mark(self, sequence: int) -> FileMark | None:
        """The mark of this record, by its first byte; None below 0."""
        self.is_tracked = True
        last = None
        while self._tape and self._tape[0][0] <= sequence:
            last = self._tape.popleft()
        if sequence < 0:
            return None
        if last is not None and last[0] == sequence:
            self._known = self._mark_of(*last, self.digest.checkpoints)
        elif self._known is None or self._known.sequence != sequence:
            self._known, _ = self._mark_by_reading(sequence)
        return self._known

    def finished(self) -> Finished:
        """What the whole file is, of which nothing is to be read any more."""
        digest = self.digest
        if not self.is_tracked or digest.size != self.behind or not self.behind:
            digest = self.read_whole()
        return Finished(self.path.name, digest.size, digest.running.hexdigest())

    def moved_to(self, path: Path) -> None:
        """The same bytes are found under another name now.

        Raises:
            SourceError: they cannot be read there.
        """
        try:
            status = path.stat()
            self.path, self.compression = path, compression_of(path)
            self.device, self.inode = status.st_dev, status.st_ino
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror}") from None

    def still_ends_as_read(self) -> bool:
        """Whether this is the file that was read last, and what was read of it still ends as it did.

        It may be false where all is well. It is true for a file that was cut off and written anew as long as before
        only if the last bytes are the same as well.
        """
        try:
            with self.path.open("rb") as raw:
                status = os.fstat(raw.fileno())
                if (status.st_dev, status.st_ino) != (self.device, self.inode):
                    return False
                if self.compression:
                    return status.st_size == self.size_bytes
                tail = os.pread(raw.fileno(), len(self._tail), self.behind - len(self._tail))
                return status.st_size >= self.behind and tail == self._tail
        except OSError:
            return False

    def changed(self, what: str) -> SourceError:
        """The error for a file that is not what was published."""
        return SourceError(f"{self.path}: {what}. {ANOTHER_NAME}")

    def _mark_of(
        self, began: int, end: int, ended: bool, digest: Any, checkpoints: tuple[tuple[int, str], ...]
    ) -> FileMark:
        at = tuple(each for each in checkpoints if each[0] <= end)
        place = self.path.name, self.device, self.inode
        return FileMark(began, end, ended, digest.hexdigest(), at, *place, self._form)

    def _mark_by_reading(self, sequence: int) -> tuple[FileMark, ContentDigest]:
        """Of a record that was not read just now."""
        digest = ContentDigest()
        try:
            with self.path.open("rb") as raw:
                stream = decompressed(raw, self.compression)
                read_digest(stream, digest, sequence)
                line = self._lines.next_line(stream)
        except READ_ERRORS as error:
            raise self._unreadable(digest.size, error) from None
        if not line:
            raise self._too_short(sequence)
        digest.update(line)
        ended = line.endswith(b"\n")
        return self._mark_of(sequence, digest.size, ended, digest.running, digest.checkpoints), digest
