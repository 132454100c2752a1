"""Comparison of a partition after operators' decisions (`ratchet resume`), in parts called legs.

A leg is the input between two decisions. Each leg has its own rule. A decision's entry in the changelog has the end of
the output at that time (its mark), so each leg is compared with its own part of the output. A leg begins with the last
sequences and windows of the leg before it, or with none after `--forget`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from kafka_ratchet.app.settings import StreamSettings
from kafka_ratchet.app.verify.compare import DeletedInputRecords, ExpectedPartition, OnDropped
from kafka_ratchet.app.verify.identities import UNMATCHED, Flags, Numbers, OutputRecords
from kafka_ratchet.app.verify.legs import Leg, noted_legs
from kafka_ratchet.app.verify.letters import Order
from kafka_ratchet.app.verify.reading import OffsetRanges, TopicReader
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rule import Rule
from kafka_ratchet.app.verify.state import Baseline, KnownSequence
from kafka_ratchet.app.verify.windows import judging_of
from kafka_ratchet.rule.settings import RuleSettings
from kafka_ratchet.tables.edits import FORGET, NOTHING, Edit
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from kafka_ratchet.transport.owner import OUTPUT, Mark, Owner


class Rules:
    """Present and earlier rules of a stream, each built once."""

    def __init__(self, stream: StreamSettings, dead_letters: tuple[str, str, str]) -> None:
        """Store the settings; build no rule yet. dead_letters: see `Rule`."""
        self._letters = dead_letters
        self._settings = stream.judged_by.entry
        self._made: dict[RuleSettings, Rule] = {}

    def is_of_settings(self, owner: Owner | None) -> bool:
        """Return True if a partition's owner entry contradicts no setting of the present rule.

        A missing owner entry contradicts nothing. Settings that the entry lacks are not compared.
        """
        return owner is None or all(owner.rule.get(name, said) == said for name, said in self._settings.items())

    def of(self, rule: Mapping[str, str] | None = None) -> Rule:
        """Return the rule of an owner entry, with the present settings where the entry lacks them.

        rule: rule in the owner entry; None: the rule of the settings

        Raises:
            SettingsError: a function of the rule cannot be imported any more.
        """
        texts = {name: (rule or {}).get(name, text) for name, text in self._settings.items()}
        settings = RuleSettings.parse(texts)
        if settings not in self._made:
            parts = settings.identity, settings.sequence, settings.sequence_form
            self._made[settings] = Rule(*parts, self._letters)
        return self._made[settings]


def is_straight(legs: Sequence[Leg]) -> bool:
    """Return True if no decision of an operator has divided the partition."""
    return not legs or (len(legs) == 1 and legs[0].since is None)


def legs_now(owner: Owner | None, baseline: Baseline, end: int) -> list[Leg]:
    """Return the legs of a partition, from a baseline to input offset `end`.

    A leg is the input between two decisions of an operator. The list is empty if no decision has divided the partition.
    """
    legs = noted_legs(owner, baseline.input_from, end, baseline.decided)
    return [] if is_straight(legs) else legs


def not_followed(
    owner: Owner | None, decided: str, unjudged: Sequence[PolicyInterval], edits: Sequence[Edit]
) -> tuple[list[PolicyInterval], list[Edit]]:
    """Return the policy intervals and edits that remain after an earlier run.

    Intervals processed by the earlier run are removed. Its processed edits are replaced by edits that change nothing,
    so that all later edits keep their numbers.

    Args:
        owner: owner entry of the partition.
        decided: time of the newest decision that the earlier run has processed; ISO 8601; "": there is none.
        unjudged: policy intervals with deduplication off.
        edits: all edits of the partition.
    """
    legs: list[Leg] = []
    if owner is not None and decided:
        later = [each.mark.rule for each in owner.decisions if each.at > decided and each.mark is not None]
        done_with = tuple(each for each in owner.decisions if each.at <= decided)
        rule = later[0] if later else owner.rule
        legs = noted_legs(msgspec.structs.replace(owner, decisions=done_with, rule=rule), 0, 0)
    mark = legs[-1].since if legs else None
    if mark is None:
        return list(unjudged), list(edits)
    same = {"before": NOTHING, "after": NOTHING, "added": 0, "raised": 0, "replaced": 0}
    done = [msgspec.structs.replace(each, **same) for each in edits[: mark.edits]]
    return [each for each in unjudged if each.number >= mark.intervals], [*done, *edits[mark.edits :]]


@dataclass
class PartitionComparison:
    """Result of the comparison of all legs of a partition.

    Attributes:
        last: comparison of the last leg, which the next run continues.
        parts: comparison and output records of each leg that still has input and output.
        invalid: digest of the content that a dead letter must have, by rising input offset of its record.
        letters: expected dead letters.
    """

    last: ExpectedPartition
    parts: list[tuple[ExpectedPartition, OutputRecords]]
    invalid: dict[int, bytes] = field(default_factory=dict)
    letters: Order = field(default_factory=lambda: Order(()))


class DecidedPartition:
    """Partition that operators' decisions have divided into legs."""

    def __init__(
        self,
        stream: StreamSettings,
        reader: TopicReader,
        rules: Rules,
        ranges: OffsetRanges,
        report: Report,
        partition: int,
    ) -> None:
        """Store the arguments; read nothing."""
        self._stream, self._reader, self._rules, self._report = stream, reader, rules, report
        self._ranges, self._partition = ranges, partition

    def compare(
        self,
        legs: Sequence[Leg],
        baseline: Baseline,
        owner: Owner | None,
        unjudged: Sequence[PolicyInterval],
        edits: Sequence[Edit],
        on_dropped: OnDropped | None,
    ) -> PartitionComparison:
        """Apply each leg's rule to its input, and compare the result with its output.

        Args:
            legs: legs of the partition, in order.
            baseline: known state at the beginning of the first leg, if no decision comes before it.
            owner: owner entry of the partition.
            unjudged: policy intervals with deduplication off.
            edits: all edits of the partition.
            on_dropped: function called with each dropped record; None: no function.
        """
        number, stream, report = self._partition, self._stream, self._report
        begin, judged_to = self._ranges.input_begins[number], self._ranges.judged[number]
        parts: list[tuple[ExpectedPartition, OutputRecords]] = []
        found: PartitionComparison | None = None
        invalid: dict[int, bytes] = {}
        letters, lettered, first_letter = list[int](), set[int](), 0
        before: tuple[ExpectedPartition, Leg] | None = None
        for at, leg in enumerate(legs):
            is_last = at == len(legs) - 1
            if begin and leg.end <= begin and not is_last:
                before = None
                continue
            doubt = report.doubtful.get(number)
            if doubt is not None and doubt[0] >= leg.start:
                del report.doubtful[number]  # judged again in this leg
            is_gone = any(each.until is not None and OUTPUT in each.until.replaced for each in legs[at:])
            expected = ExpectedPartition(
                self._rules.of(leg.rule),
                number,
                leg.intervals(unjudged),
                self.baseline(leg, baseline, before, unjudged, edits, owner),
                edits=leg.edits(edits),
                judging=judging_of(owner),
                forward=stream.forward,
                on_dropped=on_dropped,
            )
            if before is not None:
                expected.continue_windows(before[0])  # a forgotten identity has no last sequence, and takes none of it
            start = expected.baseline.input_from
            for offset, record in self._reader.records(stream.input, number, leg.end, start):
                expected.add_input(offset, record, report)
            first_letter = len(letters)
            emitted, due = OutputRecords(), judged_to if is_last else leg.end
            if is_gone:
                expected.take_all_as_seen(report)
                report.output_replaced += len(expected.seen)
            else:
                end = self._ranges.output_ends[number] if leg.until is None else leg.until.output
                output = self._reader.records(stream.output, number, end, expected.baseline.output_from)
                expected.compare(stream.output, output, due, report, emitted)
                parts.append((expected, emitted))
            for offset, digest in expected.invalid.items():
                invalid[offset] = digest
                if offset < due or offset not in lettered:
                    letters.append(offset)
                    lettered.add(offset)
            before = expected, leg
            found = PartitionComparison(expected, parts)
        assert found is not None  # noqa: S101 - there is a last leg
        found.invalid, found.letters = dict(sorted(invalid.items())), Order(letters, first_letter)
        return found

    def baseline(
        self,
        leg: Leg,
        first: Baseline,
        before: tuple[ExpectedPartition, Leg] | None,
        unjudged: Sequence[PolicyInterval],
        edits: Sequence[Edit],
        owner: Owner | None,
    ) -> Baseline:
        """Return the state known before the first record of a leg.

        Args:
            leg: leg of the partition.
            first: known state at the beginning of the first leg, if no decision comes before it.
            before: comparison of the leg before this one; None: there is none, or its input is deleted.
            unjudged: policy intervals with deduplication off.
            edits: all edits of the partition.
            owner: owner entry of the partition.
        """
        if leg.since is None:
            return first
        number = self._partition
        input_begin, output_begin = self._ranges.input_begins[number], self._ranges.output_begins[number]
        base = Baseline(leg.start, max(leg.since.output, output_begin))
        base.output_whole = output_begin <= leg.since.output
        if leg.start < input_begin:
            base.input_from, base.aligned, base.complete = input_begin, False, False
        elif leg.forgets or not leg.since.identities:
            pass  # nothing is known
        elif before is not None:
            expected, passed = before
            base.last = dict(expected.known_at(passed.end + 1))
            base.complete = expected.is_complete_at(passed.end + 1)
        else:
            if _is_output_gone(owner, leg.since):
                base.complete = False
                return base
            known_since = _forgotten_at(owner, leg.since)
            intervals, edited = (0, 0) if known_since is None else (known_since.intervals, known_since.edits)
            if any(intervals <= each.number < leg.since.intervals for each in unjudged):
                base.complete = False  # records in the output moved no sequence
                return base
            applied = [each for each in edits[edited : leg.since.edits] if each.has_changed]
            self._learn_from_output(base, leg.since, known_since, applied)
        return base

    def _learn_from_output(self, base: Baseline, since: Mark, known_since: Mark | None, edits: Sequence[Edit]) -> None:
        """Read last sequences from the output into a baseline, in place of deleted input.

        Args:
            base: baseline that receives the last sequences.
            since: mark of the decision after the deleted input.
            known_since: mark of the newest decision with `--forget` before `since`; None: no such decision.
            edits: operators' edits between the two marks.
        """
        number, front = self._partition, DeletedInputRecords()
        held, rule = self._ranges.output_begins[number], self._rules.of(since.rule)
        begin = 0 if known_since is None else known_since.output
        if OUTPUT not in since.replaced:
            for offset, record in self._reader.records(self._stream.output, number, since.output, held):
                if offset >= begin:
                    front.take(rule.identify(record))
                self._report.before += 1
        is_exact = held <= begin and not edits and len(front.last) == since.identities
        base.last = {identity: KnownSequence(sequence, is_exact) for identity, sequence in front.last.items()}
        for edit in edits:
            if edit.kind == FORGET:
                # The output may have a higher one from before, or from after.
                base.last[edit.name] = KnownSequence(edit.after, exact=False)
        base.complete = is_exact


