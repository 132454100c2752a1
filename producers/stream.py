"""Standard input and other pipes as sources, which cannot be read again, so that their data must contain sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from kafka_ratchet.errors import SettingsError, SourceError
from kafka_ratchet.producers.formats import (
    Format,
    LineFormat,
    RisingSequences,
    UnusableLine,
    field_mark,
    require_field_mark,
)
from kafka_ratchet.producers.source import Record


class StreamSource:
    """Records of a stream, each with its own sequence.

    A stream cannot be read from an earlier position. After a crash its writer has to begin at or before
    `Producer.resume_from()`; records already published are skipped by their sequences.

    Args:
        stream: stream to read once.
        sequence_field: JSON member or column with the record's sequence. It must increase.
        format: "ndjson" or "csv", see `LineFormat`.
        key: JSON member or column with the record's key.
        delimiter: delimiter of CSV, see `LineFormat`.

    Raises:
        SettingsError: there is no sequence field.
    """

    label = "standard input"

    def __init__(
        self,
        stream: BinaryIO,
        *,
        sequence_field: str | None,
        format: Format | str | None = None,
        key: str | None = None,
        delimiter: str | None = None,
    ) -> None:
        if sequence_field is None:
            raise SettingsError(
                "standard input cannot be read again after a crash, so missing records would go unnoticed. Save it as "
                "a file and publish that, or name the field with every record's own rising number "
                "(--sequence-field)"
            )
        self._stream, self._field = stream, sequence_field
        self._lines = LineFormat(format or "ndjson", key, sequence_field, delimiter)
        self._line_number = 0
        self.position_bytes = 0
        self.size_bytes: int | None = None
        """Size of the source; always None, because a stream's size is unknown."""

    def place(self, sequence: int) -> str:
        """Return the place of a sequence in the source, as text for a message."""
        return f"sequence {sequence}"

    def read(self, from_sequence: int) -> Iterator[Record]:
        """Yield the records with this sequence or a higher one.

        Raises:
            SourceError: a line is not UTF-8, not of the format, or without a usable field, or its sequence does not
                rise; the error names the line.
        """
        rising = RisingSequences()
        try:
            if self._lines.has_header and (line := self._next()):
                self._lines.header(line)
            while line := self._next():
                parsed = self._lines.parse(line)
                if parsed is None or parsed.sequence is None:
                    continue
                rising.require(parsed.sequence)
                if parsed.sequence >= from_sequence:
                    yield Record(parsed.sequence, parsed.key, parsed.value)
        except UnusableLine as error:
            raise SourceError(f"{self.label}: line {self._line_number}: {error}") from None
        except OSError as error:
            raise SourceError(f"{self.label}: cannot be read: {error.strerror}") from None

    def mark(self, sequence: int) -> str:
        """Return sequence field and key, because the records identify themselves."""
        return field_mark(self._field, self._lines.key)

    def check(self, sequence: int, mark: str) -> str | None:
        """Require that the stored mark has the same sequence field and key.

        Raises:
            SourceError: the sequence field or the key differs.
        """
        return require_field_mark(self.label, mark, self._field, self._lines.key) if sequence >= 0 else None

    def _next(self) -> bytes:
        self._line_number += 1
        line = self._lines.next_line(self._stream)
        self.position_bytes += len(line)
        if self._lines.has_header and line and not line.endswith(b"\n"):
            # The last column would look whole; a cut-off line of JSON is refused as such.
            raise UnusableLine(
                "has no line end, so it may have been cut off, and is not published. End the last line with one, then "
                "publish again"
            )
        return line
