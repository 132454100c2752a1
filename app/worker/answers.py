"""Answers of a worker to requests at its status address."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from kafka_ratchet.app.status.answers import (
    ForgetEffect,
    GlobalTableStatus,
    IdentityStatus,
    PartitionStatus,
    Readiness,
    TableStatus,
    WorkerMeasures,
)
from kafka_ratchet.app.status.identities import IdentitiesAnswer, IdentitiesQuery, list_identities
from kafka_ratchet.app.status.inputs import EmptyInputs
from kafka_ratchet.app.status.lookup import verdict_of
from kafka_ratchet.app.status.own_tables import TableAnswer, TableQuery
from kafka_ratchet.app.status.producers import ProducersAnswer, list_producers
from kafka_ratchet.app.status.table_reading import read_table
from kafka_ratchet.app.worker import readiness
from kafka_ratchet.app.worker.global_tables import GlobalTables
from kafka_ratchet.app.worker.policy import PolicyFollower
from kafka_ratchet.app.worker.stream import Stream
from kafka_ratchet.errors import StateError
from kafka_ratchet.tables.edits import Edit
from kafka_ratchet.tables.map.map import LastSequence
from kafka_ratchet.transport.assignment import Lanes
from kafka_ratchet.transport.lane import Lane


class Answers:
    """Read-only view of a worker's parts; implements `kafka_ratchet.app.status.answers.StatusProvider`."""

    def __init__(
        self,
        streams: Mapping[str, Stream],
        lanes: Lanes,
        policies: PolicyFollower,
        followed: GlobalTables,
        empty_inputs: EmptyInputs,
    ) -> None:
        self.streams, self.lanes, self.policies = streams, lanes, policies
        self.followed, self.empty_inputs = followed, empty_inputs
        self.worker_stops = False
        """True once the worker is stopping; the worker then reports that it is not ready."""

    def tables(self) -> list[TableStatus]:
        """Return the status of every stream, with its partitions in this worker."""
        return [
            TableStatus(
                stream=stream.name,
                input=stream.settings.input,
                output=stream.settings.output,
                dead_letters=stream.settings.dead_letters,
                changelog=stream.topics.changelog,
                identity=str(stream.settings.identity),
                partitions=[
                    _partition_status(lane)
                    for (changelog, _), lane in sorted(self.lanes.running.items())
                    if changelog == stream.topics.changelog
                ],
                deduplicate=stream.is_judged and self.policies.policies.effective(stream.name).deduplicate,
                origin=str(self.policies.policies.effective(stream.name).origin),
                problem=self.empty_inputs.problem(stream.name),
                tables=[table.name for table in stream.sequences.tables],
                standbys=[
                    number
                    for changelog, number in sorted(self.lanes.standing_by)
                    if changelog == stream.topics.changelog
                ],
            )
            for stream in self.streams.values()
        ]

    def lookup(self, stream: str, identity: bytes, sequence: int | None) -> list[IdentityStatus]:
        """Return the state of an identity in each partition of this worker that knows it.

        A partition that has forgotten the identity at an operator's request is included.

        Args:
            stream: name of the stream
            identity: bytes of the identity
            sequence: sequence to judge against that state; None: no verdict is returned
        """
        if stream not in self.streams:
            return []
        sequences, changelog = self.streams[stream].sequences, self.streams[stream].topics.changelog
        known, found = sequences.last(identity), []
        for number, partition in sorted(sequences.partitions.items()):
            forgotten = [_forgotten(edit) for edit in partition.edits.of(identity)]
            if (changelog, number) in self.lanes.running and (number in known or forgotten):
                last = known.get(number, LastSequence(-1, -1))
                persisted, pushed, verdict = _known(last.persisted), _known(last.pushed), None
                if sequence is not None:
                    seen = partition.seen(identity, sequence)
                    verdict = verdict_of(sequence, persisted, pushed, partition.known.kept.window, seen)
                found.append(IdentityStatus(number, persisted, pushed, verdict, forgotten or msgspec.UNSET))
        return found

    def producers(self, stream: str, asked: list[int], after: bytes | None, limit: int) -> ProducersAnswer:
        """Return up to `limit` producers known to the given partitions, with names after `after`."""
        return list_producers(self.streams[stream].sequences, asked, after, limit)

    async def identities(self, stream: str, asked: list[int], query: IdentitiesQuery) -> IdentitiesAnswer:
        """Return the identities known to the given partitions."""
        return await list_identities(self.streams[stream].sequences, asked, query)

    def own_table(self, stream: str, asked: list[int], table: str, query: TableQuery) -> TableAnswer:
        """Return the committed contents of a program's table in the given partitions."""
        found = {}
        for number in asked:
            partition = self.streams[stream].sequences.partition(number)
            with suppress(StateError):  # it is on its way to another worker
                found[number] = partition.committed_table(table), partition.position
        return read_table(found, query)

    def global_tables(self) -> list[GlobalTableStatus]:
        """Return the status of the program's global tables."""
        return self.followed.status()

    def global_table(self, table: str, query: TableQuery) -> TableAnswer:
        """Return the contents of a global table in this worker, or the part that `query` selects."""
        return read_table(self.followed.table(table).parts(), query)

    def measures(self) -> WorkerMeasures:
        """Return the values of the worker's metrics, and the partition count of each stream."""
        return WorkerMeasures(
            self.lanes.rebalances,
            {name: stream.measures for name, stream in self.streams.items()},
            {name: stream.topics.partitions for name, stream in self.streams.items()},
        )

    def readiness(self) -> Readiness:
        """Return the reasons why the worker is not ready, and its halted and stalled partitions."""
        names = {stream.topics.changelog: name for name, stream in self.streams.items()}
        waits = readiness.why_not_ready(self.lanes, names)
        if self.worker_stops:
            waits = ["the worker stops"]
        return Readiness(waits, readiness.halted(self.lanes, names), readiness.stalled(self.lanes, names))


def _forgotten(edit: Edit) -> ForgetEffect:
    who = edit.at, edit.by, edit.reason
    return ForgetEffect(*who, edit.position, edit.above, _known(edit.before), _known(edit.after))


def _known(sequence: int) -> int | None:
    return sequence if sequence >= 0 else None


def _partition_status(lane: Lane) -> PartitionStatus:
    partition: Any = lane.state
    progress = partition.progress
    interval = partition.intervals.last
    return PartitionStatus(
        partition=lane.spec.partition,
        state=str(lane.status.state),
        keys=len(partition),
        input_position=lane.status.position,
        input_end=lane.status.end,
        changelog_position=partition.position,
        fresh=progress.fresh if progress else 0,
        duplicate=progress.duplicate if progress else 0,
        invalid=progress.invalid if progress else 0,
        too_late=progress.late if progress else 0,
        conflict=progress.conflict if progress else 0,
        missing=partition.missing,
        error=lane.status.error,
        unjudged=partition.intervals.unjudged,
        deduplicate=interval.deduplicate if interval else True,
        since=interval.start if interval else None,
        evicted_inactive=partition.evicted.inactive,
        evicted_displaced=partition.evicted.displaced,
        recognised_for_s=partition.recognised_for_s,
        jumps=partition.jumps.total,
        late=sum(partition.tables.late.values()) if partition.tables.has_windows else msgspec.UNSET,
        recent=partition.recent.share(),
        restarts=lane.status.restarts,
        lag_s=lane.status.lag_s(time.time()),
        halted=lane.status.halted,
        fetched_at=lane.status.fetched_at,
        stable_end=lane.status.stable_end,
        stalled=lane.stall(),
        store_bytes=partition.store_bytes,
    )
