"""Producers of a stream, each with its state in the partitions and its published progress."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import structlog

from kafka_ratchet.app.inspect.document import Document
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.errors import SourceError, StateError
from kafka_ratchet.producers import PROGRESS_TOPIC, Progress
from kafka_ratchet.topic_log.clients import consumer, offset_ranges, partition_count
from kafka_ratchet.topic_log.reading import records

if TYPE_CHECKING:
    from kafka_ratchet.tables.table import Sequences

log = structlog.get_logger(__name__)


class PublishedProgress(NamedTuple):
    """Published progress of a producer.

    sequence: highest sequence such that Kafka has acknowledged it and all lower ones; -1: nothing is acknowledged
    records: number of acknowledged records
    """

    sequence: int
    records: int


def read_published(settings: Settings, bootstrap: str) -> dict[str, dict[bytes, PublishedProgress]]:
    """Return the published progress of every producer name, by topic and name, without unreadable entries.

    The result takes some 300 bytes of memory for each name.

    Raises:
        BrokerUnavailable: Kafka did not answer.
        TransportError: Kafka refuses to return the records.
    """
    options = {"bootstrap.servers": bootstrap, **settings.kafka}
    found: dict[str, dict[bytes, PublishedProgress]] = {}
    timeout_s = settings.kafka_timeout_s
    # As producers read it themselves (docs/decisions/0008): an open transaction of one name hides no other
    # name.
    with consumer(options, "ratchet-producers-reader", committed=False) as asked:
        if not partition_count(asked, PROGRESS_TOPIC, timeout_s):
            return {}
        (held,) = offset_ranges(asked, PROGRESS_TOPIC, 1, timeout_s)
        for message in records(asked, PROGRESS_TOPIC, begin=held.first, timeout_s=timeout_s, end=held.end):
            _take(found, message.key(), message.value(), message.offset() or 0)
    return found


def _take(
    found: dict[str, dict[bytes, PublishedProgress]], key: bytes | None, value: bytes | None, offset: int
) -> None:
    where = f"{PROGRESS_TOPIC} partition 0 offset {offset}"
    try:
        topic, name = json.loads(key or b"")
        if not isinstance(topic, str) or not isinstance(name, str):
            raise TypeError("topic and name must be text")
        names = found.setdefault(topic, {})
        if value is None:
            names.pop(name.encode(), None)
        else:
            progress = Progress.decode(value, where)
            names[name.encode()] = PublishedProgress(progress.sequence, progress.records)
    except (SourceError, ValueError, TypeError, RecursionError) as error:
        log.debug("not a producer's progress; left out", where=where, reason=repr(error)[:200])


@dataclass(frozen=True, slots=True)
class ProducerPartition:
    """State of a producer in one partition.

    persisted: last sequence in a committed transaction of a worker; None: there is none.
    pushed: last sequence that a worker has judged, committed or in an open transaction; None: there is none.
    fresh, duplicate: estimated number of records with each verdict, from a sample of each batch
    (`kafka_ratchet.tables.activity.ActivityCounter`).
    since: start of the count in fresh and duplicate: the worker took the partition then, or began to count a dropped
    name again.
    last_seen: time of the last record; None: no record since `since`.
    Times are in ISO 8601, UTC, by the worker's clock.
    """

    partition: int
    persisted: int | None
    pushed: int | None
    last_seen: str | None
    fresh: int
    duplicate: int
    since: str | None


@dataclass(frozen=True, slots=True)
class ProducerStatus:
    """Producer with its state in each partition. name_hex: the bytes of its name, in hex."""

    name_hex: str
    partitions: list[ProducerPartition]


@dataclass(frozen=True, slots=True)
class ProducersAnswer:
    """Body of GET /status/producers: names in the order of their bytes.

    more: True: further names follow.
    complete: False: names of the last seconds may be missing.
    not_tallied: number of records that fresh and duplicate leave out, because their batches have too many producers.
    """

    producers: list[ProducerStatus]
    more: bool
    asked: list[int]
    complete: bool = True
    not_tallied: int = 0


@dataclass(frozen=True, slots=True)
class KnownProducer:
    """Producer name on a topic, with its progress.

    name: text for display.
    name_hex: the name's bytes, in hex.
    stream: stream that reads the topic; None: no stream does.
    published: highest sequence such that Kafka has acknowledged it and all lower ones, as the producer has stored it
    (`kafka_ratchet.producers.Progress`); None: unknown, or nothing is acknowledged.
    published_records: number of acknowledged records, from the same place; None: unknown.
    persisted, pushed: maximum over the partitions, see `ProducerPartition`; None: no partition has one.
    persisted_lowest: minimum of persisted over the partitions with one. In a slow partition, higher sequences may
    be in flight.
    last_seen: time of the newest record in any partition; None: no partition has one.
    since: earliest start of a partition's count; None: no partition counts.
    fresh, duplicate: sums over all partitions.
    """

    name: str
    name_hex: str
    topic: str
    stream: str | None
    published: int | None = None
    published_records: int | None = None
    persisted: int | None = None
    persisted_lowest: int | None = None
    pushed: int | None = None
    last_seen: str | None = None
    fresh: int = 0
    duplicate: int = 0
    since: str | None = None
    partitions: list[ProducerPartition] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ProducersPage(Document):
    """Page of a topic's producers, in the order of their names' bytes.

    next: `after` of the following page, in hex; None: this page is the last.
    problems: sentences for the operator.
    """

    stream: str | None
    topic: str
    producers: list[KnownProducer]
    next: str | None
    problems: list[str]


def merge_pages(
    stream: str,
    topic: str,
    answers: Iterable[ProducersAnswer],
    limit: int,
    partitions: Collection[int],
    problems: Iterable[str],
) -> ProducersPage:
    """Return one page, merged from the workers' answers. problems: sentences about workers without an answer."""
    answers, problems = list(answers), list(problems)
    known: dict[bytes, list[ProducerPartition]] = {}
    for each in (producer for answer in answers for producer in answer.producers):
        try:
            known.setdefault(bytes.fromhex(each.name_hex), []).extend(each.partitions)
        except ValueError:  # any member of the group may answer as a worker
            problems.append("a worker returned a name without hex form; it is left out")
    missing = sorted(set(partitions) - {number for answer in answers for number in answer.asked})
    if missing:
        problems.append(f"no worker can answer now for partitions {', '.join(map(str, missing))}")
    if not all(answer.complete for answer in answers):
        problems.append("very many names came within the last seconds; some of them may be missing here")
    if not_tallied := sum(answer.not_tallied for answer in answers):
        problems.append(
            f"{not_tallied:,} records came in batches of too many producers, and are in no producer's count"
        )
    more = any(answer.more for answer in answers)
    names, further = _page(known, None, limit)
    return ProducersPage(
        stream,
        topic,
        [_producer(name, topic, stream, known[name]) for name in names],
        names[-1].hex() if names and (more or further) else None,
        problems,
    )


