"""Reader of the newest dead letters or duplicates, within limits of time and size."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from confluent_kafka import Consumer, Message

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.producers import shown
from kafka_ratchet.app.verify.rule import Headers, RecordView, Rule
from kafka_ratchet.app.why.answer import moment
from kafka_ratchet.app.why.origin import OriginHeaders, origin_of
from kafka_ratchet.errors import TopicMissing
from kafka_ratchet.rule.identity import SequenceSource
from kafka_ratchet.topic_log.clients import (
    OffsetRange,
    close_later,
    consumer,
    offset_ranges,
    offsets_from,
    partition_count,
)
from kafka_ratchet.topic_log.reading import records_between, second_read

READ_MOST: Final = 20_000
"""Maximum number of offsets to read for a query with a filter, in all partitions together."""
LOOK_MOST: Final = 5_000
"""Maximum number of offsets to read for a query without a filter, in all partitions together.

A thousand records take 50 ms.
"""
LIMIT_S: Final = 4.0
LIMIT_BYTES: Final = 64 << 20
REASONS_MOST: Final = 200
"""Maximum number of reasons, and of identities, to count separately.

An agent's error may have another text for each record.
"""
REASON_SHOWN: Final = 200
OTHERS: Final = "(others)"
APPENDED: Final = (
    ("ratchet-reason", "ratchet-topic", "ratchet-partition", "ratchet-offset"),
    ("ratchet-verdict", "ratchet-last-sequence", "ratchet-topic", "ratchet-partition", "ratchet-offset"),
)
"""Names of the headers that Ratchet appends to a dead letter, and to a duplicate."""
MOST_APPENDED: Final = max(map(len, APPENDED))


class RecordFilter(NamedTuple):
    """Filter of records. None in a field: no condition.

    reason: beginning of the reason; since, until: limits of the timestamp, in ms since the epoch, the second
    exclusive
    """

    reason: str | None = None
    identity: bytes | None = None
    partition: int | None = None
    offset: int | None = None
    since: int | None = None
    until: int | None = None
    limit: int = 20
    most: int = READ_MOST
    """Maximum number of offsets to read, in all partitions together."""


@dataclass(slots=True)
class DroppedCopy:
    """Record of a topic of dead letters or duplicates.

    origin: contents of Ratchet's headers; None: the record has none
    headers: headers of the input record
    """

    partition: int
    offset: int
    timestamp_ms: int
    reason: str
    identity: bytes | None
    origin: OriginHeaders | None
    headers: Headers
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class Count:
    """Count of records with one reason or identity, with first and last timestamp."""

    name: str
    records: int = 0
    first_ms: int = 0
    last_ms: int = 0

    def add(self, at_ms: int) -> None:
        """Count one more record. at_ms: its timestamp in ms since the epoch."""
        self.first_ms = min(self.first_ms, at_ms) if self.records else at_ms
        self.last_ms = max(self.last_ms, at_ms) if self.records else at_ms
        self.records += 1

    @property
    def first(self) -> str:
        """Return the first timestamp; ISO 8601, UTC."""
        return moment(self.first_ms)

    @property
    def last(self) -> str:
        """Return the last timestamp; ISO 8601, UTC."""
        return moment(self.last_ms)


@dataclass(slots=True)
class NewestRecords:
    """Result of reading the newest records of a topic.

    held: number of offsets that the topic has.
    read: number of records read; matching: number of these that match the filter.
    records: the newest matching records.
    problems: sentences about parts of the topic that could not be read.
    """

    topic: str
    held: int = 0
    read: int = 0
    matching: int = 0
    records: list[DroppedCopy] = field(default_factory=list)
    reasons: list[Count] = field(default_factory=list)
    identities: list[Count] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def sample(settings: Settings, bootstrap: str, name: str, topic: str, wanted: RecordFilter) -> NewestRecords:
    """Return the newest records of a topic that match a filter, with counts.

    Args:
        settings: settings of the application
        bootstrap: host:port[,host:port]
        name: name of the stream
        topic: name of a topic of dead letters or duplicates of the stream.
        wanted: filter and limits

    Raises:
        TopicMissing: topic or partition do not exist.
        BrokerUnavailable: Kafka does not answer.
        TransportError: Kafka refuses the read.
    """
    options = {"bootstrap.servers": bootstrap, **settings.kafka}
    stream = settings.streams[name]
    rule = Rule(stream.identity, SequenceSource.parse(stream.sequence), stream.sequence_form)
    reading = _Reading(NewestRecords(topic), rule, wanted)
    with consumer(options, "ratchet-page", closes=close_later) as asked:
        count = partition_count(asked, topic, settings.kafka_timeout_s)
        if not count:
            raise TopicMissing(
                f"stream {name}: topic {topic} does not exist. Start a worker, which creates it; or, with "
                "create_topics = false, create the topic"
            )
        if wanted.partition is not None and wanted.partition >= count:
            raise TopicMissing(
                f"{topic} has partitions 0 to {count - 1}, and no partition {wanted.partition}. Name one of these"
            )
        numbers = range(count) if wanted.partition is None else [wanted.partition]
        held = offset_ranges(asked, topic, count, settings.kafka_timeout_s)
        reading.found.held = sum(each.end - each.first for each in held)
        spans, cut = _spans(asked, topic, {number: held[number] for number in numbers}, wanted)
        second = second_read(options, settings.max_batch_mb << 20)
        reading.read(records_between(asked, topic, spans, timeout_s=settings.kafka_timeout_s, second=second))
    if cut:
        of = f"partition {cut[0]}" if len(cut) == 1 else f"{len(cut):,} of its {count:,} partitions"
        share = _share(wanted, len(numbers))
        which = f"the newest {share:,} offsets were read"
        if wanted.until is not None:
            which = f"{share:,} offsets were read, up to the end of the period"
        reading.found.problems.append(f"{topic}: of {of} only {which}")
    return reading.result()


def _spans(
    asked: Consumer, topic: str, held: dict[int, OffsetRange], wanted: RecordFilter
) -> tuple[dict[int, OffsetRange], list[int]]:
    """Return the offsets to read by partition, and the partitions that the limit cuts.

    Records keep the times of their creation, so those after the first one of `until` may be of the period too. Where
    the limit allows, they are read as well.
    """
    if (offset := wanted.offset) is not None:
        return {n: OffsetRange(max(each.first, offset), min(each.end, offset + 1)) for n, each in held.items()}, []
    spans, cut, most = {}, [], _share(wanted, len(held))
    since, until = (_at(asked, topic, held, each) for each in (wanted.since, wanted.until))
    for number, (first, end) in held.items():
        first = max(first, since.get(number, first))
        if first < end - most:
            cut.append(number)
            end = min(end, max(until.get(number, end), first + most))
        spans[number] = OffsetRange(max(first, end - most), end)
    return spans, cut


def _share(wanted: RecordFilter, partitions: int) -> int:
    """Return the number of offsets that may be read in each partition."""
    return wanted.most // partitions + 1


def _at(asked: Consumer, topic: str, held: dict[int, OffsetRange], ms: int | None) -> dict[int, int]:
    """Return each partition's first offset with a timestamp from `ms` on, else its end.

    ms: time in ms since the epoch; None: return an empty dict
    """
    if ms is None:
        return {}
    return offsets_from(asked, topic, held, ms, LIMIT_S)


class _Reading:
    """Collector of the records and counts of a sample."""

    def __init__(self, found: NewestRecords, rule: Rule, wanted: RecordFilter) -> None:
        self.found, self._rule, self._wanted = found, rule, wanted
        self._ends_at, self._bytes = time.monotonic() + LIMIT_S, 0
        self._newest: list[tuple[int, int, int, DroppedCopy]] = []
        self._reasons: dict[str | bytes | None, Count] = {}
        self._identities: dict[str | bytes | None, Count] = {}
        """Counts by identity, as bytes: each identity becomes text only once, in `result`."""

    def read(self, messages: Iterator[Message]) -> None:
        """Collect the records until a limit of time or size is reached."""
        for message in messages:
            if time.monotonic() > self._ends_at or self._bytes > LIMIT_BYTES:
                self.found.problems.append(
                    f"{self.found.topic} was read in part only: a reading may take {LIMIT_S:g} s and "
                    f"{LIMIT_BYTES >> 20} MiB at most. Narrow the selection"
                )
                return
            self._take(message)

    def _take(self, message: Message) -> None:
        self.found.read += 1
        key, value, at_ms = message.key(), message.value(), message.timestamp()[1]
        self._bytes += len(key or b"") + len(value or b"")
        headers: Headers = [each for each in message.headers() or () if not isinstance(each[1], str)]
        appended = _appended(headers)
        origin = origin_of(headers) if appended else None
        own = headers[: len(headers) - appended] if origin is not None else headers
        reason = (origin.reason or origin.verdict or "") if origin is not None else "(not written by Ratchet)"
        identity = self._rule.identity_of(RecordView(key, value, own, at_ms))
        if not self._is_wanted(reason, identity, at_ms):
            return
        self.found.matching += 1
        _count(self._reasons, reason[:REASON_SHOWN], at_ms)
        _count(self._identities, identity, at_ms)
        where = at_ms, message.partition() or 0, message.offset() or 0
        if len(self._newest) == self._wanted.limit and where < self._newest[0][:3]:
            return
        item = *where, DroppedCopy(*where[1:], at_ms, reason, identity, origin, own, key, value)
        if len(self._newest) < self._wanted.limit:
            heapq.heappush(self._newest, item)
        else:
            heapq.heapreplace(self._newest, item)

    def _is_wanted(self, reason: str, identity: bytes | None, at_ms: int) -> bool:
        wanted = self._wanted
        return (
            (wanted.reason is None or reason.startswith(wanted.reason))
            and (wanted.identity is None or identity == wanted.identity)
            and (wanted.since is None or wanted.since <= at_ms)
            and (wanted.until is None or at_ms < wanted.until)
        )

    def result(self) -> NewestRecords:
        """Return the collected records, the newest first, and the counts."""
        self.found.records = [item[-1] for item in sorted(self._newest, key=lambda item: item[:3], reverse=True)]
        self.found.reasons = _largest(self._reasons)
        self.found.identities = _largest(self._identities)
        return self.found


def _appended(headers: Headers) -> int:
    """Return the number of headers that Ratchet has appended; 0 if the last headers have other names."""
    last = tuple([name for name, _ in headers[-MOST_APPENDED:]])
    return next((len(names) for names in APPENDED if last[-len(names) :] == names), 0)


def _count(counts: dict[str | bytes | None, Count], what: str | bytes | None, at_ms: int) -> None:
    """Count one more record with a reason or identity, `what`.

    After REASONS_MOST different reasons or identities, all further ones are counted together, under OTHERS.
    """
    if (count := counts.get(what)) is None:
        what = what if len(counts) < REASONS_MOST else OTHERS
        count = counts.setdefault(what, Count("(not known)" if what is None else _text(what)))
    count.add(at_ms)


def _text(what: str | bytes) -> str:
    return shown(what) if isinstance(what, bytes) else what


def _largest(counts: Mapping[str | bytes | None, Count]) -> list[Count]:
    return sorted(counts.values(), key=lambda each: (-each.records, each.name))
