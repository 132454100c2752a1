"""Comparison of one partition's output with the output expected from its input, record by record."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from kafka_ratchet.app.verify.findings import Finding, FindingKind
from kafka_ratchet.app.verify.identities import UNMATCHED, Flags, Numbers, OutputRecords, numbers
from kafka_ratchet.app.verify.policies import SkippedRange
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rows import content, identity_and_sequence
from kafka_ratchet.app.verify.rule import RecordView, Rule, only_header, was_replayed
from kafka_ratchet.app.verify.state import Baseline, KnownSequence
from kafka_ratchet.app.verify.windows import Windows
from kafka_ratchet.rule.form_look import FormFinder
from kafka_ratchet.rule.verdicts import CONTENT_DIFFERS, DUPLICATE, FRESH, INVALID, SKIPPED, TOO_LATE, UNJUDGED
from kafka_ratchet.tables.edits import FORGET, Edit
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from kafka_ratchet.transport.owner import JudgingFrom

UNKNOWN_LAST = -2
"""Value in place of a last sequence that cannot be computed."""

OnDropped = Callable[[int, RecordView, str, int], None]
"""Function called with each dropped record.

Arguments: offset; record; name of the verdict; last sequence of the record's identity before the record (-1: none, or
UNKNOWN_LAST).
"""

NO_SEQUENCE = -1
"""Value in place of a sequence, for a record without one."""

UNSEEN, SEEN, DISMISSED = 0, 1, 2
"""States of an expected record.

