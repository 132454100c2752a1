"""GET /streams/S/identities: browse what the workers know. GET /streams/S/identity: one of them, with its history.

?[prefix=TEXT or prefix_hex=HEX][&after=HEX][&limit=N]          of the list
?identity=TEXT or hex=HEX                                       of one
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from kafka_ratchet.app.status.identities import IdentitiesQuery
from kafka_ratchet.app.status.lookup import parse_identity, parse_limit
from kafka_ratchet.app.status.model import Lookup
from kafka_ratchet.app.status.producers import shown
from kafka_ratchet.app.web.readings import answer
from kafka_ratchet.app.web.render import CLUSTER_VIEW
from kafka_ratchet.app.why.question import Question


async def identities_page(request: web.Request) -> web.StreamResponse:
    """A page of the identities, in the order of their bytes."""
    view, stream = request.app[CLUSTER_VIEW], request.match_info["stream"]

    async def ask(asked: dict[str, str]) -> Any:
        after = parse_identity(None, asked["after"]) if asked.get("after") else None
        prefix = parse_identity(asked.get("prefix") or None, asked.get("prefix_hex") or None)
        return await view.identities(stream, IdentitiesQuery(prefix, after, parse_limit(asked.get("limit"))))

    return await answer(request, "identities.html", ask, stream=stream)


async def identity_page(request: web.Request) -> web.StreamResponse:
    """What the partitions know of one identity, and what people have had forgotten of it."""
    view, stream = request.app[CLUSTER_VIEW], request.match_info["stream"]

    async def ask(asked: dict[str, str]) -> Lookup:
        texts = [asked["identity"]] if asked.get("identity") else []
        return await view.lookup(stream, view.identity_of(stream, texts, asked.get("hex")), None)

    def command(found: Lookup) -> str:
        return Question(found.stream, bytes.fromhex(found.identity_hex)).command

    def text(found: Lookup) -> str:
        return shown(bytes.fromhex(found.identity_hex))

    return await answer(request, "identity.html", ask, stream=stream, command=command, text=text)
