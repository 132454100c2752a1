"""The report of verify, and its exit codes."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any, Final

import msgspec

from kafka_ratchet.app.status.open_transactions import Blocked
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
    """Kafka, settings or a file do not allow it: an error, never a report."""
    NOT_ALL_PROVEN = 3
    """Without findings in the comparable part, which is not all: a script must not take it for a proof."""


@dataclass(frozen=True, slots=True)
class Halted:
    """A partition that its worker does not go on with."""

    partition: int
    error: str


@dataclass(frozen=True, slots=True)
class NeverJudged:
    """Input that no worker has judged: no position was ever committed, or retention was there before the worker."""

    partition: int
    start: int
    end: int
    """Offset after the last one."""
    deleted: bool
    """True if Kafka has deleted it, so that it will never be judged."""

    def __str__(self) -> str:
        what = "deleted before any worker has read them" if self.deleted else "no worker has ever committed a position"
        return f"never judged: input partition {self.partition} offsets {self.start:,} to {self.end - 1:,}, {what}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """Input skipped by an operator's decision (`ratchet resume`)."""

    partition: int
    start: int
    end: int
    """Offset after the last one."""
    records: int
    """Those that Kafka still has."""
    by: str
    at: str
    reason: str

    def __str__(self) -> str:
        return (
            f"skipped by decision: {self.records:,} records, input partition {self.partition} offsets "
            f"{self.start:,} to {self.end - 1:,}, by {self.by} at {self.at}: {self.reason}"
        )


@dataclass(frozen=True, slots=True)
class Begin:
    """Beginning of a partition's proof, where its topics begin earlier."""

    partition: int
    input: int
    output: int
    continued: bool
    """True if the last run ended there, by the state file."""
    gap_from: int | None = None
    """Input from this offset to `input` was deleted between the last run and this one, without a comparison."""

    def __str__(self) -> str:
        where = (
            f"partition {self.partition}: proven from input offset {self.input:,} and output offset {self.output:,} on"
        )
        if self.gap_from is not None:
            return f"{where}; offsets {self.gap_from:,} to {self.input - 1:,} were deleted before verify came to them"
        return f"{where}, where the last run ended" if self.continued else f"{where}; what came before is deleted"


BY_COMPACTION: Final = frozenset({"reordered", "altered", "unexpected"})
"""Kinds of findings that right output can cause if Kafka compacts the input.

The output of a removed record stays, and a later repeat of that record is taken for the first one.
"""

VERDICT_KINDS: Final = ("lost", "doubled", "reordered", "altered", "unexpected")
"""Kinds that a verdict always counts."""


