"""Choice of the partitions to compare over columns. Each other partition has a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.verify.decided import Rules, legs_now
from kafka_ratchet.app.verify.policies import skipped_by_decision
from kafka_ratchet.app.verify.reading import OffsetRanges
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.state import Baseline
from kafka_ratchet.app.verify.windows import judging_of
from kafka_ratchet.rule.identity import SequenceSource
from kafka_ratchet.tables.edits import Edit
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from kafka_ratchet.transport.owner import Owner

if TYPE_CHECKING:
    from kafka_ratchet.app.verify.columns.exact import ExactPartition

FEW: Final = 20_000
"""Smallest number of input offsets to compare over columns.

With fewer offsets, a comparison record by record ends before the compiled code is even loaded.
"""
REASON_FEW: Final = f"fewer than {FEW:,} records"
REASON_ASKED: Final = "--independent"
REASON_RETENTION: Final = "retention has deleted records while they were read"
EXPECTED: Final = frozenset((REASON_FEW, REASON_ASKED))
"""Reasons without a message to the operator, who expects them."""

IN_RECORD: Final = {"field": "stands in the value", "function": "is computed by a function"}


@dataclass(frozen=True, slots=True)
class Changelog:
    """Contents of a stream's changelog: policy intervals, owner entries and operators' edits by partition."""

    intervals: Mapping[int, Sequence[PolicyInterval]]
    owners: Mapping[int, Owner]
    edits: Mapping[int, Sequence[Edit]]


class ColumnComparison:
    """Comparison over columns, for the suitable partitions of one run of verify.

    It reports for each partition whether the partition was compared over columns or record by record.
    """

    def __init__(
        self,
        settings: Settings,
        bootstrap: str,
        chosen: StreamSettings,
        ranges: OffsetRanges,
        changelog: Changelog,
        topic_ids: Mapping[str, str],
        report: Report,
        *,
        independent: bool | None,
        more: str | None,
        state: bool,
    ) -> None:
        """Compare all suitable partitions in parallel; with a state file, compare none yet.

        A state file is read in the order of partitions, so each call of `exact` then compares its own partition.

        Args:
            settings: settings of the client.
            bootstrap: host:port[,host:port].
            chosen: settings of the stream.
            ranges: offsets to compare.
            changelog: changelog of the stream.
            topic_ids: ids of input and output topic at the time of `ranges`.
            report: receives each partition's way of comparison.
            independent: True: compare nothing over columns; False: compare over columns even with few records; None:
                compare over columns if there are enough records.
            more: command-line option that needs a comparison record by record; None: no such option was given.
            state: True if there is a state file, so that each run continues where the last one ended.
        """
        self._settings, self._bootstrap, self._chosen, self._topic_ids = settings, bootstrap, chosen, topic_ids
        self._ranges, self._changelog, self._report = ranges, changelog, report
        self._independent, self._state = independent, state
        self._found: dict[int, ExactPartition | str] = {}
        self._reason = _reason_for_stream(chosen, independent=independent, more=more)
        if not state and self._are_few(sum(ranges.committed_to.values())):
            self._reason = REASON_FEW
        if state or self._reason is not None:
            return
        starts = {
            number: Baseline.after_retention(begin, ranges.output_begins[number])
            for number, begin in ranges.input_begins.items()
        }
        self._look({number: each for number, each in starts.items() if self._reason_for(number, each) is None})

    def exact(self, number: int, baseline: Baseline) -> ExactPartition | None:
        """Return the result of a partition without any finding; None for any other partition."""
        if self._state and self._are_few(self._ranges.committed_to[number] - baseline.input_from):
            reason: str | None = REASON_FEW
        else:
            reason = self._reason or self._reason_for(number, baseline)
        if reason is None and self._state:
            self._look({number: baseline})
        # A second call for a partition, after retention has deleted more records, finds no result.
        found = reason or self._found.pop(number, REASON_RETENTION)
        if isinstance(found, str):
            self._report.singly[number] = found
            return None
        self._report.columns.append(number)
        return found

    def _are_few(self, records: int) -> bool:
        return self._independent is None and records < FEW

    def _look(self, baselines: Mapping[int, Baseline]) -> None:
        from kafka_ratchet.app.verify.columns.exact import exact_partitions
        from kafka_ratchet.app.verify.columns.judging import IdentityAndSequence

        chosen = self._chosen
        places = IdentityAndSequence.of(chosen.identity, SequenceSource.parse(chosen.sequence), chosen.sequence_form)
        assert places is not None  # noqa: S101 - of a stream that has none there is a reason
        self._found |= exact_partitions(
            self._settings,
            self._bootstrap,
            chosen,
            places,
            self._ranges,
            baselines,
            self._topic_ids,
            keep=self._state,
        )

    def _reason_for(self, number: int, baseline: Baseline) -> str | None:
        """Return why a partition cannot be compared over columns; None if it can."""
        owner, begin = self._changelog.owners.get(number), baseline.input_from
        if not (baseline.aligned and baseline.output_whole):
            return "the beginning of its input or output is deleted"
        if any(not each.deduplicate and each.end > begin for each in self._changelog.intervals.get(number, ())):
            return "deduplication was off at times"
        if any(each.has_changed and each.position >= begin for each in self._changelog.edits.get(number, ())):
            return "an operator has changed the state of identities"
        if legs_now(owner, baseline, begin):
            return "an operator has moved the partition, or changed its rule"
        if not Rules(self._chosen, ("", "", "")).is_of_settings(owner):
            return "its records are judged by another rule than the one in the settings"
        if any(skip.end > begin for skip in skipped_by_decision(owner)):
            return "an operator has skipped a part of its input"
        if judging_of(owner):
            return "the stream has, or had, reorder_window or conflicts"
        return None


def _reason_for_stream(chosen: StreamSettings, *, independent: bool | None, more: str | None) -> str | None:
    """Return why no partition of a stream can be compared over columns; None if some may."""
    if independent:
        return REASON_ASKED
    if more is not None:
        return f"{more} needs each record"
    for part in chosen.identity.parts:
        if part.kind in IN_RECORD:
            return f"the identity {IN_RECORD[part.kind]}"
    if (kind := SequenceSource.parse(chosen.sequence).kind) in IN_RECORD:
        return f"the sequence {IN_RECORD[kind]}"
    if not chosen.forward:
        return "nothing is forwarded"
    if chosen.duplicates is not None:
        return "dropped records are compared as well"
    return None
