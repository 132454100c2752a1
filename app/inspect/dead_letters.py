"""Dead letters and dropped records: documents, columns and sentences for `ratchet dead-letters` and the page."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from msgspec import UNSET, UnsetType

from kafka_ratchet.app.dead_letters.reading import LetterView, ReasonCount
from kafka_ratchet.app.dead_letters.replayed import ReplayedLetters
from kafka_ratchet.app.inspect.columns import Column
from kafka_ratchet.app.inspect.document import Document
from kafka_ratchet.app.status.producers import shown
from kafka_ratchet.app.why.answer import RecordPosition, moment
from kafka_ratchet.app.why.dropped import Count, DroppedCopy, NewestRecords

TEXT_MOST: Final = 2_000
"""Maximum number of characters to show of a key, value or header; `dead-letters show --json` has all of them."""
OF_RATCHET: Final = "ratchet-"
"""Prefix of the headers that Ratchet writes; their values are always shown."""
NO_ORIGIN: Final = "its headers do not name the input record"
REPLAYED: Final = "replayed"
PARTITIONS_SHOWN: Final = 8


class RecordCount(Protocol):
    """Count of records with one reason or one identity. first, last: times of the records, ISO 8601, UTC."""

    @property
    def name(self) -> str:
        """Return the reason or identity."""

    @property
    def records(self) -> int:
        """Return the number of the records."""

    @property
    def first(self) -> str:
        """Return the time of the earliest record; ISO 8601, UTC."""

    @property
    def last(self) -> str:
        """Return the time of the latest record; ISO 8601, UTC."""


@dataclass(frozen=True, slots=True)
class LetterCount:
    """Count of the dead letters with one reason, for the terminal."""

    counted: ReasonCount

    @property
    def name(self) -> str:
        """Return the reason, with unprintable characters escaped."""
        return shown(self.counted.reason.encode(errors="replace"))

    @property
    def records(self) -> int:
        """Return the number of the dead letters."""
        return self.counted.letters

    @property
    def replayed(self) -> int:
        """Return the number of the re-sent dead letters."""
        return self.counted.replayed

    @property
    def partitions(self) -> str:
        """Return the number of dead letters in each partition, as text."""
        found = sorted(self.counted.partitions.items())
        more = ", …" * (len(found) > PARTITIONS_SHOWN)
        return ", ".join(f"{number}: {count:,}" for number, count in found[:PARTITIONS_SHOWN]) + more

    @property
    def first(self) -> str:
        """Return the earliest time; ISO 8601, UTC."""
        return moment(self.counted.first_ms)

    @property
    def last(self) -> str:
        """Return the latest time; ISO 8601, UTC."""
        return moment(self.counted.last_ms)


def clock(time: str) -> str:
    """Return a time that `moment` has formatted, shortened to whole seconds for display."""
    return time[:19].replace("T", " ") if time.endswith("Z") else time


REASON: Final = Column[RecordCount]("name", "Reason", "name", is_row_heading=True)
PAGE_COLUMNS: Final = (
    Column[RecordCount]("records", "Records"),
    Column[RecordCount]("first", "First", "text", lambda row: clock(row.first)),
    Column[RecordCount]("last", "Last", "text", lambda row: clock(row.last)),
)
"""Columns of the page after the name, which the page draws itself, as a link."""
TERMINAL_COLUMNS: Final[tuple[Column[Any], ...]] = (
    REASON,
    PAGE_COLUMNS[0],
    Column[LetterCount]("replayed", "Replayed"),
    Column[LetterCount]("partitions", "Partitions", "text"),
    *PAGE_COLUMNS[1:],
)


@dataclass(frozen=True, slots=True)
class Content(Document):
    """Key or value. bytes: length; None: the key or value is null. text: escaped text; None: masked."""

    json_keys = ("bytes", "text?")

    bytes: int | None
    text: str | None = None

    def __str__(self) -> str:
        if self.bytes is None:
            return "null"
        return f"{self.bytes:,} bytes" if self.text is None else self.text


@dataclass(frozen=True, slots=True)
class ShownHeader(Document):
    """Header of a record, with its content."""

    json_keys = ("name", "bytes=content.bytes", "text?=content.text")

    name: str
    content: Content


def content_of(found: bytes | None, is_shown: bool) -> Content:
    """Return a key, a value or a header's value; masked, unless `is_shown`."""
    return Content(None) if found is None else Content(len(found), shown(found) if is_shown else None)


def excerpt_of(found: bytes | None, is_shown: bool) -> Content:
    """Return a key, a value or a header's value as `content_of`, with at most `TEXT_MOST` characters of text."""
    if found is None or not is_shown:
        return content_of(found, is_shown)
    text = shown(found[: 4 * TEXT_MOST])
    return Content(len(found), text[:TEXT_MOST] + ("…" if len(text) > TEXT_MOST else ""))


