"""Line formats of a source: each line's record, with its value, key and perhaps sequence."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar, get_args

import msgspec

from kafka_ratchet.errors import SettingsError, SourceError
from kafka_ratchet.producers.compression import without_compression

Format = Literal["ndjson", "lines", "csv"]
T = TypeVar("T")

OF_SUFFIX: dict[str, Format] = {".ndjson": "ndjson", ".jsonl": "ndjson", ".csv": "csv"}

_ROTATED = re.compile(r"[.\-_][0-9]{1,8}(?:[.\-_T]?[0-9]+)*\Z")
"""Pattern of the end that rotation adds to a name: .1, -20260131, or a date with a time."""

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Maximum bytes of a line; a longer one is refused before it fills the memory. Kafka's own default limit is 1 MiB."""

_WHOLE_NUMBER = re.compile(rb"-?[0-9]{1,20}")

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""Possible delimiters of CSV with their plural names, for guessing a header's delimiter."""
_SPELLINGS = {"tab": "\t", "\\t": "\t"}
_SEP = re.compile(r"sep=.?", re.IGNORECASE)
"""Pattern of the first line that Excel writes to name its delimiter."""


@lru_cache
def _field_pattern(delimiter: str) -> re.Pattern[str]:
    """Return the pattern of one CSV field (RFC 4180) with its end.

    A quote in any other place does not match: it may belong to the text, or begin a truncated field, which would
    swallow the following rows.
    """
    end = f"({re.escape(delimiter)}|\\Z)"
    return re.compile(rf'"([^"]*(?:""[^"]*)*)"{end}|([^"{re.escape(delimiter)}\r\n]*){end}')


@lru_cache
def _open_row_pattern(delimiter: str) -> re.Pattern[bytes]:
    """Return the pattern of a row that continues in the next line, inside a quoted field."""
    by = re.escape(delimiter)
    return re.compile(rf'(?:(?:"[^"]*(?:""[^"]*)*"|[^"{by}\r\n]*){by})*+"[^"]*(?:""[^"]*)*'.encode())


_ESCAPES = re.compile(rb"""\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<half>\\u[dD][89a-fA-F]..)|\\.""")
"""Pattern of JSON escapes, which finds unpaired halves of surrogate pairs. JSON's grammar allows these, and programs
that cut texts write them, but msgspec refuses them. To check such a line, the half is replaced by U+FFFD; the record's
value stays unchanged."""


_STRAY = (
    'not CSV: a quote neither around a whole field nor doubled inside one. Write the field as "5"" pipe" does, '
    "or publish with --format lines"
)


class UnusableLine(SourceError):
    """Error for a line that cannot become a record, with a remedy. The caller adds file and line number."""


class ParsedRecord:
    """Record parsed from one line, or from one row of CSV."""

    __slots__ = ("key", "sequence", "value")

    def __init__(self, value: bytes, key: bytes | None = None, sequence: int | None = None) -> None:
        self.value, self.key, self.sequence = value, key, sequence


FIELD_MARK = "field:"
"""Prefix of the mark of a source with sequences in its records."""

_NULS = bytes(8)
"""NUL bytes in a row, which no line of text contains."""
_HOLE = (
    "has NUL bytes where text is expected: the file was truncated while its writer went on at its old position, so "
    "the text there is lost. On a network file system, run the command again first, because a file may show NUL bytes "
    "until another host's lines arrive. Else have the writer append (O_APPEND, or >> in a shell), or rotate by "
    "renaming instead of truncating (logrotate without copytruncate). To publish the rest, copy the file without these "
    "bytes (tr -d '\\000') and publish the copy under another producer name"
)


