"""Command `ratchet sink resume`: an operator decides at which offsets a stopped job continues."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from kafka_ratchet.spark_sink.errors import OptionRefused, SinkError, WriteModeDiffers
from kafka_ratchet.spark_sink.job.control import NAMED, TopicPosition, named_offsets, require_partitions
from kafka_ratchet.spark_sink.job.plan import OffsetRange, TopicPlanner, resume
from kafka_ratchet.spark_sink.stores.decision import EARLIEST, LATEST, STORED, TABLE, Decision, StoreCheck, decide
from kafka_ratchet.spark_sink.stores.judging_store import JudgingStore
from kafka_ratchet.spark_sink.stores.store import NAME_OFFSETS, ResultStore

MAX_REASON = 1000
"""Maximum characters of a reason. Reasons are stored with the offsets, in space that all jobs share."""


@dataclass(frozen=True)
class ResumePlan:
    """Effect of an operator's decision on a stopped job: offsets before and after, and the resolved fault."""

    topic: str
    decision: Decision
    trouble: str
    """Sentence that states why the job refuses to continue without a decision; empty: the job would continue."""
    before: dict[int, int]
    after: dict[int, int]
    offset_range: OffsetRange = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of the line that `--json` prints."""
        partitions = sorted({*self.before, *self.after})
        return {
            "topic": self.topic,
            "from": self.decision.source,
            "who": self.decision.who,
            "reason": self.decision.reason,
            "trouble": self.trouble or None,
            "partitions": {
                str(p): {"before": self.before.get(p), "after": self.after.get(p), "end": self.offset_range.end.get(p)}
                for p in partitions
            },
        }

    def lines(self) -> list[str]:
        """Return the lines that the command prints."""
        found = [self.trouble or f"topic {self.topic}: nothing is wrong; the job goes on without a decision"]
        for partition in sorted({*self.before, *self.after}):
            before, after = self.before.get(partition), self.after.get(partition)
            found.append(
                f"  partition {partition}: next offset {_shown(before)} -> {_shown(after)}{self._what(partition)}"
            )
        return found

    def _what(self, partition: int) -> str:
        before, after = self.before.get(partition), self.after.get(partition)
        if after is None:
            return " (the topic has no such partition)"
        left = self.offset_range.end[partition] - after
        if before is None or before == after or before > self.offset_range.end[partition]:
            return f" ({left:,} offsets to read)"
        if after > before:
            return f" ({after - before:,} offsets are left out, {left:,} to read)"
        return f" ({before - after:,} offsets are read once more, {left:,} to read in all)"


def plan_resume(store: ResultStore, planner: TopicPlanner, source: str, reason: str) -> ResumePlan:
    """Return the effect of `--from SOURCE`, without changing anything.

    Args:
        store: the job's store, not opened.
        planner: planner of the present topic.
        source: table, stored, earliest, latest or PARTITION:OFFSET[,...].
        reason: the operator's reason.

    Raises:
        OptionRefused: `reason` or `source` cannot be used, or the job cannot continue from `source`.
        SinkError: store or Kafka do not answer.
    """
    if not reason.strip() or len(reason) > MAX_REASON or not reason.isprintable():
        raise OptionRefused(
            f"--reason: give the reason in one line of at most {MAX_REASON} printable characters; it is stored with "
            "the decision"
        )
    check = store.check()
    if store.judges:
        _require_sequences(store, source, check)
    offset_range = planner.offset_range()
    trouble = check.trouble
    if check.is_other_topic:
        try:
            store.offsets()
        except SinkError as error:
            trouble = str(error)
    elif not trouble:
        trouble = _trouble_of_topic(offset_range, check)
    try:
        store.require_write_mode()
    except WriteModeDiffers as error:
        trouble = " ".join(filter(None, [trouble, str(error)]))
    after = _wanted(source, check, offset_range)
    for partition, offset in after.items():
        if not offset_range.earliest[partition] <= offset <= offset_range.end[partition]:
            raise OptionRefused(
                f"--from {source}: offset {offset} of {offset_range.topic}/{partition} is not in the topic, which "
                f"holds {offset_range.earliest[partition]} to {offset_range.end[partition]}. Choose {EARLIEST}, "
                f"{LATEST} or PARTITION:OFFSET,..."
            )
    return ResumePlan(
        offset_range.topic, decide(source, reason, check.stored), trouble, check.stored, after, offset_range
    )


def _require_sequences(store: ResultStore, source: str, check: StoreCheck) -> None:
    """Check that a decision keeps a deduplicating job's offsets and last sequences together.

    Raises:
        OptionRefused: the offsets would not match the sequences.
        SequencesLost: the sequences are already lost.
        RuleDiffers: the sequences follow other settings.
    """
    if check.rows_ahead:
        raise OptionRefused(
            f"--from {source}: a job with from_input needs the last sequences that were committed with its offsets, "
            "and the stored offsets were removed or restored alone. Restore offsets, rows and sequences of one moment; "
            "or use another table, which reads the topic from its beginning"
        )
    if source != STORED or check.is_other_topic:
        raise OptionRefused(
            f"--from {source}: a job with from_input needs the last sequences that were committed with the stored "
            "offsets, and other offsets or another topic have none. Choose --from stored, which does not restore "
            "lost rows; or use another table, which reads the topic from its beginning"
        )
    with suppress(WriteModeDiffers):  # of kind, key or sums: an operator may decide that
        store.require_write_mode()
    cast("JudgingStore", store).require_sequences()


def carry_out(plan: ResumePlan, store: ResultStore) -> int:
    """Store the decision, and return the generation under which it is stored.

    This fences a running job of the name.

    Raises:
        StoreError: the store cannot be written.
    """
    return store.reset_offsets(plan.after, plan.decision)


def _wanted(source: str, check: StoreCheck, offset_range: OffsetRange) -> dict[int, int]:
    if check.rows_ahead and (source == STORED or (source == TABLE and check.row_offsets is None)):
        raise OptionRefused(
            f"--from {source}: the stored offsets were removed or restored alone. The table may have rows after them, "
            f"and the job would add them a second time. Instead, {NAME_OFFSETS}"
        )
    if source == EARLIEST:
        return dict(offset_range.earliest)
    if source == LATEST:
        return dict(offset_range.end)
    if source == STORED:
        return {p: check.stored.get(p, earliest) for p, earliest in offset_range.earliest.items()}
    if source == TABLE:
        if check.row_offsets is None:
            raise OptionRefused(
                f"--from table: the rows and rejects do not tell which offsets the job has read. Choose {STORED}, "
                f"{EARLIEST}, {LATEST} or PARTITION:OFFSET,..."
            )
        return {p: check.row_offsets.get(p, earliest) for p, earliest in offset_range.earliest.items()}
    if not NAMED.fullmatch(source):
        raise OptionRefused(
            f"--from {source!r} is unknown: write table, stored, earliest, latest or PARTITION:OFFSET,..."
        )
    named = named_offsets("--from", source)
    require_partitions(TopicPosition("--from", source, offsets=named), offset_range)
    if check.rows_ahead and (left := sorted(offset_range.earliest.keys() - named.keys())):
        raise OptionRefused(
            f"--from {source}: partitions {', '.join(map(str, left))} are not named. Their stored offsets were removed "
            "or restored alone, and the table may have rows after them. Name an offset of every partition"
        )
    return {p: named.get(p, check.stored.get(p, earliest)) for p, earliest in offset_range.earliest.items()}


def _trouble_of_topic(offset_range: OffsetRange, check: StoreCheck) -> str:
    try:
        resume(offset_range, check.stored)
    except SinkError as error:
        return str(error)
    return ""


def _shown(offset: int | None) -> str:
    return "-" if offset is None else f"{offset:,}"
