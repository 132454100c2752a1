"""Model of the page and `ratchet tables`: the workers' answers, combined with the offsets that Kafka reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from kafka_ratchet.app.inspect.document import Document
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.status.answers import ForgetEffect, IdentityStatus, PartitionStatus, TableStatus, WorkerStatus
from kafka_ratchet.app.status.group import Group
from kafka_ratchet.app.status.kafka_view import InputPartition
from kafka_ratchet.app.status.lookup import Answer
from kafka_ratchet.app.status.result_view import Results
from kafka_ratchet.rule.verdicts import COUNTERS, SequenceVerdict
from kafka_ratchet.transport.lane_spec import LaneState
from kafka_ratchet.transport.stalls import Stall

UNSERVED = "unserved"
"""State of a partition that no live worker has reported."""

NO_KAFKA = "no Kafka"
"""State of a partition with a running lane, while Kafka does not answer."""


AS_TOLD = (
    "keys",
    "changelog_position",
    "fresh",
    "duplicate",
    "invalid",
    "error",
    "unjudged",
    "deduplicate",
    "since",
    "recognised_for_s",
    "conflict",
    "missing",
    "lag_s",
)
"""Names of the fields that a partition's view copies from the worker's answer."""

SUMMED = (
    "keys",
    "lag",
    "evicted",
    *COUNTERS,
    "missing",
    "blocked",
)


@dataclass(frozen=True, slots=True)
class WorkerView:
    """Live worker of the group.

    error: reason why the worker did not answer; None: it answered
    program: digest of its program; "": no program
    """

    url: str
    name: str | None
    error: str | None = None
    program: str = ""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """Row of an input partition on the page: its worker, its position, and its counters. None in a field: unknown.

    deduplicate, since: as in `PartitionStatus`.
    lag: number of offsets from the next one to read to the high watermark.
    blocked: number of these offsets that an open transaction holds back, from input_stable_end on.
    lag_s: age of the first uncommitted record, in seconds.
    stalled: reason of a standstill.
    worker, also_reported_by: while a partition moves between workers, two may report it. Then worker is the one further
    ahead, and also_reported_by has the other.
    standbys: workers with a standby copy of the partition.
    """

    partition: int
    worker: str | None
    state: str
    keys: int | None
    input_position: int | None
    input_end: int | None
    lag: int | None
    changelog_position: int | None
    changelog_end: int | None
    fresh: int | None
    duplicate: int | None
    invalid: int | None
    evicted: int | None = None
    error: str | None = None
    also_reported_by: list[str] = field(default_factory=list)
    unjudged: int | None = None
    deduplicate: bool | None = None
    since: int | None = None
    recognised_for_s: int | None = None
    late: int | None = None
    conflict: int | None = None
    missing: int | None = None
    lag_s: float | None = None
    standbys: list[str] = field(default_factory=list)
    input_stable_end: int | None = None
    blocked: int | None = None
    stalled: Stall | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the partitions with known values; None in a field: no partition's value is known.

    unknown: number of partitions without a worker's report, which the sums leave out
    """

    keys: int | None
    lag: int | None
    fresh: int | None
    duplicate: int | None
    invalid: int | None
    evicted: int | None
    unknown: int
    unjudged: int | None = None
    late: int | None = None
    conflict: int | None = None
    missing: int | None = None
    blocked: int | None = None


@dataclass(frozen=True, slots=True)
class StreamView:
    """Stream on the page: its topics, its deduplication settings and its partitions.

    deduplicate, origin: policy in effect and where it is set, as the workers know it; None: unknown.
    setting: value of `deduplicate` in the settings; None: not set.
    tables: names of the program's tables.
    recognised_for_s: shortest time in seconds from an identity's last record until a partition forgot the identity;
    None: none was forgotten, or unknown.
    window: sentence about that time.
    """

    stream: str
    input: str
    output: str
    dead_letters: str
    changelog: str
    identity: str
    sequence: str
    partitions: list[PartitionView]
    totals: Totals
    deduplicate: bool | None = None
    origin: str | None = None
    tables: list[str] = field(default_factory=list)
    recognised_for_s: int | None = None
    window: str = ""
    setting: bool | None = None

    @property
    def is_switched_off(self) -> bool:
        """Return True if a policy switches deduplication off while the settings have it on."""
        return self.deduplicate is False and self.setting is not False


