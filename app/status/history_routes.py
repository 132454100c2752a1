"""The worker's history at its status address.

GET /status/history?stream=S[&from=SECONDS][&to=SECONDS][&step=SECONDS][&partitions=0,1]
GET /status/events[?from=SECONDS]                      rebalances, restores, restarts
GET /status/intervals?stream=S                         under which policy which input offsets were judged
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from aiohttp import web

from kafka_ratchet.app.status.history import EventsAnswer, HistoryAnswer, HistoryQuery, parse_history_query
from kafka_ratchet.app.status.lookup import QueryError, parse_query

INTERVALS_MOST = 1_000
"""Of one answer, the newest of each partition first."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Input offsets of a partition under one policy: [start, end); end is None while it goes on."""

    partition: int
    number: int
    deduplicate: bool
    start: int
    end: int | None
    unjudged: int


@dataclass(frozen=True, slots=True)
class IntervalsAnswer:
    """The body of GET /status/intervals. Partitions without an interval were judged from their beginning."""

    intervals: list[Interval] = field(default_factory=list)


class HistoryProvider(Protocol):
    """What a worker keeps of its past."""

    async def history(self, query: HistoryQuery) -> HistoryAnswer | None:
        """None where there is no such stream, or no history."""

    async def events(self, begin: float) -> EventsAnswer:
        """The newest events from a moment on, in seconds since the epoch."""

    def intervals(self, stream: str) -> list[Interval]:
        """Of the partitions that are at work here."""


def add_history(application: web.Application, provider: HistoryProvider) -> None:
    """Serve these addresses."""

    async def history(request: web.Request) -> web.Response:
        query = parse_history_query(parse_query(request.rel_url.raw_query_string))
        answer = await provider.history(query)
        if answer is None:
            raise QueryError(f"this worker keeps no history of a stream {query.stream!r:.100}")
        return _json(answer)

    async def events(request: web.Request) -> web.Response:
        text = parse_query(request.rel_url.raw_query_string).get("from") or "0"
        if not (text.isascii() and text.isdigit() and len(text) <= 12):
            raise QueryError("from is a whole number of seconds since the epoch")
        return _json(await provider.events(int(text)))

    async def intervals(request: web.Request) -> web.Response:
        stream = parse_query(request.rel_url.raw_query_string).get("stream", "")
        return _json(IntervalsAnswer(provider.intervals(stream)[:INTERVALS_MOST]))

    application.router.add_get("/status/history", history)
    application.router.add_get("/status/events", events)
    application.router.add_get("/status/intervals", intervals)


def _json(body: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json", charset="utf-8")