def with_published(
    page: ProducersPage, published: Mapping[bytes, PublishedProgress], after: bytes | None, limit: int
) -> ProducersPage:
    """Return the page with the published progress added, and with the names that only the progress has.

    Args:
        page: page from the workers; without producers if no stream reads the topic
        published: published progress on this topic, by name
        after: `after` of the page's query
        limit: highest number of names
    """
    known = {bytes.fromhex(each.name_hex): each for each in page.producers}
    names, further = _page({**dict.fromkeys(published), **dict.fromkeys(known)}, after, limit)
    producers = []
    for name in names:
        told, own = known.get(name) or _producer(name, page.topic, page.stream, []), published.get(name)
        producers.append(_with(told, own) if own else told)
    last = names[-1].hex() if names and (further or page.next is not None) else None
    return ProducersPage(page.stream, page.topic, producers, last, page.problems)


def _page(names: Iterable[bytes], after: bytes | None, limit: int) -> tuple[list[bytes], bool]:
    behind = sorted(name for name in names if after is None or name > after)
    return behind[:limit], len(behind) > limit


def _producer(name: bytes, topic: str, stream: str | None, partitions: list[ProducerPartition]) -> KnownProducer:
    # While a partition moves two workers may have it: the one ahead counts.
    rows = sorted(partitions, key=lambda row: (row.partition, row.persisted or -1, row.pushed or -1))
    rows = list({row.partition: row for row in rows}.values())
    persisted = [row.persisted for row in rows if row.persisted is not None]
    return KnownProducer(
        name=shown(name),
        name_hex=name.hex(),
        topic=topic,
        stream=stream,
        persisted=max(persisted, default=None),
        persisted_lowest=min(persisted, default=None),
        pushed=max((row.pushed for row in rows if row.pushed is not None), default=None),
        last_seen=max((row.last_seen for row in rows if row.last_seen is not None), default=None),
        fresh=sum(row.fresh for row in rows),
        duplicate=sum(row.duplicate for row in rows),
        since=min((row.since for row in rows if row.since is not None), default=None),
        partitions=rows,
    )


