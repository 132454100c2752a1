"""GET /producers: producers of a stream, with their progress and re-sent records.

?[stream=S][&after=HEX][&limit=N]

Separate module: each page of the navigation has its own.
"""

from __future__ import annotations

from aiohttp import web

from kafka_ratchet.app.repartition import arrives_in
from kafka_ratchet.app.status.lookup import parse_identity, parse_limit
from kafka_ratchet.app.status.producers import ProducersPage, read_published, with_published
from kafka_ratchet.app.web.pages.dropped import stream_of
from kafka_ratchet.app.web.readings import BOOTSTRAP, answer, impatient, read
from kafka_ratchet.app.web.render import CLUSTER_VIEW
from kafka_ratchet.errors import RatchetError
from kafka_ratchet.rule.identity import Identity


async def producers_page(request: web.Request) -> web.StreamResponse:
    """Return the page with a part of a stream's producers, sorted by name."""
    view = request.app[CLUSTER_VIEW]

    async def ask(asked: dict[str, str]) -> ProducersPage:
        settings = view.settings
        name = stream_of(settings, asked)
        after = parse_identity(None, asked["after"]) if asked.get("after") else None
        limit = parse_limit(asked.get("limit"))
        topic = arrives_in(settings.streams, name)
        page = ProducersPage(name, topic, [], None, [])
        if settings.streams[name].identity == Identity.PRODUCER:
            page = await view.producers(name, after, limit)
        try:
            bootstrap = request.app[BOOTSTRAP]
            published = await read(request, lambda: read_published(impatient(settings), bootstrap))
        except RatchetError as error:
            page.problems.append(f"the producers' own progress is not known: {error}")
            return page
        return with_published(page, published.get(topic, {}), after, limit)

    return await answer(request, "producers.html", ask)
