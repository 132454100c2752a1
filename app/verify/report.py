"""Report of verify, and exit codes of `ratchet verify`."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import msgspec

from kafka_ratchet.app.inspect.document import Document
from kafka_ratchet.app.status.open_transactions import BlockedRange
from kafka_ratchet.app.verify.findings import (
    Finding,
    FindingKind,
    Findings,
    IntervalCheck,
    ResultsReport,
    SourceReport,
)
from kafka_ratchet.app.verify.replay.report import ReplayReport
from kafka_ratchet.tables.edits import Edit


class ExitCode(IntEnum):
    """Exit code of `ratchet verify`; docs/guide/verify.md has the table."""

    PROVEN = 0
    WRONG = 1
    NOT_COMPARED = 2
    """Comparison impossible because of Kafka, settings or a file. An error says why; there is no report."""
    NOT_ALL_PROVEN = 3
    """No findings, but a part could not be compared, or waits for a worker. A script must not treat this as a proof."""


@dataclass(frozen=True, slots=True)
class HaltedPartition:
    """Halted partition, with the error of its worker."""

    partition: int
    error: str


@dataclass(frozen=True, slots=True)
class UnjudgedInput:
    """Input that no worker has judged."""

    partition: int
    start: int
    end: int
    """Offset after the last record."""
    deleted: bool
    """True if Kafka has deleted this input, so that it will never be judged."""

    def __str__(self) -> str:
        what = "deleted before any worker has read them" if self.deleted else "no worker has ever committed a position"
        return f"never judged: input partition {self.partition} offsets {self.start:,} to {self.end - 1:,}, {what}"


@dataclass(frozen=True, slots=True)
class SkippedInput:
    """Input skipped by an operator's decision (`ratchet resume`)."""

    partition: int
    start: int
    end: int
    """Offset after the last record."""
    records: int
    """Number of skipped records that Kafka still has."""
    by: str
    at: str
    reason: str

    def __str__(self) -> str:
        return (
            f"skipped by decision: {self.records:,} records, input partition {self.partition} offsets "
            f"{self.start:,} to {self.end - 1:,}, by {self.by} at {self.at}: {self.reason}"
        )


@dataclass(frozen=True, slots=True)
class ComparedStart:
    """First compared offsets of a partition, if the comparison does not begin at offset 0."""

    partition: int
    input: int
    output: int
    continued: bool
    """True if the comparison continues where the last run ended, as the state file says."""
    gap_from: int | None = None
    """First input offset that retention deleted before verify compared it; the gap ends at `input`. None: no gap."""

    def __str__(self) -> str:
        where = (
            f"partition {self.partition}: proven from input offset {self.input:,} and output offset {self.output:,} on"
        )
        if self.gap_from is not None:
            return f"{where}; offsets {self.gap_from:,} to {self.input - 1:,} were deleted before verify compared them"
        return f"{where}, where the last run ended" if self.continued else f"{where}; earlier records are deleted"


BY_COMPACTION: Final = frozenset({"reordered", "altered", "unexpected"})
"""Kinds of findings that correct output may cause if Kafka compacts the input.

Kafka removes a record from the input while its output stays. Verify then takes a later repeat for the first record.
"""

VERDICT_KINDS: Final = ("lost", "doubled", "reordered", "altered", "unexpected")
"""Kinds of findings that every verdict lists, even with the count 0."""


def counts_sentence(counts: Iterable[tuple[str, int]]) -> str:
    """Return the numbers of findings by kind, as text. counts: kinds with their numbers; a kind may repeat."""
    found: dict[str, int] = dict.fromkeys(VERDICT_KINDS, 0)
    for kind, count in counts:
        found[kind] = found.get(kind, 0) + count
    return ", ".join(f"{kind} {count:,}" for kind, count in found.items())


