"""A worker's own small address: what it knows of its partitions, as JSON and for Prometheus.

    GET /status                                                  all tables and partitions of this worker
    GET /status/identity?stream=S&identity=TEXT[&sequence=N]     the last sequences of one identity
    GET /status/identity?stream=S&hex=HEX[&sequence=N]           the same, by the identity's bytes
    GET /status/producers?stream=S[&after=HEX][&limit=N]         producers by name, from behind one on
    GET /status/table?stream=S&table=T&key=TEXT (or hex=HEX)     a key of a table of one's own, committed values
    GET /status/table?stream=S&table=T[&after=HEX][&limit=N]     its keys, from behind one on
                                                                 (both without stream: of a global table)
    GET /metrics                                                 Prometheus text

Workers publish the address in the consumer group's member metadata, where Faust puts it;
`kafka_ratchet.app.status.group` reads it there, so nothing needs to be configured to find them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafka_ratchet.app.status.http import CannotBind, bind, json_refusal, reachable_host, request_checks
from kafka_ratchet.app.status.lookup import (
    QueryError,
    Verdict,
    parse_identity,
    parse_limit,
    parse_parts,
    parse_query,
    parse_sequence,
)
from kafka_ratchet.app.status.own_tables import TableAnswer, TableQuery, parse_table_query
from kafka_ratchet.app.status.producers import ProducersAnswer
from kafka_ratchet.errors import SetupError
from kafka_ratchet.tables.identity import Identity
from kafka_ratchet.tables.invalid_share import InvalidShare

log = structlog.get_logger(__name__)

INCOMPLETE = frozenset({"starting", "restoring", "stopped"})
"""States in which a partition's table may lack sequences: an answer from it could call a duplicate fresh."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One input partition as its worker sees it.

    fresh, duplicate, invalid, too_late, conflict and unjudged are the partition's durable totals in records: they are
    kept in the changelog and go on counting where the last worker stopped; what was forwarded is fresh and unjudged.
    Positions are offsets; input_position is the next one to be read by whoever continues from the last commit.
    deduplicate is what the last committed batch went by, and since the input offset from which it did; None: nothing
    was ever switched.
    evicted_inactive and evicted_displaced are durable totals of identities. recognised_for_s is for how many seconds
    after its last record each was recognised, at least; None: for ever so far, or nobody knows.
    restarts is how often the partition has been tried again after an error since this worker began to serve it. jumps
    counts sequences that were more than 2^40 above their identity's last, since this worker has the partition. late
    counts writes of late events that tables with windows have left out, where the stream has such; it is durable, and
    known once the program has run here.
    recent has the records judged within the last minute, and before it.
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
    """Sequences that identities have not had, where the stream counts them."""


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The table of one stream: its topics, the partitions that this worker serves, and those it keeps a copy of.

    deduplicate is the policy as this worker knows it, origin who decided it
    (`kafka_ratchet.app.worker.policy.Origin`). problem is a sentence for the reader. tables names those of one's own.
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
    """What a person has had forgotten of an identity (`ratchet forget`), in one partition.

    at: ISO 8601, UTC; position: input offset from which on it holds; above: only sequences above it, None: all;
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
    """The last sequences of one identity in one partition: persisted is committed, pushed is in flight or committed.

    verdict is what a record with the sequence asked about would be; None: none was asked about.
    """

    partition: int
    persisted: int | None
    pushed: int | None
    verdict: Verdict | None = None
    forgotten: list[Forgotten] | msgspec.UnsetType = msgspec.UNSET
    """The oldest first; unset where there is none."""


class StatusProvider(Protocol):
    """What the status address asks the worker. Called in the event loop: answers come from memory."""

    def tables(self) -> list[TableStatus]:
        """One for each stream this worker serves."""

    def lookup(self, stream: str, identity: bytes, sequence: int | None) -> list[IdentityStatus]:
        """The partitions of this worker that know the identity, and what a record with the sequence would be there."""

    def producers(self, stream: str, asked: list[int], after: bytes | None, limit: int) -> ProducersAnswer:
        """The producers that these partitions know, at most limit of them, from behind a name on."""

    def own_table(self, stream: str, asked: list[int], table: str, query: TableQuery) -> TableAnswer:
        """What these partitions have committed of a table of one's own."""

    def global_tables(self) -> list[GlobalTableStatus]:
        """The program's global tables."""

    def global_table(self, table: str, query: TableQuery) -> TableAnswer:
        """What this worker has read of a global table's topic."""


