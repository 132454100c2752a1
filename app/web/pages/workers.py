"""GET /workers: workers with their partitions, versions and events: ?range=1h (or 6h, 24h)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from kafka_ratchet.app.status.lookup import QueryError, parse_query
from kafka_ratchet.app.status.past_view import RANGES, WorkerEvent, WorkerPast
from kafka_ratchet.app.web.render import CLUSTER_VIEW, PAST, html_response, json_response, wants_json

EVENTS_SHOWN: Final = 200
LINE: Final = 1_000
"""Width of the timeline, in the picture's own units."""
KINDS: Final = {
    "started": "idle",
    "stopped": "idle",
    "assigned": "busy",
    "restored": "ok",
    "running": "ok",
    "restarted": "busy",
    "halted": "bad",
}


@dataclass(frozen=True, slots=True)
class ServingWorker:
    """Worker with the partitions that it serves, by stream. standing_by: partitions with a standby copy in it."""

    worker: WorkerPast
    partitions: dict[str, list[int]]
    standing_by: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class WorkersPage:
    """Contents of the page: all workers, and their last events, the newest first."""

    range_s: int
    workers: list[ServingWorker]
    events: list[WorkerEvent]


async def workers_page(request: web.Request) -> web.Response:
    """Return the page with all workers and their events."""
    query = parse_query(request.rel_url.raw_query_string)
    span = query.get("range") or "1h"
    if span not in RANGES:
        raise QueryError(f"range must be one of {', '.join(RANGES)}")
    length = RANGES[span][0]
    overview, pasts = await request.app[CLUSTER_VIEW].overview(), await request.app[PAST].pasts(length)
    workers = []
    for worker in pasts.workers:
        has: dict[str, list[int]] = {}
        copies: dict[str, list[int]] = {}
        for stream in overview.streams:
            for row in stream.partitions:
                if row.worker == worker.name:
                    has.setdefault(stream.stream, []).append(row.partition)
                if worker.name in row.standbys:
                    copies.setdefault(stream.stream, []).append(row.partition)
        workers.append(ServingWorker(worker, has, copies))
    found = WorkersPage(length, workers, pasts.events[:EVENTS_SHOWN])
    if wants_json(request):
        return json_response(found)
    begin = time.time() - length
    marks = {
        served.worker.name: [
            (round((each.event.at - begin) / length * LINE), KINDS.get(each.event.kind, "idle"), each.event.kind)
            for each in pasts.events
            if each.worker == served.worker.name
        ]
        for served in workers
    }
    context = {"found": found, "marks": marks, "line": LINE, "span": span, "ranges": [*RANGES], "kinds": KINDS}
    return html_response(request, "workers.html", {**context, "problems": overview.problems})
