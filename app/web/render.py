"""Rendering of answers as HTML from a template, or as JSON; and the formats of numbers and states in HTML."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp_jinja2
import jinja2
import msgspec
from aiohttp import web
from markupsafe import Markup

from kafka_ratchet.app.inspect import dead_letters, event, lookup, own_tables, policy, producers, proof, sinks, streams
from kafka_ratchet.app.inspect.document import Document
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.cluster_view import ClusterView
from kafka_ratchet.app.status.http import json_refusal
from kafka_ratchet.app.status.model import NO_KAFKA, UNSERVED
from kafka_ratchet.app.status.past_view import PastView
from kafka_ratchet.app.status.result_view import SinksView
from kafka_ratchet.app.web.access import access_view
from kafka_ratchet.rule.verdicts import (
    CONTENT_DIFFERS,
    COUNTERS,
    DUPLICATE,
    FRESH,
    HEADINGS,
    INVALID,
    PHRASES,
    SKIPPED,
    TOO_LATE,
    UNJUDGED,
    UNKNOWN,
    WAITING,
)
from kafka_ratchet.transport.lane_spec import LaneState

FOLDER = Path(__file__).parent

CLUSTER_VIEW = web.AppKey("cluster_view", ClusterView)
RESULTS = web.AppKey("results", SinksView)
PAST = web.AppKey("past", PastView)
SETTINGS = web.AppKey("settings", Settings)

STATES: Mapping[str, tuple[str, str]] = {
    LaneState.RUNNING: ("ok", "●"),
    LaneState.STARTING: ("busy", "◔"),
    LaneState.RESTORING: ("busy", "◑"),
    LaneState.RETRYING: ("busy", "↻"),
    LaneState.HALTED: ("bad", "■"),
    LaneState.STOPPED: ("idle", "□"),
    UNSERVED: ("idle", "○"),
    NO_KAFKA: ("bad", "▲"),
    "live": ("ok", "●"),
    "idle": ("idle", "○"),
    "on": ("ok", "●"),
    "off": ("busy", "◇"),
}
"""Colour class and symbol by state. The symbol has the same meaning as the colour. States missing here are shown as
idle.
"""

VERDICTS = {
    FRESH: ("ok", "●"),
    DUPLICATE: ("idle", "○"),
    INVALID: ("bad", "■"),
    TOO_LATE: ("busy", "◔"),
    CONTENT_DIFFERS: ("bad", "■"),
    UNJUDGED: ("busy", "◇"),
    SKIPPED: ("busy", "◇"),
    WAITING: ("busy", "◔"),
    UNKNOWN: ("busy", "◑"),
}
"""Colour class and symbol by verdict."""


@dataclass(frozen=True, slots=True)
class Page:
    """Path of one page, and its handler.

    Attributes:
        path: path, such as /streams/{stream}
        answer: handler of GET and HEAD
        has_json: True: the path with .json at its end (/index.json for /) returns the page as JSON; see `wants_json`
    """

    path: str
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]]
    has_json: bool = True

    @property
    def paths(self) -> list[str]:
        """Return the page's paths, the JSON path first: a placeholder at the end of the other would match it too."""
        return [*([f"{self.path}index.json" if self.path == "/" else f"{self.path}.json"] * self.has_json), self.path]


def set_up_templates(
    application: web.Application, links: list[tuple[str, str]], linked: Callable[[object], Markup]
) -> None:
    """Set up the templates for `html_response`.

    Args:
        application: application of the page
        links: address and text of each entry in the navigation
        linked: template filter that adds links to the documentation pages named in a sentence
    """
    there = {path for path, _ in links}
    templates = aiohttp_jinja2.setup(
        application,
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals["links"] = links
    templates.globals["has_page"] = lambda path: "/" + path.split("?")[0].split("/")[1] in there
    templates.globals["state_of"] = _state
    templates.globals["verdict_tone"] = lambda word: VERDICTS.get(word, ("idle", "○"))
    templates.globals.update(phrases=PHRASES, counters=COUNTERS, headings=HEADINGS)
    templates.globals["shell"] = _shell
    templates.globals.update(event=event, lookups=lookup, producers=producers, partition_columns=streams, sinks=sinks)
    templates.globals.update(dropped=dead_letters, own_tables=own_tables, policies=policy, proofs=proof)
    templates.filters["sentence"] = _sentence
    templates.filters["grouped"] = _grouped
    templates.filters["seconds"] = _seconds
    templates.filters["rate"] = _rate
    templates.filters["percent"] = _percent
    templates.filters["ranges"] = _ranges
    templates.filters["moment"] = _moment
    templates.filters["plain"] = plain
    templates.filters["linked"] = linked


def html_response(request: web.Request, template: str, context: dict[str, Any], status: int = 200) -> web.Response:
    """Return an answer with HTML from a template of `templates/`.

    In addition to `context`, each template gets the settings, links, path and access.
    """
    context = {"settings": request.app[SETTINGS], "path": request.path, "access": access_view(request), **context}
    response = aiohttp_jinja2.render_template(template, request, context, status=status)
    response.headers["Vary"] = "Accept"
    return response


def json_response(body: Any) -> web.Response:
    """Return an answer with `body` as JSON: a document by its `json_keys`, anything else by msgspec."""
    body = body.as_dict() if isinstance(body, Document) else body
    return web.Response(
        body=msgspec.json.encode(body), content_type="application/json", charset="utf-8", headers={"Vary": "Accept"}
    )


def refusal(request: web.Request, status: int, sentence: str) -> web.Response:
    """Return the answer to a refused request, as JSON or HTML, whichever the client wants."""
    if wants_json(request):
        return json_refusal(request, status, sentence)
    return html_response(request, "refusal.html", {"status": status, "sentence": sentence}, status)


def wants_json(request: web.Request) -> bool:
    """Return True if the path ends in .json, or the client accepts JSON and not HTML."""
    accept = request.headers.get("Accept", "")
    return request.path.endswith(".json") or ("application/json" in accept and "text/html" not in accept)


def plain(said: object) -> str:
    """Return a text with invisible and direction-changing characters escaped."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(said))


def _sentence(phrase: str) -> str:
    """Return a phrase as a sentence, with a capital and a full stop."""
    text = plain(phrase)
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _state(state: str) -> tuple[str, str]:
    return STATES.get(state, ("idle", "◇"))


def _shell(*arguments: object) -> str:
    """Return a command for the user to copy, with arguments quoted for a shell.

    An argument of None is left out together with its option, the argument before it.
    """
    kept: list[str] = []
    for argument in arguments:
        if argument is None:
            kept.pop()
        else:
            kept.append(str(argument))
    return shlex.join(kept)


def _grouped(number: int) -> str:
    return f"{number:,}"


def _seconds(number: float) -> str:
    return f"{number:,.1f}"


def _rate(number: float) -> str:
    """Return a number of records per second as text."""
    return f"{number:,.0f}" if number >= 10 or number == 0 else f"{number:,.2g}"


def _percent(share: float) -> str:
    return f"{share:.2%}" if share < 0.1 else f"{share:.1%}"


def _moment(seconds: float) -> str:
    """Return a time, given in seconds since the epoch, as text in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%d %b %H:%M:%S")


def _ranges(numbers: Iterable[int]) -> str:
    """Return ascending numbers as ranges in a text, such as "0-3, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
