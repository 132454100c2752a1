"""GET /: all tables. GET /tables: only the part of it that the page asks for every two seconds."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from aiohttp import web

from kafka_ratchet.app.status.model import Overview
from kafka_ratchet.app.web.render import CLUSTER_VIEW, RESULTS, html_response, json_response, wants_json


async def overview_page(request: web.Request) -> web.Response:
    """All tables of all streams."""
    overview = await overview_of(request)
    if wants_json(request):
        return json_response(overview)
    return html_response(request, "index.html", {"overview": overview, "asked": {}})


async def tables_fragment(request: web.Request) -> web.Response:
    """The part of the page that changes."""
    return html_response(request, "_tables.html", {"overview": await overview_of(request)})


async def overview_of(request: web.Request) -> Overview:
    """What Kafka, the workers and the result table say, at most a second old."""
    overview, results = await asyncio.gather(request.app[CLUSTER_VIEW].overview(), request.app[RESULTS].latest())
    return replace(overview, results=results)
