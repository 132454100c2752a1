"""Problems of the cluster, in sentences for the page and for commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kafka_ratchet.app.names import repartition_topic
from kafka_ratchet.app.repartition import arrivals_of
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.answers import WorkerStatus
from kafka_ratchet.app.status.group import REBALANCING, Group, sentence_of_strangers
from kafka_ratchet.app.status.inputs import never_had_a_record
from kafka_ratchet.app.status.model import KnownIdentity, Overview, PartitionView, StreamView
from kafka_ratchet.rule.verdicts import TOO_LATE
from kafka_ratchet.transport.lane_spec import LaneState
from kafka_ratchet.transport.stalls import StallCause

HELD_BACK = "wait for an open transaction"
"""Phrase in each sentence about records held back. `ratchet status` recognises the sentences by it."""


def about_group(settings: Settings, group: Group | None, urls: Sequence[str]) -> list[str]:
    """Return sentences about problems of the settings and of the whole consumer group.

    urls: status addresses of the workers
    """
    said = []
    if not settings.streams:
        said.append("the settings name no streams: add a [streams.NAME] section to the settings file")
    if group is not None and group.state in REBALANCING:
        said.append("the workers are redistributing the partitions; figures will be right in a moment")
    elif group is not None and (strangers := sentence_of_strangers(settings.bootstrap or "", settings.app, group)):
        said.append(strangers)
    elif group is not None and not urls:
        state = f"{group.members} members without a status address" if group.members else "no members"
        said.append(
            f"no worker is alive (group {settings.app!r} has {state}); below is what Kafka itself knows. "
            "Start one with: ratchet worker"
        )
    return said


def about_programs(workers: Iterable[WorkerStatus]) -> list[str]:
    """Return a sentence if workers run different code, as shown by the digests of their programs."""
    found: dict[str, list[str]] = {}
    for worker in workers:
        if worker.program:
            found.setdefault(worker.program, []).append(worker.worker)
    if len(found) < 2:
        return []
    named = "; ".join(f"{digest} on {', '.join(sorted(names))}" for digest, names in sorted(found.items()))
    return [
        f"workers run different code of the program: {named}. Each partition uses the code of its worker until all "
        "workers have the new version"
    ]


def about_foreign_offsets(group: Group | None, views: Sequence[StreamView]) -> list[str]:
    """Return a sentence for each offset of the workers' group that another client has committed."""
    foreign = group.foreign if group is not None else {}
    return [
        f"stream {view.stream}, partition {row.partition}: the group's offset {foreign[view.input, row.partition]} was "
        "committed by another client. The partition halts when a worker takes it over; see "
        f"`ratchet resume --stream {view.stream} --partition {row.partition}`"
        for view in views
        for row in view.partitions
        if (view.input, row.partition) in foreign and row.state != LaneState.HALTED
    ]


def about_input(view: StreamView) -> list[str]:
    """Return a sentence if a stream's input never had a record."""
    is_empty = bool(view.partitions) and all(row.input_end == 0 for row in view.partitions)
    is_internal = view.input.endswith(repartition_topic("", view.stream))
    return [never_had_a_record(view.stream, view.input)] if is_empty and not is_internal else []


def about_blocked(rows: Mapping[str, Sequence[PartitionView]], stream: str, partition: int | None) -> list[str]:
    """Return a sentence for each partition where an open transaction may hold back a record.

    Args:
        rows: partitions by stream.
        stream: stream of the record; the record may also wait in the internal stream that repartitions it.
        partition: partition of the record; None: unknown.
    """
    own = [row for row in rows.get(stream, ()) if partition in (None, row.partition)]
    return [
        f"partition {row.partition}: {row.blocked:,} offsets from {row.input_stable_end:,} on {HELD_BACK}, "
        "and the record may be among them"
        for row in (*own, *rows.get(arrivals_of(stream), ()))
        if row.blocked and row.input_stable_end is not None
    ]