Unseen: not found in the output. Seen: found there. Dismissed: not expected, because it repeats a record that retention
has deleted from the input.
"""


class DeletedInputRecords:
    """Records at the beginning of an output, made from input that retention has deleted."""

    def __init__(self) -> None:
        self.last: dict[bytes, int] = {}
        """Highest sequence by identity."""

    def take(self, found: tuple[bytes, int] | None) -> None:
        """Add the next record of the output. found: its identity and sequence; None for an invalid record."""
        if found is not None:
            self.last[found[0]] = max(found[1], self.last.get(found[0], NO_SEQUENCE))


def _place_key(record: RecordView, found: tuple[bytes, int] | None) -> bytes:
    """Return the key that an input record and its output record share.

    It leaves the timestamp out: the broker replaces that of a topic with `LogAppendTime`.

    found: identity and sequence of the record; None: it has none
    """
    return identity_and_sequence(*found) if found else content(record, with_timestamp=False)


class ExpectedPartition:
    """Expected output of one partition, in order.

    The fresh records of the input are expected, and all records from intervals with deduplication off.
    """

    def __init__(
        self,
        rule: Rule,
        partition: int,
        unjudged: Sequence[PolicyInterval] = (),
        baseline: Baseline | None = None,
        skips: Sequence[SkippedRange] = (),
        edits: Sequence[Edit] = (),
        judging: Sequence[JudgingFrom] = (),
        *,
        forward: bool = True,
        on_dropped: OnDropped | None = None,
    ) -> None:
        """Store the arguments; read nothing.

        Args:
            rule: rule of the stream.
            partition: number of the partition.
            unjudged: intervals of the input with deduplication off.
            baseline: known state before the first record read; None: reading begins at offset 0.
            skips: input that operators have skipped.
            edits: operators' changes of the state, in order.
            judging: window and conflict settings by input offset; empty: the sequence alone decides.
            forward: True if records go to the output.
            on_dropped: function called with each dropped record; None: no function.
        """
        self.partition = partition
        self._forward, self._on_dropped = forward, on_dropped
        self.baseline = baseline or Baseline()
        begin = self.baseline.input_from
        self.skips = [skip for skip in skips if skip.end > begin]
        self.skipped = [0] * len(self.skips)
        """Number of records found in each of `skips`."""
        self._unjudged = [range(interval.start, interval.end) for interval in unjudged if interval.end > begin]
        # Records from intervals with deduplication off do not raise last sequences. If there are such records before
        # the beginning, the output does not show the last sequences at the beginning.
        self._front_speaks = all(interval.start >= begin for interval in unjudged)
        # The same applies if operators have forgotten or imported identities before the beginning.
        self._front_speaks &= all(edit.position >= begin or not edit.has_changed for edit in edits)
        self._windows = Windows(judging) if judging else None
        # In a reorder window, a late record may or may not repeat an older record of the output.
        self._front_speaks &= self._windows is None
        self._edits = deque(edit for edit in edits if edit.position >= begin and edit.has_changed)
        self._rule = rule
        self._forms = None if rule.guessed_header is None else FormFinder(rule.guessed_header)
        self._last: dict[bytes, tuple[int, int]] = {}  # identity -> (its number, its last sequence)
        self._identities: list[bytes] = []
        # By number of the identity: True if its known last sequence is exact, and no lower bound.
        self._exact = bytearray()
        self._starts: list[KnownSequence] = []
        """Known state of each identity before its first record, by number of the identity."""
        self._since: list[int] = []
        """First input offset where a number stands for its identity, by number; -1: from the beginning."""
        self._is_complete = self.baseline.complete
        self._imported_from = -1
        """Input offset of the last import of identities; output before the import lacks them. -1: no import."""
        self._imported_at = [edit.position for edit in self._edits if edit.kind != FORGET]
        for identity, known in self.baseline.last.items():
            self._begin_identity(identity, known, -1)
        # Per record to be forwarded, in order.
        self._offsets = array("q")
        self._sequences = array("q")
        self._owners = array("q")
        self._contents = bytearray()
        self._timestamps = array("q")
        self._judged = bytearray()
        # Index of the first expected record by identity and sequence. Only one such record can be fresh.
        self._places: dict[bytes, int] = {}
        # Indices of the unseen expected records by identity and sequence, if records from intervals with deduplication
        # off share both.
        self._several: dict[bytes, deque[int]] = {}
        self._seen = bytearray()
        self.invalid: dict[int, bytes] = {}
        """Required digest of each dead letter's content, by input offset of its record."""

    def _begin_identity(self, identity: bytes, known: KnownSequence, since: int) -> int:
        """Number an identity, from input offset `since` on; return the number.

        known: last sequence of the identity at that offset
        """
        number = len(self._identities)
        self._last[identity] = (number, known.sequence)
        self._identities.append(identity)
        self._exact.append(known.exact)
        self._starts.append(known)
        self._since.append(since)
        return number

    def _follow_edits(self, offset: int) -> None:
        """Apply the operators' edits that workers have applied up to an input offset."""
        while self._edits and self._edits[0].position <= offset:
            edit = self._edits.popleft()
            if edit.kind == FORGET:
                number, last = self._last.get(edit.name, (-1, NO_SEQUENCE))
                # The remaining last sequence may be higher than known here. After a complete deletion there is none.
                left = NO_SEQUENCE if edit.above is None else min(last, edit.above)
                known_exactly = self._is_complete if number < 0 else bool(self._exact[number])
                exact = known_exactly if edit.above is not None else True
                # Older records of the output that come first look like later ones.
                exact &= self.baseline.aligned
                self._begin_identity(edit.name, KnownSequence(left, exact), edit.position)
                continue
            # Imported identities are unknown here: a record missing in the output may come from them.
            self._is_complete = False
            self._imported_from = edit.position
            for identity, (_, last) in list(self._last.items()):
                self._begin_identity(identity, KnownSequence(last, exact=False), edit.position)

    def add_input(self, offset: int, record: RecordView, report: Report) -> str:
        """Apply the rule to the next input record, and expect fresh ones in the output.

        Returns:
            verdict: `FRESH`, `INVALID`, `UNJUDGED`, `SKIPPED` (by an operator), or the name of a verdict that drops the
                record
        """
        for number, skip in enumerate(self.skips):
            if skip.start <= offset < skip.end:
                self.skipped[number] += 1
                return SKIPPED
        if self._edits:
            self._follow_edits(offset)
        found = self._rule.identify(record)
        if any(offset in interval for interval in self._unjudged):
            report.unjudged += 1
            self._expect(offset, record, found, judged=False)
            return UNJUDGED
        number, last = (-1, -1) if found is None else self._last.get(found[0], (-1, -1))
        if self._forms is not None and not was_replayed(record):
            self._forms.add(offset, only_header(record.headers, self._rule.guessed_header or ""), last)
        verdict = self._verdict(offset, record, found, last)
        if found is None or verdict == INVALID:
            report.invalid += 1
            self.invalid[offset] = content(record, with_timestamp=False)
            return INVALID
        identity, sequence = found
        if verdict != FRESH:
            if verdict == TOO_LATE:
                report.late += 1
            elif verdict == CONTENT_DIFFERS:
                report.conflict += 1
            else:
                report.duplicate += 1
            if self._windows is not None and verdict in self._windows.lettered:
                self.invalid[offset] = content(record, with_timestamp=False)
                return verdict
            return self._drop(offset, record, verdict, last if self._exact[number] else UNKNOWN_LAST)
        report.fresh += 1
        self._expect(offset, record, found, judged=True)
        owner = self._owners[-1]
        self._last[identity] = (owner, max(sequence, last))
        return FRESH

    def _verdict(self, offset: int, record: RecordView, found: tuple[bytes, int] | None, last: int) -> str:
        if found is None:
            return INVALID
        if self._windows is not None:
            verdict = self._windows.verdict_of(offset, *found, last, record.value)
        else:
            verdict = FRESH if found[1] > last else DUPLICATE
        return INVALID if verdict != FRESH and self._rule.is_kept(record) else verdict

    def _finish_forms(self, report: Report) -> None:
        """Report a record with a sequence in another encoding than the stream decodes."""
        if self._forms is not None:
            self._forms.finish()
            if self._forms.found is not None:
                report.doubtful.setdefault(self.partition, self._forms.found)

    def take_all_as_seen(self, report: Report) -> None:
        """Treat all expected records as found, because there is no output to compare.

        Records with an uncertain verdict stay unseen.
        """
        self._finish_forms(report)
        # Without output, records of identities with an inexact last sequence stay uncertain.
        self._seen = bytearray(SEEN if self._exact[owner] else UNSEEN for owner in self._owners)

    def continue_windows(self, before: ExpectedPartition) -> None:
        """Take over the windows' state from the comparison of the preceding leg.

        A leg is the input between two decisions of an operator. The preceding comparison has read all its input.
        """
        if self._windows is not None and before._windows is not None:
            self._windows.continue_from(before._windows)

    @property
    def is_complete(self) -> bool:
        """Return True if this comparison knows every identity that the stream ever had."""
        return self._is_complete

    def last_of(self, identity: bytes, offset: int) -> int:
        """Return an identity's last sequence; -1 without one. offset: input offset after the last judged record."""
        self._follow_edits(offset)
        return self._last.get(identity, (-1, NO_SEQUENCE))[1]

    def _drop(self, offset: int, record: RecordView, verdict: str, against: int) -> str:
        if self._on_dropped is not None:
            self._on_dropped(offset, record, verdict, against)
        return verdict

    def _expect(self, offset: int, record: RecordView, found: tuple[bytes, int] | None, *, judged: bool) -> None:
        """Append a record to the expected output.

        found: identity and sequence of the record, None if it is invalid; judged: False: the record is from an interval
        with deduplication off
        """
        identity, sequence = found or (b"", NO_SEQUENCE)
        if identity in self._last:
            owner, _ = self._last[identity]
        else:
            owner = self._begin_identity(identity, KnownSequence(NO_SEQUENCE, self._is_complete), self._imported_from)
        digest, place = content(record), len(self._offsets)
        key = _place_key(record, found)
        if (first := self._places.setdefault(key, place)) != place:
            self._several.setdefault(key, deque((first,))).append(place)
        self._offsets.append(offset)
        self._sequences.append(sequence)
        self._owners.append(owner)
        self._contents += digest
        self._timestamps.append(record.timestamp_ms)
        self._judged.append(judged)

    def _place(self, record: RecordView, digest: bytes, seen: bytearray) -> int | None:
        """Return the index of the expected record for an output record; None if there is none.

        The two records have the same identity and sequence, or, without these, the same content. Among several
        expected ones, return the first unseen one, preferably with the same content.

        digest: digest of the output record's content; seen: state of each expected record
        """
        if not self._forward:
            return None
        found = self._rule.identify(record)
        key = _place_key(record, found)
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
        emitted: OutputRecords | None = None,
    ) -> None:
        """Compare the output with the expected records, and add the findings to the report.

        Args:
            topic: name of the output topic.
            output: records of the output, each with its offset.
            judged_to: input offset before which all fresh records must be in the output; later ones may already be
                there.
            report: report that receives counts and findings.
            emitted: receives every record of the output; None: not needed.
        """
        self._finish_forms(report)
        seen = self._seen = bytearray(len(self._offsets))
        furthest = -1
        unmatched_here = 0
        # Output records without an expected record: (offset, index of the expected record in the same place, index in
        # the output).
        unmatched: list[tuple[int, int, int]] = []
        front = None if self.baseline.aligned else DeletedInputRecords()
        for number, (offset, record) in enumerate(output):
            digest = content(record)
            place = self._place(record, digest, seen)
            if record.is_append_time and place is not None:
                report.restamped += 1
                digest = content(replace(record, timestamp_ms=self._timestamps[place]))
            if front is not None:
                if not self._begins_here(front, place, digest):
                    front.take(self._rule.identify(record))
                    report.before += 1
                    continue
                self._dismiss(front, report)
                front = None
            report.delivered += 1
            if emitted is not None:
                emitted.add(offset, UNMATCHED if place is None else place, record.timestamp_ms)
            if place is None:
                unmatched_here += 1
                unmatched.append((offset, furthest + unmatched_here, number))
                continue
            if seen[place]:
                report.add(self._finding("doubled", topic, place, offset))
                continue
            seen[place] = SEEN
            if digest != self._content(place):
                report.add(self._finding("altered", topic, place, offset, "key, value, headers or timestamp differ"))
            if place < furthest:
                report.add(self._finding("reordered", topic, place, offset))
            else:
                furthest, unmatched_here = place, 0
        if front is not None:
            self._dismiss(front, report)
        self._recognise(topic, unmatched, report, emitted)
        self._account_for_unseen(topic, judged_to, report)

    def _recognise(
        self, topic: str, unmatched: list[tuple[int, int, int]], report: Report, emitted: OutputRecords | None
    ) -> None:
        """Report the output records without an expected record.

        If an expected record is missing in the same place, report the record as altered.

        unmatched: for each such record, its output offset, the index of the expected record in its place, and its
        index in the output
        """
        seen = self._seen
        for offset, place, number in unmatched:
            # If an expected record is missing in the same place, the unmatched record is this one with another identity
            # or sequence.
            if self._forward and place < len(seen) and not seen[place]:
                seen[place] = SEEN
                if emitted is not None:
                    emitted.recognise(number, place)
                report.add(self._finding("altered", topic, place, offset, "identity or sequence differ"))
            else:
                detail = "no record to forward in the input has its identity and sequence"
                report.add(Finding("unexpected", topic, partition=self.partition, offset=offset, detail=detail))

    def _begins_here(self, front: DeletedInputRecords, place: int | None, digest: bytes) -> bool:
        """Return True if an output record certainly comes from input that Kafka still has.

        It must equal the input record byte for byte, and no operator may have changed the state of its identity before.
        If deduplication was on and there is no reorder window, its sequence must also be higher than all earlier ones
        of its identity in the output. Otherwise it may come from a deleted record, which the input record repeats.

        place: index of the matching expected record; digest: digest of the output record's content
        """
        if place is None or digest != self._content(place):
            return False
        identity = self._identities[self._owners[place]]
        if self._since[self._owners[place]] >= 0:
            return False  # the output may have the same record from before an operator's edit of the identity
        is_higher = self._sequences[place] > front.last.get(identity, NO_SEQUENCE)
        return not self._judged[place] or is_higher or self._windows is not None

    def _dismiss(self, front: DeletedInputRecords, report: Report) -> None:
        """Count expected records as duplicates if they repeat deleted input.

        An expected record is such a repeat if the output has a record from deleted input with the same identity and the
        same or a higher sequence.
        """
        if not self._front_speaks:
            return
        for identity, sequence in front.last.items():
            known = self.baseline.last.get(identity)
            if known is None or sequence >= known.sequence:
                self.baseline.last[identity] = KnownSequence(sequence, exact=True)
        for number, identity in enumerate(self._identities):
            self._exact[number] |= identity in front.last and self._since[number] < 0
        for place, owner in enumerate(self._owners):
            if self._since[owner] >= 0:
                continue
            last = front.last.get(self._identities[owner], NO_SEQUENCE)
            if self._judged[place] and self._sequences[place] <= last:
                self._seen[place] = DISMISSED
                report.fresh -= 1
                report.duplicate += 1

    def _account_for_unseen(self, topic: str, judged_to: int, report: Report) -> None:
        """Count each expected record missing in the output as lost, pending, undecided, or deleted."""
        self._pending_from: int | None = None
        if not self._forward:
            return
        is_whole, before = self.baseline.output_whole, 0
        for place, there in enumerate(self._seen):
            if there:
                # Without a reorder window, no later record of this identity can repeat deleted input.
                # Records from intervals with deduplication off do not raise last sequences.
                moves = there == SEEN and self._windows is None and self._judged[place]
                self._exact[self._owners[place]] |= bool(moves)
                is_whole |= there == SEEN
            elif self._offsets[place] >= judged_to:
                report.pending += 1
                if self._pending_from is None:
                    self._pending_from = self._offsets[place]
            elif not is_whole:
                before += 1
            elif self._judged[place] and not self._exact[self._owners[place]]:
                report.undecided += 1
            else:
                report.add(self._finding("lost", topic, place, None))
        # The proof begins at the first present record of the output. Without any, nothing is proven.
        if is_whole:
            report.output_deleted += before
        else:
            report.undecided += before

    def proven_to(self, judged_to: int, committed_to: int, letters_pending_from: int | None) -> int:
        """Return the input offset where the next run continues: nothing before it is pending.

        Args:
            judged_to: see `compare`.
            committed_to: offset after the last input record read.
            letters_pending_from: offset of the first record that waits for its dead letter; None: no record waits.
        """
        waiting = (self._pending_from, letters_pending_from)
        return max(self.baseline.input_from, min([committed_to, *(each for each in waiting if each is not None)]))

    def known_at(self, end: int) -> Iterator[tuple[bytes, KnownSequence]]:
        """Yield each known identity with its last sequence before input offset `end`."""
        self._follow_edits(end - 1)
        start = self.baseline.last  # the output's older part may have raised it
        known = [
            start.get(identity, self._starts[number]) if self._since[number] < 0 else self._starts[number]
            for number, identity in enumerate(self._identities)
        ]
        last = np.array([each.sequence for each in known], np.int64)
        exact = np.array([each.exact for each in known], np.bool_)
        count = bisect_left(self._offsets, end)
        moved = np.frombuffer(self._judged, np.bool_)[:count] & (
            np.frombuffer(self._seen, np.uint8)[:count] != DISMISSED
        )
        owners, sequences = self.owners[:count][moved], numbers(self._sequences)[:count][moved]
        np.maximum.at(last, owners, sequences)
        exact[owners[self.seen[:count][moved]]] = True
        stands = {identity: number for number, identity in enumerate(self._identities) if self._since[number] < end}
        for identity, number in stands.items():
            if last[number] >= 0:
                yield identity, KnownSequence(int(last[number]), bool(exact[number]))
        for identity, before in start.items():
            if identity not in self._last:
                yield identity, before

    def is_complete_at(self, end: int) -> bool:
        """Return True if `known_at` yields every identity of the input before `end`."""
        return self.baseline.complete and not any(at < end for at in self._imported_at)

    # Expected records as columns, and their places from `compare`.

    @property
    def identities(self) -> list[bytes]:
        """Return the identities of the expected records. An index here is an identity's number in `owners`."""
        return self._identities

    @property
    def owners(self) -> Numbers:
        """Return the number of each expected record's identity, int64[records]."""
        return numbers(self._owners)

    @property
    def input_offsets(self) -> Numbers:
        """Return the input offset of each expected record, int64[records]."""
        return numbers(self._offsets)

    @property
    def seen(self) -> Flags:
        """Return True for each expected record found in the output, bool[records]."""
        return np.equal(np.frombuffer(self._seen, np.uint8), SEEN, dtype=np.bool_)

    def known_as(self, place: int) -> tuple[str | None, int | None]:
        """Return identity and sequence of the expected record at an index; (None, None) for UNMATCHED."""
        if place == UNMATCHED:
            return None, None
        return self._identities[self._owners[place]].decode("utf-8", "backslashreplace"), self._sequences[place]

    def _finding(self, kind: FindingKind, topic: str, place: int, offset: int | None, detail: str = "") -> Finding:
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
