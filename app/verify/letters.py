"""Compares the dead letters with the invalid records of the input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kafka_ratchet.app.verify.baseline import Baseline
from kafka_ratchet.app.verify.digests import content
from kafka_ratchet.app.verify.findings import Finding, FindingKind
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rule import Headers, RecordView

DEAD_LETTER_HEADERS = ("ratchet-reason", "ratchet-topic", "ratchet-partition", "ratchet-offset")
"""Appended to a dead letter's own headers, in any order."""

DEPENDING = (b"too-late", b"content-differs")
"""Reasons that are about a record before."""


class Letter(NamedTuple):
    """Where one stands, and a digest of the record it carries."""

    partition: int
    offset: int
    content: bytes
    depends: bool = False
    """Whether its reason depends on an earlier record, which retention may have deleted."""


class Letters:
    """All dead letters of a stream, by the input record that they say they stem from.

    In memory it takes some 300 bytes for each.
    """

    def __init__(self, input_topic: str, topic: str, *, whole: bool, report: Report) -> None:
        """Nothing is read yet.

        Args:
            input_topic: the name that must stand in the letters.
            topic: the dead-letter topic.
            whole: whether retention has left all of them that are asked for.
            report: gets the counts and findings.
        """
        self._input, self._topic, self._whole, self._report = input_topic, topic, whole, report
        self._of: dict[int, dict[int, list[Letter]]] = {}

    def read(self, letters: Iterable[tuple[int, int, RecordView]]) -> None:
        """Take them: partition, offset and record of each."""
        for at_partition, at_offset, letter in letters:
            self._report.dead_letters += 1
            own = RecordView(letter.key, letter.value, own_headers(letter.headers), 0)
            depends = dict(letter.headers).get("ratchet-reason") in DEPENDING
            found = Letter(at_partition, at_offset, content(own, with_timestamp=False), depends)
            if (origin := origin_of(letter.headers, self._input)) is None:
                self._unexpected(found, "nowhere: bad or missing headers")
                continue
            self._of.setdefault(origin[0], {}).setdefault(origin[1], []).append(found)

    def compare(
        self,
        partition: int,
        invalid: Mapping[int, bytes],
        judged_to: int,
        baseline: Baseline,
        times: Mapping[int, int] | None = None,
    ) -> tuple[int | None, list[int]]:
        """Every invalid record of an input partition must have exactly one letter that says where it came from.

        Args:
            partition: of the input.
            invalid: its invalid records, by rising offset -> digest of the record's content.
            judged_to: those before this offset must have one; later ones may.
            baseline: where the partition begins.
            times: how many letters a record must have, where that may be more than one.

        Returns:
            the first offset that still waits for its letter, or None; and all offsets that have one
        """
        letters = self._of.pop(partition, {})
        waits_from, lettered, is_whole, before = None, [], self._whole, 0
        for offset, wanted in invalid.items():
            found, number = letters.pop(offset, []), 1 if times is None else times[offset]
            if offset in baseline.lettered:
                found = [Letter(-1, -1, wanted)] * number + found  # the last run has seen them
            if not found:
                if offset >= judged_to:
                    self._report.pending += 1
                    waits_from = offset if waits_from is None else waits_from
                elif is_whole:
                    self._lost(partition, offset)
                else:
                    before += 1
                continue
            is_whole = True  # what came later cannot be deleted
            lettered.append(offset)
            if found[0].content != wanted:
                self._add("altered", partition, offset, found[0], "key, value or headers differ")
            for _ in range(number - len(found)):
                self._lost(partition, offset)
            for again in found[number:]:
                self._add("doubled", partition, offset, again)
        if is_whole:
            self._report.output_deleted += before
        else:
            self._report.undecided += before
        for offset, found in letters.items():
            if offset < baseline.input_from and not baseline.aligned:
                continue  # its record is deleted
            for letter in found:
                if letter.depends and not baseline.complete:
                    self._report.undecided += 1
                else:
                    self._unexpected(letter, f"{partition}/{offset}")
        return waits_from, lettered

    def leave_out(self, partition: int, since: int = 0) -> None:
        """A partition of the input is not compared from an offset on, and neither are its letters."""
        left = self._of.pop(partition, {})
        self._of[partition] = {offset: found for offset, found in left.items() if offset < since}

    def finish(self) -> None:
        """After all partitions: letters of partitions that the input does not have."""
        for partition, letters in self._of.items():
            for offset, found in letters.items():
                for letter in found:
                    self._unexpected(letter, f"{partition}/{offset}")

    def _lost(self, partition: int, offset: int) -> None:
        self._report.add(Finding("lost", self._topic, partition, offset, detail="has no dead letter"))

    def _unexpected(self, letter: Letter, origin: str) -> None:
        where = (None, None, letter.partition, letter.offset)
        self._report.add(Finding("unexpected", self._topic, *where, detail=f"stems from {origin}"))

    def _add(self, kind: FindingKind, partition: int, offset: int, letter: Letter, detail: str = "") -> None:
        where = (partition, offset, letter.partition, letter.offset)
        self._report.add(Finding(kind, self._topic, *where, detail=detail))


def own_headers(headers: Headers) -> Headers:
    """A dead letter's headers without those that were appended.

    Those of agents have two more; letters of earlier versions of Ratchet have one, or none.
    """
    own, reason = headers[: -len(DEAD_LETTER_HEADERS)], dict(headers).get("ratchet-reason") or b""
    is_of_agent = reason.startswith((b"agent ", b"value does not decode: "))
    if is_of_agent and own and own[-1][0] == "ratchet-agents":
        own = own[:-1]
        own = own[:-1] if own and own[-1][0] == "ratchet-app" else own
    return own


def origin_of(headers: Headers, input_topic: str) -> tuple[int, int] | None:
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