class LineFormat:
    """Parser of the lines of one format.

    "ndjson": each line is one JSON text; lines of white space are skipped. "lines": every line is a record, even an
    empty one. "csv": the first line names the columns, and every other row is a record, with a JSON object of the
    columns' texts as its value. So the record can be understood without the file's first line, and the worker's
    `field:` and the Spark job's columns can read it. A quoted field may contain line ends. Quotes may only enclose a
    whole field or be doubled inside it, so that a record is exactly one row. A header that seems to have another
    delimiter than the comma is refused until the delimiter is given.

    Args:
        format: "ndjson", "lines" or "csv".
        key: JSON member or column with the record's key: a string as it is, a number or a boolean as its JSON text.
        sequence_field: JSON member or column with the record's sequence.
        delimiter: character between the fields of CSV, or "tab". None: the comma, if the header agrees.

    Raises:
        SettingsError: there is no such format, a field is given for lines without fields, or the delimiter is not
            allowed.
    """

    def __init__(
        self, format: str, key: str | None = None, sequence_field: str | None = None, delimiter: str | None = None
    ) -> None:
        if format not in get_args(Format):
            raise SettingsError(
                f"--format {format}: write {', '.join(get_args(Format)[:-1])} or {get_args(Format)[-1]}"
            )
        if format == "lines" and (key is not None or sequence_field is not None):
            option = f"--key {key}" if key is not None else f"--sequence-field {sequence_field}"
            raise SettingsError(
                f"{option} needs fields, but the format is 'lines': add --format ndjson or --format csv"
            )
        self._is_given, self.delimiter = delimiter is not None, _delimiter(format, delimiter)
        self.name, self.key, self.sequence_field = format, key, sequence_field
        self.columns: list[str] | None = None
        """Column names from `header`; None: not read yet."""
        self._parsed = {"lines": ParsedRecord, "ndjson": self._json, "csv": self._row}[format]

    @property
    def form(self) -> str:
        """Return format, key and delimiter as text.

        If format, key or delimiter changes, a worker does not recognise records sent again as duplicates.
        """
        by = "" if self.delimiter == "," else f";delimiter={self.delimiter}"
        return f"{self.name};key={self.key}{by}"

    @property
    def has_header(self) -> bool:
        """Return True if the first line names the columns, and must be passed to `header` first."""
        return self.name == "csv"

    def header(self, line: bytes) -> None:
        """Read the names of the columns.

        Raises:
            UnusableLine: the names are missing, ambiguous, or separated by another delimiter.
        """
        text = _text(_without_end(line.removeprefix(b"\xef\xbb\xbf")))
        if not self._is_given:
            _require_commas(text)
        if _SEP.fullmatch(text):
            raise UnusableLine(
                f"{text!r} is a note of Excel's. Remove this line, and give --delimiter {text[4:] or ','!r}"
            )
        columns = _cells(text, self.delimiter)
        twice = next((name for name in columns if columns.count(name) > 1), None)
        if not text or twice is not None:
            what = "names no columns" if not text else f"names the column {twice!r} twice"
            raise UnusableLine(f"{what}; the first line of CSV is the columns' names")
        self.columns = columns

    def next_line(self, stream: BinaryIO, *, whole: bool = False) -> bytes:
        """Return the next line, or row of CSV, with its end; empty: the stream has ended.

        Args:
            stream: stream to read from.
            whole: True leaves out a last line without an end, because a program is still writing it.

        Raises:
            UnusableLine: the line is too long, or a quoted field does not end.
        """
        line = stream.readline(MAX_LINE_BYTES)
        if self.name == "csv" and line.count(b'"') % 2:
            line = self._row_of_lines(line, stream, whole)
        if len(line) >= MAX_LINE_BYTES and not line.endswith(b"\n"):
            raise UnusableLine(too_long(line))
        return b"" if whole and not line.endswith(b"\n") else line

    def _row_of_lines(self, line: bytes, stream: BinaryIO, whole: bool) -> bytes:
        """Return the row that begins with a line of unbalanced quotes; empty: the row is still being written."""
        if whole and not line.endswith(b"\n"):
            return b""
        if not _open_row_pattern(self.delimiter).fullmatch(line):
            other = next((each for each in DELIMITERS if _open_row_pattern(each).fullmatch(line)), None)
            if self.columns is None and not self._is_given and other is not None:
                raise UnusableLine(
                    f"seems to have {DELIMITERS[other]} between its columns. Give --delimiter {_shown(other)}"
                )
            raise UnusableLine(_STRAY)
        lines, length, is_open = [line], len(line), True
        while is_open and length < MAX_LINE_BYTES:
            if not (more := stream.readline(MAX_LINE_BYTES - length)):
                if whole:
                    return b""
                raise UnusableLine(
                    "a quoted field that begins here does not end. Correct the line, or publish with --format lines"
                )
            lines.append(more)
            length += len(more)
            is_open ^= more.count(b'"') % 2 == 1
        return b"".join(lines)

    def parse(self, line: bytes) -> ParsedRecord | None:
        """Return the record of a line with its end; None: the line contains no record.

        Raises:
            UnusableLine: the line should be a record, but cannot be one.
        """
        value = _without_end(line)
        if may_have_hole(value):
            raise UnusableLine(_HOLE)
        _text(value)
        return self._parsed(value)

    def _json(self, value: bytes) -> ParsedRecord | None:
        if not value.strip():
            return None
        try:
            if self.key is None and self.sequence_field is None:
                _decoded(value, msgspec.Raw)
                return ParsedRecord(value)
            fields = _decoded(value, dict[str, msgspec.Raw])
        except msgspec.ValidationError:
            raise UnusableLine(
                f"has no field {self.key or self.sequence_field!r}, since it is not a JSON object"
            ) from None
        except (ValueError, RecursionError) as error:
            raise UnusableLine(f"not JSON: {error}. Correct the line, or publish with --format lines") from None
        texts = {name: _member(fields, name, what) for name, what in self._wanted()}
        return self._with_fields(value, texts)

    def _row(self, value: bytes) -> ParsedRecord | None:
        assert self.columns is not None  # noqa: S101 - the header comes first
        if not value:
            return None
        cells = _cells(value.decode(), self.delimiter)
        if len(cells) != len(self.columns):
            raise UnusableLine(
                f"has {len(cells)} fields, but the first line names {len(self.columns)} columns. Correct the line"
            )
        fields = dict(zip(self.columns, cells, strict=True))
        for name, what in self._wanted():
            if name not in fields:
                raise UnusableLine(f"has no column {name!r}, which is to be {what}. It has: {_some(fields)}")
        return self._with_fields(msgspec.json.encode(fields), {name: text.encode() for name, text in fields.items()})

    def _wanted(self) -> list[tuple[str, str]]:
        wanted = ((self.key, "the record's key"), (self.sequence_field, "the record's sequence"))
        return [(name, what) for name, what in wanted if name is not None]

    def _with_fields(self, value: bytes, texts: dict[str, bytes]) -> ParsedRecord:
        sequence = None
        if self.sequence_field is not None:
            text = texts[self.sequence_field]
            if not _WHOLE_NUMBER.fullmatch(text):
                shown = text[:40].decode(errors="replace")
                raise UnusableLine(
                    f"field {self.sequence_field!r} is {shown!r}, but a sequence is a whole number. Correct the "
                    "line, or name another field"
                )
            sequence = int(text)
        return ParsedRecord(value, texts[self.key] if self.key is not None else None, sequence)


