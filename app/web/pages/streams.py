"""Pages about streams.

GET /streams                all streams
GET /streams/S              one stream with its partitions, ?state=halted&sort=lag&page=2
GET /streams/S/partitions   the changing part of that page, with the same parameters
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from aiohttp import web

from kafka_ratchet.app.status.history import Interval
from kafka_ratchet.app.status.lookup import QueryError, parse_query
from kafka_ratchet.app.status.model import PartitionView, StreamView
from kafka_ratchet.app.web.paging import paged
from kafka_ratchet.app.web.render import CLUSTER_VIEW, PAST, html_response, json_response, wants_json

SORTS: Final = ("partition", "lag")
SPARK_S: Final = 6 * 3_600
INTERVALS_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class StreamPage:
    """Page about a stream, with a part of its partitions.

    states: number of partitions by state; lags: by partition, its lags as (seconds since the epoch, number of records)
    """

    stream: StreamView
    page: int
    pages: int
    sort: str
    state: str | None
    states: dict[str, int]
    partitions: list[PartitionView]
    lags: dict[int, list[tuple[int, int]]]
    intervals: list[Interval]


async def streams_page(request: web.Request) -> web.Response:
    """Return the page with all streams, one line each."""
    overview = await request.app[CLUSTER_VIEW].overview()
    if wants_json(request):
        named = [each.name for each in fields(StreamView) if each.name != "partitions"]
        return json_response([{name: getattr(each, name) for name in named} for each in overview.streams])
    states = {each.stream: _states(each) for each in overview.streams}
    return html_response(request, "streams.html", {"streams": overview.streams, "states": states})


async def stream_page(request: web.Request) -> web.Response:
    """Return the page about one stream, with a part of its partitions."""
    found = await _stream_page(request)
    if wants_json(request):
        return json_response(found)
    return html_response(request, "stream.html", _context(request, found))


async def partitions_fragment(request: web.Request) -> web.Response:
    """Return the changing part of the page about a stream."""
    return html_response(request, "_partitions.html", _context(request, await _stream_page(request)))


def _context(request: web.Request, found: StreamPage) -> dict[str, Any]:
    end = int(time.time())
    lines = {number: sparkline(points, end - SPARK_S, end) for number, points in found.lags.items()}
    return {"found": found, "stream": found.stream, "lines": lines, "query": request.rel_url.raw_query_string}


async def _stream_page(request: web.Request) -> StreamPage:
    query = parse_query(request.rel_url.raw_query_string)
    overview = await request.app[CLUSTER_VIEW].overview()
    name = request.match_info["stream"]
    stream = next((each for each in overview.streams if each.stream == name), None)
    if stream is None:
        known = ", ".join(each.stream for each in overview.streams) or "none"
        raise QueryError(f"there is no stream {name!r:.100} (there are: {known})")
    sort, state = query.get("sort") or "partition", query.get("state") or None
    if sort not in SORTS:
        raise QueryError(f"sort must be one of {', '.join(SORTS)}")
    rows = [row for row in stream.partitions if state in (None, row.state)]
    if sort == "lag":
        rows.sort(key=lambda row: (-(row.lag_s or 0), -(row.lag or 0), row.partition))
    shown, page, pages = paged(rows, query)
    past, numbers = request.app[PAST], [row.partition for row in shown]
    lags = await past.lags(name, numbers, len(stream.partitions)) if numbers else {}
    intervals = [each for each in await past.intervals(name) if each.partition in numbers]
    return StreamPage(stream, page, pages, sort, state, _states(stream), shown, lags, intervals[:INTERVALS_SHOWN])


def _states(stream: StreamView) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in stream.partitions:
        counts[row.state] = counts.get(row.state, 0) + 1
    return dict(sorted(counts.items()))


def sparkline(points: Sequence[tuple[int, int]], begin: int, end: int, width: int = 120, height: int = 24) -> list[str]:
    """Return the SVG polylines of a small chart, each as the text of its attribute `points`.

    A gap in the points ends a polyline, and the next one begins after the gap.

    Args:
        points: (time in seconds, value) in the order of time, usually a minute apart.
        begin: time at the left edge, in seconds.
        end: time at the right edge, in seconds.
        width: width of the picture, in its own units.
        height: height of the picture, in its own units.
    """
    most, span = max((value for _, value in points), default=0) or 1, max(1, end - begin)
    lines: list[list[str]] = []
    before = None
    for moment, value in points:
        if before is None or moment - before > 120:
            lines.append([])
        lines[-1].append(f"{(moment - begin) / span * width:.1f},{height - 1 - value / most * (height - 2):.1f}")
        before = moment
    return [" ".join(line if len(line) > 1 else line * 2) for line in lines]
