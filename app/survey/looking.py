"""Search of a sample for headers and fields with an identity or its rising number."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from kafka_ratchet.app.survey.kernels import DEPTH_MOST, parse_number
from kafka_ratchet.app.survey.places import (
    KEY,
    PARTITION,
    PRODUCER,
    SEQUENCE,
    WHOLE,
    Candidate,
    Candidates,
    RecordPart,
)
from kafka_ratchet.rule.identity import path_of
from kafka_ratchet.rule.nesting import decoded, is_too_deep
from kafka_ratchet.rule.parts import GUESS, TEXT
from kafka_ratchet.rule.reasons import has_registry_bytes
from kafka_ratchet.transport.batch.record_batch import RecordBatch

SAMPLE_MOST: Final = 20_000
"""Maximum number of records of the sample. Each header or field of a record takes a microsecond or two."""
VALUE_MOST: Final = 64 << 10
"""Maximum number of bytes of a value; longer values are not searched for fields."""
FIELDS_MOST: Final = 64
"""Maximum number of fields read from one value, and of headers read from one record."""
NAMES_MOST: Final = 2_000
"""Maximum number of different names of headers and fields, so that generated names do not fill the memory."""
UNNAMED_MOST: Final = 20
"""Maximum number of fields to count without a possible path in the settings."""
NAME_MOST: Final = 249
"""Maximum number of characters of the name of a header or field."""
BEHIND_REGISTRY_BYTES: Final = (
    "its JSON follows the five bytes of a Schema Registry (byte 0 and a schema id); `field:` reads plain JSON. "
    'Write the id into a header, have the producer write plain JSON, or set identity = "function:module:name" to a '
    "function that reads the value from its sixth byte on"
)

PRESENT_LEAST: Final = 0.25
"""Minimum share of the records that must have a header or field to make it a candidate."""
DISTINCT_LEAST: Final = 0.5
"""Minimum share of different values for a field without the usual name of an id."""
REPEATED_MOST, OTHERS_MOST = 0.5, 0.5
"""Largest share of repeats, and largest share of repeats with another key or value, that an identity may have.

A header or field with more repeats identifies the subject of an event, such as a customer, and not the event.
"""
IDENTITIES_MOST: Final = 8
FIELDS_CHOSEN_MOST: Final = 4

NUMBERS_MOST, OWNERS_MOST, SEQUENCES_MOST = 6, 10, 3
NUMBERS_LEAST: Final = 0.9
"""Minimum share of the values of a header or field that must be numbers."""
RISES_LEAST: Final = 0.7
"""Minimum share of new records that must have a number above the last one of their identity."""
PER_OWNER_LEAST: Final = 3
"""Minimum average number of records per identity. Fewer records show no order."""

PAIRS: Final = (
    (RecordPart("header", "ce_source"), RecordPart("header", "ce_id")),
    (RecordPart("header", "ce-source"), RecordPart("header", "ce-id")),
    (RecordPart("field", "source"), RecordPart("field", "id")),
)
"""Pairs of headers or fields that identify an event only together.

The id of a CloudEvent is unique only within its source.
"""

USUAL_ID: Final = re.compile(
    r"(^|[._-])(id|uuid|guid|ulid|key|e?tag|nonce|jti)$|"
    r"(event|message|msg|request|req|delivery|transaction|txn?|order|payment|record|webhook|correlation|dedup\w*|"
    r"idempotency)[._-]?(id|uuid|guid|key)$|^ce[_-]id$",
    re.IGNORECASE,
)
USUAL_OWNER: Final = re.compile(r"producer|source|device|sensor|client|host|instance|node|session", re.IGNORECASE)
TIMELIKE: Final = re.compile(r"time|date|(^|[._-])(ts|at)([._-]ms)?$|_at$|[a-z]At$", re.IGNORECASE)


class Row(NamedTuple):
    """Record of the sample. places: content of each header or field; content: hash of key and value."""

    partition: int
    places: dict[RecordPart, bytes]
    content: int


@dataclass(slots=True)
class TopicSample:
    """Sample of the topic's records. Those of a partition are in order."""

    rows: list[Row] = field(default_factory=list)
    unnamed: Counter[str] = field(default_factory=Counter)
    """Number of records by field name, for fields that no path of the settings can name."""
    of_registry: int = 0
    """Number of records with JSON after the five bytes of a Schema Registry."""
    _names: set[RecordPart] = field(default_factory=set)

    def add(self, batch: RecordBatch, most: int) -> int:
        """Add the first records of a batch, at most `most`; return the number added."""
        taken = min(batch.count, most, SAMPLE_MOST - len(self.rows))
        self.rows += [self._row(batch, index) for index in range(taken)]
        return taken

    def _row(self, batch: RecordBatch, index: int) -> Row:
        value = batch.value(index)
        places: dict[RecordPart, bytes] = {}
        key = batch.key(index)
        if key is not None:
            places[KEY] = key
        several: set[RecordPart] = set()
        for header in batch.headers(index)[:FIELDS_MOST]:
            place = RecordPart("header", header.name)
            if place in places:
                several.add(place)
            if header.value and self._knows(place):
                places[place] = header.value
        for place in several:
            del places[place]
        if value is not None and has_registry_bytes(value):
            self.of_registry += 1
        if value is not None and len(value) <= VALUE_MOST:
            for names, text in _scalars(value):
                path = path_of(names)
                if path is None:
                    self._note_unnamed(names)
                elif self._knows(place := RecordPart("field", path)):
                    places[place] = text
        return Row(batch.partition, places, hash((key, value)))

    def _note_unnamed(self, names: tuple[str, ...]) -> None:
        name = ".".join(names)
        if len(name) <= NAME_MOST and (name in self.unnamed or len(self.unnamed) < UNNAMED_MOST):
            self.unnamed[name] += 1

    def _knows(self, place: RecordPart) -> bool:
        if place in self._names:
            return True
        if len(self._names) >= NAMES_MOST or not place.name.isprintable() or not 0 < len(place.name) <= NAME_MOST:
            return False
        if place.kind == "header" and "\ufffd" in place.name:
            return False  # no UTF-8: no setting can name it
        self._names.add(place)
        return True


