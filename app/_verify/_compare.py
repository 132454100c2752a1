"""What one partition's output and the dead letters must be, and how what is there differs."""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from app._verify._identities import STRANGER, Emitted, Flags, Numbers, numbers
from app._verify._report import Finding, Kind, Report
from app._verify._rule import Headers, RecordView, Rule
from tables import Stretch

DEAD_LETTER_HEADERS = ("ratchet-reason", "ratchet-topic", "ratchet-partition", "ratchet-offset")
"""Appended to a dead letter's own headers, in any order."""

_length = struct.Struct(">q").pack


def content(record: RecordView, *, with_timestamp: bool = True) -> bytes:
    """A digest of everything that must pass through untouched; it stands for the record in memory."""
    digest = hashlib.blake2b(digest_size=16)
    fields: list[bytes | None] = [record.key, record.value]
    for name, value in record.headers:
        fields += [name.encode("utf-8", "surrogatepass"), value]
    for field in fields:
        digest.update(_length(-1 if field is None else len(field)))
        digest.update(field or b"")
    if with_timestamp:
        digest.update(_length(record.timestamp_ms))
    return digest.digest()


NO_SEQUENCE = -1
"""Of a record that was forwarded although it has none."""


class ExpectedPartition:
    """What one partition's output must be, in order: its input's fresh records, and all of stretches not judged."""

    def __init__(self, rule: Rule, partition: int, unjudged: Sequence[Stretch] = ()) -> None:
        """Nothing is read yet.

        Args:
            rule: of the stream.
            partition: number.
            unjudged: stretches of its input that went by while deduplication was off.
        """
        self.partition = partition
        self._unjudged = [range(stretch.start, stretch.end) for stretch in unjudged]
        self._rule = rule
        self._last: dict[bytes, tuple[int, int]] = {}  # identity -> (its number, its last sequence)
        self._identities: list[bytes] = []
        # Per record to be forwarded, in order.
        self._offsets = array("q")
        self._sequences = array("q")
        self._owners = array("q")
        self._contents = bytearray()
        # A sequence rises within its identity, so the two name one fresh record ...
        self._places: dict[bytes, int] = {}
        # ... and, where records were not judged, several of the output: all that are not yet seen.
        self._several: dict[bytes, deque[int]] = {}
        self._seen = bytearray()
        self.invalid: dict[int, bytes] = {}
        """Offset of each invalid record -> digest of what its dead letter must carry."""

    def judge(self, offset: int, record: RecordView, report: Report) -> None:
        """Take the next record of the input."""
        found = self._rule.judge(record)
        if any(offset in stretch for stretch in self._unjudged):
            report.unjudged += 1
            self._expect(offset, record, found)
            return
        if found is None:
            report.invalid += 1
            self.invalid[offset] = content(record, with_timestamp=False)
            return
        identity, sequence = found
        if sequence <= self._last.get(identity, (0, -1))[1]:
            report.duplicate += 1
            return
        report.fresh += 1
        self._expect(offset, record, found)
        self._last[identity] = (self._owners[-1], sequence)

    def _expect(self, offset: int, record: RecordView, found: tuple[bytes, int] | None) -> None:
        """The next record of the output. found: its identity and sequence; None where it has none."""
        identity, sequence = found or (b"", NO_SEQUENCE)
        owner, _ = self._last.setdefault(identity, (len(self._identities), -1))
        if owner == len(self._identities):
            self._identities.append(identity)
        digest, place = content(record), len(self._offsets)
        key = _place_key(identity, sequence) if found else digest
        if (first := self._places.setdefault(key, place)) != place:
            self._several.setdefault(key, deque((first,))).append(place)
        self._offsets.append(offset)
        self._sequences.append(sequence)
        self._owners.append(owner)
        self._contents += digest

    def _place(self, record: RecordView, digest: bytes, seen: bytearray) -> int | None:
        """Which expected record this one of the output is: of several that it may be, the first not yet seen."""
        found = self._rule.judge(record)
        key = _place_key(*found) if found else digest
        if (left := self._several.get(key)) is None:
            return self._places.get(key)
        while left and seen[left[0]]:
            left.popleft()
        same = (each for each in left if not seen[each] and self._content(each) == digest)
        return next(same, left[0] if left else self._places[key])

    def _content(self, place: int) -> bytes:
        return bytes(self._contents[16 * place : 16 * place + 16])

    def compare(
        self,
        topic: str,
        output: Iterator[tuple[int, RecordView]],
        judged_to: int,
        report: Report,
        emitted: Emitted | None = None,
    ) -> None:
        """Go through the output and add what is wrong with it.

        Args:
            topic: the output topic.
            output: its records, with their offsets.
            judged_to: input before this offset must be in the output; later input may be.
            report: gets the counts and findings.
            emitted: gets every record of the output; None: nobody asks for them.
        """
        seen = self._seen = bytearray(len(self._offsets))
        furthest = -1
        strangers_here = 0
        # Records without a counterpart: (offset, the place they stand at, which of the output's records it is).
        strangers: list[tuple[int, int, int]] = []
        for number, (offset, record) in enumerate(output):
            report.delivered += 1
            digest = content(record)
            place = self._place(record, digest, seen)
            if emitted is not None:
                emitted.add(offset, STRANGER if place is None else place)
            if place is None:
                strangers_here += 1
                strangers.append((offset, furthest + strangers_here, number))
                continue
            if seen[place]:
                report.add(self._finding("doubled", topic, place, offset))
                continue
            seen[place] = 1
            if digest != self._content(place):
                report.add(self._finding("altered", topic, place, offset, "key, value, headers or timestamp differ"))
            if place < furthest:
                report.add(self._finding("reordered", topic, place, offset))
            else:
                furthest, strangers_here = place, 0
        for offset, place, number in strangers:
            # Where a record is missing and a stranger stands in its place, it is that record, altered so much that
            # its identity or sequence cannot be read any more.
            if place < len(seen) and not seen[place]:
                seen[place] = 1
                if emitted is not None:
                    emitted.recognise(number, place)
                report.add(self._finding("altered", topic, place, offset, "identity or sequence differ"))
            else:
                detail = "no record of the input that had to be forwarded has its identity and sequence"
                report.add(Finding("unexpected", topic, None, None, self.partition, offset, None, None, detail))
        for place, there in enumerate(seen):
            if there:
                continue
            if self._offsets[place] < judged_to:
                report.add(self._finding("lost", topic, place, None))
            else:
                report.pending += 1

    # What was expected, as columns, and where `compare` has found it.

    @property
    def identities(self) -> list[bytes]:
        """By number."""
        return self._identities

    @property
    def owners(self) -> Numbers:
        """Number of the identity of each expected record."""
        return numbers(self._owners)

    @property
    def input_offsets(self) -> Numbers:
        """Where each of them stands in the input."""
        return numbers(self._offsets)

    @property
    def seen(self) -> Flags:
        """Whether the output has it."""
        return np.frombuffer(self._seen, np.bool_)

    def known_as(self, place: int) -> tuple[str | None, int | None]:
        """Identity and sequence of an expected record; None for a stranger."""
        if place == STRANGER:
            return None, None
        return self._identities[self._owners[place]].decode("utf-8", "backslashreplace"), self._sequences[place]

    def _finding(self, kind: Kind, topic: str, place: int, offset: int | None, detail: str = "") -> Finding:
        return Finding(
            kind,
            topic,
            self.partition,
            self._offsets[place],
            None if offset is None else self.partition,
            offset,
            self._identities[self._owners[place]].decode("utf-8", "backslashreplace"),
            self._sequences[place],
            detail,
        )