def too_long(line: bytes) -> str:
    """Return the error text for a line longer than MAX_LINE_BYTES.

    If the line has NUL bytes as `may_have_hole` finds them, the text explains these instead.
    """
    if may_have_hole(line):
        return _HOLE
    return f"the line is longer than {MAX_LINE_BYTES:,} bytes. Check --format, or split the line"


def may_have_hole(text: bytes) -> bool:
    """Return True if the lines contain NUL bytes, as in a file truncated while a program wrote it."""
    return text.startswith(b"\0") or b"\n\0" in text or _NULS in text


def _without_end(line: bytes) -> bytes:
    line = line[:-1] if line.endswith(b"\n") else line
    return line[:-1] if line.endswith(b"\r") else line


def field_mark(field: str, key: str | None) -> str:
    """Return the mark of a source with its own sequences.

    The mark includes the key field, because with another key the records would go to other partitions.
    """
    return f"{FIELD_MARK}{field};key={key}"


def require_field_mark(source: str, mark: str, field: str | None, key: str | None) -> str | None:
    """Require the stored mark of a source with the same sequence field and key.

    Args:
        source: name of the source, for the message.
        mark: the stored mark.
        field: field with the sequence; None: the sequences are byte offsets.
        key: field with the key, or None.

    Returns:
        A notice for the user if the mark has only the field's name, as the first versions wrote it; else None.

    Raises:
        SourceError: the mark has another field or key, or byte offsets as sequences.
    """
    with_key = f"{FIELD_MARK}{field};"
    if field is not None and mark == f"{FIELD_MARK}{field}":
        return f"{source}: an earlier version published it and did not store --key. Give the same --key as then"
    if field is not None and mark.startswith(with_key) and mark != field_mark(field, key):
        raise SourceError(
            f"{source}: was published with another --key ({mark.removeprefix(with_key)[:100]}; this run has "
            f"key={key}), so that records sent again would go to other partitions and count twice. Use the earlier "
            "option, or publish under another producer name"
        )
    if field is None or mark != field_mark(field, key):
        raise SourceError(
            f"{source}: was published with other sequences ({mark[:100]}). Give --sequence-field as in the first "
            "run, or omit it if the first run had none. Or publish under another producer name"
        )
    return None