@dataclass(frozen=True, slots=True)
class GlobalTableStatus:
    """A global table in this worker's memory: keys, and bytes that it takes, roughly.

    problem says why it cannot be looked up, or why it is not kept up with its topic.
    """

    table: str
    topic: str
    keys: int
    bytes: int
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The body of GET /status."""

    worker: str
    tables: list[TableStatus]
    global_tables: list[GlobalTableStatus] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class IdentityAnswer:
    """The body of GET /status/identity.

    asked lists the partitions that were looked into, those that do not know the identity included, those whose table
    is not complete yet left out. Where deduplicate is False, or unjudged is above 0, records passed that no sequence
    here knows of. can_forget is False of a worker of an earlier version, which does not know of `ratchet forget`; so is
    can_replay of one that does not judge a replayed record by its dead letter.
    """

    partitions: list[IdentityStatus]
    asked: list[int] = field(default_factory=list)
    deduplicate: bool = True
    origin: str = "default"
    unjudged: int = 0
    can_forget: bool = False
    can_replay: bool = False


def worker_name() -> str:
    """What a worker calls itself: machine and process, as an operator would look for it."""
    return f"{socket.gethostname()}-{os.getpid()}"


class StatusServer:
    """Serves a worker's status until it is stopped.

    Args:
        provider: the worker.
        host: address to bind; a wildcard is published under this machine's name.
        worker: the worker's name; None: machine and process.
        registry: what /metrics shows; None: the figures of `provider`.
    """

    def __init__(
        self,
        provider: StatusProvider,
        host: str = "127.0.0.1",
        *,
        worker: str | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._provider = provider
        self._host = host
        self._worker = worker or worker_name()
        if registry is None:
            registry = CollectorRegistry()
            registry.register(StatusCollector(provider))
        self._registry = registry
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Bind a free port and serve. Returns the URL others reach it by.

        Raises:
            SetupError: the host cannot be bound.
        """
        host = reachable_host(self._host)
        application = web.Application(middlewares=[request_checks({host, self._host}, json_refusal)])
        application.router.add_get("/status", self._status)
        application.router.add_get("/status/identity", self._identity)
        application.router.add_get("/status/producers", self._producers)
        application.router.add_get("/status/table", self._own_table)
        application.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        try:
            url = await bind(runner, self._host, 0, host)
        except CannotBind as error:
            raise SetupError(
                f"the worker's status cannot be served on {self._host!r}: {error}. "
                "Choose another web.host; 127.0.0.1 is this machine alone"
            ) from None
        self._runner = runner
        log.info("status_address", url=url)
        return url

    async def stop(self) -> None:
        """Stop serving; does nothing where it is not started."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _status(self, request: web.Request) -> web.Response:
        return _json(WorkerStatus(self._worker, self._provider.tables(), self._provider.global_tables()))

    async def _identity(self, request: web.Request) -> web.Response:
        query = parse_query(request.rel_url.raw_query_string)
        sequence = parse_sequence(query.get("sequence"))
        name, table, asked = self._asked(query)
        texts = [query["identity"]] if query.get("identity") else []
        identity = parse_parts(Identity.parse(table.identity), texts, query.get("hex"))
        if not identity and table.identity != "partition":
            raise QueryError("give the identity, as identity=TEXT or hex=HEX")
        found = [each for each in self._provider.lookup(name, identity, sequence) if each.partition in asked]
        unjudged = sum(partition.unjudged for partition in table.partitions if partition.partition in asked)
        return _json(
            IdentityAnswer(found, asked, table.deduplicate, table.origin, unjudged, can_forget=True, can_replay=True)
        )

    async def _producers(self, request: web.Request) -> web.Response:
        query = parse_query(request.rel_url.raw_query_string)
        name, table, asked = self._asked(query)
        if table.identity != "producer":
            raise QueryError(f"the identity of stream {name!r} is the {table.identity}: it knows no producers")
        after = parse_identity(None, query["after"]) if query.get("after") else None
        return _json(self._provider.producers(name, asked, after, parse_limit(query.get("limit"))))

    async def _own_table(self, request: web.Request) -> web.Response:
        query = parse_query(request.rel_url.raw_query_string)
        name = query.get("table", "")
        if any(name == each.table for each in self._provider.global_tables()):
            return _json(self._provider.global_table(name, parse_table_query(query)))
        stream, status, asked = self._asked(query)
        if name not in status.tables:
            raise QueryError(f"stream {stream!r} has no table {name!r:.100} here")
        return _json(self._provider.own_table(stream, asked, name, parse_table_query(query)))

    def _asked(self, query: Mapping[str, str]) -> tuple[str, TableStatus, list[int]]:
        """The stream of a query, its table, and its partitions that can be asked."""
        name = query.get("stream", "")
        table = next((table for table in self._provider.tables() if table.stream == name), None)
        if table is None:
            raise QueryError(f"this worker serves no stream {name!r}")
        asked = [partition.partition for partition in table.partitions if partition.state not in INCOMPLETE]
        return name, table, asked

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


class StatusCollector(Collector):
    """The provider's figures for Prometheus, read when they are asked for."""

    def __init__(self, provider: StatusProvider) -> None:
        self._provider = provider

    def collect(self) -> Iterator[Metric]:
        """One family per figure; labels stream and partition."""
        families = _families()
        for table in self._provider.tables():
            families["deduplicate"].add_metric([table.stream, table.origin], int(table.deduplicate))
            for partition in table.partitions:
                for name, labels, value in _samples(partition):
                    families[name].add_metric([table.stream, str(partition.partition), *labels], value)
        yield from families.values()