def _with(told: KnownProducer, own: PublishedProgress) -> KnownProducer:
    return KnownProducer(
        **{name: getattr(told, name) for name in KnownProducer.__slots__ if not name.startswith("published")},
        published=own.sequence if own.sequence >= 0 else None,
        published_records=own.records,
    )


def shown(name: bytes) -> str:
    """Return bytes from a stranger as safe text for a terminal, with unprintable characters escaped."""
    text = name.decode("utf-8", "backslashreplace")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def list_producers(sequences: Sequences, asked: list[int], after: bytes | None, limit: int) -> ProducersAnswer:
    """Return a worker's part of a page of producers.

    Args:
        sequences: table of the stream
        asked: partitions to search
        after: name after which the list starts; None: from the first name
        limit: highest number of names
    """
    names: dict[bytes, list[int]] = {}
    """Partitions that list the name, by name."""
    unsure: list[int] = []
    """Partitions that may have more names than they have listed."""
    last: bytes | None = None
    """Last name of the page, of those found so far; None: the page is not full. Later partitions stop at it."""
    complete, looked_into, not_tallied = True, [], 0
    for number in asked:
        partition = sequences.partition(number)
        try:
            found, all_of_them = partition.page(after, limit + 1, until=last)
        except StateError:
            continue  # it is on its way to another worker
        for name in found:
            names.setdefault(name, []).append(number)
        if len(names) > limit:
            names = {name: names[name] for name in sorted(names)[: limit + 1]}
            last = next(reversed(names))
        if not all_of_them:
            unsure.append(number)
        complete &= all_of_them
        looked_into.append(number)
        not_tallied += partition.tally.not_tallied if partition.tally else 0
    chosen = sorted(names)[:limit]
    producers = [
        ProducerStatus(name.hex(), _partitions(sequences, sorted({*names[name], *unsure}), name)) for name in chosen
    ]
    return ProducersAnswer(producers, len(names) > limit, looked_into, complete, not_tallied)


def _partitions(sequences: Sequences, numbers: list[int], name: bytes) -> list[ProducerPartition]:
    found = []
    for number in numbers:
        partition = sequences.partition(number)
        last, tally = partition.last(name), partition.tally
        seen = tally.of(name) if tally else None
        if last.pushed < 0 and last.persisted < 0:
            continue
        last_seen, fresh, duplicate = seen or (0.0, 0, 0)
        found.append(
            ProducerPartition(
                number,
                last.persisted if last.persisted >= 0 else None,
                last.pushed if last.pushed >= 0 else None,
                _time(last_seen) if seen else None,
                round(fresh),
                round(duplicate),
                _time(tally.since) if tally and tally.since is not None else None,
            )
        )
    return found


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
