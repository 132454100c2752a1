"""Files as sources: one record per line; its sequence is the line's byte offset in the uncompressed file.

`FileLines` reads the records of one file, plain or compressed; `FileSource` recognises a file read before.
"""

from __future__ import annotations

import io
import os
import stat
from collections import deque
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

from kafka_ratchet.errors import SettingsError, SourceError
from kafka_ratchet.producers.compression import READ_ERRORS, compression_of, damage, decompressed, go_to
from kafka_ratchet.producers.file_mark import (
    BLOCK_BYTES,
    NO_MARK,
    ContentDigest,
    FileMark,
    Finished,
    compare,
    read_digest,
)
from kafka_ratchet.producers.formats import (
    FIELD_MARK,
    MAX_LINE_BYTES,
    Format,
    LineFormat,
    ParsedRecord,
    RisingSequences,
    UnusableLine,
    field_mark,
    format_of,
    require_field_mark,
    too_long,
)
from kafka_ratchet.producers.source import Record

TAIL_LINES = 16
"""Number of lines before the reached position to compare at each check of a growing file.

After a rename, copy or compression, and when publishing resumes, all lines are compared.
"""

COMPARED_BYTES = 4096
"""Maximum bytes to compare before each further reading of a plain file."""


class FileLines:
    """Reader of one file from any byte, which also computes the digest of the bytes. See `FileSource`."""

    def __init__(
        self,
        path: Path,
        *,
        format: Format | str | None = None,
        key: str | None = None,
        sequence_field: str | None = None,
        delimiter: str | None = None,
    ) -> None:
        self.path = path
        self.label = str(path)
        """Name of the source, for display."""
        try:
            self._lines = LineFormat(format or format_of(path), key, sequence_field, delimiter)
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
        """Size on disk in bytes, at the last check."""
        self.behind = 0
        """Offset after the last line that `read_lines` has read."""
        self.line = 0
        """Line in the file where the newest record begins, if the file was read from its first line."""
        self.digest = ContentDigest()
        """Digest of all bytes before `behind`, once `is_tracked`."""
        self.is_tracked = False
        self._form = self._lines.form
        self._raw: io.BufferedReader | None = None
        self._tape: deque[tuple[int, int, bool, Any]] = deque()
        """Records in flight: offset of the first byte, offset after the record, True if its line has an end, and the
        digest of all bytes up to the record's end.

        Each takes about 350 bytes; there are as many as the client's queue has.
        """
        self._tail = b""

    @property
    def position_bytes(self) -> int:
        """Return the bytes on disk that `read` has passed, for showing progress."""
        try:
            return self._raw.tell() if self._raw else 0
        except ValueError:  # closed: read to its end
            return self.size_bytes

    def here(self) -> tuple[Path, int]:
        """Return file and line of the newest record; valid only if the file is read from its beginning."""
        return self.path, self.line

    def origin(self) -> str:
        """Return file, line and byte of the newest record, as text."""
        line, byte = self._line_number(max(0, self.behind - 1)), f"before byte {self.behind}"
        return f"{self.path}: {byte if line is None else f'line {line} ({byte})'}"

    def place(self, sequence: int) -> str:
        """Return the place of a sequence in the source, as text for a message."""
        return f"{'byte' if self._lines.sequence_field is None else 'sequence'} {sequence}"

    @property
    def columns(self) -> list[str] | None:
        """Return the column names of CSV; None: the header line is not read yet."""
        return self._lines.columns

    def read(self, from_sequence: int) -> Iterator[Record]:
        """Yield the records from a byte offset on, or with `sequence_field` those from a sequence on.

        In CSV with line ends inside fields, `from_sequence` must be 0, or one more than a record's sequence.

        Raises:
            SourceError: a line is not UTF-8, not of the format, or without a usable field; a sequence does not rise;
                the compressed stream is damaged or ends early; or the file ends before `from_sequence`. The error
                names file, line and byte. In CSV, it is raised before the first record, unless it is about a sequence.
        """
        self.check_rows(from_sequence)
        if self._lines.sequence_field is None:
            yield from self.read_lines(from_sequence)
            return
        rising = RisingSequences()
        for record in self.read_lines(0):
            self.require_rising(record, rising)
            if record.sequence >= from_sequence:
                yield record

    def require_rising(self, record: Record, rising: RisingSequences) -> None:
        """Check the sequence of the newest record from `read_lines`.

        Raises:
            SequenceRefused: the sequence is negative, or does not rise.
        """
        try:
            rising.require(record.sequence)
        except UnusableLine as error:
            raise SequenceRefused(f"{self.origin()}: {error}") from None

    def check_rows(self, from_byte: int) -> None:
        """Check all rows of a CSV file before any is sent.

        A wrong quote can join several rows to one, which would be sent as one record.

        Other formats have one record in each line, whatever the other lines contain, and are not read twice.

        Raises:
            SourceError: as `read`.
        """
        if self._lines.has_header:
            for _ in self._read_lines(0 if self._lines.sequence_field else from_byte, whole=False, tracks=False):
                pass

    def read_lines(self, from_byte: int, *, whole: bool = False) -> Generator[Record, None, None]:
        """Yield records as `read` does, always selected by byte offset.

        Args:
            from_byte: offset of the first record to yield, or of a byte before it.
            whole: True leaves out a last line without an end, because a program is still writing it.
        """
        yield from self._read_lines(from_byte, whole=whole, tracks=self.is_tracked)

    def _read_lines(self, from_byte: int, *, whole: bool, tracks: bool) -> Iterator[Record]:
        offset, line_number = 0, 1
        tape = self._tape if tracks and self._lines.sequence_field is None else None
        try:
            with self._opened() as raw:
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
                try:
                    while line := self._lines.next_line(stream, whole=whole):
                        began, offset = offset, offset + len(line)
                        parsed = self._at(began, line)
                        if tracks:
                            digest.update(line)
                            recent.append(line)
                        is_ended = line.endswith(b"\n")
                        if parsed:
                            if tape is not None:
                                tape.append((began, offset, is_ended, digest.running.copy()))
                            self.behind, self.line = offset, line_number
                            number = began if parsed.sequence is None else parsed.sequence
                            yield Record(number, parsed.key, parsed.value)
                        self.behind = offset
                        line_number += line.count(b"\n")
                        if not is_ended:
                            break  # the rest that its writer adds now would come as a line of its own
                finally:
                    # Take the lines as read: the file may have changed by now.
                    self._tail = b"".join(recent) or self._tail
        except UnusableLine as error:
            raise self._bad(offset, str(error)) from None
        except READ_ERRORS as error:
            raise self._unreadable(offset, error) from None

    def read_blocks(self, from_byte: int, block_bytes: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield blocks of whole lines, from the first line at or after a byte offset.

        It is for callers that find records faster than `read` does. `blocks_of` returns whether blocks are possible,
        `parse_at` parses a line as `read` would, and the caller has to pass each block to `track_block` before it sends
        the records.

        Args:
            from_byte: offset in the uncompressed file.
            block_bytes: approximate size of a block; None: a megabyte.

        Returns:
            Offset and bytes of each block; the last line of the last block may lack its end.

        Raises:
            SourceError: as `read`.
        """
        offset = 0
        try:
            with self._opened() as raw:
                self._raw = raw
                stream = decompressed(raw, self.compression)
                if from_byte:
                    offset = self._go_behind(stream, from_byte, 0)
                if self.is_tracked:
                    self._begin_tracking(raw, offset)
                self.behind, rest = offset, b""
                while block := stream.read(block_bytes or BLOCK_BYTES):
                    if len(rest) + (block.find(b"\n") + 1 or len(block)) > MAX_LINE_BYTES:
                        raise self._bad(offset, too_long(rest + block))
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
        """Return format and key field of lines that can be read in blocks; None: blocks cannot be read.

        A row of CSV may continue in the next line, and with `sequence_field` sequences are not byte offsets.
        """
        format = self._lines.name
        if self._lines.sequence_field is not None or format not in ("ndjson", "lines"):
            return None
        return ("ndjson" if format == "ndjson" else "lines"), self._lines.key

    def parse_at(self, began: int, line: bytes) -> ParsedRecord | None:
        """Return the record of a line that begins at this offset; None: the line contains no record.

        Raises:
            SourceError: as `read`.
        """
        return self._at(began, line)

    def track_block(self, offset: int, block: bytes, last: tuple[int, int] | None) -> None:
        """Add a block from `read_blocks` to the file's digest, before the block's records are sent.

        Args:
            offset: offset of the block's first byte.
            block: the block, or its first lines.
            last: offset of the block's last record, and offset after its line; None: the block has no record
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

    def _at(self, began: int, line: bytes) -> ParsedRecord | None:
        try:
            return self._lines.parse(line)
        except UnusableLine as error:
            raise self._bad(began, str(error)) from None

    def read_whole(self, until: int | None = None) -> ContentDigest:
        """Return the digest of the present content, up to the offset `until`; None: up to the end.

        Raises:
            SourceError: the file cannot be read.
        """
        digest = ContentDigest()
        try:
            with self.path.open("rb") as raw:
                return read_digest(decompressed(raw, self.compression), digest, until)
        except READ_ERRORS as error:
            raise self._unreadable(digest.size, error) from None

    def _opened(self) -> io.BufferedReader:
        """Open the file; reading raises SourceError if bytes read before have changed since."""
        return self.path.open("rb") if self.compression else io.BufferedReader(_UnchangedFile(self.path))

    def _begin_tracking(self, raw: io.BufferedReader, offset: int) -> None:
        status = os.fstat(raw.fileno())
        self.device, self.inode, self.size_bytes = status.st_dev, status.st_ino, status.st_size
        if self.digest.size != offset:
            self.digest = self.read_whole(offset)

    def _go_behind(self, stream: BinaryIO, from_byte: int, offset: int) -> int:
        """Move a stream from `offset` to the first line at or after a byte, and return the line's offset."""
        # If the byte before is a line's end, a line begins here; else skip the remainder of that line.
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
        line, byte = self._line_number(offset), f"byte {offset}"
        return SourceError(f"{self.path}: {byte if line is None else f'line {line} ({byte})'}: {what}")

    def _too_short(self, sequence: int) -> SourceError:
        return SourceError(
            f"{self.path}: ends before byte {max(sequence, 0)}, although it was published to there under this producer "
            "name: it is shorter than it was. Publish it under another producer name"
        )

    def _line_number(self, offset: int) -> int | None:
        """Count the lines from the file's beginning to an offset; None: the file was removed."""
        lines, left = 1, offset
        try:
            raw = self.path.open("rb")
        except OSError:
            return None
        with raw:
            stream = decompressed(raw, self.compression)
            while left > 0:
                try:
                    block = stream.read(min(left, 1 << 20))
                except READ_ERRORS:
                    break  # the message is about the stream's damage
                if not block:
                    break
                lines += block.count(b"\n")
                left -= len(block)
        return lines


class _UnchangedFile(io.FileIO):
    """File that compares the last bytes read at each further reading, because a program may truncate it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "r")
        self._path, self._at, self._last = path, 0, b""

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at, self._last = super().seek(offset, whence), b""
        return self._at

    def readinto(self, buffer: Any, /) -> int | None:
        count = super().readinto(buffer)
        # Compared after the reading: before it, the file might still be truncated between the two.
        if self._last and os.pread(self.fileno(), len(self._last), self._at - len(self._last)) != self._last:
            raise SourceError(
                f"{self._path}: has changed before byte {self._at} while it was read: a program has truncated or "
                f"rewritten it. {ANOTHER_NAME}"
            )
        if count:
            self._at += count
            self._last = bytes(memoryview(buffer)[max(0, count - COMPARED_BYTES) : count])
        return count


class SequenceRefused(SourceError):
    """Error for a negative or not rising sequence, which no later reading of the file can mend."""


ANOTHER_NAME = "Put back the published file, or publish under another producer name"


class FileSource(FileLines):
    """Records of one file, plain or compressed with gzip or zstd.

    A line ends at LF or CR LF, which are not part of the value. The last line may lack its end; a program that still
    writes the file must not add to a line already published. Lines must be UTF-8.

    The file is recognised by a digest of all bytes up to the end of the last published record (`mark` and `check`),
    whatever its compression. Once `mark` or `check` was called, `read` keeps the digest at the end of each record; a
    call of `mark` discards the digests of earlier records.

    Resuming a plain file takes a seek, however long the file is. A compressed file is decompressed again from the
    beginning, and with `sequence_field` everything is read again.

    Args:
        path: path of the file.
        format: format of the lines, see `LineFormat`. None: by the name, "ndjson" for .ndjson and .jsonl, "csv" for
            .csv (before what rotation and compression add), else "lines".
        key: member of each JSON object, or column, with the text of the record's key.
        sequence_field: member or column with the record's sequence, instead of its byte offset. It must increase.
        delimiter: delimiter of CSV, see `LineFormat`.

    Raises:
        SourceError: there is no such file, it is a folder, or it cannot be read.
        SettingsError: a field is given, but the format has no fields.
    """

    NO_MARK = NO_MARK
    _known: FileMark | None = None
    """Newest mark of the source; None before the first record."""

    def mark(self, sequence: int) -> str:
        """Return a mark of the file up to the end of a record: a digest of all its bytes, and its name.

        With `sequence_field` the records identify themselves: the mark only has the names of the sequence field and the
        key field.

        Raises:
            SourceError: the file is too short to contain the record.
        """
        if self._lines.sequence_field is not None:
            return field_mark(self._lines.sequence_field, self._lines.key)
        mark = self.file_mark(sequence)
        return mark.encode() if mark else NO_MARK

    def check(self, sequence: int, mark: str) -> str | None:
        """Require that the file still begins with the published bytes that a mark describes.

        All these bytes are read, at most a megabyte at a time.

        Raises:
            SourceError: the file differs; the error names the bytes that contain the change.
        """
        self.is_tracked = True
        if self._lines.sequence_field is not None or mark.startswith(FIELD_MARK):
            field = self._lines.sequence_field
            return require_field_mark(str(self.path), mark, field, self._lines.key) if sequence >= 0 else None
        if sequence < 0:
            return None
        made = FileMark.decode(mark)
        if made is None:
            raise self.changed(f"has a stored position that this version cannot read ({mark[:100]})")
        if made.sequence != sequence:
            raise self.changed(
                f"was published up to byte {made.sequence}; since then another source has used the same producer name, "
                f"up to sequence {sequence}"
            )
        if made.number:
            raise self.changed(f"is one file, but {made.number + 1} files have been read under this producer name")
        self.compare(made)
        return None

    def require_all_files(self, sequence: int, mark: str) -> None:
        """Require that the stored position is in this file, so that a new reading gives the same sequences.

        Raises:
            SourceError: as `check`, also if several files were published under the name.
        """
        self.check(sequence, mark)

    def compare(self, mark: FileMark, digest: ContentDigest | None = None) -> None:
        """Require that the file begins with the bytes of a mark.

        The mark describes this file alone, as it does outside of a `FileSet`.

        Args:
            mark: mark made when these bytes were published.
            digest: digest of the bytes up to the mark, if the caller has just read and checked them.

        Raises:
            SourceError: the file differs from the mark.
        """
        if self._known == mark:
            return
        if mark.form != self._form:
            raise SourceError(
                f"{self.path}: was published with another --format or --key, or another --delimiter ({mark.form}; this "
                f"run has {self._form}), so that records sent again would not be recognised as duplicates. Use the "
                "earlier options, or publish under another producer name"
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
                        f"has a longer line at byte {mark.sequence} than when it was published: the file then ended at "
                        f"byte {mark.end}, within this line"
                    )
        except READ_ERRORS as error:
            raise self._unreadable(mark.end, error) from None
        self.is_tracked, self._known = True, mark

    def file_mark(self, sequence: int) -> FileMark | None:
        """Return the mark of the record at an offset; None: the offset is negative."""
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
        """Return name, size and digest of the whole file."""
        digest = self.digest
        if not self.is_tracked or digest.size != self.behind or not self.behind:
            digest = self.read_whole()
        return Finished(self.path.name, digest.size, digest.running.hexdigest())

    def moved_to(self, path: Path) -> None:
        """Continue with the file at a new path, after a program has renamed it.

        Raises:
            SourceError: the file cannot be read there.
        """
        try:
            status = path.stat()
            self.path, self.compression = path, compression_of(path)
            self.device, self.inode = status.st_dev, status.st_ino
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror}") from None

    def still_ends_as_read(self) -> bool:
        """Return True if the path still leads to the same file, and the last lines read are unchanged.

        It may return False for an unchanged file. For a file that was truncated and rewritten to the same length, it
        returns True only if the last bytes agree.
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
        """Return the error for a file that differs from the published one."""
        return SourceError(f"{self.path}: {what}. {ANOTHER_NAME}")

    def _mark_of(
        self, began: int, end: int, ended: bool, digest: Any, checkpoints: tuple[tuple[int, str], ...]
    ) -> FileMark:
        at = tuple(each for each in checkpoints if each[0] <= end)
        place = self.path.name, self.device, self.inode
        return FileMark(began, end, ended, digest.hexdigest(), at, *place, self._form)

    def _mark_by_reading(self, sequence: int) -> tuple[FileMark, ContentDigest]:
        """Return mark and digest of any record, by reading the file."""
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
