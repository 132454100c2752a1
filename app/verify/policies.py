"""Check of the changelog's policy intervals against the policy topic.

An interval in the changelog has an input offset and an offset of the policy topic. From that input offset on, the
worker deduplicated records, or forwarded them all, by the newest policy before that offset of the policy topic. This
module reads the policy topic itself. Compaction removes a policy once a newer one is set, so the policy of an old
interval may be missing. The interval is then neither confirmed nor contradicted, but unproven.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kafka_ratchet.app.repartition import is_judged
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.verify.findings import IntervalCheck, Verdict
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from kafka_ratchet.transport.owner import Decision, Owner


class PolicyRecord(NamedTuple):
    """Record of the policy topic. stream: None: all streams; deduplicate: None: the policy is unset."""

    stream: str | None
    deduplicate: bool | None


@dataclass(frozen=True)
class PolicyTopic:
    """Remaining records of the policy topic.

    policies: policy by offset; None for a record that is no policy. end: offset after the last record; 0 if the topic
    does not exist.
    """

    name: str
    begin: int
    end: int
    policies: dict[int, PolicyRecord | None]

    @classmethod
    def of(
        cls, name: str, begin: int, end: int, records: Iterable[tuple[int, bytes | None, bytes | None]]
    ) -> PolicyTopic:
        """Decode the topic's records. records: offset, key and value of each."""
        return cls(name, begin, end, {offset: _decode(key, value) for offset, key, value in records})

    def last(self, stream: str | None, before: int) -> PolicyRecord | None:
        """Return the newest policy before an offset of the topic; None if there is none.

        stream: name of the stream; None: the policy for all streams
        """
        policies = self.policies.items()
        earlier = [at for at, each in policies if at < before and each is not None and each.stream == stream]
        return self.policies[max(earlier)] if earlier else None


_ACCEPTED: Final[tuple[Verdict, str]] = (
    "accepted",
    "by a deleted policy topic; an operator has decided to go on with another one",
)


def check_intervals(
    topic: PolicyTopic,
    settings: Settings,
    stream: str,
    partition: int,
    intervals: list[PolicyInterval],
    begin: int,
    accepted: int = 0,
    empty: Collection[int] = (),
) -> list[IntervalCheck]:
    """Check the policy intervals of a partition from an input offset on.

    Args:
        topic: present policy topic.
        settings: present settings; earlier ones are not recorded.
        stream: name of the stream.
        partition: number of the input partition.
        intervals: all intervals of the partition, by number.
        begin: first input offset to check.
        accepted: number of the first interval to check. An operator has accepted the loss of the policy topic for all
            intervals before it.
        empty: numbers of intervals without a judged record.
    """
    found = []
    for interval, following in zip(intervals, [*intervals[1:], None], strict=True):
        end = following.start if following else None
        if end is not None and (end if end >= interval.start else interval.end) <= begin:
            continue
        if interval.number in empty:
            continue
        until = end if interval.deduplicate else interval.end
        if interval.number < accepted:
            verdict, reason = _ACCEPTED
        else:
            verdict, reason = _verdict(topic, settings, stream, interval)
        found.append(
            IntervalCheck(partition, interval.start, until, interval.deduplicate, interval.policy, verdict, reason)
        )
    return found


def empty_intervals(
    intervals: Sequence[PolicyInterval], decisions: Sequence[Decision], committed_to: int
) -> frozenset[int]:
    """Return the numbers of intervals that begin at an operator's decision and have no record.

    Args:
        intervals: all intervals of the partition, by number
        decisions: operators' decisions, the newest last
        committed_to: next input offset of the partition
    """
    marked = [(each.mark.intervals, each) for each in decisions if each.mark is not None and each.mark.intervals]
    numbers, by_number = {number for number, _ in marked}, {each.number: each for each in intervals}
    ends = [*(each.before for _, each in marked[1:]), committed_to]
    empty = set()
    for (number, decision), end in zip(marked, ends, strict=False):
        following = by_number.get(number + 1)
        until = end if following is None or number + 1 in numbers else following.start
        if until is None or until == decision.after:  # None: its input is deleted
            empty.add(number)
    return frozenset(empty)