@dataclass(frozen=True, slots=True)
class Overview:
    """Content of the page's first view: workers, streams, problems and sinks.

    taken_at: time of the answers, ISO 8601, UTC.
    group: state of the consumer group, as Kafka names it; None: Kafka did not answer.
    problems: sentences for the operator.
    sinks: sinks of the settings; empty in the terminal, where `ratchet sink status` shows them.
    results: the first of the sinks; None: no sinks.
    global_tables: names of the program's global tables.
    """

    app: str
    taken_at: str
    group: str | None
    workers: list[WorkerView]
    streams: list[StreamView]
    problems: list[str]
    results: Results | None = None
    global_tables: list[str] = field(default_factory=list)
    sinks: list[Results] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class KnownIdentity:
    """State of an identity in one partition."""

    partition: int
    worker: str
    persisted: int | None
    pushed: int | None
    verdict: SequenceVerdict | None
    forgotten: list[ForgetEffect] | msgspec.UnsetType = msgspec.UNSET
    """Operators' requests to forget the identity, the oldest first; unset if there are none."""

    def had_reached(self, sequence: int) -> bool:
        """Return True if the identity had reached `sequence` here before the partition forgot it."""
        edits = [] if self.forgotten is msgspec.UNSET else self.forgotten
        return any(each.before is not None and sequence <= each.before for each in edits)


@dataclass(frozen=True, slots=True)
class Lookup(Document):
    """Answer to a query for an identity, from all workers.

    identity_hex: the identity of the query, in hex.
    not_asked: partitions without an answering worker.
    answer: result in one word (`kafka_ratchet.app.status.lookup.answer_of`); None: the query has no sequence.
    deduplicate, unjudged: if deduplicate is False or unjudged above 0, workers have forwarded records without storing
    their sequences.
    """

    stream: str
    identity_hex: str
    sequence: int | None
    partitions: list[KnownIdentity]
    asked: list[int]
    not_asked: list[int]
    problems: list[str]
    partition: int | None = None
    answer: Answer | None = None
    deduplicate: bool | None = None
    origin: str | None = None
    unjudged: int = 0
    recognised_for_s: int | None = None
    cannot_forget: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Names of workers with a version that would ignore `ratchet forget`; unset if there are none."""
    cannot_replay: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Names of workers with a version that drops replayed dead letters, or without an answer; unset if none."""


def merge(
    settings: Settings,
    answers: Mapping[str, WorkerStatus],
    group: Group | None,
    positions: Mapping[str, list[InputPartition]],
    changelogs: Mapping[str, str],
) -> list[StreamView]:
    """Return the streams of the settings, each with one row per partition.

    Args:
        settings: settings, with the streams in the order of the result.
        answers: status reported by each worker.
        group: the consumer group with its committed offsets; None: unknown.
        positions: offsets of the input partitions by stream, as Kafka reports them.
        changelogs: name of the changelog topic by stream.
    """
    committed = group.committed if group else {}
    streams = [
        _stream(
            name,
            stream,
            [(status.worker, table) for status in answers.values() for table in status.tables if table.stream == name],
            {where.partition: where for where in positions.get(name, ())},
            {partition: offset for (topic, partition), offset in committed.items() if topic == stream.input},
            changelogs[name],
        )
        for name, stream in settings.streams.items()
    ]
    # As `Policies.effective` without policies.
    default = settings.deduplicate
    said = [default if each.deduplicate is None else each.deduplicate for each in settings.streams.values()]
    return [replace(view, setting=setting) for view, setting in zip(streams, said, strict=True)]


def without_kafka(stream: StreamView) -> StreamView:
    """Return the stream for display while Kafka does not answer: running partitions get the state `NO_KAFKA`."""
    rows = [replace(row, state=NO_KAFKA) if row.state == LaneState.RUNNING else row for row in stream.partitions]
    return replace(stream, partitions=rows)


def _stream(
    name: str,
    stream: StreamSettings,
    tables: list[tuple[str, TableStatus]],
    positions: Mapping[int, InputPartition],
    committed: Mapping[int, int],
    changelog: str,
) -> StreamView:
    reports: dict[int, list[tuple[str, PartitionStatus]]] = {number: [] for number in positions}
    for worker, table in tables:
        for status in table.partitions:
            reports.setdefault(status.partition, []).append((worker, status))
    standbys: dict[int, list[str]] = {}
    for worker, table in tables:
        for number in table.standbys:
            standbys.setdefault(number, []).append(worker)
    rows = [
        _row(number, reported, positions.get(number), committed.get(number), sorted(standbys.get(number, ())))
        for number, reported in sorted(reports.items())
    ]
    recognised_for_s = _recognised_for_s(rows)
    return StreamView(
        stream=name,
        input=stream.input,
        output=stream.output,
        dead_letters=stream.dead_letters,
        changelog=changelog,
        identity=str(stream.identity),
        sequence=stream.sequence,
        partitions=rows,
        totals=_totals(rows),
        deduplicate=tables[0][1].deduplicate if tables else None,
        origin=tables[0][1].origin if tables else None,
        tables=sorted({name for _, table in tables for name in table.tables}),
        recognised_for_s=recognised_for_s,
        window=window(stream, recognised_for_s, rows),
    )