@dataclass
class Report(Findings[FindingKind, Finding]):
    """The verdict on one stream. Output and dead letters count together; a finding names its topic."""

    stream: str
    fresh: int = 0
    """Fresh records of the input up to the committed offsets, recomputed."""
    duplicate: int = 0
    invalid: int = 0
    late: int = 0
    """Records below the window of their identity."""
    conflict: int = 0
    """Records with the last sequence of their identity, and another value."""
    unjudged: int = 0
    """Records of the input that went by while deduplication was off: each of them must be in the output."""
    intervals: list[tuple[int, int, int]] = field(default_factory=list)
    """Input partition, first offset and offset after the last, of each unjudged interval."""
    policies: list[IntervalCheck] = field(default_factory=list)
    """Each interval of the changelog next to the policy topic; empty where nothing was ever switched."""
    delivered: int = 0
    """Records in the output."""
    dead_letters: int = 0
    """Records in the dead-letter topic."""
    duplicates_kept: int = 0
    """Records in the topic of dropped records."""
    pending: int = 0
    """Input offsets that the worker has not committed yet, and records it committed while the check ran."""
    undecided: int = 0
    """Records without any output, which may repeat deleted input.

    They are all records where no output of any of them remains.
    """
    output_deleted: int = 0
    """Input records before the first one with remaining output or dead letters."""
    output_replaced: int = 0
    """Records of a deleted output, lost with it; an operator has accepted that, and continued with a new one."""
    restamped: int = 0
    """Output records with the time of Kafka's append in the place of their own, which is not compared."""
    arrivals_not_compared: int = 0
    """Partitions of `repartition_by` that were not compared.

    They are of the input, or of the internal topic, with a deleted beginning or an operator's decision on the
    position.
    """
    before: int = 0
    """Output records before the first one with present input."""
    begins: list[Begin] = field(default_factory=list)
    """Partitions with a proof that does not begin at offset 0."""
    compared_to: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Offsets of input and output after the last compared ones, by partition."""
    state_written: bool | None = None
    """True if the next run resumes at the end of this one; None: it was not requested."""
    skipped: list[Skipped] = field(default_factory=list)
    """Input that an operator has decided to pass over; it is not expected in the output."""
    edits: list[tuple[int, Edit]] = field(default_factory=list)
    """Input partition, and the operator's change of the workers' state (`ratchet forget`, `state import`)."""
    halted: list[Halted] = field(default_factory=list)
    """Halted partitions by the workers; without an answer, a halted partition is pending."""
    never_judged: list[NeverJudged] = field(default_factory=list)
    doubtful: dict[int, tuple[int, str]] = field(default_factory=dict)
    """First offset of each input partition with a sequence in a doubtful form, and the reason."""
    blocked: list[Blocked] = field(default_factory=list)
    """Input that waits for another producer's transaction to end; part of `pending`."""
    input_compacted: bool = False
    """True if all findings may come from input that Kafka's compaction has removed."""
    results: ResultsReport | None = None
    """Verdict on the result table; None: it was not requested."""
    source: SourceReport | None = None
    """Verdict on a producer's files; None: it was not requested."""
    from_input: bool = False
    """Spark has judged the input: there is no output, and no dead letters in a topic."""
    columns: list[int] = field(default_factory=list)
    """Partitions compared as columns, and exactly right."""
    singly: dict[int, str] = field(default_factory=dict)
    """Partitions compared record by record, with the reason."""
    left_out: dict[int, str] = field(default_factory=dict)
    """Partitions left out of the comparison, with the reason."""
    replay: ReplayReport | None = None
    """Report of a replay of agents; None: the output holds forwarded records."""

    def saved(self) -> Report:
        """Return a copy for `restore`."""
        kept = copy.copy(self)
        vars(kept).update((name, copy.copy(value)) for name, value in vars(self).items())
        if self.replay is not None and kept.replay is not None:
            vars(kept.replay).update((name, copy.copy(value)) for name, value in vars(self.replay).items())
        return kept

    def restore(self, kept: Report) -> None:
        """Remove everything added since `saved`."""
        replay = self.replay
        vars(self).update(vars(kept))
        if replay is not None and kept.replay is not None:
            vars(replay).update(vars(kept.replay))
            self.replay = replay

    @property
    def lost(self) -> int:
        """Records that must be there, and are not."""
        return self.counts["lost"]

    @property
    def doubled(self) -> int:
        """Return the records present more than once, counted without the first."""
        return self.counts["doubled"]

    @property
    def reordered(self) -> int:
        """Return the records that stand after a later one."""
        return self.counts["reordered"]

    @property
    def altered(self) -> int:
        """Return the records with another key, value, headers or timestamp."""
        return self.counts["altered"]

    @property
    def unexpected(self) -> int:
        """Return the records without a source among the input to forward."""
        return self.counts["unexpected"]

    @property
    def contradicted(self) -> int:
        """Return the intervals contradicted by the policy topic."""
        return self.counts["contradicted"]

    @property
    def ok(self) -> bool:
        """Return True without findings."""
        return not self.counts and self._parts_ok

    @property
    def _parts_ok(self) -> bool:
        return all(part is None or part.ok for part in (self.results, self.source))

    @property
    def is_waiting(self) -> bool:
        """Return True if there is input that a worker may still commit: pending, halted, or unjudged so far."""
        waiting = (self.results and self.results.waiting, self.source and self.source.unpublished + self.source.pending)
        never = any(not each.deleted for each in self.never_judged)
        return bool(self.pending or self.halted or never or any(waiting))

    @property
    def is_compared(self) -> bool:
        """Return True if everything that workers have committed could be compared."""
        return not self._not_compared()

    def unproven(self) -> list[str]:
        """Return the reasons for an incomplete proof without findings; empty for a complete one."""
        waiting = {
            "pending": self.pending,
            "halted partitions": len(self.halted),
            "never judged intervals": sum(not each.deleted for each in self.never_judged),
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
        said = [f"{count:,} {what}" for what, count in reasons.items() if count]
        if self.results is not None and self.results.proven_by is None:
            return [*said, "the results"]
        return [*said, *(["values of the table's rows"] if self.results and self.results.values_unproven else [])]

    def verdict(self, *, pending_ok: bool = False) -> str:
        """Return the verdict on topics, files and table together, in one line."""
        found: dict[str, int] = dict.fromkeys(VERDICT_KINDS, 0)
        for part in (self, self.results, self.source):
            for kind, count in part.counts.items() if part is not None else ():
                found[kind] = found.get(kind, 0) + count
        counts = ", ".join(f"{kind} {count:,}" for kind, count in found.items())
        code = self.exit_code(pending_ok=pending_ok)
        if code is ExitCode.WRONG:
            return f"verdict: something is wrong: {counts}"
        if code is ExitCode.NOT_ALL_PROVEN:
            return f"verdict: not all is proven ({', '.join(self.unproven())}): {counts}"
        return f"verdict: proven: {counts}"

    @property
    def is_proven(self) -> bool:
        """Return True if everything up to the end of the input is right."""
        return self.exit_code() is ExitCode.PROVEN

    def exit_code(self, *, pending_ok: bool = False) -> ExitCode:
        """Return the exit code of the command.

        pending_ok: input that waits for a worker does not change the code.
        """
        if not self.ok and not (self.input_compacted and self._parts_ok):
            return ExitCode.WRONG
        if not self.is_compared or (self.is_waiting and not pending_ok):
            return ExitCode.NOT_ALL_PROVEN
        return ExitCode.PROVEN

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON of `ratchet verify`."""
        return {
            "stream": self.stream,
            "ok": self.ok,
            "lost": self.lost,
            "doubled": self.doubled,
            "reordered": self.reordered,
            "altered": self.altered,
            "unexpected": self.unexpected,
            "contradicted": self.contradicted,
            "fresh": self.fresh,
            "duplicate": self.duplicate,
            "invalid": self.invalid,
            "late": self.late,
            "conflict": self.conflict,
            "unjudged": self.unjudged,
            "unjudged_stretches": [list(interval) for interval in self.intervals],
            "policies": [asdict(check) for check in self.policies],
            "delivered": self.delivered,
            "dead_letters": self.dead_letters,
            "duplicates_kept": self.duplicates_kept,
            "pending": self.pending,
            "undecided": self.undecided,
            "before": self.before,
            "output_deleted": self.output_deleted,
            "output_replaced": self.output_replaced,
            "restamped": self.restamped,
            "input_compacted": self.input_compacted,
            "skipped": [asdict(each) for each in self.skipped],
            "edits": [{"partition": number, **msgspec.to_builtins(each)} for number, each in self.edits],
            "begins": [asdict(each) for each in self.begins],
            "state_written": self.state_written,
            "halted": [asdict(each) for each in self.halted],
            "doubtful": [
                {"partition": number, "offset": offset, "reason": reason}
                for number, (offset, reason) in sorted(self.doubtful.items())
            ],
            "never_judged": [asdict(each) for each in self.never_judged],
            "left_out": {str(number): reason for number, reason in sorted(self.left_out.items())},
            "open_transactions": [each.as_dict() for each in self.blocked],
            "proven": self.is_proven,
            "verdict": self.verdict(),
            "as_columns": self.columns,
            "record_by_record": {str(number): reason for number, reason in sorted(self.singly.items())},
            "findings": [str(finding) for finding in self.findings],
            **({} if self.replay is None else {"replay": self.replay.as_dict()}),
            **({} if self.source is None else {"source": self.source.as_dict()}),
            **({} if self.results is None else {"results": self.results.as_dict()}),
        }
