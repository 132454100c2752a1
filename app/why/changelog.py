"""Reader of one changelog partition, for the trace of one identity."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kafka_ratchet.app.names import changelog_name
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.verify.reading import TopicReader
from kafka_ratchet.app.why.answer import RecordPosition
from kafka_ratchet.app.why.scan import Scan
from kafka_ratchet.errors import RatchetError, StateError
from kafka_ratchet.tables.edits import EDIT, Edit
from kafka_ratchet.tables.policy_intervals import POLICY_INTERVAL, PolicyInterval
from kafka_ratchet.tables.totals import PROGRESS, Progress
from kafka_ratchet.topic_log.reading import records
from kafka_ratchet.transport.batch.chunk import HEAD, LENGTH_FROM
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.owner import KEY as OWNER
from kafka_ratchet.transport.owner import Owner

IDENTITY: Final = b"i"
"""First byte of the changelog key of an identity."""
WAIT_MS: Final = 500


class ProgressEntry(NamedTuple):
    """Progress entry of a transaction: workers have judged all input before the offset `next`.

    at_ms: Kafka's append time of the entry, in ms since the epoch
    """

    next: int
    offset: int
    at_ms: int


@dataclass
class Log:
    """Contents of one changelog partition that a trace needs."""

    topic: str
    partition: int
    steps: list[ProgressEntry] = field(default_factory=list)
    """Progress entries in the order of their `next`. Compaction may have removed entries before the first."""
    intervals: list[PolicyInterval] = field(default_factory=list)
    owner: Owner | None = None
    is_whole: bool = False
    """True if compaction has removed no progress entry before the first of `steps`."""
    edits: list[Edit] = field(default_factory=list)
    """Operators' edits of the state, in order."""
    forgotten: list[int] = field(default_factory=list)
    """Times of those deletions of the identity's state that Kafka still has, in ms since the epoch."""

    def step(self, offset: int) -> tuple[ProgressEntry, bool] | None:
        """Return the first progress entry past an input offset, with True if its transaction judged the offset.

        The flag is False if an earlier transaction may have judged the offset, because compaction may have removed its
        entry. If `steps` has an entry before the returned one, no entry between these two is missing: compaction
        removes the oldest entries first.

        Returns:
            (entry, flag); None if no entry is past the offset
        """
        at = bisect_right(self.steps, offset, key=lambda step: step.next)
        if at == len(self.steps):
            return None
        return self.steps[at], at > 0 or self.is_whole


def read_log(settings: Settings, reader: TopicReader, name: str, partition: int, of: bytes, within: Scan) -> Log:
    """Return the contents of one partition of a stream's changelog.

    of: bytes of the traced identity, to find deletions of its state; within: limits of time and size

    Raises:
        OwnerDiffers: the owner entry was written by a newer Ratchet.
        StateError: another entry was written by a newer Ratchet.
        BrokerUnavailable: Kafka does not answer.
    """
    topic = changelog_name(settings.app, name)
    log = Log(topic, partition)
    span = reader.span(topic, partition)
    if span is None:
        return log
    intervals: dict[bytes, PolicyInterval] = {}
    edits: dict[int, Edit] = {}
    begin, end = span
    with reader.consumer("ratchet-verify", topic=topic) as asked:
        given = within.bounded(
            records(asked, topic, partition, begin, timeout_s=settings.kafka_timeout_s, end=end),
            lambda message: len(message.key() or b"") + len(message.value() or b""),
            lambda message: (
                f"{topic} partition {partition} was read up to offset {(message.offset() or 0) - 1:,} only, so "
                "verdicts here ignore later policies and forgotten identities"
            ),
        )
        for count, message in enumerate(given):
            key, value, at_ms = message.key() or b"", message.value(), message.timestamp()[1]
            if key == PROGRESS and value is not None:
                step = ProgressEntry(Progress.unpack(value).next, message.offset() or 0, at_ms)
                while log.steps and log.steps[-1].next > step.next:
                    log.steps.pop()  # an operator has moved the partition back
                log.is_whole |= not log.steps and step.offset == count
                log.steps.append(step)
            elif key.startswith(POLICY_INTERVAL) and value is not None:
                intervals[key] = PolicyInterval.unpack(key, value)
            elif key.startswith(EDIT) and value is not None:
                edit_number, edit = Edit.unpack(key, value)
                edits[edit_number] = edit
            elif key == OWNER and value is not None:
                log.owner = Owner.unpack(value)
            elif key == IDENTITY + of and value is None:
                log.forgotten.append(at_ms)
    log.intervals = sorted(intervals.values())
    log.edits = [edits[each] for each in sorted(edits)]
    return log


def who_wrote(
    settings: Settings, bootstrap: str, ids: Iterable[str], places: Iterable[RecordPosition]
) -> dict[RecordPosition, tuple[int, int]]:
    """Return producer id and epoch of the record batch at each place.

    Places with an unreadable batch are left out.

    ids: names of the topics; places in other topics are left out
    """
    wanted = list(dict.fromkeys(places))
    return asyncio.run(_who_wrote(settings, bootstrap, sorted(set(ids)), wanted)) if wanted else {}


async def _who_wrote(
    settings: Settings, bootstrap: str, topics: list[str], places: list[RecordPosition]
) -> dict[RecordPosition, tuple[int, int]]:
    found: dict[RecordPosition, tuple[int, int]] = {}
    cluster = Cluster(client_options(bootstrap, settings.kafka))
    await cluster.start(settings.kafka_timeout_s)
    try:
        there = await cluster.topics(topics)
        for place in places:
            if place.topic not in there:
                continue
            try:
                fetched = await cluster.fetch(
                    place.topic,
                    place.partition,
                    place.offset,
                    "why",
                    max_bytes=1,
                    max_wait_ms=WAIT_MS,
                    topic_id=there[place.topic].id,
                )
                found[place] = _writer(fetched.data, place.offset)
            except (RatchetError, StateError):
                continue  # retention was quicker
    finally:
        await cluster.close()
    return found


def _writer(data: bytes | memoryview, offset: int) -> tuple[int, int]:
    """Return producer id and epoch of the batch that contains an offset.

    Raises:
        StateError: no batch in the data contains it.
    """
    at = 0
    while at + HEAD.size <= len(data):
        base, length, *_, last, _, _, producer_id, epoch, _, _ = HEAD.unpack_from(data, at)
        if base + last >= offset:
            return producer_id, epoch
        at += LENGTH_FROM + length
    raise StateError(f"Kafka returned no record batch with offset {offset}")
