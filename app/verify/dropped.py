"""Comparison of the topic of dropped records with the input.

That topic must have each dropped record once, and no other record.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from kafka_ratchet.app.verify.compare import UNKNOWN_LAST
from kafka_ratchet.app.verify.findings import Finding, FindingKind
from kafka_ratchet.app.verify.reading import is_other_topic
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rows import content
from kafka_ratchet.app.verify.rule import Headers, RecordView
from kafka_ratchet.transport.owner import DuplicatesFrom, Mark, Owner

DROPPED_HEADERS = (
    "ratchet-verdict",
    "ratchet-last-sequence",
    "ratchet-topic",
    "ratchet-partition",
    "ratchet-offset",
)
"""Headers appended to a dropped record's own, in this order."""
END = 1 << 63


class DroppedRecords:
    """Records of one input partition to be dropped, in order.

    Each takes 48 bytes of memory.
    """

    def __init__(self, partition: int, *, values: bool) -> None:
        """Start without records. values: True if the topic keeps values; False if it has null in their place."""
        self._partition, self._values = partition, values
        self._offsets, self._against, self._timestamps = array("q"), array("q"), array("q")
        self._contents = bytearray()
        self._verdicts: list[str] = []

    def expect(self, offset: int, record: RecordView, verdict: str, against: int) -> None:
        """Add the next dropped record of the input.

        verdict: name of the verdict that drops the record; against: last sequence of its identity before the record
        (-1: none), or UNKNOWN_LAST
        """
        kept = record if self._values else replace(record, value=None)
        self._offsets.append(offset)
        self._against.append(against)
        self._contents += content(kept, with_timestamp=False)
        self._timestamps.append(record.timestamp_ms)
        self._verdicts.append(verdict)

    def compare(
        self,
        topic: str,
        given: str,
        found: Iterable[tuple[int, RecordView]],
        where: WrittenDrops,
        judged_to: int,
        report: Report,
    ) -> int | None:
        """Compare the expected dropped records with a partition of their topic.

        Args:
            topic: name of the topic of dropped records.
            given: name of the input topic.
            found: records in this partition of `topic`, each with its offset.
            where: input offsets at which workers wrote dropped records to `topic`.
            judged_to: input offset before which dropped records must be there; later ones may already be there.
            report: receives counts and findings.

        Returns:
            input offset of the first dropped record that workers may still write; None: there is none.
        """
        self._sort()
        seen = bytearray(len(self._offsets))
        oldest: int | None = None
        for at, record in found:
            report.duplicates_kept += 1
            origin = _origin(record.headers, given, self._partition)
            place = -1 if origin is None else self._place(origin)
            if origin is None or place < 0:
                if origin is None or where.is_certain(origin):
                    self._add(report, "unexpected", topic, origin, at, f"stems from {given} offset {origin}")
                if origin is not None and not where.is_read_again(origin):
                    oldest = origin if oldest is None else min(oldest, origin)
                continue
            oldest = origin if oldest is None else min(oldest, origin)
            if seen[place]:
                if not where.is_read_again(origin):
                    self._add(report, "doubled", topic, origin, at)
                continue
            seen[place] = 1
            if wrong := self._difference(place, record):
                self._add(report, "altered", topic, origin, at, wrong)
        return self._missing(topic, seen, oldest, where, judged_to, report)

    def _sort(self) -> None:
        """Sort the records by input offset, and keep one record for each offset."""
        offsets = self._offsets
        if all(first < second for first, second in pairwise(offsets)):
            return
        places = {offset: place for place, offset in enumerate(offsets)}  # the last time that it was read
        times = Counter(offsets)
        kept = [places[offset] for offset in sorted(places)]
        against = [UNKNOWN_LAST if times[offsets[place]] > 1 else self._against[place] for place in kept]
        self._contents = bytearray().join(self._contents[16 * place : 16 * place + 16] for place in kept)
        self._verdicts = [self._verdicts[place] for place in kept]
        self._timestamps = array("q", (self._timestamps[place] for place in kept))
        self._offsets, self._against = array("q", sorted(places)), array("q", against)

    def _missing(
        self, topic: str, seen: bytearray, oldest: int | None, where: WrittenDrops, judged_to: int, report: Report
    ) -> int | None:
        """Count the missing records.

        Retention deletes from the beginning of the topic, so it has not deleted records of input offsets after
        `oldest`.

        oldest: lowest input offset of a record left in the topic; None: the topic is empty

        Returns:
            input offset of the first dropped record that workers may still write; None: there is none.
        """
        waits_from, before = None, 0
        for place, there in enumerate(seen):
            offset = self._offsets[place]
            if there or not where.is_kept(offset):
                continue
            if offset >= judged_to:
                report.pending += 1
                waits_from = offset if waits_from is None else waits_from
            elif (oldest is None or offset < oldest) and not where.is_whole:
                before += 1
            else:
                detail = "was dropped, and is missing in this topic"
                report.add(Finding("lost", topic, self._partition, offset, detail=detail))
        if oldest is None:  # no record shows which part retention has deleted
            report.undecided += before
        else:
            report.output_deleted += before
        return waits_from

    def _place(self, offset: int) -> int:
        place = bisect_left(self._offsets, offset)
        return place if place < len(self._offsets) and self._offsets[place] == offset else -1

    def _difference(self, place: int, record: RecordView) -> str:
        own = replace(record, headers=record.headers[: -len(DROPPED_HEADERS)])
        is_same = content(own, with_timestamp=False) == bytes(self._contents[16 * place : 16 * place + 16])
        if not is_same or (own.timestamp_ms != self._timestamps[place] and not own.is_append_time):
            return "key, value, headers or timestamp differ"
        said = dict(record.headers[-len(DROPPED_HEADERS) :])
        against, verdict = self._against[place], self._verdicts[place]
        if against == UNKNOWN_LAST:
            return ""
        wanted = verdict.encode(), None if against < 0 else b"%d" % against
        if (said["ratchet-verdict"], said["ratchet-last-sequence"]) == wanted:
            return ""
        return f"its headers lack the verdict {verdict} after sequence {against}"

    def _add(
        self, report: Report, kind: FindingKind, topic: str, origin: int | None, at: int, detail: str = ""
    ) -> None:
        report.add(Finding(kind, topic, self._partition, origin, self._partition, at, detail=detail))


