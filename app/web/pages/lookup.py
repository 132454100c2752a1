"""Pages about state: the identities of a stream, one identity, the search form, and the contents of a table.

GET /streams/S/identities?[prefix=TEXT or prefix_hex=HEX][&after=HEX][&limit=N]
GET /streams/S/identity?identity=TEXT or hex=HEX
GET /lookup
GET /tables/T?[stream=S][&key=TEXT or &hex=HEX][&after=HEX][&limit=N]; GET /table?table=T is its old address.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from kafka_ratchet.app.status.http import json_refusal
from kafka_ratchet.app.status.identities import IdentitiesQuery
from kafka_ratchet.app.status.lookup import (
    QueryError,
    parse_identity,
    parse_limit,
    parse_partition,
    parse_query,
    parse_sequence,
    typed_identity,
)
from kafka_ratchet.app.status.model import Lookup
from kafka_ratchet.app.status.own_tables import parse_table_query
from kafka_ratchet.app.status.producers import shown
from kafka_ratchet.app.web.readings import answer
from kafka_ratchet.app.web.render import CLUSTER_VIEW, html_response, json_response, wants_json
from kafka_ratchet.app.why.question import Question
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.rule.identity import Identity


async def lookup_page(request: web.Request) -> web.Response:
    """Return the page with the search form, and with the state of the identity entered there.

    If the form has a mistake, the page shows the form again, with the reason.
    """
    found, problem, query = None, None, {}
    try:
        query = parse_query(request.rel_url.raw_query_string)
        view, stream = request.app[CLUSTER_VIEW], query.get("stream") or None
        found = await view.lookup(
            stream,
            view.identity_of(stream, *typed_identity(query)),
            parse_sequence(query.get("sequence", "").strip()),
            parse_partition(query.get("partition", "").strip()),
        )
    except (QueryError, SettingsError) as error:
        problem = str(error)
    status = 200 if problem is None else 400
    if wants_json(request):
        return json_response(found) if found is not None else json_refusal(request, status, str(problem))
    return html_response(request, "lookup.html", {"found": found, "problem": problem, "asked": query}, status)


async def identities_page(request: web.Request) -> web.StreamResponse:
    """Return the page with a part of a stream's identities, in the order of their bytes."""
    view, stream = request.app[CLUSTER_VIEW], request.match_info["stream"]

    async def ask(asked: dict[str, str]) -> Any:
        after = parse_identity(None, asked["after"]) if asked.get("after") else None
        prefix = parse_identity(asked.get("prefix") or None, asked.get("prefix_hex") or None)
        return await view.identities(stream, IdentitiesQuery(prefix, after, parse_limit(asked.get("limit"))))

    return await answer(request, "identities.html", ask, stream=stream)


async def identity_page(request: web.Request) -> web.StreamResponse:
    """Return the page with the state of one identity in each partition, and the requests to forget it."""
    view, stream = request.app[CLUSTER_VIEW], request.match_info["stream"]

    async def ask(asked: dict[str, str]) -> Lookup:
        return await view.lookup(stream, view.identity_of(stream, *typed_identity(asked)), None)

    def command(found: Lookup) -> str:
        is_one = view.settings.stream(found.stream)[1].identity == Identity.PARTITION
        return Question(found.stream, None if is_one else bytes.fromhex(found.identity_hex)).command

    def text(found: Lookup) -> str:
        return shown(bytes.fromhex(found.identity_hex))

    return await answer(request, "identity.html", ask, stream=stream, command=command, text=text)


async def own_table_page(request: web.Request) -> web.Response:
    """Return the page with one key, or a part of the keys, of a table. An invalid query is shown with the reason."""
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
