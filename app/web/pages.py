"""The pages: HTML, and the same as JSON. They change nothing.

GET /            all tables        also /index.json, or Accept: application/json
GET /tables      only the part of it that the page asks for every two seconds
GET /lookup      one identity      also /lookup.json, or Accept: application/json
GET /producers.json                the producers of a stream: ?stream=S&after=HEX&limit=N
GET /table       a table of one's own, or one key of it     also /table.json, or Accept: application/json
                 ?table=T[&stream=S][&key=TEXT or &hex=HEX][&after=HEX][&limit=N]
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp_jinja2
import jinja2
import msgspec
from aiohttp import web

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.cluster_view import ClusterView
from kafka_ratchet.app.status.http import CannotBind, bind, is_wildcard, json_refusal, reachable_host, request_checks
from kafka_ratchet.app.status.lookup import (
    QueryError,
    parse_identity,
    parse_limit,
    parse_partition,
    parse_query,
    parse_sequence,
)
from kafka_ratchet.app.status.model import Lookup, Overview
from kafka_ratchet.app.status.own_tables import TablePage, parse_table_query, window_text
from kafka_ratchet.app.status.producers import ProducersPage, shown
from kafka_ratchet.app.status.result_view import ResultsView
from kafka_ratchet.errors import SettingsError, SetupError

FOLDER = Path(__file__).parent

CLUSTER_VIEW = web.AppKey("cluster_view", ClusterView)
RESULTS = web.AppKey("results", ResultsView)
SETTINGS = web.AppKey("settings", Settings)

STATES = {
    "running": ("ok", "●"),
    "starting": ("busy", "◔"),
    "restoring": ("busy", "◑"),
    "retrying": ("busy", "↻"),
    "halted": ("bad", "■"),
    "stopped": ("idle", "□"),
    "unserved": ("idle", "○"),
    "no Kafka": ("bad", "▲"),
}
"""Tone and shape of a state: the shape says without colour what the colour says. Others are shown as idle."""


class WebServer:
    """Serves the pages until it is stopped.

    Args:
        bootstrap: host:port[,host:port].
        settings: streams, web address, name of the group, client options.
        allow_hosts: names beside the bound one and the loopback ones that browsers may use for this address.
    """

    def __init__(self, bootstrap: str, settings: Settings, *, allow_hosts: Iterable[str] = ()) -> None:
        self._bootstrap = bootstrap
        self._settings = settings
        self._allow_hosts = set(allow_hosts)
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Bind and serve. Returns the page's address.

        Raises:
            SetupError: host and port cannot be bound.
        """
        host, port = self._settings.web.host, self._settings.web.port
        shown = "127.0.0.1" if is_wildcard(host) else host
        hosts = {host, reachable_host(host), *self._allow_hosts}
        runner = web.AppRunner(create_web_app(self._bootstrap, self._settings, hosts), access_log=None)
        try:
            url = await bind(runner, host, port, shown)
        except CannotBind as error:
            raise SetupError(
                f"the page cannot be served on {host!r} port {port}: {error}. "
                "Choose others with web.host and web.port, or port 0 for a free one"
            ) from None
        self._runner = runner
        return url

    async def stop(self) -> None:
        """Stop serving; does nothing where it is not started."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


def create_web_app(bootstrap: str, settings: Settings, hosts: Iterable[str]) -> web.Application:
    """The pages as an aiohttp application; `hosts` are the names it answers under beside the loopback ones."""
    application = web.Application(middlewares=[request_checks(hosts, _refusal)])
    application[SETTINGS] = settings
    application[RESULTS] = ResultsView(bootstrap, settings)
    templates = aiohttp_jinja2.setup(
        application,
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals["state_of"] = _state
    templates.filters["grouped"] = _grouped
    templates.filters["seconds"] = _seconds
    templates.filters["as_json"] = _as_json
    templates.filters["window"] = window_text

    async def cluster_view(application: web.Application) -> AsyncIterator[None]:
        async with ClusterView(bootstrap, settings) as asked:
            application[CLUSTER_VIEW] = asked
            yield

    application.cleanup_ctx.append(cluster_view)
    application.router.add_get("/", _index)
    application.router.add_get("/index.json", _index)
    application.router.add_get("/tables", _tables)
    application.router.add_get("/lookup", _lookup)
    application.router.add_get("/lookup.json", _lookup)
    application.router.add_get("/producers.json", _producers)
    application.router.add_get("/table", _own_table)
    application.router.add_get("/table.json", _own_table)
    application.router.add_static("/static", FOLDER / "static")
    return application


async def _overview(request: web.Request) -> Overview:
    overview, results = await asyncio.gather(request.app[CLUSTER_VIEW].overview(), request.app[RESULTS].latest())
    return replace(overview, results=results)


async def _index(request: web.Request) -> web.Response:
    overview = await _overview(request)
    if _wants_json(request):
        return _json(overview)
    return _html(request, "index.html", {"overview": overview, "asked": {}})


async def _tables(request: web.Request) -> web.Response:
    return _html(request, "_tables.html", {"overview": await _overview(request)})


async def _lookup(request: web.Request) -> web.Response:
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
    if _wants_json(request):
        return _json(found) if found is not None else json_refusal(request, status, str(problem))
    context = {"found": found, "problem": problem, "asked": query, "settings": request.app[SETTINGS]}
    return _html(request, "lookup.html", context, status)


async def _own_table(request: web.Request) -> web.Response:
    """A table of one's own. What cannot be read is asked for again, with the sentence that says why."""
    found, problem, query = None, None, {}
    try:
        query = parse_query(request.rel_url.raw_query_string)
        found = await request.app[CLUSTER_VIEW].own_table(
            query.get("table", ""), query.get("stream") or None, parse_table_query(query)
        )
    except (QueryError, SettingsError) as error:
        problem = str(error)
    status = 200 if problem is None else 400
    if _wants_json(request):
        return _json(found) if found is not None else json_refusal(request, status, str(problem))
    return _html(request, "table.html", {"found": found, "problem": problem, "asked": query}, status)


