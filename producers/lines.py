"""The records of one file, plain or compressed: what `kafka_ratchet.producers.files.FileSource` reads."""

from __future__ import annotations

import io
import os
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

from kafka_ratchet.errors import SettingsError, SourceError
from kafka_ratchet.producers.compression import READ_ERRORS, compression_of, damage, decompressed, go_to
from kafka_ratchet.producers.file_mark import BLOCK_BYTES, ContentDigest, read_digest
from kafka_ratchet.producers.formats import MAX_LINE_BYTES, Format, LineFormat, Parsed, Unusable, format_of
from kafka_ratchet.producers.source import Record

TAIL_LINES = 16
"""So many lines before the place that was reached are compared at each look at a file that grows. All of them are
when it has been renamed, copied or compressed, and when publishing resumes."""


class FileLines:
    """One file, read from any byte on; what is read is digested as it goes by. See `FileSource`."""

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
            self.device, self.inode = status.st_dev, status.st_ino
        except FileNotFoundError:
            raise SourceError(f"{path}: there is no such file") from None
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror}") from None
        self.size_bytes = status.st_size
        """On disk, when last looked at."""
        self.behind = 0
        """The byte behind the last line that `read_lines` has taken."""
        self.line = 0
        """The line that its newest record begins in, where it began with the file's first."""
        self.digest = ContentDigest()
        """Of all bytes before `behind`, once `is_tracked`."""
        self.is_tracked = False
        self._form = f"{self._lines.name};key={key}"
        self._raw: io.BufferedReader | None = None
        self._tape: deque[tuple[int, int, bool, Any]] = deque()
        """Of each record that may be under way: its first byte, the byte behind it, whether its line has an end, and
        the digest up to there. Some 350 bytes each; there are as many as the client's queue has."""
        self._tail = b""

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
        """Where in the source the record of this sequence is, as text for a message."""
        return f"{'byte' if self._lines.sequence_field is None else 'sequence'} {sequence}"

    @property
    def columns(self) -> list[str] | None:
        """The names of the columns, of CSV that has been read."""
        return self._lines.columns

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
            for _ in self._read_lines(0 if self._lines.sequence_field else from_byte, whole=False, tracks=False):
                pass

    def read_lines(self, from_byte: int, *, whole: bool = False) -> Iterator[Record]:
        """As `read`, by the byte at any rate.

        Args:
            from_byte: the records that begin there or later.
            whole: leave out a last line without an end: it is still being written.
        """
        yield from self._read_lines(from_byte, whole=whole, tracks=self.is_tracked)

    def _read_lines(self, from_byte: int, *, whole: bool, tracks: bool) -> Iterator[Record]:
        offset, line_number = 0, 1
        tape = self._tape if tracks and self._lines.sequence_field is None else None
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
                if tracks:
                    self._begin_tracking(raw, offset)
                if offset != self.behind:
                    self._tail = b""
                digest, self.behind = self.digest, offset
                recent: deque[bytes] = deque(maxlen=TAIL_LINES)
                while line := self._lines.next_line(stream, whole=whole):
                    began, offset = offset, offset + len(line)
                    if tracks:
                        digest.update(line)
                        recent.append(line)
                    if parsed := self._at(began, line):
                        if tape is not None:
                            tape.append((began, offset, line.endswith(b"\n"), digest.running.copy()))
                        self.behind, self.line = offset, line_number
                        number = began if parsed.sequence is None else parsed.sequence
                        yield Record(number, parsed.key, parsed.value)
                    self.behind = offset
                    line_number += line.count(b"\n")
                # As they were read: what the file has there by now may be another matter.
                self._tail = b"".join(recent) or self._tail
        except Unusable as error:
            raise self._bad(offset, str(error)) from None
        except READ_ERRORS as error:
            raise self._unreadable(offset, error) from None

    def read_blocks(self, from_byte: int, block_bytes: int | None = None) -> Iterator[tuple[int, bytes]]:
        """The text from the first line on that begins at this byte or later, in blocks of whole lines.

        For who finds the records in it faster than `read`: `blocks_of` says whether that is possible, `parse_at` reads
        a line as `read` would, and `took` has to be told of each block before its records are sent.

        Args:
            from_byte: of the file, uncompressed.
            block_bytes: about so many at a time; None: a megabyte.

        Returns:
            Each block's first byte, and the block; the last line of the last one may lack its end.

        Raises:
            SourceError: as `read`.
        """
        offset = 0
        try:
            with self.path.open("rb") as raw:
                self._raw = raw
                stream = decompressed(raw, self.compression)
                if from_byte:
                    offset = self._go_behind(stream, from_byte, 0)
                if self.is_tracked:
                    self._begin_tracking(raw, offset)
                self.behind, rest = offset, b""
                while block := stream.read(block_bytes or BLOCK_BYTES):
                    if len(rest) + (block.find(b"\n") + 1 or len(block)) > MAX_LINE_BYTES:
                        raise self._bad(offset, f"the line is longer than {MAX_LINE_BYTES} bytes; is the format right?")
                    whole = block.rfind(b"\n") + 1
                    if not whole:
                        rest += block
                        continue
                    yield offset, rest + block[:whole]
                    offset += len(rest) + whole
                    rest = block[whole:]
                if rest:
                    yield offset, rest
        except READ_ERRORS as error:
            raise self._unreadable(offset, error) from None

    @property
    def blocks_of(self) -> tuple[Literal["ndjson", "lines"], str | None] | None:
        """The format and the key of lines that may be read in blocks; None: by `read` alone.

        A row of CSV may go on in the next line, and with `sequence_field` the numbers are not the lines' places.
        """
        format = self._lines.name
        if self._lines.sequence_field is not None or format not in ("ndjson", "lines"):
            return None
        return ("ndjson" if format == "ndjson" else "lines"), self._lines.key

    def parse_at(self, began: int, line: bytes) -> Parsed | None:
        """What `read` makes of the line that begins at this byte; None where it is no record.

        Raises:
            SourceError: as `read`.
        """
        return self._at(began, line)

    def took(self, offset: int, block: bytes, last: tuple[int, int] | None) -> None:
        """The records of this block of `read_blocks` are about to be sent.

        Args:
            offset: the block's first byte.
            block: it, or its first lines.
            last: of its last record, its first byte and the one behind its line; None: it has none
        """
        if self.is_tracked:
            text = memoryview(block)
            if last is not None:
                began, end = last
                self.digest.update(text[: end - offset])
                is_ended = block[end - offset - 1 : end - offset] == b"\n"
                self._tape.append((began, end, is_ended, self.digest.running.copy()))
                text = text[end - offset :]
            self.digest.update(text)
        self.behind = offset + len(block)

    def _at(self, began: int, line: bytes) -> Parsed | None:
        try:
            return self._lines.parse(line)
        except Unusable as error:
            raise self._bad(began, str(error)) from None

    def read_whole(self, until: int | None = None) -> ContentDigest:
        """The digest of what there is now, up to this byte.

        Raises:
            SourceError: it cannot be read.
        """
        digest = ContentDigest()
        try:
            with self.path.open("rb") as raw:
                return read_digest(decompressed(raw, self.compression), digest, until)
        except READ_ERRORS as error:
            raise self._unreadable(digest.size, error) from None

    def _begin_tracking(self, raw: io.BufferedReader, offset: int) -> None:
        status = os.fstat(raw.fileno())
        self.device, self.inode, self.size_bytes = status.st_dev, status.st_ino, status.st_size
        if self.digest.size != offset:
            self.digest = self.read_whole(offset)

    def _go_behind(self, stream: BinaryIO, from_byte: int, offset: int) -> int:
        """Go to the first line that begins at this byte or later; from `offset`, where the stream is."""
        # If the byte before is a line's end, a line begins here; else what is left of that line is passed over.
        reached = go_to(stream, offset, from_byte - 1, self.compression)
        rest = self._lines.next_line(stream)
        if reached < from_byte - 1 or not rest:
            raise self._too_short(from_byte - 1)
        return from_byte - 1 + len(rest)

    def _unreadable(self, offset: int, error: Exception) -> SourceError:
        if what := damage(error):
            what = f"the {self.compression} stream {what}, then publish it again"
        return self._bad(offset, what or f"cannot be read: {error}")

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