def _recognised_for_s(rows: list[PartitionView]) -> int | None:
    known = [row.recognised_for_s for row in rows]
    return min((each for each in known if each is not None), default=None) if None not in known else None


def window(stream: StreamSettings, recognised_for_s: int | None, rows: list[PartitionView]) -> str:
    """Return the sentence about how long the stream recognises duplicates before it forgets an identity."""
    if not stream.is_bounded:
        return "Identities are never forgotten."
    if recognised_for_s is not None:
        return f"An identity is recognised for at least {duration(recognised_for_s)} after its last record."
    if any(row.fresh is None for row in rows):
        return "The time for which an identity is recognised is unknown: a partition has no worker."
    if stream.inactive_after_s is None and not any(row.evicted for row in rows):
        return "No identity was forgotten so far."
    return "The time for which an identity is recognised is unknown: some were displaced under an earlier worker."


def duration(seconds: int) -> str:
    """Format seconds in their largest units: 604,800 as "7 d", 5,400 as "1 h 30 min"."""
    said = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        if seconds >= size:
            said.append(f"{seconds // size:,} {unit}")
            seconds %= size
    return " ".join(said[:2]) or "0 s"


def _row(
    number: int,
    reported: list[tuple[str, PartitionStatus]],
    where: InputPartition | None,
    committed: int | None,
    standbys: list[str],
) -> PartitionView:
    # The durable totals only grow: the worker with the higher ones held the partition last.
    reported = sorted(reported, key=lambda report: _judged(report[1]), reverse=True)
    worker, status = reported[0] if reported else (None, None)
    position = committed
    end, stable_end = (where.end, where.stable_end) if where else (None, None)
    if status is not None:
        position = _further(status.input_position, committed)
        # End and last stable offset must be of the same moment; else an open transaction may seem to exist.
        if stable_end is None or (status.stable_end is not None and (status.input_end or 0) >= (end or 0)):
            stable_end = status.stable_end
        end = _further(status.input_end, end)
    return PartitionView(
        partition=number,
        worker=worker,
        state=status.state if status else UNSERVED,
        input_position=position,
        input_end=end,
        lag=_lag(position, where.start if where else None, end),
        changelog_end=where.changelog_end if where else None,
        late=status.too_late if status else None,
        evicted=status.evicted_inactive + status.evicted_displaced if status else None,
        also_reported_by=[other for other, _ in reported[1:]],
        standbys=standbys,
        input_stable_end=stable_end,
        blocked=_blocked(status, where),
        stalled=status.stalled if status else None,
        **{name: getattr(status, name, None) for name in AS_TOLD},
    )


def _blocked(status: PartitionStatus | None, where: InputPartition | None) -> int | None:
    """Return the number of offsets that an open transaction holds back; None: unknown.

    Worker and Kafka both report it; the report with the greater offsets is the newer one, and is used.
    """
    pairs = [
        (end, stable_end)
        for end, stable_end in (
            (status.input_end, status.stable_end) if status else (None, None),
            (where.end, where.stable_end) if where else (None, None),
        )
        if end is not None and stable_end is not None
    ]
    end, stable_end = max(pairs, default=(0, 0))
    return max(0, end - stable_end) if pairs else None


def _judged(status: PartitionStatus) -> int:
    judged = status.fresh + status.duplicate + status.invalid + status.too_late + status.conflict
    return judged + status.unjudged


def _further(told: int | None, asked: int | None) -> int | None:
    """Return the greater of a worker's and Kafka's report of an offset; None: both are unknown.

    Worker and Kafka answer at different times, and the offset only grows, so the greater report is the newer one.
    """
    known = [offset for offset in (told, asked) if offset is not None]
    return max(known, default=None)


def _lag(position: int | None, start: int | None, end: int | None) -> int | None:
    """Return the number of offsets left to read. Without a committed position, the whole partition is left."""
    begin = position if position is not None else start
    return None if begin is None or end is None else max(0, end - begin)


def _totals(rows: list[PartitionView]) -> Totals:
    sums = {name: _sum(getattr(row, name) for row in rows) for name in SUMMED}
    return Totals(**sums, unknown=sum(row.fresh is None for row in rows))


def _sum(figures: Iterable[int | None]) -> int | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known else None


def known(worker: str, identities: Iterable[IdentityStatus]) -> list[KnownIdentity]:
    """Return a worker's answer to a query for an identity, with the worker's name added to each partition."""
    return [
        KnownIdentity(found.partition, worker, found.persisted, found.pushed, found.verdict, found.forgotten)
        for found in identities
    ]