def about_late(rows: Sequence[KnownIdentity], sequence: int | None, window: int) -> list[str]:
    """Return a sentence for each partition where the sequence is below the window.

    Such a partition cannot tell if the record has arrived.
    """
    return [
        f"partition {row.partition}: sequence {sequence} is more than {window:,} (reorder_window) below the last one, "
        f"{max(row.persisted or 0, row.pushed or 0)}: it is too late to tell whether the record came. Sent again, the "
        "record would not be forwarded"
        for row in rows
        if row.verdict == TOO_LATE  # so there is a last one, and it is not negative
    ]


def about_invalid(worker: WorkerStatus) -> list[str]:
    """Return a sentence for each partition with a steep rise in the share of invalid records."""
    return [
        f"stream {table.stream}, partition {status.partition}: {status.recent.invalid:,} of {status.recent.judged:,} "
        f"records within the last minute were invalid ({status.recent.now:.1%}; before: {status.recent.before:.1%}). "
        f"Why: ratchet dead-letters list --stream {table.stream}, or the header ratchet-reason of each in "
        f"{table.dead_letters}"
        for table in worker.tables
        for status in table.partitions
        if status.recent.has_jumped
    ]


LAG_LONG_S: Final = 60.0
"""Minimum time lag in seconds that the page reports as a problem."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Problem with its remedy, for the page.

    is_bad: True: the operator has to act; page: address of a page with more about it; command: command to copy
    """

    text: str
    is_bad: bool = False
    page: str | None = None
    command: str | None = None


def findings(overview: Overview) -> list[Finding]:
    """Return the problems of the overview, the worst first."""
    found = [
        *(each for stream in overview.streams for each in _of_stream(stream)),
        *(
            Finding(f"worker {worker.url} does not answer: {worker.error}", is_bad=True, page="/workers")
            for worker in overview.workers
            if worker.error is not None
        ),
        *(Finding(text) for text in overview.problems),
    ]
    for sink in overview.sinks:
        if sink.error:
            command = "ratchet sink status"
            found.append(Finding(f"sink {sink.name}: {sink.error}", True, f"/sinks/{sink.name}", command))
        found += [Finding(f"sink {sink.name}: {text}", True, f"/sinks/{sink.name}") for text in sink.waits or ()]
    return sorted(found, key=lambda each: not each.is_bad)


def _of_stream(stream: StreamView) -> Iterator[Finding]:
    name, page = stream.stream, f"/streams/{stream.stream}"
    halted = [row for row in stream.partitions if row.state == LaneState.HALTED]
    if halted:
        first = halted[0]
        yield Finding(
            f"stream {name}: {_partitions([row.partition for row in halted])} halted: {first.error}",
            is_bad=True,
            page=f"{page}?state=halted",
            command=f"ratchet resume --stream {name} --partition {first.partition}",
        )
    retrying = [row for row in stream.partitions if row.state == LaneState.RETRYING]
    if retrying:
        numbers = _partitions([row.partition for row in retrying])
        yield Finding(f"stream {name}: {numbers} start again: {retrying[0].error}", page=f"{page}?state=retrying")
    for cause in dict.fromkeys(row.stalled.cause for row in stream.partitions if row.stalled is not None):
        if cause == StallCause.HALTED:
            continue  # told above, with the command
        rows = [row for row in stream.partitions if row.stalled is not None and row.stalled.cause == cause]
        assert rows[0].stalled is not None  # noqa: S101
        numbers = _partitions([row.partition for row in rows])
        yield Finding(
            f"stream {name}: {numbers} stand still: {rows[0].stalled.text}", is_bad=True, page=f"{page}?sort=lag"
        )
    behind = [row for row in stream.partitions if (row.lag_s or 0) > LAG_LONG_S]
    if behind:
        worst = max(behind, key=lambda row: row.lag_s or 0)
        yield Finding(
            f"stream {name}: {_partitions([row.partition for row in behind])} lag by more than {LAG_LONG_S:.0f} s; "
            f"partition {worst.partition} by {worst.lag_s:,.0f} s",
            page=f"{page}?sort=lag",
        )
    if stream.is_switched_off:
        yield Finding(
            f"stream {name}: deduplication is off ({stream.origin}); duplicates pass",
            page="/policy",
            command=f"ratchet policy set on --stream {name}",
        )


def _partitions(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5:,} more" if len(numbers) > 5 else "")
    return f"partition{'s' * (len(numbers) > 1)} {shown}"
