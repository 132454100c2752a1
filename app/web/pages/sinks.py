"""GET /sinks: the result tables. GET /sinks/NAME: one of them, with its offsets and commits."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from kafka_ratchet.app.extras import missing_extra
from kafka_ratchet.app.status.lookup import QueryError
from kafka_ratchet.app.status.result_view import Results
from kafka_ratchet.app.status.sink_commits import SinkCommit, read_commits
from kafka_ratchet.app.web.readings import BOOTSTRAP, answer, impatient, read
from kafka_ratchet.app.web.render import RESULTS, SETTINGS
from kafka_ratchet.errors import RatchetError
from kafka_ratchet.spark_sink.errors import SinkError
from kafka_ratchet.spark_sink.secrets import hidden


async def sinks_page(request: web.Request) -> web.StreamResponse:
    """The sinks of the settings."""

    async def ask(asked: dict[str, str]) -> dict[str, Any]:
        results = await request.app[RESULTS].latest()
        return {"sinks": [] if results is None else [results]}

    return await answer(request, "sinks.html", ask)


async def sink_page(request: web.Request) -> web.StreamResponse:
    """One sink."""
    name = request.match_info["name"]

    async def ask(asked: dict[str, str]) -> dict[str, Any]:
        results = await request.app[RESULTS].latest()
        if results is None or results.job != name:
            there = f"there is {results.job!r}" if results is not None else "the settings have no [sink]"
            raise QueryError(f"no sink is called {name[:100]!r}: {there}")
        commits, problem = await _commits(request, results)
        return {"sink": results, "commits": commits, "problem": problem}

    return await answer(request, "sink.html", ask, name=name)


async def _commits(request: web.Request, results: Results) -> tuple[list[SinkCommit], str | None]:
    """The commits, or why they are not known."""
    if results.error is not None or not results.generation:
        return [], None
    settings, bootstrap = impatient(request.app[SETTINGS]), request.app[BOOTSTRAP]
    try:
        return await read(request, lambda: read_commits(settings, bootstrap), 5.0), None
    except ModuleNotFoundError as error:
        return [], missing_extra(error) or str(error)
    except (RatchetError, SinkError) as error:
        return [], hidden(str(error))