def _scalars(value: bytes) -> Iterator[tuple[tuple[str, ...], bytes]]:
    """Yield path and text of each string and whole number in a JSON object."""
    if not value.lstrip()[:1] == b"{" or is_too_deep(value):
        return
    try:
        whole = decoded(msgspec.json.decode, value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    waiting: list[tuple[tuple[str, ...], Any]] = [((), whole)]
    found = 0
    while waiting and found < FIELDS_MOST:
        names, inner = waiting.pop(0)
        if isinstance(inner, dict):
            if len(names) < DEPTH_MOST:
                waiting += [((*names, name), each) for name, each in list(inner.items())[:FIELDS_MOST]]
        elif isinstance(inner, str) and inner:
            found += 1
            yield names, inner.encode("utf-8", "surrogatepass")
        elif isinstance(inner, int) and not isinstance(inner, bool):
            found += 1
            yield names, b"%d" % inner if abs(inner) < 1 << 64 else b"large"


def choose(sample: TopicSample, named: tuple[Candidate, ...] = ()) -> Candidates:
    """Choose the candidates to count in all records: those in `named`, and about a dozen from the sample."""
    places = _Places(sample)
    chosen = [Candidate((WHOLE,)), *named]
    left_out = [
        (ascii(name)[1:-1], "no path can name it: its name has a quote, a backslash or a control character")
        for name, count in sample.unnamed.items()
        if count >= PRESENT_LEAST * len(sample.rows)
    ]
    if sample.of_registry and sample.of_registry >= PRESENT_LEAST * len(sample.rows):
        left_out.append(("value", BEHIND_REGISTRY_BYTES))
    pairs = [pair for pair in PAIRS if all(places.is_usual(place) for place in pair)]
    for pair in pairs:
        if pair[0].kind == "header" or places.is_usual(RecordPart("field", "specversion")):
            chosen.append(Candidate(pair))
    fields = 0
    for place in places.ranked():
        if (why := places.no_identity(place)) is not None:
            if Candidate((place,)) not in named:
                left_out.append((str(place), why))
        elif place.kind == "field" and (fields := fields + 1) > FIELDS_CHOSEN_MOST:
            left_out.append((str(place), "others are more likely; --identity counts this one as well"))
        elif len(chosen) - len(named) > IDENTITIES_MOST:
            left_out.append((str(place), "others are more likely; --identity counts this one as well"))
        else:
            chosen.append(Candidate((place,)))
    return Candidates(tuple(dict.fromkeys((*chosen, *_sequences(sample, places)))), tuple(left_out))


class _Places:
    """Statistics of the sample for each header and field."""

    def __init__(self, sample: TopicSample) -> None:
        self._records = max(len(sample.rows), 1)
        self._present: Counter[RecordPart] = Counter()
        self._others: Counter[RecordPart] = Counter()
        self._numbers: Counter[RecordPart] = Counter()
        values: dict[RecordPart, dict[bytes, int]] = {}
        for row in sample.rows:
            for place, text in row.places.items():
                self._present[place] += 1
                self._numbers[place] += _number(place, text) is not None
                self._others[place] += values.setdefault(place, {}).setdefault(text, row.content) != row.content
        self.distinct = {place: len(seen) for place, seen in values.items()}
        self._repeated = {place: count - self.distinct[place] for place, count in self._present.items()}

    def is_usual(self, place: RecordPart) -> bool:
        """Return True if enough records have this header or field."""
        return self._present[place] >= PRESENT_LEAST * self._records

    def ranked(self) -> list[RecordPart]:
        """Return the headers and fields that enough records have, with usual identities first."""
        usual = [place for place in self._present if self.is_usual(place)]
        return sorted(usual, key=lambda place: (self._rank(place), -self.distinct[place], place))

    def _rank(self, place: RecordPart) -> int:
        if place == KEY:
            return 0
        if USUAL_ID.search(place.words):
            return 1 if place.kind == "header" else 2
        if TIMELIKE.search(place.words):
            return 5
        return 3 if place.kind == "header" else 4

    def no_identity(self, place: RecordPart) -> str | None:
        """Return why a header or field identifies no events in the sample; None if it may."""
        present, distinct, repeated = self._present[place], self.distinct[place], self._repeated[place]
        if distinct == 1 and present > 1:
            return "it is the same in all records"
        if repeated > REPEATED_MOST * present and self._others[place] > OTHERS_MOST * repeated:
            return f"{distinct:,} values in {present:,} records, and records with the same value there differ elsewhere"
        if place.kind == "field" and not USUAL_ID.search(place.words) and distinct < DISTINCT_LEAST * present:
            return f"{distinct:,} values in {present:,} records"
        return None

    def numbers(self) -> list[RecordPart]:
        """Return the headers and fields with numbers; usual names of a time come last."""
        found = [
            place
            for place, count in self._numbers.items()
            if self.is_usual(place) and count >= NUMBERS_LEAST * self._present[place] and self.distinct[place] > 1
            if place != KEY
        ]
        return sorted(found, key=lambda place: (TIMELIKE.search(place.words) is not None, self._rank(place), place))

    def owners(self) -> list[RecordPart]:
        """Return the headers and fields that may be the identity of a rising number.

        On average, a value of such a header or field must be in enough records of the sample.
        """
        found = [
            place
            for place in self._present
            if self.is_usual(place) and self._present[place] >= PER_OWNER_LEAST * self.distinct[place]
            if self.distinct[place] > 1 or owner_rank(place) < owner_rank(PARTITION)
        ]
        return sorted(found, key=lambda place: (owner_rank(place), place))


def owner_rank(place: RecordPart) -> int:
    """Return the rank of a header or field as a rising number's identity; 0: best.

    The producer is best: its counter stays right when a second producer is added.
    """
    if place == PRODUCER:
        return 0
    if place.kind != "key" and USUAL_OWNER.search(place.words):
        return 1
    return 2 if place == KEY else 3 if place == PARTITION else 4


@lru_cache(1 << 17)  # every owner asks for the same numbers
def _number(place: RecordPart, text: bytes) -> int | None:
    found = parse_number(text, GUESS if place.kind == "header" else TEXT)
    return None if found < 0 else found


class _Rising(NamedTuple):
    share: float
    owner_rank: int
    candidate: Candidate


def _sequences(sample: TopicSample, places: _Places) -> list[Candidate]:
    """Return candidates with a rising number, the best first."""
    found: list[_Rising] = []
    numbers = places.numbers()[:NUMBERS_MOST]
    for number in numbers:
        owners = [place for place in places.owners()[:OWNERS_MOST] if place not in numbers]
        tried = [_rising(sample, owner, number) for owner in (*owners, PARTITION)]
        rising = [each for each in tried if each is not None]
        # Shares are rounded to a tenth, because smaller differences are chance; then the owner's name decides.
        rising.sort(key=lambda each: (-round(each.share, 1), each.owner_rank))
        found += rising[:1]
    found.sort(key=lambda each: (each.candidate.sequence != SEQUENCE, -round(each.share, 1), each.owner_rank))
    chosen = [each.candidate for each in found[:SEQUENCES_MOST]]
    own = Candidate((PRODUCER,), SEQUENCE)
    if own not in chosen and places.is_usual(PRODUCER) and places.is_usual(SEQUENCE):
        chosen.append(own)
    return chosen


def _rising(sample: TopicSample, owner: RecordPart, number: RecordPart) -> _Rising | None:
    last: dict[tuple[int, bytes], int] = {}
    seen: set[tuple[int, bytes, int]] = set()
    rises = late = repeats = 0
    for row in sample.rows:
        own = b"" if owner == PARTITION else row.places.get(owner)
        found = _number(number, row.places.get(number, b""))
        if own is None or found is None:
            continue
        if (row.partition, own, found) in seen:
            repeats += 1
            continue
        seen.add((row.partition, own, found))
        before = last.get((row.partition, own))
        if before is not None:
            rises += found > before
            late += found < before
        last[row.partition, own] = max(found, before or 0)
    share = rises / max(rises + late, 1)
    if share < RISES_LEAST or rises + late < len(last) or repeats > REPEATED_MOST * (repeats + len(seen)):
        return None
    return _Rising(share, owner_rank(owner), Candidate((owner,), number))