@dataclass(frozen=True, slots=True)
class LetterRecord(Document):
    """Dead letter as `ratchet dead-letters show` prints it. values: True: with all contents."""

    json_keys = (
        "partition=found.letter.partition",
        "offset=found.letter.offset",
        "timestamp_ms=found.letter.timestamp_ms",
        "reason",
        "origin",
        "replays=found.letter.replays",
        "replayed=found.is_replayed",
        "headers",
        "key",
        "value",
    )

    found: LetterView
    values: bool

    @property
    def reason(self) -> str | None:
        """Return the reason; None: the record has no headers of a dead letter."""
        return None if self.found.letter.origin is None else self.found.letter.origin.reason

    @property
    def origin(self) -> RecordPosition | None:
        """Return the place of the input record; None: the record has no headers of a dead letter."""
        origin = self.found.letter.origin
        return None if origin is None else RecordPosition(origin.topic, origin.partition, origin.offset)

    @property
    def headers(self) -> list[ShownHeader]:
        """Return the headers, each with its name and content."""
        return [
            ShownHeader(name, content_of(value, self.values or name.startswith(OF_RATCHET)))
            for name, value in self.found.letter.headers
        ]

    @property
    def key(self) -> Content:
        """Return the key of the record."""
        return content_of(self.found.key, self.values)

    @property
    def value(self) -> Content:
        """Return the value of the record."""
        return content_of(self.found.value, self.values)


@dataclass(frozen=True, slots=True)
class LetterList(Document):
    """Dead letters of a stream, as `ratchet dead-letters show` prints them."""

    stream: str
    letters: list[LetterRecord]


@dataclass(frozen=True, slots=True)
class DroppedRecord(Document):
    """Dead letter or dropped record as the page shows it.

    origin: place of the input record; None: the record has none of Ratchet's headers.
    against: last sequence of the identity when the record was judged.
    replay: command that re-sends the dead letter; replayed: True if it was re-sent, None: not known. Both are unset for
    a dropped record.
    """

    partition: int
    offset: int
    timestamp: str
    reason: str
    identity: str | None
    identity_hex: str | None
    origin: RecordPosition | None
    against: int | None
    headers: list[ShownHeader]
    key: Content
    value: Content
    replay: str | UnsetType = UNSET
    replayed: bool | UnsetType | None = UNSET


@dataclass(frozen=True, slots=True)
class DroppedCount(Document):
    """Count of the records with one reason or one identity. replay: command that re-sends these dead letters."""

    name: str
    records: int
    first: str
    last: str
    replay: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class DroppedPage(Document):
    """Newest dead letters or dropped records of a stream; see `kafka_ratchet.app.why.dropped.NewestRecords`."""

    stream: str
    topic: str
    held_offsets: int
    read: int
    matching: int
    reasons: list[DroppedCount]
    identities: list[DroppedCount]
    records: list[DroppedRecord]
    problems: list[str]


@dataclass(frozen=True, slots=True)
class DroppedCounts(Document):
    """Numbers of dropped records, by verdict, for a stream that does not keep such records. None: not known."""

    json_keys = ("stream", "topic", "counts")

    stream: str
    counts: dict[str, int | None]
    topic: None = None


def letters_document(
    found: NewestRecords, stream: str, *, values: bool, replayed: ReplayedLetters | None
) -> DroppedPage:
    """Return the page with the newest dead letters, and the commands that re-send them.

    values: True: with the contents of keys and values
    replayed: set of re-sent dead letters; None: not known
    """
    command = ["ratchet", "dead-letters", "replay", "--stream", stream]
    records = [
        replace(
            _record(each, values),
            replay=shlex.join([*command, "--partition", str(each.partition), "--offset", str(each.offset)]),
            replayed=None if replayed is None else (each.partition, each.offset) in replayed,
        )
        for each in found.records
    ]
    reasons = [
        replace(_count(each), replay=shlex.join([*command, "--reason", each.name]))
        if each.name.isprintable() and not each.name.startswith("(")
        else _count(each)
        for each in found.reasons
    ]
    return _page(found, stream, reasons, records)


def duplicates_document(found: NewestRecords, stream: str, *, values: bool) -> DroppedPage:
    """Return the page with the newest dropped records. values: True: with the contents of keys and values."""
    reasons, records = map(_count, found.reasons), (_record(each, values) for each in found.records)
    return _page(found, stream, list(reasons), list(records))


def _page(found: NewestRecords, stream: str, reasons: list[DroppedCount], records: list[DroppedRecord]) -> DroppedPage:
    identities = [_count(each) for each in found.identities]
    read = found.topic, found.held, found.read, found.matching
    return DroppedPage(stream, *read, reasons, identities, records, found.problems)


def _count(found: Count) -> DroppedCount:
    return DroppedCount(found.name, found.records, found.first, found.last)


def _record(found: DroppedCopy, values: bool) -> DroppedRecord:
    origin = found.origin
    return DroppedRecord(
        found.partition,
        found.offset,
        moment(found.timestamp_ms),
        found.reason,
        None if found.identity is None else shown(found.identity),
        None if found.identity is None else found.identity.hex(),
        None if origin is None else RecordPosition(origin.topic, origin.partition, origin.offset),
        None if origin is None else origin.last_sequence,
        [ShownHeader(name, excerpt_of(value, values or name.startswith(OF_RATCHET))) for name, value in found.headers],
        excerpt_of(found.key, values),
        excerpt_of(found.value, values),
    )
