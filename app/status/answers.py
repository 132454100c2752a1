"""Answers and requests of a worker's status address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from kafka_ratchet.app.status.identities import IdentitiesAnswer, IdentitiesQuery
from kafka_ratchet.app.status.own_tables import TableAnswer, TableQuery
from kafka_ratchet.app.status.producers import ProducersAnswer
from kafka_ratchet.rule.verdicts import SequenceVerdict
from kafka_ratchet.tables.invalid_share import InvalidShare
from kafka_ratchet.transport.lane_spec import LaneState
from kafka_ratchet.transport.measures import StreamMeasures
from kafka_ratchet.transport.stalls import Stall

INCOMPLETE = frozenset[str]({LaneState.STARTING, LaneState.RESTORING, LaneState.STOPPED})
"""States with an incomplete table: an answer from it could call a duplicate fresh."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """State and counters of an input partition, as its worker reports them.

    fresh, duplicate, invalid, too_late, conflict and unjudged are the partition's durable totals in records: they are
    stored in the changelog and continue after a change of workers. Forwarded records are fresh and unjudged. Positions
    are offsets; input_position is the next one to read after the last commit. input_end is the high watermark: records
    held back by an open transaction count as lag. deduplicate is the policy of the last committed batch; since is the
    first input offset under that policy, None if it was never switched. evicted_inactive and evicted_displaced are
    durable totals of identities. recognised_for_s is the shortest time, after an identity's last record, before it was
    forgotten; None: none was forgotten, or unknown. restarts counts retries after errors since this worker took the
    partition. jumps counts sequences more than 2^40 above their identity's last, since this worker has the partition.
    late counts writes of late events that windowed tables have dropped; it is durable, and known once the program has
    run here. recent has the number of records judged within the last minute, and before.
    """

    partition: int
    state: str
    keys: int
    input_position: int | None
    input_end: int | None
    changelog_position: int | None
    fresh: int
    duplicate: int
    invalid: int
    error: str | None = None
    unjudged: int = 0
    deduplicate: bool = True
    since: int | None = None
    evicted_inactive: int = 0
    evicted_displaced: int = 0
    recognised_for_s: int | None = None
    jumps: int = 0
    late: int | msgspec.UnsetType = msgspec.UNSET
    recent: InvalidShare = field(default_factory=InvalidShare)
    restarts: int = 0
    too_late: int = 0
    conflict: int = 0
    missing: int | None = None
    """Number of missing sequences of all identities; None if the stream does not count them."""
    lag_s: float | None = None
    """Seconds since the first uncommitted record was written, by its timestamp; None: unknown."""
    halted: str = ""
    """Class of the error that halted the partition; "" unless it is halted."""
    fetched_at: float | None = None
    """Time of Kafka's last answer to a fetch of the input, in seconds since 1970; None: not yet."""
    stable_end: int | None = None
    """Last stable offset of the input; input_end is its high watermark."""
    stalled: Stall | None = None
    """Cause of the partition's standstill; None while it moves."""
    store_bytes: int | None = None
    """Bytes of the local store, on disk and still in memory; None if the store is not open."""


@dataclass(frozen=True, slots=True)
class TableStatus:
    """Status of a stream in a worker: topics, served partitions, and standby partitions.

    deduplicate is the policy known to this worker, origin the place that decides it
    (`kafka_ratchet.app.worker.policy.Origin`). problem is a sentence for the operator. tables has the names of the
    program's tables.
    """

    stream: str
    input: str
    output: str
    dead_letters: str
    changelog: str
    identity: str
    partitions: list[PartitionStatus]
    standbys: list[int] = field(default_factory=list)
    deduplicate: bool = True
    origin: str = "default"
    problem: str | None = None
    tables: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Effect of `ratchet forget` on an identity in one partition.

    at: ISO 8601, UTC; position: first input offset that it applies to; above: only sequences above it were forgotten,
    None: all;
    before, after: the last sequence; None: none
    """

    at: str
    by: str
    reason: str
    position: int
    above: int | None
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True)
class IdentityStatus:
    """Last sequences of one identity in one partition.

    persisted is committed; pushed is in flight or committed.

    verdict applies to a record with the requested sequence; None: no sequence was requested.
    """

    partition: int
    persisted: int | None
    pushed: int | None
    verdict: SequenceVerdict | None = None
    forgotten: list[Forgotten] | msgspec.UnsetType = msgspec.UNSET
    """Operators' requests that forgot the identity, the oldest first; unset without any."""


class StatusProvider(Protocol):
    """Interface of a worker for its status address. Methods run in the event loop and answer from memory."""

    def tables(self) -> list[TableStatus]:
        """Return the status of each stream that this worker serves."""

    def lookup(self, stream: str, identity: bytes, sequence: int | None) -> list[IdentityStatus]:
        """Return the state of an identity in this worker's partitions, with the verdict on a record of the sequence."""

    def producers(self, stream: str, asked: list[int], after: bytes | None, limit: int) -> ProducersAnswer:
        """Return at most `limit` producers of the partitions `asked`, by name, starting after a name."""

    async def identities(self, stream: str, asked: list[int], query: IdentitiesQuery) -> IdentitiesAnswer:
        """Return a page of the identities in the asked partitions."""

    def own_table(self, stream: str, asked: list[int], table: str, query: TableQuery) -> TableAnswer:
        """Return the committed contents of a program's table in the partitions `asked`."""

    def global_tables(self) -> list[GlobalTableStatus]:
        """Return the program's global tables."""

    def global_table(self, table: str, query: TableQuery) -> TableAnswer:
        """Return this worker's contents of a global table's topic."""

    def measures(self) -> WorkerMeasures:
        """Return the worker's measures of its own work."""

    def readiness(self) -> Readiness:
        """Return the reasons, if any, why the worker is not ready."""


@dataclass(frozen=True, slots=True)
class WorkerMeasures:
    """Measures of a worker since its start.

    rebalances: assignments received from the group; streams: measures by stream name; partitions: partition counts by
    stream name
    """

    rebalances: int = 0
    streams: Mapping[str, StreamMeasures] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Readiness:
    """Readiness of a worker.

    waits: sentences about conditions that keep the worker from being ready; halted: sentences about halted partitions;
    stalled: other partitions at a standstill, for example because of an open transaction
    """

    waits: list[str] = field(default_factory=list)
    halted: list[str] = field(default_factory=list)
    stalled: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GlobalTableStatus:
    """Status of a global table in this worker's memory: number of keys, and approximate bytes.

    problem: reason why the table cannot be read, or does not follow its topic.
    """

    table: str
    topic: str
    keys: int
    bytes: int
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Body of GET /status.

    program is the digest of the worker's program (`kafka_ratchet.app.worker.program.digest_of`); "" without one.
    """

    worker: str
    tables: list[TableStatus]
    global_tables: list[GlobalTableStatus] = field(default_factory=list)
    program: str = ""


@dataclass(frozen=True, slots=True)
class IdentityAnswer:
    """Body of GET /status/identity.

    asked lists the searched partitions, including those without the identity; partitions with an incomplete table are
    omitted. If deduplicate is False or unjudged above 0, records were forwarded without recording their sequences.
    can_forget is False for workers of versions before `ratchet forget`, can_replay for versions that drop replayed dead
    letters, and names_apps for versions without the application in a dead letter's name.
    """

    partitions: list[IdentityStatus]
    asked: list[int] = field(default_factory=list)
    deduplicate: bool = True
    origin: str = "default"
    unjudged: int = 0
    can_forget: bool = False
    can_replay: bool = False
    names_apps: bool = False
