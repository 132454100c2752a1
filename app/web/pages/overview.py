"""First page: problems, rates and lag of the events, a chart, and the tables of all streams.

GET /          ?stream=S&range=1h (or 6h, 24h): stream and time of the chart
GET /tables    the changing part, which the page in the browser fetches at intervals
GET /history   the figures of the chart, as a table or JSON, with the same parameters
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from aiohttp import web

from kafka_ratchet.app.status.history import COUNTS, History
from kafka_ratchet.app.status.lookup import QueryError, parse_query
from kafka_ratchet.app.status.model import Overview, StreamView
from kafka_ratchet.app.status.past_view import RANGES
from kafka_ratchet.app.status.problems import findings
from kafka_ratchet.app.web.render import (
    CLUSTER_VIEW,
    PAST,
    RESULTS,
    SETTINGS,
    html_response,
    json_response,
    wants_json,
)

ROWS_MOST: Final = 20
"""Maximum number of partitions of a stream on the first page; /streams/S has all of them."""
FINDINGS_MOST: Final = 20
"""Maximum number of problems on the page, because each partition may have one. The JSON form has all."""
ANNOUNCED_MOST: Final = 3
"""Maximum number of new problems that the page lets a screen reader announce."""
RATE_S: Final = 60
"""Seconds of the history that a rate averages."""
TABLE_ROWS: Final = 24
"""Maximum number of rows of the table below the chart, with the chart's numbers."""


@dataclass(frozen=True, slots=True)
class StreamRates:
    """Rates and lag of a stream's events, from producers to sinks. None in a field: not known.

    arrived, judged, forwarded: records per second, over the last minute.
    lag_s: time lag in seconds.
    duplicate_1h, duplicate_24h: share of duplicates among the judged records, 0 to 1.
    covered_1h, covered_24h: share of the time with known counts, 0 to 1.
    """

    stream: str
    arrived: float | None
    judged: float | None
    forwarded: float | None
    lag_s: float | None
    duplicate_1h: float | None
    duplicate_24h: float | None
    covered_1h: float | None
    covered_24h: float | None


async def overview_page(request: web.Request) -> web.Response:
    """Return the first page."""
    if wants_json(request):
        context = await _context(request)
        more = {"flows": [*context["flows"].values()], "findings": context["findings"]}
        return json_response(msgspec.to_builtins(context["overview"]) | more)
    asked, stream, span = await _asked(request)
    context = await _context(request)
    history = await _history(request, stream, span) if stream is not None else None
    rows = figures_of(history) if history is not None else []
    return html_response(
        request,
        "index.html",
        {
            **context,
            "asked": asked,
            "chart": stream,
            "span": span,
            "ranges": [*RANGES],
            "history": history,
            "rows": rows,
        },
    )


async def tables_fragment(request: web.Request) -> web.Response:
    """Return the changing part of the first page."""
    return html_response(request, "tables.html", await _context(request))


async def history_page(request: web.Request) -> web.Response:
    """Return the page with the chart's numbers, for all steps of time."""
    asked, stream, span = await _asked(request)
    if stream is None:
        raise QueryError("the settings name no streams: add a [streams.NAME] section to the settings file")
    history = await _history(request, stream, span)
    if wants_json(request):
        return json_response(history)
    context = {"chart": stream, "span": span, "ranges": [*RANGES], "history": history, "asked": asked}
    return html_response(request, "history.html", {**context, "rows": figures_of(history, len(history.points.times))})


async def overview_of(request: web.Request) -> Overview:
    """Return the state of Kafka, workers and result tables, at most a second old."""
    overview, sinks = await asyncio.gather(request.app[CLUSTER_VIEW].overview(), request.app[RESULTS].latest())
    return replace(overview, sinks=sinks, results=next(iter(sinks), None))


async def _context(request: web.Request) -> dict[str, Any]:
    overview = await overview_of(request)
    flows = await asyncio.gather(*(_flow(request, stream) for stream in overview.streams))
    return {
        "overview": overview,
        "flows": {flow.stream: flow for flow in flows},
        "findings": findings(overview),
        "rows_most": ROWS_MOST,
        "findings_most": FINDINGS_MOST,
        "said_most": ANNOUNCED_MOST,
    }


async def _flow(request: web.Request, stream: StreamView) -> StreamRates:
    past, count = request.app[PAST], len(stream.partitions)
    hour, day = await past.history(stream.stream, "1h", count), await past.history(stream.stream, "24h", count)
    lags = [row.lag_s for row in stream.partitions if row.lag_s is not None]
    is_known = all(row.lag_s is not None or row.lag == 0 for row in stream.partitions)
    last = max(0, len(hour.points.times) - RATE_S // hour.step_s)
    seconds = (len(hour.points.times) - last) * hour.step_s

    def rate(*names: str) -> float | None:
        return sum(sum(hour.points.counts[name][last:]) for name in names) / seconds if seconds else None

    return StreamRates(
        stream.stream,
        sum(hour.points.arrived[last:]) / seconds if seconds else None,
        rate(*COUNTS),
        rate("fresh", "unjudged"),
        max(lags, default=None) if is_known else None,
        hour.duplicate_ratio,
        day.duplicate_ratio,
        hour.covered,
        day.covered,
    )


async def _asked(request: web.Request) -> tuple[dict[str, str], str | None, str]:
    query = parse_query(request.rel_url.raw_query_string)
    settings = request.app[SETTINGS]
    span = query.get("range") or "1h"
    if span not in RANGES:
        raise QueryError(f"range must be one of {', '.join(RANGES)}")
    known = [stream.stream for stream in (await request.app[CLUSTER_VIEW].overview()).streams]
    stream = query.get("stream") or next(iter(settings.streams), None)
    if stream is not None and stream not in known:
        raise QueryError(f"there is no stream {stream!r:.100}; the streams are {', '.join(known)}")
    return query, stream, span


async def _history(request: web.Request, stream: str, span: str) -> History:
    overview = await request.app[CLUSTER_VIEW].overview()
    count = next((len(each.partitions) for each in overview.streams if each.stream == stream), 0)
    return await request.app[PAST].history(stream, span, count)


def figures_of(history: History, most: int = TABLE_ROWS) -> list[dict[str, object]]:
    """Return at most `most` rows with the chart's numbers, the newest first.

    The numbers are records per second; None: not known.
    """
    points = history.points
    if not points.times:
        return []
    together = -(-len(points.times) // max(1, most))
    rows: list[dict[str, object]] = []
    for begin in range(0, len(points.times), together):
        at = slice(begin, begin + together)
        seconds = len(points.times[at]) * history.step_s
        known = sum(points.covered[at]) > 0
        rows.append(
            {
                "at": datetime.fromtimestamp(points.times[begin], UTC).strftime("%d %b %H:%M:%S"),
                "rates": {name: sum(points.counts[name][at]) / seconds if known else None for name in COUNTS},
                "lag": points.lag[at][-1],
                "lag_s": max((each / 1000 for each in points.lag_ms[at] if each is not None), default=None),
                "is_whole": not sum(history.missing_s[at]),
            }
        )
    return rows[::-1]