class RisingSequences:
    """Check of the sequences in one reading of a source: each must be above the one before it.

    It also covers the records below the first sequence to yield. Otherwise a run would refuse a number that does not
    rise, and the next run would leave out its record as already published.
    """

    def __init__(self) -> None:
        self._last = -1

    def require(self, sequence: int) -> None:
        """Check the next sequence.

        Raises:
            UnusableLine: it is negative, or does not rise.
        """
        if sequence < 0:
            raise UnusableLine(f"sequence {sequence} is negative. Number the records from 0 or higher")
        if sequence <= self._last:
            raise UnusableLine(
                f"sequence {sequence} does not rise above {self._last}, that of the record before it: the worker would "
                "drop the record as a duplicate. Give every record a higher sequence than the one before"
            )
        self._last = sequence


def format_of(path: Path) -> Format:
    """Return the format of a file by its name, as it was before rotation and compression."""
    return OF_SUFFIX.get(Path(_ROTATED.sub("", without_compression(path.name))).suffix.lower(), "lines")


def _text(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UnusableLine(f"not UTF-8: {error.reason} at its byte {error.start}. Convert the file") from None


def _delimiter(format: str, given: str | None) -> str:
    """Return the character between the fields of CSV.

    Raises:
        SettingsError: the delimiter is not allowed.
    """
    if given is None:
        return ","
    if format != "csv":
        raise SettingsError(f"--delimiter {given}: only CSV has one, and the format is {format!r}: add --format csv")
    found = _SPELLINGS.get(given, given)
    if len(found) != 1 or not found.isascii() or found.isalnum() or found in '"\r\n\0 ':
        raise SettingsError(
            f"--delimiter {given!r}: write one character that stands between fields, such as ';' or '|', or tab"
        )
    return found


def _require_commas(header: str) -> None:
    """Refuse a header that another delimiter splits into more columns than the comma does."""
    counts = {each: _column_count(header, each) for each in DELIMITERS}
    best = max(counts, key=lambda each: (counts[each], each == ","))
    if counts[best] <= max(counts[","], 1):
        return
    raise UnusableLine(
        f"seems to have {counts[best]} columns with {DELIMITERS[best]} between them, and {max(counts[','], 1)} with "
        f"commas. Give --delimiter {_shown(best)}, or --delimiter ',' if commas are right"
    )


def _shown(delimiter: str) -> str:
    return "tab" if delimiter == "\t" else f"'{delimiter}'"


def _column_count(header: str, delimiter: str) -> int:
    """Return the number of columns by a delimiter; 0: the quotes do not match the delimiter."""
    try:
        return len(_cells(header.removesuffix("\n").removesuffix("\r"), delimiter))
    except UnusableLine:
        return 0


def _cells(text: str, delimiter: str = ",") -> list[str]:
    """Return the fields of one row."""
    if '"' not in text and "\r" not in text:
        return text.split(delimiter)
    cells, at, goes_on = [], 0, True
    while goes_on:
        field = _field_pattern(delimiter).match(text, at)
        if field is None:
            raise UnusableLine(
                _STRAY if '"' in text else "not CSV: a carriage return outside the line's end. Correct the line"
            )
        quoted, comma, plain, other_comma = field.groups()
        cells.append(quoted.replace('""', '"') if quoted is not None else plain)
        at, goes_on = field.end(), bool(comma or other_comma)
    return cells


def _member(fields: dict[str, msgspec.Raw], name: str, what: str) -> bytes:
    if name not in fields:
        raise UnusableLine(f"has no field {name!r}, which is to be {what}. It has: {_some(fields)}")
    text = bytes(fields[name])
    if text[:1] == b'"':
        return _decoded(text, str).encode()
    if text == b"null" or text[:1] in (b"{", b"["):
        kind = {b"{": "an object", b"[": "an array"}.get(text[:1], "null")
        raise UnusableLine(
            f"field {name!r} is {kind}, but {what} is a string, a number or a boolean. Correct the line, or name "
            "another field"
        )
    return text


def _decoded(text: bytes, form: type[T]) -> T:
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


def _some(fields: dict[str, msgspec.Raw] | dict[str, str]) -> str:
    names = sorted(fields)
    return (", ".join(names[:8]) + (", ..." if len(names) > 8 else ""))[:200] or "none"
