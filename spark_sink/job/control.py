"""Positions in a topic that an operator names: the start of a first run, and the end of a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Protocol

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.job.plan import OffsetRange, resume
from kafka_ratchet.spark_sink.stores.decision import EARLIEST, LATEST

NAMED: Final = re.compile(r"\d{1,9}:\d{1,18}(,\d{1,9}:\d{1,18})*")
"""Pattern of partitions with offsets, such as 0:100,1:90."""

MILLISECONDS: Final = re.compile(r"\d{1,15}")

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Offsets = dict[int, int]


@dataclass(frozen=True)
class TopicPosition:
    """Position in a topic named by an operator: a word such as earliest, a time, or offsets of partitions."""

    option: str
    """Name of the option, for messages."""
    text: str
    """Text as the operator wrote it."""
    timestamp_ms: int | None = None
    """Milliseconds since 1970; None if the position is not a time."""
    offsets: Mapping[int, int] | None = None
    """Offsets by partition; None if the position names no offsets."""

    def __str__(self) -> str:
        return f"{self.option} {self.text}"


class BoundedJob(Protocol):
    """Interface of a job with a start and an end named by the operator; see `Job`."""

    @property
    def start(self) -> TopicPosition | None:
        """Return the position where a first run begins."""

    @property
    def until(self) -> TopicPosition | None:
        """Return the position where a run ends."""


AskTime = Callable[[int], Mapping[int, int | None]]
"""Function that looks up the first offset of each partition at a time, see `TopicPlanner.offsets_at`."""


def read_place(option: str, text: str, *ends: str) -> TopicPosition:
    """Parse a position in a topic.

    Args:
        option: name of the option, for messages.
        text: one of `ends`, a time in ISO 8601 with its zone or in milliseconds since 1970, or PARTITION:OFFSET,...
        ends: allowed words.

    Raises:
        OptionRefused: the text is none of these.
    """
    if text in ends:
        return TopicPosition(option, text)
    if NAMED.fullmatch(text):
        return TopicPosition(option, text, offsets=named_offsets(option, text))
    if MILLISECONDS.fullmatch(text):
        return TopicPosition(option, text, timestamp_ms=int(text))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        words = "".join(f"{word}, " for word in ends)
        raise OptionRefused(
            f"{option} {text!r} is not a position in the topic: write {words}PARTITION:OFFSET,..., or a time: "
            "2026-11-28T09:00:00Z (with its zone) or milliseconds since 1970"
        )
    since = at - EPOCH
    return TopicPosition(
        option, text, timestamp_ms=(since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    )


def named_offsets(option: str, text: str) -> Offsets:
    """Parse the text PARTITION:OFFSET,... into offsets by partition.

    Raises:
        OptionRefused: a partition is named twice.
    """
    named = {int(partition): int(offset) for partition, offset in (pair.split(":") for pair in text.split(","))}
    if len(named) != text.count(":"):
        raise OptionRefused(f"{option} {text}: a partition is named twice. Name each partition once")
    return named


def require_partitions(place: TopicPosition, offset_range: OffsetRange) -> None:
    """Check that the topic has the partitions that a position names.

    Raises:
        OptionRefused: the topic lacks such a partition.
    """
    unknown = sorted((place.offsets or {}).keys() - offset_range.end.keys())
    if unknown:
        raise OptionRefused(
            f"{place}: topic {offset_range.topic} has no partition {unknown[0]}. Name only partitions of the topic"
        )


def require_within(place: TopicPosition, offset_range: OffsetRange, offsets: Mapping[int, int]) -> None:
    """Check that the topic holds some offsets.

    Args:
        place: position that the offsets come from, for the message.
        offset_range: range of the topic.
        offsets: offset of each partition to check.

    Raises:
        OptionRefused: an offset is not in the topic.
    """
    for partition, offset in sorted(offsets.items()):
        earliest, end = offset_range.earliest[partition], offset_range.end[partition]
        if not earliest <= offset <= end:
            raise OptionRefused(
                f"{place}: offset {offset} of {offset_range.topic}/{partition} is not in the topic, which holds "
                f"{earliest} to {end}. Name an offset in that range"
            )


def require_first_run(job: BoundedJob, stored: Mapping[int, int], topic: str) -> None:
    """Check that `--start` is not given for a table with stored offsets.

    Raises:
        OptionRefused: the table has offsets.
    """
    if job.start is not None and stored:
        raise OptionRefused(
            f"{job.start}: the table already has offsets of topic {topic} ({dict(sorted(stored.items()))}), and "
            f"every run continues from them. {job.start.option} is for a first run: remove it, or set other offsets "
            "with `ratchet sink resume --from`"
        )


def first_offsets(job: BoundedJob, offset_range: OffsetRange, stored: Mapping[int, int], ask_time: AskTime) -> Offsets:
    """Return the first offset to read in each partition: the stored offset, or the offset of `--start`.

    Args:
        job: the job, with its `--start`.
        offset_range: range of the topic.
        stored: offsets of the table.
        ask_time: function that asks Kafka for offsets by time, called after `offset_range` was read.

    Raises:
        OptionRefused: see `require_first_run`, `require_partitions` and `require_within`.
        SinkError: see `resume`.
    """
    require_first_run(job, stored, offset_range.topic)
    if job.start is None:
        return resume(offset_range, stored)
    found = dict(offset_range.earliest)
    if job.start.text == LATEST:
        found = dict(offset_range.end)
    elif job.start.timestamp_ms is not None:
        # No record of that time: the end, as of an earlier look, so that no later record is left out.
        at = ask_time(job.start.timestamp_ms)
        found = {each: offset_range.end[each] if (offset := at.get(each)) is None else offset for each in found}
        found = {each: min(offset, offset_range.end[each]) for each, offset in found.items()}
    elif job.start.offsets is not None:
        require_partitions(job.start, offset_range)
        require_within(job.start, offset_range, job.start.offsets)
        found |= job.start.offsets
    return found


@dataclass(frozen=True)
class Limit:
    """Range of offsets that one run reads, and whether `--until` is already reached."""

    offset_range: OffsetRange
    """Range of the topic, cut off at the end of the run."""
    is_reached: bool
    """True if the table already has all records up to the end of the run."""


def limited(job: BoundedJob, offset_range: OffsetRange, start: Mapping[int, int], ask_time: AskTime) -> Limit:
    """Limit a run to the end given by `--until`.

    A partition that `--until` omits, such as one added during the run, is not read. `require_whole` refuses such a
    `--until` at the start of a run.

    Args:
        job: the job, with its `--until`.
        offset_range: range of the topic.
        start: next offset of each partition.
        ask_time: function that asks Kafka for offsets by time, called after `offset_range` was read.

    Raises:
        OptionRefused: `--until` names a partition that the topic lacks.
    """
    if job.until is None:
        return Limit(offset_range, is_reached=False)
    until: Mapping[int, int | None]
    if job.until.offsets is not None:
        require_partitions(job.until, offset_range)
        until = {each: job.until.offsets.get(each, start[each]) for each in offset_range.end}
    else:
        found = ask_time(job.until.timestamp_ms or 0)
        until = {each: found.get(each) for each in offset_range.end}
    end = dict(offset_range.end)
    for partition, offset in until.items():
        if offset is not None:
            end[partition] = max(start[partition], min(end[partition], offset))
    is_reached = all(offset is not None and start[each] >= offset for each, offset in until.items())
    return Limit(replace(offset_range, end=end, high=None), is_reached)


def require_whole(place: TopicPosition | None, offset_range: OffsetRange) -> None:
    """Check that `--until` names an offset for every partition.

    Raises:
        OptionRefused: a partition is missing, or unknown to the topic.
    """
    if place is None or place.offsets is None:
        return
    require_partitions(place, offset_range)
    missing = sorted(offset_range.end.keys() - place.offsets.keys())
    if missing:
        raise OptionRefused(
            f"{place} names no offset for partition {missing[0]} of topic {offset_range.topic}. Name one for every "
            "partition"
        )


START_WORDS: Final = (EARLIEST, LATEST)
