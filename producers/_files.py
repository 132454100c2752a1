"""Files as sources: one record per line, its sequence the byte offset at which the line begins, uncompressed."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from errors import SettingsError, SourceError
from producers._compression import READ_ERRORS, compression_of, damage, decompressed, go_to
from producers._formats import Format, LineFormat, Unusable, format_of
from producers._source import Record

HEAD_BYTES = 4096
"""How much of the file's beginning is its mark: enough to tell files apart, read with the first page."""


class FileSource:
    """The records of a file, plain or compressed with gzip or zstd.

    A line ends at LF or CR LF, which are not part of the value. The last one may lack it; a program that still writes
    the file must not add to a line that has been published. Lines must be UTF-8.

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

    NO_MARK = f"sha256:{hashlib.sha256().hexdigest()}:0"
    """The mark where nothing has been read."""

    def __init__(
        self,
        path: Path,
        *,
        format: Format | str | None = None,
        key: str | None = None,
        sequence_field: str | None = None,
    ) -> None:
        self.path = path
        self.label = str(path)
        """What a display calls it."""
        try:
            self._lines = LineFormat(format or format_of(path), key, sequence_field)
        except SettingsError as error:
            raise SettingsError(f"{path}: {error}") from None
        try:
            status = path.stat()
            if stat.S_ISDIR(status.st_mode):
                raise SourceError(f"{path}: is a folder; name one file, or publish the folder as a FileSet")
            if not stat.S_ISREG(status.st_mode):
                raise SourceError(
                    f"{path}: is not a regular file, and cannot be read again after a crash; save it as a file, or "
                    "publish it as standard input with --sequence-field"
                )
            self.compression = compression_of(path)
        except FileNotFoundError:
            raise SourceError(f"{path}: there is no such file") from None
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror}") from None
        self.size_bytes = status.st_size
        """On disk, when last looked at."""
        self.behind = 0
        """The byte behind the record that `read_lines` has given last."""
        self.line = 0
        """The line that it begins in, where `read_lines` began with the file's first."""
        self._raw: io.BufferedReader | None = None
        self._head = self._read_head()

    @property
    def position_bytes(self) -> int:
        """How far `read` has come, in bytes on disk; for showing progress."""
        try:
            return self._raw.tell() if self._raw else 0
        except ValueError:  # closed: read to its end
            return self.size_bytes

    def here(self) -> tuple[Path, int]:
        """File and line of the record that was given last, where it is read from its beginning."""
        return self.path, self.line

    def place(self, sequence: int) -> str:
        """Where that is, for people."""
        return f"{'byte' if self._lines.sequence_field is None else 'sequence'} {sequence}"

    def read(self, from_sequence: int) -> Iterator[Record]:
        """The records that begin at this byte or later, or that have this sequence or a higher one.

        Of CSV with line ends in its fields: 0, or one more than a record's sequence.

        Raises:
            SourceError: with file, line and byte: a line is not UTF-8, not of the format, or without a usable field;
                the compressed stream is damaged or ends early; or the file ends before `from_sequence`. Of CSV before
                any record is given.
        """
        self.check_rows(from_sequence)
        if self._lines.sequence_field is None:
            yield from self.read_lines(from_sequence)
            return
        for record in self.read_lines(0):
            if record.sequence >= from_sequence:
                yield record

    def check_rows(self, from_byte: int) -> None:
        """Read CSV to its end without giving a record: a row that is wrong may have swallowed the rows behind it.

        Other formats have a record in each line, whatever stands in the others, and are not read twice.

        Raises:
            SourceError: as `read`.
        """
        if self._lines.has_header:
            for _ in self.read_lines(0 if self._lines.sequence_field else from_byte):
                pass

    def read_lines(self, from_byte: int, *, whole: bool = False) -> Iterator[Record]:
        """As `read`, by the byte at any rate.

        Args:
            from_byte: the records that begin there or later.
            whole: leave out a last line without an end: it is still being written.
        """
        offset, line_number = 0, 1
        try:
            with self.path.open("rb") as raw:
                self._raw = raw
                stream = decompressed(raw, self.compression)
                if self._lines.has_header:
                    if not (line := self._lines.next_line(stream, whole=whole)):
                        return
                    self._lines.header(line)
                    offset, line_number = len(line), 1 + line.count(b"\n")
                if from_byte > offset:
                    offset = self._go_behind(stream, from_byte, offset)
                while line := self._lines.next_line(stream, whole=whole):
                    if parsed := self._lines.parse(line):
                        self.behind, self.line = offset + len(line), line_number
                        number = offset if parsed.sequence is None else parsed.sequence
                        yield Record(number, parsed.key, parsed.value)
                    offset += len(line)
                    line_number += line.count(b"\n")
        except Unusable as error:
            raise self._bad(offset, str(error)) from None
        except READ_ERRORS as error:
            if what := damage(error):
                what = f"the {self.compression} stream {what}, then publish it again"
            raise self._bad(offset, what or f"cannot be read: {error}") from None

    def mark(self, sequence: int) -> str:
        """The digest of what stands before this byte, of the file's first 4,096 bytes at most.

        With `sequence_field` the data say what they are, and the mark is the field's name.

        Raises:
            SourceError: the file is shorter than that.
        """
        if self._lines.sequence_field is not None:
            return f"field:{self._lines.sequence_field}"
        self._look_again(sequence)
        if not self.compression and sequence >= self.size_bytes:
            raise self._too_short(sequence)
        length = max(0, min(sequence, HEAD_BYTES))
        if length == 0:
            return self.NO_MARK
        if len(self._head) < length:
            raise self._too_short(sequence)
        return f"sha256:{hashlib.sha256(self._head[:length]).hexdigest()}:{length}"

    def identity(self) -> bytes:
        """What tells a file that is finished from any other: its name, its size and its beginning, as they are now.

        Raises:
            SourceError: it cannot be read any more.
        """
        self._head = self._read_head()
        try:
            self.size_bytes = self.path.stat().st_size
        except OSError as error:
            raise SourceError(f"{self.path}: cannot be read: {error.strerror}") from None
        return b"%s\n%d\n%s" % (os.fsencode(self.path.name), self.size_bytes, hashlib.sha256(self._head).digest())

    def _look_again(self, sequence: int) -> None:
        """A file that grows has more than when it was opened."""
        if len(self._head) < min(sequence, HEAD_BYTES):
            self._head = self._read_head()
        if not self.compression and sequence >= self.size_bytes:
            self.size_bytes = self.path.stat().st_size if self.path.exists() else 0

    def _read_head(self) -> bytes:
        head = b""
        try:
            with self.path.open("rb") as raw:
                stream = decompressed(raw, self.compression)
                while len(head) < HEAD_BYTES and (block := stream.read1(HEAD_BYTES - len(head))):
                    head += block
        except READ_ERRORS as error:
            # `read` meets the same damage, after the records before it, and says where.
            if damage(error) is None:
                raise SourceError(f"{self.path}: cannot be read: {error}") from None
        return head

    def _go_behind(self, stream: BinaryIO, from_byte: int, offset: int) -> int:
        """Go to the first line that begins at this byte or later; from `offset`, where the stream is."""
        # If the byte before is a line's end, a line begins here; else what is left of that line is passed over.
        reached = go_to(stream, offset, from_byte - 1, self.compression)
        rest = self._lines.next_line(stream)
        if reached < from_byte - 1 or not rest:
            raise self._too_short(from_byte - 1)
        return from_byte - 1 + len(rest)

    def _bad(self, offset: int, what: str) -> SourceError:
        return SourceError(f"{self.path}: line {self._line_number(offset)} (byte {offset}): {what}")

    def _too_short(self, sequence: int) -> SourceError:
        return SourceError(
            f"{self.path}: ends before byte {max(sequence, 0)}, up to which it has been published under this producer "
            "name: it is shorter than it was. Publish it under another producer name"
        )

    def _line_number(self, offset: int) -> int:
        """Counted from the beginning, which only a message needs."""
        lines, left = 1, offset
        with self.path.open("rb") as raw:
            stream = decompressed(raw, self.compression)
            while left > 0:
                try:
                    block = stream.read(min(left, 1 << 20))
                except READ_ERRORS:
                    break  # the stream's damage is what the message is about
                if not block:
                    break
                lines += block.count(b"\n")
                left -= len(block)
        return lines
