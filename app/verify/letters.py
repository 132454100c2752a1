"""Comparison of a stream's dead letters with the invalid records of its input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kafka_ratchet.app.verify.findings import Finding, FindingKind
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rows import content
from kafka_ratchet.app.verify.rule import Headers, RecordView
from kafka_ratchet.app.verify.state import Baseline
from kafka_ratchet.rule.reasons import REASONS, REPLAY_NOT_NEW
from kafka_ratchet.rule.verdicts import CONTENT_DIFFERS, TOO_LATE

DEAD_LETTER_HEADERS = ("ratchet-reason", "ratchet-topic", "ratchet-partition", "ratchet-offset")
"""Headers appended to a dead letter's own, in any order."""

DEPENDING = (TOO_LATE.encode(), CONTENT_DIFFERS.encode(), REASONS[REPLAY_NOT_NEW].encode())
"""Reasons of dead letters that refer to an earlier record."""


class Letter(NamedTuple):
    """Partition and offset of a dead letter, and a digest of its content."""

    partition: int
    offset: int
    content: bytes
    depends: bool = False
    """True if the reason depends on an earlier record, which retention may have deleted."""


class Order(NamedTuple):
    """Input offsets of dead letters, in the order of the workers' writes.

    last: index of the first dead letter since operators' last decision
    """

    offsets: Sequence[int]
    last: int = 0


class Letters:
    """Dead letters of a stream, by the input partition and offset in their headers.

    Each takes some 300 bytes of memory.
    """

    def __init__(self, app: str | None, input_topic: str, topic: str, *, whole: bool, report: Report) -> None:
        """Start without dead letters.

        Args:
            app: application of the stream's agents; letters of other applications' agents are not compared. None: the
                stream has no agents.
            input_topic: name of the input in the headers of dead letters.
            topic: name of the dead-letter topic.
            whole: True if retention has deleted none of the dead letters to compare.
            report: receives counts and findings.
        """
        self._app = None if app is None else app.encode()
        self._input, self._topic, self._whole, self._report = input_topic, topic, whole, report
        self._of: dict[int, dict[int, list[Letter]]] = {}

    def read(self, letters: Iterable[tuple[int, int, RecordView]]) -> None:
        """Add dead letters. letters: partition, offset and record of each."""
        for at_partition, at_offset, letter in letters:
            self._report.dead_letters += 1
            headers, app = _split(letter.headers)
            own = RecordView(letter.key, letter.value, headers, 0)
            depends = dict(letter.headers).get("ratchet-reason") in DEPENDING
            found = Letter(at_partition, at_offset, content(own, with_timestamp=False), depends)
            if (origin := origin_of(letter.headers)) is None:
                self._unexpected(found, "nowhere: bad or missing headers")
            elif origin[0] != self._input.encode() or app not in (None, self._app):
                self._report.other_letters += 1
            else:
                self._of.setdefault(origin[1], {}).setdefault(origin[2], []).append(found)

    def compare(
        self,
        partition: int,
        invalid: Mapping[int, bytes],
        judged_to: int,
        baseline: Baseline,
        order: Order | None = None,
        times: Mapping[int, int] | None = None,
    ) -> tuple[int | None, list[int]]:
        """Check that a partition's dead letters are exactly those of its invalid records.

        Args:
            partition: number of the input partition.
            invalid: digest of the dead letter's content, by rising input offset of the invalid record.
            judged_to: input offset before which invalid records must have their dead letters; later ones may already
                have them.
            baseline: known state before the first record read.
            order: order of the dead letters; None: the order of the input.
            times: number of dead letters by input offset, if agents may write several; None: one each.

        Returns:
            (first input offset that still waits for a dead letter, or None; input offsets with dead letters since
            operators' last decision).
        """
        times = {} if times is None else times
        if order is None:
            order = Order([offset for offset in invalid for _ in range(times.get(offset, 1))])
        wanted, letters = Counter(order.offsets), self._of.pop(partition, {})
        found = {offset: letters.pop(offset, []) for offset in invalid}
        for offset in baseline.lettered & invalid.keys():
            found[offset][:0] = [Letter(-1, -1, invalid[offset])] * times.get(offset, 1)  # the last run has seen them
        waits, lettered = set[int](), dict[int, None]()
        is_whole, before, met = self._whole, 0, Counter[int]()
        for number, offset in enumerate(order.offsets):
            met[offset] += 1
            if met[offset] > wanted[offset] - len(found[offset]):
                is_whole = True  # what came later cannot be deleted
                if number >= order.last:
                    lettered[offset] = None
            elif not found[offset] and offset >= judged_to:
                waits.add(offset)
            elif is_whole:
                self._lost(partition, offset)
            else:
                before += 1
        self._report.pending += len(waits)
        for offset, digest in invalid.items():
            for each in found[offset][: wanted[offset]]:
                if each.content != digest:
                    self._add("altered", partition, offset, each, "key, value or headers differ")
            for again in found[offset][wanted[offset] :]:
                self._add("doubled", partition, offset, again)
        if is_whole:
            self._report.output_deleted += before
        else:
            self._report.undecided += before
        for offset, unknown in letters.items():
            if offset < baseline.input_from and not baseline.aligned:
                continue  # its record is deleted
            for letter in unknown:
                if letter.depends and not baseline.complete:
                    self._report.undecided += 1
                else:
                    self._unexpected(letter, f"{partition}/{offset}")
        return min(waits, default=None), list(lettered)

    def leave_out_before(self, partition: int, end: int) -> None:
        """Exclude dead letters before offset `end` of the dead-letter topic's partition.

        Retention has deleted the input records of these dead letters.
        """
        for of in self._of.get(partition, {}).values():
            of[:] = [each for each in of if each.partition != partition or each.offset >= end]

    def leave_out(self, partition: int, since: int = 0) -> None:
        """Exclude the dead letters of a partition's records from input offset `since` on."""
        left = self._of.pop(partition, {})
        self._of[partition] = {offset: found for offset, found in left.items() if offset < since}

    def finish(self) -> None:
        """Report the dead letters of partitions that the input does not have. Call it after all partitions."""
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
    """Return a dead letter's headers without the ones that Ratchet has appended.

    A dead letter of an agent has up to three more such headers, depending on the version of Ratchet.
    """
    return _split(headers)[0]


