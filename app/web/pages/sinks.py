"""GET /sinks: all result tables. GET /sinks/NAME: one result table, with its offsets and commits.

Separate module: each page of the navigation has its own.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from kafka_ratchet.app.extras import missing_extra
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.lookup import QueryError
from kafka_ratchet.app.status.result_view import Results
from kafka_ratchet.app.status.results import SinkCommit, read_commits
from kafka_ratchet.app.web.paging import paged
from kafka_ratchet.app.web.readings import BOOTSTRAP, answer, impatient, read
from kafka_ratchet.app.web.render import RESULTS, SETTINGS
from kafka_ratchet.errors import RatchetError
from kafka_ratchet.spark_sink.errors import SinkError
from kafka_ratchet.spark_sink.secrets import hidden


async def sinks_page(request: web.Request) -> web.StreamResponse:
    """Return the page with all sinks of the settings."""

    async def ask(asked: dict[str, str]) -> dict[str, Any]:
        return {"sinks": await request.app[RESULTS].latest()}

    return await answer(request, "sinks.html", ask)


async def sink_page(request: web.Request) -> web.StreamResponse:
    """Return the page with one sink."""
    name = request.match_info["name"]

    async def ask(asked: dict[str, str]) -> dict[str, Any]:
        found = await request.app[RESULTS].one(name)
        if found is None:
            names = ", ".join(repr(each) for each in request.app[SETTINGS].every_sink())
            there = f"there is {names}" if names else "the settings have no [sink]"
            raise QueryError(f"no sink is called {name[:100]!r}: {there}")
        results, settings = found
        paged(results.partitions, asked)  # refuses a missing page
        commits, problem = await _commits(request, results, settings)
        return {"sink": results, "commits": commits, "problem": problem}

    return await answer(request, "sink.html", ask, name=name, paged=paged)


async def _commits(request: web.Request, results: Results, settings: Settings) -> tuple[list[SinkCommit], str | None]:
    """Return the commits of a sink's table, and the reason if the read failed, else None."""
    if results.error is not None or not results.generation:
        return [], None
    asked, bootstrap = impatient(settings), request.app[BOOTSTRAP]
    try:
        return await read(request, lambda: read_commits(asked, bootstrap), 5.0), None
    except ModuleNotFoundError as error:
        return [], missing_extra(error) or str(error)
    except (RatchetError, SinkError) as error:
        return [], hidden(str(error))