@dataclass
class Report(Findings[FindingKind, Finding], Document):
    """Results for one stream. Output and dead letters are counted together; each finding names its topic."""

    json_keys = (
        "stream",
        "ok",
        "lost",
        "doubled",
        "reordered",
        "altered",
        "unexpected",
        "contradicted",
        "fresh",
        "duplicate",
        "invalid",
        "late",
        "conflict",
        "unjudged",
        "unjudged_stretches=intervals",
        "policies",
        "delivered",
        "dead_letters",
        "other_letters",
        "duplicates_kept",
        "pending",
        "undecided",
        "before",
        "output_deleted",
        "output_replaced",
        "restamped",
        "input_compacted",
        "skipped",
        "edits=numbered_edits",
        "begins",
        "state_written",
        "halted",
        "doubtful=doubts",
        "never_judged",
        "left_out=left_out_by_partition",
        "open_transactions=blocked",
        "proven=is_proven",
        "verdict",
        "as_columns=columns",
        "record_by_record=singly_by_partition",
        "findings=sentences",
        "replay?",
        "source?",
        "results?",
    )

    stream: str
    fresh: int = 0
    """Fresh records of the input up to the committed offsets, as recomputed by verify."""
    duplicate: int = 0
    invalid: int = 0
    late: int = 0
    """Records too late: below the reorder window of their identity."""
    conflict: int = 0
    """Records with the last sequence of their identity, but another value."""
    unjudged: int = 0
    """Records of the input processed while deduplication was off: each must be in the output."""
    intervals: list[tuple[int, int, int]] = field(default_factory=list)
    """Intervals with deduplication off: input partition, first offset, offset after the last."""
    policies: list[IntervalCheck] = field(default_factory=list)
    """Check of each policy interval in the changelog; empty if deduplication was never switched."""
    delivered: int = 0
    """Records in the output."""
    dead_letters: int = 0
    """Records in the dead-letter topic."""
    other_letters: int = 0
    """Dead letters of another input or of another application's agents, in a shared topic; part of `dead_letters`."""
    duplicates_kept: int = 0
    """Records in the topic of dropped records."""
    pending: int = 0
    """Number of uncommitted input offsets, and of committed records that workers may still have to write.

    Such records are not in the output or the dead letters.
    """
    undecided: int = 0
    """Records missing in the output that may be repeats of deleted input.

    If retention has left no output of a partition, or no record in the topic of dropped records, all missing records
    count as undecided.
    """
    output_deleted: int = 0
    """Input records that are not compared, because retention has deleted their output or dead letters."""
    output_replaced: int = 0
    """Records lost with a deleted output topic. An operator has accepted this and continued with a new topic."""
    restamped: int = 0
    """Output records with Kafka's append time. Their timestamps are not compared."""
    arrivals_not_compared: int = 0
    """Number of reasons why the input is not compared with the internal topic (`repartition_by`).

    Each partition of either topic with a deleted beginning counts, and each with an operator's decision or with an
    owner entry of another topic.
    """
    before: int = 0
    """Output records from deleted input: all before the first record with input that Kafka still has."""
    begins: list[ComparedStart] = field(default_factory=list)
    """First compared offsets of each partition that is not compared from offset 0 on."""
    compared_to: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Input and output offset after the last compared record, by partition."""
    state_written: bool | None = None
    """True if the state file was written; False if not; None: `--state` was not given."""
    skipped: list[SkippedInput] = field(default_factory=list)
    """Input skipped by operators, which is not expected in the output."""
    edits: list[tuple[int, Edit]] = field(default_factory=list)
    """Operators' edits of the state (`ratchet forget`, `ratchet state import`), each with its input partition."""
    halted: list[HaltedPartition] = field(default_factory=list)
    """Halted partitions, as workers report them; without an answer of a worker, their input counts as pending."""
    never_judged: list[UnjudgedInput] = field(default_factory=list)
    doubtful: dict[int, tuple[int, str]] = field(default_factory=dict)
    """First input offset with a sequence in a doubtful form, and the reason, by partition."""
    blocked: list[BlockedRange] = field(default_factory=list)
    """Input after an open transaction of another producer, which no worker can read yet; part of `pending`."""
    input_compacted: bool = False
    """True if all findings may be due to input removed by Kafka's compaction."""
    results: ResultsReport | None = None
    """Results for the result table; None: not requested."""
    source: SourceReport | None = None
    """Results for a producer's files; None: not requested."""
    from_input: bool = False
    """True if Spark judges the input, so that the stream has no output and no dead-letter topic."""
    columns: list[int] = field(default_factory=list)
    """Partitions that the comparison over columns found exactly right."""
    singly: dict[int, str] = field(default_factory=dict)
    """Reasons for the comparison record by record, by partition."""
    left_out: dict[int, str] = field(default_factory=dict)
    """Reasons for leaving a partition out of the comparison, by partition."""
    replay: ReplayReport | None = None
    """Results of a replay of agents; None: no replay."""

    def saved(self) -> Report:
        """Return a copy of the present results for `restore`."""
        kept = copy.copy(self)
        vars(kept).update((name, copy.copy(value)) for name, value in vars(self).items())
        if self.replay is not None and kept.replay is not None:
            vars(kept.replay).update((name, copy.copy(value)) for name, value in vars(self.replay).items())
        return kept

    def restore(self, kept: Report) -> None:
        """Set the results back to a copy made by `saved`."""
        replay = self.replay
        vars(self).update(vars(kept))
        if replay is not None and kept.replay is not None:
            vars(replay).update(vars(kept.replay))
            self.replay = replay

    @property
    def lost(self) -> int:
        """Return the number of missing records that must be in output or dead letters."""
        return self.counts["lost"]

    @property
    def doubled(self) -> int:
        """Return the number of repeats in output or dead letters, not counting each first record."""
        return self.counts["doubled"]

    @property
    def reordered(self) -> int:
        """Return the number of output records that should come before an earlier record of the output."""
        return self.counts["reordered"]

    @property
    def altered(self) -> int:
        """Return the number of records with another key, value, headers or timestamp than expected."""
        return self.counts["altered"]

    @property
    def unexpected(self) -> int:
        """Return the number of records in output or dead letters that no input record explains."""
        return self.counts["unexpected"]

    @property
    def contradicted(self) -> int:
        """Return the number of contradictions, such as between a policy interval and the policy topic."""
        return self.counts["contradicted"]

    @property
    def ok(self) -> bool:
        """Return True if there are no findings in topics, result table and files."""
        return not self.counts and self._parts_ok

    @property
    def _parts_ok(self) -> bool:
        return all(part is None or part.ok for part in (self.results, self.source))

    @property
    def is_waiting(self) -> bool:
        """Return True if records or rows may still come from worker, job or producer."""
        waiting = (self.results and self.results.waiting, self.source and self.source.unpublished + self.source.pending)
        never = any(not each.deleted for each in self.never_judged)
        return bool(self.pending or self.halted or never or any(waiting))

    @property
    def is_compared(self) -> bool:
        """Return True if all committed input could be compared."""
        return not self._not_compared()

    def unproven(self) -> list[str]:
        """Return a text for each pending or uncompared part; empty for a complete proof."""
        waiting = {
            "pending": self.pending,
            "halted partitions": len(self.halted),
            "intervals of input that no worker has judged": sum(not each.deleted for each in self.never_judged),
            "not yet in the table": self.results.waiting if self.results else 0,
            "not yet published": self.source.unpublished if self.source else 0,
            "of the source pending": self.source.pending if self.source else 0,
        }
        return [f"{count:,} {what}" for what, count in waiting.items() if count] + self._not_compared()

    def _not_compared(self) -> list[str]:
        reasons = {
            "undecided": self.undecided,
            "intervals deleted before any worker has judged them": sum(each.deleted for each in self.never_judged),
            "intervals with a policy no longer in the policy topic": sum(
                check.verdict == "unproven" for check in self.policies
            ),
            "partitions with a gap since the last run": sum(begin.gap_from is not None for begin in self.begins),
            "partitions without a comparison of input and internal topic": self.arrivals_not_compared,
            "partitions that cannot be compared": len(self.left_out),
            "records that compaction of the input may explain": sum(self.counts.values()) * self.input_compacted,
            "partitions with sequences of a doubtful form": len(self.doubtful),
            "parts that the replay cannot compare": len(self.replay.not_compared) if self.replay else 0,
        }
        texts = [f"{count:,} {what}" for what, count in reasons.items() if count]
        if self.results is not None and self.results.proven_by is None:
            return [*texts, "the results"]
        return [*texts, *(["values of the table's rows"] if self.results and self.results.values_unproven else [])]

    def verdict(self, *, pending_ok: bool = False) -> str:
        """Return the verdict on topics, files and table together, as one line of text.

        pending_ok: True to accept input that waits for a worker
        """
        parts = (part for part in (self, self.results, self.source) if part is not None)
        counts = counts_sentence(item for part in parts for item in part.counts.items())
        code = self.exit_code(pending_ok=pending_ok)
        if code is ExitCode.WRONG:
            return f"verdict: something is wrong: {counts}"
        if code is ExitCode.NOT_ALL_PROVEN:
            return f"verdict: not all is proven ({', '.join(self.unproven())}): {counts}"
        return f"verdict: proven: {counts}"

    @property
    def is_proven(self) -> bool:
        """Return True if all input up to its end was compared without findings."""
        return self.exit_code() is ExitCode.PROVEN

    def exit_code(self, *, pending_ok: bool = False) -> ExitCode:
        """Return the exit code of the command.

        pending_ok: True to accept input that waits for a worker
        """
        if not self.ok and not (self.input_compacted and self._parts_ok):
            return ExitCode.WRONG
        if not self.is_compared or (self.is_waiting and not pending_ok):
            return ExitCode.NOT_ALL_PROVEN
        return ExitCode.PROVEN

    @property
    def numbered_edits(self) -> list[dict[str, Any]]:
        """Return the operators' changes with their partitions, for JSON."""
        return [{"partition": number, **msgspec.to_builtins(each)} for number, each in self.edits]

    @property
    def doubts(self) -> list[dict[str, Any]]:
        """Return the partitions with a sequence in a doubtful form, for JSON."""
        return [
            {"partition": number, "offset": offset, "reason": reason}
            for number, (offset, reason) in sorted(self.doubtful.items())
        ]

    @property
    def left_out_by_partition(self) -> dict[int, str]:
        """Return the reasons of partitions left out, by rising partition."""
        return dict(sorted(self.left_out.items()))

    @property
    def singly_by_partition(self) -> dict[int, str]:
        """Return the reasons of partitions compared record by record, by rising partition."""
        return dict(sorted(self.singly.items()))

    @property
    def sentences(self) -> list[str]:
        """Return the listed findings as text."""
        return [str(finding) for finding in self.findings]