def _split(headers: Headers) -> tuple[Headers, bytes | None]:
    """Return a dead letter's own headers, and the application of its agents; None: no agents, or an earlier version."""
    own, reason = headers[: -len(DEAD_LETTER_HEADERS)], dict(headers).get("ratchet-reason") or b""
    is_of_agent, app = reason.startswith((b"agent ", b"value does not decode: ")), None
    if is_of_agent and own and own[-1][0] == "ratchet-agents":
        own = own[:-1]
        if own and own[-1][0] == "ratchet-app":
            app, own = own[-1][1], own[:-1]
        if own and own[-1][0] == "ratchet-event-id":
            own = own[:-1]
    return own, app


def origin_of(headers: Headers) -> tuple[bytes, int, int] | None:
    """Return the input topic, partition and offset in a dead letter's headers; None if one is missing or malformed."""
    appended = headers[-len(DEAD_LETTER_HEADERS) :]
    said = dict(appended)
    if len(appended) != len(DEAD_LETTER_HEADERS) or set(said) != set(DEAD_LETTER_HEADERS):
        return None
    topic, partition, offset = said["ratchet-topic"], said["ratchet-partition"] or b"", said["ratchet-offset"] or b""
    numbers = all(number.isdigit() and len(number) <= 19 for number in (partition, offset))
    if not said["ratchet-reason"] or not topic or not numbers:
        return None
    return topic, int(partition), int(offset)