def compare_dead_letters(
    input_topic: str,
    topic: str,
    invalid: dict[int, dict[int, bytes]],
    letters: Iterator[tuple[int, int, RecordView]],
    judged_to: dict[int, int],
    report: Report,
) -> None:
    """Every invalid record must have exactly one dead letter that says where it came from.

    Args:
        input_topic: the name that must stand in the letters.
        topic: the dead-letter topic.
        invalid: input partition -> offset -> digest of the record's content.
        letters: partition, offset and record of each dead letter.
        judged_to: per input partition; invalid records before this offset must be there, later ones may be.
        report: gets the counts and findings.
    """
    seen: set[tuple[int, int]] = set()
    for at_partition, at_offset, letter in letters:
        report.dead_letters += 1
        origin = _origin(letter.headers, input_topic)
        if origin is None or origin[1] not in invalid.get(origin[0], {}):
            detail = f"stems from {'/'.join(map(str, origin)) if origin else 'nowhere: bad or missing headers'}"
            report.add(Finding("unexpected", topic, None, None, at_partition, at_offset, None, None, detail))
            continue
        partition, offset = origin
        if origin in seen:
            report.add(Finding("doubled", topic, partition, offset, at_partition, at_offset, None, None))
            continue
        seen.add(origin)
        own = RecordView(letter.key, letter.value, letter.headers[: -len(DEAD_LETTER_HEADERS)], 0)
        if content(own, with_timestamp=False) != invalid[partition][offset]:
            detail = "key, value or headers differ"
            report.add(Finding("altered", topic, partition, offset, at_partition, at_offset, None, None, detail))
    for partition, offsets in invalid.items():
        for offset in offsets:
            if (partition, offset) in seen:
                continue
            if offset < judged_to[partition]:
                report.add(Finding("lost", topic, partition, offset, None, None, None, None, "has no dead letter"))
            else:
                report.pending += 1


def _origin(headers: Headers, input_topic: str) -> tuple[int, int] | None:
    """Partition and offset that the appended headers name; None where they are not as they must be."""
    appended = headers[-len(DEAD_LETTER_HEADERS) :]
    said = dict(appended)
    if len(appended) != len(DEAD_LETTER_HEADERS) or set(said) != set(DEAD_LETTER_HEADERS):
        return None
    partition, offset = said["ratchet-partition"] or b"", said["ratchet-offset"] or b""
    numbers = all(number.isdigit() and len(number) <= 19 for number in (partition, offset))
    if not said["ratchet-reason"] or said["ratchet-topic"] != input_topic.encode() or not numbers:
        return None
    return int(partition), int(offset)


def _place_key(identity: bytes, sequence: int) -> bytes:
    return hashlib.blake2b(_length(sequence) + identity, digest_size=16).digest()
