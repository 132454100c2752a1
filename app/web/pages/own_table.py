"""GET /tables/T: a table of one's own, or one key of it. GET /table?table=T is its old address.

?[stream=S][&key=TEXT or &hex=HEX][&after=HEX][&limit=N]
"""

from __future__ import annotations

from aiohttp import web

from kafka_ratchet.app.status.http import json_refusal
from kafka_ratchet.app.status.lookup import QueryError, parse_query
from kafka_ratchet.app.status.own_tables import parse_table_query
from kafka_ratchet.app.web.render import CLUSTER_VIEW, html_response, json_response, wants_json
from kafka_ratchet.errors import SettingsError


async def own_table_page(request: web.Request) -> web.Response:
    """A table of one's own. What cannot be read is asked for again, with the sentence that says why."""
    found, problem, query = None, None, {}
    named = request.match_info.get("table")
    try:
        query = parse_query(request.rel_url.raw_query_string)
        if named is not None:
            query["table"] = named
        found = await request.app[CLUSTER_VIEW].own_table(
            query.get("table", ""), query.get("stream") or None, parse_table_query(query)
        )
    except (QueryError, SettingsError) as error:
        problem = str(error)
    status = 200 if problem is None else 400
    if wants_json(request):
        return json_response(found) if found is not None else json_refusal(request, status, str(problem))
    context = {"found": found, "problem": problem, "asked": query, "table": query.get("table", named or "")}
    return html_response(request, "table.html", context, status)
