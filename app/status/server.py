"""Status address of a worker: state of its partitions as JSON, and metrics for Prometheus.

    GET /status                                                  all tables and partitions of this worker
    GET /status/identity?stream=S&identity=TEXT[&sequence=N]     the last sequences of one identity
    GET /status/identity?stream=S&hex=HEX[&sequence=N]           the same, by the identity's bytes
    GET /status/producers?stream=S[&after=HEX][&limit=N]         producers by name, after a given one
    GET /status/identities?stream=S[&prefix=HEX][&after=HEX][&limit=N]     identities in order, after a given one
    GET /status/table?stream=S&table=T&key=TEXT (or hex=HEX)     a key of a program's table, committed values
    GET /status/table?stream=S&table=T[&after=HEX][&limit=N]     its keys, after a given one
                                                                 (both without stream: of a global table)
    GET /status/pages                                            address of the pages of a hosted Faust app
    GET /metrics                                                 Prometheus text
    GET /healthz                                                 200 while the event loop lives
    GET /readyz                                                  200 when the worker is ready, else 503 with the reason

The last three accept any Host header, because probes and Prometheus use other names of the address.

Faust publishes the worker's address in the metadata of the consumer group's members.
`kafka_ratchet.app.status.group` reads it there, so commands find all workers without a setting.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import structlog
from aiohttp import web

from kafka_ratchet.app.status.answers import (
    INCOMPLETE,
    IdentityAnswer,
    StatusProvider,
    TableStatus,
    WorkerStatus,
)
from kafka_ratchet.app.status.history import HistoryProvider, add_history
from kafka_ratchet.app.status.http import CannotBind, bind, json_refusal, reachable_host, request_checks
from kafka_ratchet.app.status.identities import IdentitiesAnswer, parse_identities_query
from kafka_ratchet.app.status.lookup import (
    QueryError,
    parse_identity,
    parse_limit,
    parse_parts,
    parse_query,
    parse_sequence,
    typed_identity,
)
from kafka_ratchet.app.status.own_tables import TableAnswer, parse_table_query
from kafka_ratchet.app.status.producers import ProducersAnswer
from kafka_ratchet.app.version import ratchet_version
from kafka_ratchet.errors import SetupError
from kafka_ratchet.rule.identity import Identity

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log = structlog.get_logger(__name__)

UNDER_ANY_HOST = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths that accept any Host header. Their answers have stream names and numbers, but no contents of records."""


def worker_name() -> str:
    """Return the name of a worker in this process: the machine's name and the process id."""
    return f"{socket.gethostname()}-{os.getpid()}"


