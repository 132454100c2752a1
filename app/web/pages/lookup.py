"""GET /lookup: what the partitions know of one identity."""

from __future__ import annotations

from aiohttp import web

from kafka_ratchet.app.status.http import json_refusal
from kafka_ratchet.app.status.lookup import QueryError, parse_partition, parse_query, parse_sequence
from kafka_ratchet.app.web.render import CLUSTER_VIEW, html_response, json_response, wants_json
from kafka_ratchet.errors import SettingsError


async def lookup_page(request: web.Request) -> web.Response:
    """One identity. A form that cannot be read is shown again with the sentence that says why."""
    found, problem, query = None, None, {}
    try:
        query = parse_query(request.rel_url.raw_query_string)
        view, stream = request.app[CLUSTER_VIEW], query.get("stream") or None
        found = await view.lookup(
            stream,
            view.identity_of(stream, [query["identity"]] if query.get("identity") else [], query.get("hex")),
            parse_sequence(query.get("sequence", "").strip()),
            parse_partition(query.get("partition", "").strip()),
        )
    except (QueryError, SettingsError) as error:
        problem = str(error)
    status = 200 if problem is None else 400
    if wants_json(request):
        return json_response(found) if found is not None else json_refusal(request, status, str(problem))
    return html_response(request, "lookup.html", {"found": found, "problem": problem, "asked": query}, status)
