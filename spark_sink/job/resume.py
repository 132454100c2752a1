"""`ratchet sink resume`: somebody decides where a job goes on that refuses to go on by itself."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from kafka_ratchet.spark_sink.errors import OptionRefused, RuleDiffers, SinkError
from kafka_ratchet.spark_sink.job.plan import Extent, TopicPlanner, resume
from kafka_ratchet.spark_sink.stores.decision import EARLIEST, LATEST, STORED, TABLE, Decision, Held, decide
from kafka_ratchet.spark_sink.stores.store import ResultStore

NAMED = re.compile(r"\d{1,9}:\d{1,18}(,\d{1,9}:\d{1,18})*")
"""Partitions and offsets, 0:100,1:90."""

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
    extent: Extent = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """For one line of JSON."""
        partitions = sorted({*self.before, *self.after})
        return {
            "topic": self.topic,
            "from": self.decision.source,
            "who": self.decision.who,
            "reason": self.decision.reason,
            "trouble": self.trouble or None,
            "partitions": {
                str(p): {"before": self.before.get(p), "after": self.after.get(p), "end": self.extent.end.get(p)}
                for p in partitions
            },
        }

    def lines(self) -> list[str]:
        """For people."""
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
        left = self.extent.end[partition] - after
        if before is None or before == after or before > self.extent.end[partition]:
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
        reason: why, in the words of whoever decides.

    Raises:
        OptionRefused: there is no such place to go on from.
        SinkError: store or Kafka do not answer.
    """
    if not reason.strip() or len(reason) > MAX_REASON or not reason.isprintable():
        raise OptionRefused(f"--reason: say why in one line of at most {MAX_REASON} characters; it is kept")
    held, extent = store.held(), planner.extent()
    trouble = held.trouble
    if held.is_other_topic:
        try:
            store.offsets()
        except SinkError as error:
            trouble = str(error)
    elif not trouble:
        trouble = _trouble_of_topic(extent, held)
    try:
        store.require_rule()
    except RuleDiffers as error:
        trouble = " ".join(filter(None, [trouble, str(error)]))
    after = _wanted(source, held, extent)
    for partition, offset in after.items():
        if not extent.earliest[partition] <= offset <= extent.end[partition]:
            raise OptionRefused(
                f"--from {source}: offset {offset} of {extent.topic}/{partition} is not in the topic, which holds "
                f"{extent.earliest[partition]} to {extent.end[partition]}. Choose {EARLIEST}, {LATEST} or "
                "PARTITION:OFFSET,..."
            )
    return ResumePlan(extent.topic, decide(source, reason, held.stored), trouble, held.stored, after, extent)


def carry_out(plan: ResumePlan, store: ResultStore) -> int:
    """Do it: the generation it was done with. A job of the name that still runs is fenced.

    Raises:
        StoreError: the store cannot be written.
    """
    return store.put(plan.after, plan.decision)


def _wanted(source: str, held: Held, extent: Extent) -> dict[int, int]:
    if source == EARLIEST:
        return dict(extent.earliest)
    if source == LATEST:
        return dict(extent.end)
    if source == STORED:
        return {p: held.stored.get(p, earliest) for p, earliest in extent.earliest.items()}
    if source == TABLE:
        if held.of_rows is None:
            raise OptionRefused(
                "--from table: nothing says any more which offsets the rows of the table reach to. Choose "
                f"{STORED}, {EARLIEST}, {LATEST} or PARTITION:OFFSET,..."
            )
        return {p: held.of_rows.get(p, earliest) for p, earliest in extent.earliest.items()}
    if not NAMED.fullmatch(source):
        raise OptionRefused(f"--from {source!r}: write table, stored, earliest, latest or PARTITION:OFFSET,...")
    named = {int(p): int(offset) for p, offset in (pair.split(":") for pair in source.split(","))}
    unknown = sorted(named.keys() - extent.end.keys())
    if unknown:
        raise OptionRefused(f"--from {source}: topic {extent.topic} has no partition {unknown[0]}")
    if len(named) != source.count(":"):
        raise OptionRefused(f"--from {source}: a partition is there twice")
    return {p: named.get(p, held.stored.get(p, earliest)) for p, earliest in extent.earliest.items()}


def _trouble_of_topic(extent: Extent, held: Held) -> str:
    try:
        resume(extent, held.stored)
    except SinkError as error:
        return str(error)
    return ""


def _shown(offset: int | None) -> str:
    return "-" if offset is None else f"{offset:,}"