def _is_output_gone(owner: Owner | None, since: Mark) -> bool:
    """Return True if a decision later than the one with the mark `since` replaced the output topic."""
    marks = [each.mark for each in owner.decisions if each.mark is not None] if owner is not None else []
    at = next((number for number, mark in enumerate(marks) if mark is since), len(marks))
    return any(OUTPUT in mark.replaced for mark in marks[at + 1 :])


def _forgotten_at(owner: Owner | None, since: Mark) -> Mark | None:
    """Return the mark of the newest decision with `--forget` before `since`; None if there is none.

    If the output topic was replaced between that decision and `since`, the returned mark has the output offset 0.
    """
    found: Mark | None = None
    for decision in owner.decisions if owner is not None else ():
        if decision.mark is since:
            break
        if decision.mark is None:
            continue
        if decision.forgets:
            found = decision.mark
        elif found is not None and OUTPUT in decision.mark.replaced:
            found = msgspec.structs.replace(found, output=0)
    return found


class JoinedLegs:
    """Expected records of a partition from all its legs, joined into one list.

    A leg is the input between two decisions of an operator. The list is compared with the result table.

    Attributes:
        partition: number of the partition
        emitted: output records of all legs
    """

    def __init__(self, compared: PartitionComparison, judged_to: int) -> None:
        """Join the legs. judged_to: input offset before which the last leg's records must be in the output."""
        self.partition, self.emitted = compared.last.partition, OutputRecords()
        self._parts = [each for each, _ in compared.parts]
        self._first: list[int] = [0]
        owners, offsets, seen, identities = list[Numbers](), list[Numbers](), list[Flags](), list[bytes]()
        for expected, emitted in compared.parts:
            first = self._first[-1]
            columns = (emitted.offsets, emitted.places, emitted.timestamps_ms)
            for offset, place, timestamp_ms in zip(*(each.tolist() for each in columns), strict=True):
                self.emitted.add(offset, place if place == UNMATCHED else first + place, timestamp_ms)
            owners.append(expected.owners + len(identities))
            identities += expected.identities
            is_last = expected is compared.last
            offsets.append(expected.input_offsets if is_last else np.minimum(expected.input_offsets, judged_to - 1))
            seen.append(expected.seen)
            self._first.append(first + len(expected.owners))
        self.identities = identities
        self.owners, self.input_offsets = np.concatenate(owners), np.concatenate(offsets)
        self.seen = np.concatenate(seen)

    def known_as(self, place: int) -> tuple[str | None, int | None]:
        """Return identity and sequence of the expected record at an index; (None, None) for UNMATCHED."""
        if place == UNMATCHED:
            return None, None
        part = int(np.searchsorted(self._first, place, "right")) - 1
        return self._parts[part].known_as(place - self._first[part])
