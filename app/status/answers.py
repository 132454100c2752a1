"""Answers of a worker's status address, and the interface that it needs of the worker."""

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
"""Lane states with an incomplete table: an answer from such a table could call a duplicate new."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """State and counters of an input partition, as its worker reports them.

    fresh, duplicate, invalid, too_late, conflict, unjudged: number of records with each verdict since the beginning.
    They are stored in the changelog, so they continue after a change of workers. The forwarded records are fresh plus
    unjudged.
    input_position: offset of the next record to read, as of the last commit.
    input_end: high watermark of the input, so that the lag includes records held back by an open transaction.
    deduplicate: True if deduplication was on for the last committed batch.
    since: first input offset with the present value of deduplicate; None: deduplication was never switched.
    evicted_inactive, evicted_displaced: number of identities forgotten since the beginning, stored in the changelog.
    recognised_for_s: shortest time in seconds from an identity's last record until the identity was forgotten; None:
    no identity was forgotten, or the time is unknown.
    restarts: number of retries after errors, since this worker took the partition.
    jumps: number of sequences more than 2^40 above their identity's last one, since this worker took the partition.
    late: number of writes of late events dropped by windowed tables since the beginning, stored in the changelog.
    recent: share of invalid records within the last minute, and their share in the time before that minute.
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
    """Number of missing sequences of all identities together; None: the stream does not count them."""
    lag_s: float | None = None
    """Age in seconds of the first uncommitted record, by its timestamp; None: unknown."""
    halted: str = ""
    """Name of the error class that halted the partition; "": not halted."""
    fetched_at: float | None = None
    """Time of Kafka's last answer to a fetch of the input, in seconds since 1970; None: not yet."""
    stable_end: int | None = None
    """Last stable offset of the input; input_end is its high watermark."""
    stalled: Stall | None = None
    """Cause of the partition's standstill; None: the partition moves."""
    store_bytes: int | None = None
    """Bytes of the local store, on disk and not yet written to disk; None: the store is not open."""


@dataclass(frozen=True, slots=True)
class TableStatus:
    """Status of a stream in a worker: its topics, and the partitions that the worker serves or stands by for.

    deduplicate: True if deduplication is on, as known to this worker.
    origin: policy or setting that decides `deduplicate` (`kafka_ratchet.app.worker.policy.PolicyOrigin`).
    problem: sentence for the operator.
    tables: names of the program's tables.
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
class ForgetEffect:
    """Effect of `ratchet forget` on an identity in one partition.

    at: time of the request, ISO 8601, UTC.
    position: first input offset that the request applied to.
    above: only sequences above this one were forgotten; None: all.
    before, after: last sequence of the identity before and after the request; None: there was none.
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

    persisted: last sequence in a committed transaction.
    pushed: last sequence in any transaction, committed or open.
    verdict: verdict on a record with the sequence of the query; None: the query has no sequence.
    """

    partition: int
    persisted: int | None
    pushed: int | None
    verdict: SequenceVerdict | None = None
    forgotten: list[ForgetEffect] | msgspec.UnsetType = msgspec.UNSET
    """Operators' requests to forget the identity, the oldest first; unset if there are none."""


class StatusProvider(Protocol):
    """Interface of a worker for its status address. Its methods run in the event loop, and read memory only."""

    def tables(self) -> list[TableStatus]:
        """Return the status of every stream of this worker, also of streams without a partition here."""

    def lookup(self, stream: str, identity: bytes, sequence: int | None) -> list[IdentityStatus]:
        """Return the state of an identity in each partition of this worker.

        sequence: sequence of a record to judge against each of these states; None: judge no record
        """

    def producers(self, stream: str, asked: list[int], after: bytes | None, limit: int) -> ProducersAnswer:
        """Return the first `limit` producers with names after `after` in the partitions `asked`, sorted by name."""

    async def identities(self, stream: str, asked: list[int], query: IdentitiesQuery) -> IdentitiesAnswer:
        """Return a page of the identities in the partitions `asked`."""

    def own_table(self, stream: str, asked: list[int], table: str, query: TableQuery) -> TableAnswer:
        """Return the committed rows of a program's table that match the query, in the partitions `asked`."""

    def global_tables(self) -> list[GlobalTableStatus]:
        """Return the status of each global table of the program."""

    def global_table(self, table: str, query: TableQuery) -> TableAnswer:
        """Return the rows of a global table that match the query, from this worker's memory."""

    def measures(self) -> WorkerMeasures:
        """Return the worker's measures since its start."""

    def readiness(self) -> Readiness:
        """Return the worker's readiness, with the reasons if it is not ready."""


@dataclass(frozen=True, slots=True)
class WorkerMeasures:
    """Measures of a worker since its start.

    rebalances: number of assignments received from the group; streams: measures by stream name; partitions: number of
    input partitions by stream name
    """

    rebalances: int = 0
    streams: Mapping[str, StreamMeasures] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Readiness:
    """Readiness of a worker.

    waits: sentences about reasons why the worker is not ready.
    halted: sentences about halted partitions.
    stalled: sentences about other partitions at a standstill, for example because of an open transaction.
    """

    waits: list[str] = field(default_factory=list)
    halted: list[str] = field(default_factory=list)
    stalled: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GlobalTableStatus:
    """Status of a global table in this worker's memory: number of keys, and approximate bytes.

    problem: reason why the table cannot be read, or does not follow its topic; None: no problem.
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

    asked: searched partitions, including those without the identity; a partition with an incomplete table is not
    searched.
    deduplicate, unjudged: if deduplicate is False or unjudged above 0, the worker forwarded records without storing
    their sequences.
    can_forget: False: the worker's version does not support `ratchet forget`.
    can_replay: False: the worker's version would drop replayed dead letters.
    names_apps: False: the worker's version does not know names of dead letters that include the application.
    """

    partitions: list[IdentityStatus]
    asked: list[int] = field(default_factory=list)
    deduplicate: bool = True
    origin: str = "default"
    unjudged: int = 0
    can_forget: bool = False
    can_replay: bool = False
    names_apps: bool = False
