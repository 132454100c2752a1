"""`ratchet sink resume`: an operator decides where a job goes on that refuses to go on by itself."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from kafka_ratchet.spark_sink.errors import OptionRefused, SinkError, WriteModeDiffers
from kafka_ratchet.spark_sink.job.control import NAMED, Place, named_offsets, require_partitions
from kafka_ratchet.spark_sink.job.plan import OffsetRange, TopicPlanner, resume
from kafka_ratchet.spark_sink.stores.decision import EARLIEST, LATEST, STORED, TABLE, Decision, StoreCheck, decide
from kafka_ratchet.spark_sink.stores.judging_store import JudgingStore
from kafka_ratchet.spark_sink.stores.store import ResultStore

MAX_REASON = 1000
"""Characters of a reason; it is kept beside the offsets, where the space is others' too."""


@dataclass(frozen=True)
class ResumePlan:
    """What a decision would change."""

    topic: str
    decision: Decision
    trouble: str
    """Why the job does not go on by itself; empty: it would."""
    before: dict[int, int]
    after: dict[int, int]
    offset_range: OffsetRange = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """The line that `--json` prints."""
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
        """The lines that the command prints."""
        said = [self.trouble or f"topic {self.topic}: nothing is wrong; the job would go on by itself"]
        for partition in sorted({*self.before, *self.after}):
            before, after = self.before.get(partition), self.after.get(partition)
            said.append(
                f"  partition {partition}: next offset {_shown(before)} -> {_shown(after)}{self._what(partition)}"
            )
        return said

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
    """What `--from SOURCE` would do; changes nothing.

    Args:
        store: of the job, not opened.
        planner: of the topic as it is now.
        source: table, stored, earliest, latest or PARTITION:OFFSET[,...].
        reason: why, in the operator's words.

    Raises:
        OptionRefused: there is no such place to go on from.
        SinkError: store or Kafka do not answer.
    """
    if not reason.strip() or len(reason) > MAX_REASON or not reason.isprintable():
        raise OptionRefused(f"--reason: say why in one line of at most {MAX_REASON} characters; it is kept")
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
    """Refuse what would part offsets from the last sequences that were committed with them.

    Raises:
        OptionRefused: it would.
        SequencesLost: they are gone already.
        RuleDiffers: they are by another rule.
    """
    if source != STORED or check.is_other_topic:
        raise OptionRefused(
            f"--from {source}: a job with from_input goes on by the last sequences that were committed with the stored "
            "offsets, and there are none for other offsets or another topic. Choose --from stored, which leaves rows "
            "that are gone where they are; or begin with another table, which reads the topic from its beginning"
        )
    with suppress(WriteModeDiffers):  # of kind, key or sums: an operator may decide that
        store.require_write_mode()
    cast("JudgingStore", store).require_sequences()


def carry_out(plan: ResumePlan, store: ResultStore) -> int:
    """Do it: the generation it was done with. A job of the name that still runs is fenced.

    Raises:
        StoreError: the store cannot be written.
    """
    return store.reset_offsets(plan.after, plan.decision)


def _wanted(source: str, check: StoreCheck, offset_range: OffsetRange) -> dict[int, int]:
    if source == EARLIEST:
        return dict(offset_range.earliest)
    if source == LATEST:
        return dict(offset_range.end)
    if source == STORED:
        return {p: check.stored.get(p, earliest) for p, earliest in offset_range.earliest.items()}
    if source == TABLE:
        if check.row_offsets is None:
            raise OptionRefused(
                "--from table: nothing says any more which offsets the rows of the table reach to. Choose "
                f"{STORED}, {EARLIEST}, {LATEST} or PARTITION:OFFSET,..."
            )
        return {p: check.row_offsets.get(p, earliest) for p, earliest in offset_range.earliest.items()}
    if not NAMED.fullmatch(source):
        raise OptionRefused(f"--from {source!r}: write table, stored, earliest, latest or PARTITION:OFFSET,...")
    named = named_offsets("--from", source)
    require_partitions(Place("--from", source, offsets=named), offset_range)
    return {p: named.get(p, check.stored.get(p, earliest)) for p, earliest in offset_range.earliest.items()}


def _trouble_of_topic(offset_range: OffsetRange, check: StoreCheck) -> str:
    try:
        resume(offset_range, check.stored)
    except SinkError as error:
        return str(error)
    return ""


def _shown(offset: int | None) -> str:
    return "-" if offset is None else f"{offset:,}"