def _families() -> dict[str, CounterMetricFamily | GaugeMetricFamily]:
    where = ["stream", "partition"]
    return {
        "records": CounterMetricFamily(
            "ratchet_records",
            "Records committed, by what became of them, of all workers so far.",
            labels=[*where, "verdict"],
        ),
        "deduplicate": GaugeMetricFamily(
            "ratchet_deduplicate",
            "1 where the stream is deduplicated, 0 where it is forwarded unjudged.",
            labels=["stream", "origin"],
        ),
        "evicted": CounterMetricFamily(
            "ratchet_evicted", "Identities forgotten, of all workers so far.", labels=[*where, "reason"]
        ),
        "recognised_for_s": GaugeMetricFamily(
            "ratchet_recognised_seconds",
            "Seconds after its last record for which each identity is recognised, at least; not there where it is so "
            "for ever, or where nobody knows.",
            labels=where,
        ),
        "jumps": CounterMetricFamily(
            "ratchet_sequence_jumps",
            "Sequences more than 2^40 above their identity's last, since this worker has the partition.",
            labels=where,
        ),
        "missing": GaugeMetricFamily(
            "ratchet_missing_sequences",
            "Sequences below the last that its identities have not had, where a stream is dense.",
            labels=where,
        ),
        "late": CounterMetricFamily(
            "ratchet_late_writes",
            "Writes of late events that tables with windows have left out, of all workers so far.",
            labels=where,
        ),
        "invalid_share": GaugeMetricFamily(
            "ratchet_invalid_share",
            "Share of invalid records, 0 to 1: within the last minute, and before it since ever.",
            labels=[*where, "of"],
        ),
        "jumped": GaugeMetricFamily(
            "ratchet_invalid_share_jumped",
            "1 where 10 records or more were invalid within the last minute, and 5 % more of all than before.",
            labels=where,
        ),
        "keys": GaugeMetricFamily("ratchet_keys", "Identities with a last sequence.", labels=where),
        "input_position": GaugeMetricFamily("ratchet_input_position", "Next input offset, committed.", labels=where),
        "input_end": GaugeMetricFamily("ratchet_input_end", "End of the input partition.", labels=where),
        "changelog_position": GaugeMetricFamily(
            "ratchet_changelog_position", "Changelog offset that the table stands for.", labels=where
        ),
    }


def _samples(partition: PartitionStatus) -> Iterator[tuple[str, list[str], float]]:
    """Family, labels beside stream and partition, and value."""
    for verdict in ("fresh", "duplicate", "invalid", "unjudged"):
        yield "records", [verdict], getattr(partition, verdict)
    yield "records", ["late"], partition.too_late
    yield "records", ["conflict"], partition.conflict
    for reason in ("inactive", "displaced"):
        yield "evicted", [reason], getattr(partition, f"evicted_{reason}")
    yield "jumps", [], partition.jumps
    if partition.late is not msgspec.UNSET:
        yield "late", [], partition.late
    yield "invalid_share", ["minute"], partition.recent.now
    yield "invalid_share", ["before"], partition.recent.before
    yield "jumped", [], int(partition.recent.has_jumped)
    for name in ("missing", "keys", "input_position", "input_end", "changelog_position", "recognised_for_s"):
        if (value := getattr(partition, name)) is not None:
            yield name, [], value


def _json(body: WorkerStatus | IdentityAnswer | ProducersAnswer | TableAnswer) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json", charset="utf-8")
