"""Files as sources: one record per line, its sequence the byte offset at which the line begins, uncompressed."""

from __future__ import annotations

import gzip
import hashlib
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar, cast

import msgspec

from errors import SettingsError, SourceError
from producers._source import Record

Format = Literal["ndjson", "lines"]
T = TypeVar("T")

NDJSON_SUFFIXES = frozenset({".ndjson", ".jsonl"})

HEAD_BYTES = 4096
"""How much of the file's beginning is its mark: enough to tell files apart, read with the first page."""

MAX_LINE_BYTES = 64 * 1024 * 1024
"""A longer line is refused before it fills the memory; Kafka's own default limit is 1 MiB."""

_ESCAPES = re.compile(rb"""\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<half>\\u[dD][89a-fA-F]..)|\\.""")
"""JSON's grammar allows an escaped half of a surrogate pair, and programs that cut texts write it; msgspec refuses it.
To check such a line, the half character is taken for U+FFFD; the record's value stays as it is."""

GZIP_MAGIC = b"\x1f\x8b"


class FileSource:
    """The lines of a file, plain or gzip-compressed.

    A line ends at LF or CR LF, which are not part of the value. The last one may lack it; a program that still writes
    the file must not add to a line that has been published. Lines must be UTF-8. In the format "ndjson" each must be
    one JSON text; lines of white space are passed over, as the format allows. In the format "lines" every line is a
    record, empty ones as well.

    Args:
        path: the file.
        format: None: "ndjson" where the name ends in .ndjson or .jsonl (and perhaps .gz), else "lines".
        key: the member of each JSON object whose text is the record's key: a string as it is, a number or a boolean as
            its JSON text.

    Raises:
        SourceError: there is no such file, it is a folder, or it cannot be read.
        SettingsError: a key is asked for, but the lines are not JSON.
    """

    def __init__(self, path: Path, *, format: Format | None = None, key: str | None = None) -> None:
        self.path = path
        self.format: Format = format or _format_of(path)
        self.key = key
        if key is not None and self.format != "ndjson":
            raise SettingsError(
                f"{path}: --key {key} needs JSON lines, but the format is {self.format!r}: add --format ndjson"
            )
        try:
            status = path.stat()
            if stat.S_ISDIR(status.st_mode):
                raise SourceError(f"{path}: is a folder; name one file")
            if not stat.S_ISREG(status.st_mode):
                raise SourceError(
                    f"{path}: is not a regular file, and cannot be read again after a crash; save it as a file"
                )
            with path.open("rb") as file:
                self.compressed = path.suffix == ".gz" or file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        except FileNotFoundError:
            raise SourceError(f"{path}: there is no such file") from None
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror}") from None
        self.size_bytes = status.st_size
        """On disk, when opened."""
        self._raw: BinaryIO | None = None
        self._head = self._read_head()

    @property
    def position_bytes(self) -> int:
        """How far `read` has come, in bytes on disk; for showing progress."""
        try:
            return self._raw.tell() if self._raw else 0
        except ValueError:  # closed: read to its end
            return self.size_bytes

    def read(self, from_sequence: int) -> Iterator[Record]:
        """The records that begin at this byte or later.

        Raises:
            SourceError: with file, line and byte: a line is not UTF-8, not JSON, or without a usable key; the gzip
                stream is damaged or ends early; or the file ends before `from_sequence`.
        """
        offset = from_sequence
        try:
            with self.path.open("rb") as raw:
                self._raw = raw
                # gzip.GzipFile reads and buffers as a binary file does, but is typed as less.
                stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if self.compressed else raw
                offset = self._seek(stream, from_sequence)
                while line := stream.readline(MAX_LINE_BYTES):
                    if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                        raise self._bad(offset, f"the line is longer than {MAX_LINE_BYTES} bytes; is the format right?")
                    if record := self._record(offset, line):
                        yield record
                    offset += len(line)
        except EOFError:
            raise self._bad(
                offset,
                "the gzip stream ends in the middle: the file was cut off. Get the whole file, then publish it again",
            ) from None
        except (zlib.error, gzip.BadGzipFile) as error:
            raise self._bad(
                offset, f"the gzip stream is damaged ({error}). Get the file anew, then publish it again"
            ) from None
        except OSError as error:
            raise self._bad(offset, f"cannot be read: {error.strerror}") from None

    def mark(self, sequence: int) -> str:
        """The digest of what stands before this byte, of the file's first 4,096 bytes at most.

        Raises:
            SourceError: the file is shorter than that.
        """
        if not self.compressed and sequence >= self.size_bytes:
            raise self._too_short(sequence)
        length = max(0, min(sequence, HEAD_BYTES))
        if len(self._head) < length:
            raise self._too_short(sequence)
        return f"sha256:{hashlib.sha256(self._head[:length]).hexdigest()}:{length}"

    def _read_head(self) -> bytes:
        head = b""
        try:
            with self.path.open("rb") as raw:
                stream = gzip.GzipFile(fileobj=raw) if self.compressed else raw
                while len(head) < HEAD_BYTES and (block := stream.read1(HEAD_BYTES - len(head))):
                    head += block
        except (EOFError, zlib.error, gzip.BadGzipFile):
            pass  # `read` meets the same damage, after the records before it, and says where
        except OSError as error:
            raise SourceError(f"{self.path}: cannot be read: {error.strerror}") from None
        return head

    def _seek(self, stream: BinaryIO, from_sequence: int) -> int:
        """Go to the first line that begins at this byte or later."""
        if from_sequence <= 0:
            return 0
        # If the byte before is a line's end, a line begins here; else what is left of that line is passed over.
        reached = stream.seek(from_sequence - 1)
        rest = stream.readline()
        if reached < from_sequence - 1 or not rest:
            raise self._too_short(from_sequence - 1)
        return from_sequence - 1 + len(rest)

    def _record(self, offset: int, line: bytes) -> Record | None:
        value = line[:-1] if line.endswith(b"\n") else line
        value = value[:-1] if value.endswith(b"\r") else value
        try:
            value.decode()
        except UnicodeDecodeError as error:
            raise self._bad(
                offset, f"not UTF-8: {error.reason} at byte {offset + error.start}. Convert the file"
            ) from None
        if self.format == "lines":
            return Record(offset, None, value)
        if not value.strip():
            return None
        try:
            if self.key is None:
                _parsed(value, msgspec.Raw)
                return Record(offset, None, value)
            return Record(offset, self._key(offset, _parsed(value, dict[str, msgspec.Raw])), value)
        except msgspec.ValidationError:
            raise self._bad(offset, f"has no field {self.key!r}, since it is no JSON object") from None
        except (ValueError, RecursionError) as error:
            raise self._bad(offset, f"not JSON: {error}. Mend the line, or publish with --format lines") from None

    def _key(self, offset: int, fields: dict[str, msgspec.Raw]) -> bytes:
        assert self.key is not None  # noqa: S101
        if self.key not in fields:
            raise self._bad(
                offset, f"has no field {self.key!r}, which is to be the record's key. It has: {_some(fields)}"
            )
        text = bytes(fields[self.key])
        if text[:1] == b'"':
            return cast(str, msgspec.json.decode(text)).encode()
        if text == b"null" or text[:1] in (b"{", b"["):
            what = {b"{": "an object", b"[": "an array"}.get(text[:1], "null")
            raise self._bad(offset, f"field {self.key!r} is {what}: a key is a string, a number or a boolean")
        return text

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
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if self.compressed else raw
            while left > 0:
                try:
                    block = stream.read(min(left, 1 << 20))
                except (OSError, EOFError, zlib.error):
                    break  # the stream's damage is what the message is about
                if not block:
                    break
                lines += block.count(b"\n")
                left -= len(block)
        return lines


def _format_of(path: Path) -> Format:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return "ndjson" if suffixes and suffixes[-1] in NDJSON_SUFFIXES else "lines"


def _parsed(text: bytes, form: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=form)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        whole = _ESCAPES.sub(_without_half_character, text)
        if whole == text:
            raise
        return msgspec.json.decode(whole, type=form)


def _without_half_character(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape["half"] else escape[0]


def _some(fields: dict[str, msgspec.Raw]) -> str:
    names = sorted(fields)
    return (", ".join(names[:8]) + (", ..." if len(names) > 8 else ""))[:200] or "none"