class WrittenDrops:
    """Input offsets of a partition at which workers kept dropped records in a topic.

    They come from the changelog's owner entry, which names the topics of dropped records by input offset.
    """

    def __init__(
        self, owner: Owner | None, topic: str, topic_id: str, compared: range, *, whole: bool, complete: bool
    ) -> None:
        """Read the offsets from the owner entry.

        Args:
            owner: owner entry of the partition; None: no entry.
            topic: name of the topic of dropped records.
            topic_id: present id of `topic`.
            compared: compared input offsets.
            whole: True if this partition of `topic` still has its first records.
            complete: True if all identities before `compared` are known. Otherwise a seemingly new record may be a
                repeat.
        """
        changes = owner.duplicates if owner is not None else ()
        ends = [*(change.start for change in changes[1:]), END]
        self._kept = [
            range(change.start, end)
            for change, end in zip(changes, ends, strict=False)
            if _is_topic(change, topic, topic_id)
        ]
        self._again = read_again(owner)
        self._compared, self._complete, self.is_whole = compared, complete, whole

    def is_kept(self, offset: int) -> bool:
        """Return True if workers wrote dropped records to the topic at this input offset.

        The record at this offset need not be a dropped one; it may have been forwarded.
        """
        return any(offset in each for each in self._kept)

    def is_read_again(self, offset: int) -> bool:
        """Return True if workers judged this input offset again, after an operator had moved the position back."""
        return any(offset in each for each in self._again)

    def is_certain(self, offset: int) -> bool:
        """Return True if it is certain whether workers dropped the record of this input offset."""
        return self._complete and offset in self._compared and not self.is_read_again(offset)


def first_kept(owner: Owner | None, since: Mark, topic: str, topic_id: str) -> int:
    """Return the first offset of dropped records after a decision, in their topic.

    This is the offset in the mark, if workers wrote to this topic directly after the decision. Otherwise the mark has
    an offset of another topic, and 0 is returned.

    Args:
        owner: owner entry of the partition.
        since: mark of the decision.
        topic: name of the topic of dropped records.
        topic_id: present id of `topic`.
    """
    if owner is None or not owner.duplicates:
        return since.duplicates
    after = next((each.after or 0 for each in owner.decisions if each.mark is since), 0)
    first, *changes = owner.duplicates
    then = next((each for each in reversed(changes) if each.start <= after), first)
    return since.duplicates if _is_topic(then, topic, topic_id) else 0


def _is_topic(change: DuplicatesFrom, topic: str, topic_id: str) -> bool:
    """Return True if workers wrote dropped records to this topic from the change on."""
    return change.topic is not None and not is_other_topic(change.topic, topic, topic_id)


def read_again(owner: Owner | None) -> Sequence[range]:
    """Return the input offsets that workers judged again, after operators had moved the position back."""
    decisions = owner.decisions if owner is not None else ()
    return [
        range(decision.after, decision.before)
        for decision in decisions
        if decision.after is not None and decision.before is not None and decision.after < decision.before
    ]


def _origin(headers: Headers, given: str, partition: int) -> int | None:
    """Return the input offset that the appended headers name; None if they are missing or malformed.

    given, partition: topic and partition that these headers must name
    """
    appended = headers[-len(DROPPED_HEADERS) :]
    if tuple(name for name, _ in appended) != DROPPED_HEADERS:
        return None
    said = dict(appended)
    offset = said["ratchet-offset"] or b""
    if said["ratchet-topic"] != given.encode() or said["ratchet-partition"] != b"%d" % partition:
        return None
    return int(offset) if offset.isdigit() and len(offset) <= 19 else None