async def _producers(request: web.Request) -> web.Response:
    try:
        query = parse_query(request.rel_url.raw_query_string)
        after = parse_identity(None, query["after"]) if query.get("after") else None
        limit = parse_limit(query.get("limit"))
        return _json(await request.app[CLUSTER_VIEW].producers(query.get("stream") or None, after, limit))
    except (QueryError, SettingsError) as error:
        return json_refusal(request, 400, str(error))


def _refusal(request: web.Request, status: int, sentence: str) -> web.Response:
    if _wants_json(request):
        return json_refusal(request, status, sentence)
    return _html(request, "refusal.html", {"status": status, "sentence": sentence}, status)


def _html(request: web.Request, template: str, context: dict[str, Any], status: int = 200) -> web.Response:
    context.setdefault("settings", request.app[SETTINGS])
    response = aiohttp_jinja2.render_template(template, request, context, status=status)
    response.headers["Vary"] = "Accept"
    return response


def _json(body: Overview | Lookup | ProducersPage | TablePage) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body), content_type="application/json", charset="utf-8", headers={"Vary": "Accept"}
    )


def _wants_json(request: web.Request) -> bool:
    """The path says so, or the client names JSON and not HTML."""
    accept = request.headers.get("Accept", "")
    return request.path.endswith(".json") or ("application/json" in accept and "text/html" not in accept)


def _state(state: str) -> tuple[str, str]:
    return STATES.get(state, ("idle", "◇"))


def _grouped(number: int) -> str:
    return f"{number:,}"


def _as_json(value: Any) -> str:
    """Of a key or a value: a text that templates escape like any other."""
    return shown(msgspec.json.encode(value))


def _seconds(number: float) -> str:
    return f"{number:,.1f}"