def _verdict(topic: PolicyTopic, settings: Settings, stream: str, interval: PolicyInterval) -> tuple[Verdict, str]:
    if interval.policy > 0 and (missing := _no_witness(topic, stream, interval.policy - 1)) is not None:
        return missing
    deduplicate, why, certain = _effective(topic, settings, stream, interval.policy)
    if deduplicate == interval.deduplicate:
        return "confirmed", why
    present = f"{why}, which is {'on' if deduplicate else 'off'}"
    if certain:
        return "contradicted", present
    return "unproven", f"{present}; it may have been different at that time"


def _no_witness(topic: PolicyTopic, stream: str, offset: int) -> tuple[Verdict, str] | None:
    """Check the policy record that decided an interval, at an offset of the policy topic.

    Returns:
        verdict and reason if the record is missing or has no policy for the stream; None if it has one.
    """
    where = f"the changelog names {topic.name} offset {offset}"
    if offset >= topic.end:
        return "unproven", f"{where}, but the topic ends at {topic.end}: it was created again, or lost its end"
    if offset < topic.begin:
        return "unproven", f"{where}, but the records before {topic.begin} are deleted"
    if offset not in topic.policies:
        return "unproven", f"{where}, but compaction has removed the record, so its policy is unknown"
    record = topic.policies[offset]
    if record is None:
        return "contradicted", f"{where}, but the record there is no policy"
    if record.stream not in (None, stream):
        return "contradicted", f"{where}, but the record there is about stream {record.stream!r}"
    return None


def _effective(topic: PolicyTopic, settings: Settings, stream: str, before: int) -> tuple[bool, str, bool]:
    """Return the policy in force before an offset of the policy topic: its value, source and certainty.

    A policy from the settings is uncertain, as only the present settings are known. A global policy is uncertain too,
    because a setting of the stream takes precedence over it.
    """
    if not is_judged(settings.streams[stream], settings.app):
        return False, f"because workers never judge the internal stream {stream!r}", True
    own, everyone = topic.last(stream, before), topic.last(None, before)
    if own is not None and own.deduplicate is not None:
        return own.deduplicate, f"by the policy of stream {stream!r} in {topic.name}", True
    if (setting := settings.streams[stream].deduplicate) is not None:
        return setting, "by the stream's setting, as it is now", False
    if everyone is not None and everyone.deduplicate is not None:
        return everyone.deduplicate, f"by the global policy in {topic.name}", False
    if settings.deduplicate is not None:
        return settings.deduplicate, "by the global setting, as it is now", False
    return True, f"because neither {topic.name} nor the settings, as they are now, say anything else", False


def _decode(key: bytes | None, value: bytes | None) -> PolicyRecord | None:
    """Decode a record as a policy; return None for any other record. An unreadable value unsets the policy."""
    try:
        parts = json.loads(key or b"")
    except (ValueError, RecursionError):
        return None
    if parts == ["global"]:
        stream = None
    elif isinstance(parts, list) and len(parts) == 2 and parts[0] == "stream" and isinstance(parts[1], str):
        stream = parts[1]
    else:
        return None
    try:
        found = json.loads(value or b"null")
    except (ValueError, RecursionError):
        found = None
    deduplicate = found.get("deduplicate") if isinstance(found, dict) and len(found) == 1 else None
    return PolicyRecord(stream, deduplicate if isinstance(deduplicate, bool) else None)


class SkippedRange(NamedTuple):
    """Input offsets from `start` to before `end` that an operator's decision has skipped."""

    start: int
    end: int
    by: str
    at: str
    reason: str


def skipped_by_decision(owner: Owner | None) -> list[SkippedRange]:
    """Return the skipped ranges of a partition's present input topic, sorted by offset.

    A decision without a previous position is the first one for a new input topic, so earlier decisions are ignored.
    After a decision that moves the position back, input from the new position on is no longer skipped.
    """
    skips: list[SkippedRange] = []
    for decision in owner.decisions if owner is not None else ():
        if decision.after is None:
            continue
        if decision.before is None:
            skips = []
        start = decision.before or 0
        if decision.after > start:
            skips.append(SkippedRange(start, decision.after, decision.by, decision.at, decision.reason))
        elif decision.after < start:
            skips = [skip._replace(end=min(skip.end, decision.after)) for skip in skips if skip.start < decision.after]
    return sorted(skips)
