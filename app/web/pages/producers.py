"""GET /producers.json: the producers of a stream: ?stream=S&after=HEX&limit=N."""

from __future__ import annotations

from aiohttp import web

from kafka_ratchet.app.status.http import json_refusal
from kafka_ratchet.app.status.lookup import QueryError, parse_identity, parse_limit, parse_query
from kafka_ratchet.app.web.render import CLUSTER_VIEW, json_response
from kafka_ratchet.errors import SettingsError


async def producers_json(request: web.Request) -> web.Response:
    """A page of the producers, by name."""
    try:
        query = parse_query(request.rel_url.raw_query_string)
        after = parse_identity(None, query["after"]) if query.get("after") else None
        limit = parse_limit(query.get("limit"))
        return json_response(await request.app[CLUSTER_VIEW].producers(query.get("stream") or None, after, limit))
    except (QueryError, SettingsError) as error:
        return json_refusal(request, 400, str(error))