class StatusServer:
    """HTTP server of a worker's status.

    Args:
        provider: the worker.
        host: address to bind; for a wildcard, the server publishes this machine's name.
        port: port to bind; 0 takes a free port.
        worker: the worker's name; None: machine and process.
        registry: registry for /metrics; None: the metrics of `provider`.
        history: the worker's history; None: the worker keeps none.
        listening: socket to serve on, bound to the host; port is then ignored. None: bind host and port.
        pages: address of the web pages of a hosted Faust app; None: no pages.
        program: digest of the worker's program; "" without one.
    """

    def __init__(
        self,
        provider: StatusProvider,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        worker: str | None = None,
        registry: CollectorRegistry | None = None,
        history: HistoryProvider | None = None,
        listening: socket.socket | None = None,
        pages: str | None = None,
        program: str = "",
    ) -> None:
        self._provider, self._listening, self._pages, self._program = provider, listening, pages, program
        self._host, self._port = host, port
        self._worker = worker or worker_name()
        self._registry = registry
        self._history = history
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Start the server; return its URL for requests from other machines.

        Raises:
            SetupError: host or port cannot be bound.
        """
        host = reachable_host(self._host)
        application = web.Application(
            middlewares=[request_checks({host, self._host}, json_refusal, under_any=UNDER_ANY_HOST)]
        )
        application.router.add_get("/status", self._status)
        application.router.add_get("/status/identity", self._identity)
        application.router.add_get("/status/producers", self._producers)
        application.router.add_get("/status/identities", self._identities)
        application.router.add_get("/status/table", self._own_table)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        if self._pages is not None:
            application.router.add_get("/status/pages", self._pages_address)
        if self._history is not None:
            add_history(application, self._history)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        try:
            url = await bind(runner, self._host, self._port, host, listening=self._listening)
        except CannotBind as error:
            raise SetupError(self._cannot_bind(error)) from None
        self._runner = runner
        log.info("status_address", url=url)
        return url

    def _cannot_bind(self, error: CannotBind) -> str:
        if not self._port:
            remedy = "Choose another web.host; 127.0.0.1 is this machine alone"
            return f"the worker's status cannot be served on {self._host!r}: {error}. {remedy}"
        return (
            f"the worker's status cannot be served on {self._host!r}, port {self._port}: {error}. Choose another "
            "web.status_port (each worker on a machine needs its own; 0 takes a free one) or another web.host"
        )

    async def stop(self) -> None:
        """Stop the server, if it was started."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _status(self, request: web.Request) -> web.Response:
        found = self._provider
        return _json(WorkerStatus(self._worker, found.tables(), found.global_tables(), self._program))

    async def _pages_address(self, request: web.Request) -> web.Response:
        return web.json_response({"url": self._pages})

    async def _identity(self, request: web.Request) -> web.Response:
        query = parse_query(request.rel_url.raw_query_string)
        sequence = parse_sequence(query.get("sequence"))
        name, table, asked = self._asked(query)
        identity = parse_parts(Identity.parse(table.identity), *typed_identity(query))
        found = [each for each in self._provider.lookup(name, identity, sequence) if each.partition in asked]
        unjudged = sum(partition.unjudged for partition in table.partitions if partition.partition in asked)
        return _json(
            IdentityAnswer(
                found,
                asked,
                table.deduplicate,
                table.origin,
                unjudged,
                can_forget=True,
                can_replay=True,
                names_apps=True,
            )
        )

    async def _producers(self, request: web.Request) -> web.Response:
        query = parse_query(request.rel_url.raw_query_string)
        name, table, asked = self._asked(query)
        if table.identity != "producer":
            raise QueryError(f"the identity of stream {name!r} is the {table.identity}, so it has no list of producers")
        after = parse_identity(None, query["after"]) if query.get("after") else None
        return _json(self._provider.producers(name, asked, after, parse_limit(query.get("limit"))))

    async def _identities(self, request: web.Request) -> web.Response:
        query = parse_query(request.rel_url.raw_query_string)
        name, table, asked = self._asked(query)
        if table.identity == "partition":
            raise QueryError(f"stream {name!r} has one last sequence for each partition, and no identities to list")
        return _json(await self._provider.identities(name, asked, parse_identities_query(query)))

    async def _own_table(self, request: web.Request) -> web.Response:
        query = parse_query(request.rel_url.raw_query_string)
        name = query.get("table", "")
        if any(name == each.table for each in self._provider.global_tables()):
            return _json(self._provider.global_table(name, parse_table_query(query)))
        stream, status, asked = self._asked(query)
        if name not in status.tables:
            raise QueryError(f"stream {stream!r} has no table {name!r:.100} on this worker")
        return _json(self._provider.own_table(stream, asked, name, parse_table_query(query)))

    def _asked(self, query: Mapping[str, str]) -> tuple[str, TableStatus, list[int]]:
        """Return the name and status of the query's stream, and the partitions to search on this worker.

        Raises:
            QueryError: this worker does not serve the stream.
        """
        name = query.get("stream", "")
        table = next((table for table in self._provider.tables() if table.stream == name), None)
        if table is None:
            raise QueryError(f"this worker serves no stream {name!r}")
        asked = [partition.partition for partition in table.partitions if partition.state not in INCOMPLETE]
        return name, table, asked

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        found = self._provider.readiness()
        lines = [*(found.waits or ["ready"]), *found.halted, *found.stalled]
        return web.Response(text="".join(f"{line}\n" for line in lines), status=503 if found.waits else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        from prometheus_client import CONTENT_TYPE_LATEST

        return web.Response(body=self._figures(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @cached_property
    def _figures(self) -> Callable[[], bytes]:
        """Return the function that writes /metrics; Prometheus's client is loaded at the first call."""
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        from kafka_ratchet.app.status.metrics import PartitionsText, StatusCollector

        if (given := self._registry) is not None:
            return lambda: generate_latest(given)
        registry, partitions = CollectorRegistry(), PartitionsText(self._provider)
        registry.register(StatusCollector(self._provider, ratchet_version()))
        ProcessCollector(registry=registry)
        return lambda: partitions.text().encode() + generate_latest(registry)


def _json(body: WorkerStatus | IdentityAnswer | IdentitiesAnswer | ProducersAnswer | TableAnswer) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json", charset="utf-8")
