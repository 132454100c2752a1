"""Bench of `ratchet web`: time of each page, and the worker's CPU for an open page."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from bench.page_scene import STREAM, Scene, get, get_json, scene, trickle
from bench.spread import spread
from faults.process import cpu_seconds
from kafka_ratchet.app.web.routes import PAGES
from kafka_ratchet.errors import BenchFailed

GOAL_MS: Final = 300
GOAL_CORE: Final = 0.01
PAUSE_S: Final = 1.1
"""Seconds between two requests, so that each finds new data: the page reads the cluster at most once a second."""
SCRAPE_S: Final = 15.0
NOT_MEASURED: Final = ("/events",)
"""Addresses left out of the measurement, because their answer does not end."""


def page(
    partitions: int, identities: int, rounds: int, watch_s: float, *, sink: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Request every page, and measure the worker with and without viewers.

    Args:
        partitions: partitions of the stream.
        identities: identities of the stream.
        rounds: number of requests for each page, as HTML and as JSON. The worker's CPU is measured `max(2, rounds //
            3)` times with viewers (a browser and a Prometheus), and as often without.
        watch_s: seconds of each such measurement; 0: the worker is not measured.
        sink: True: a Spark job fills a result table first, so that its pages have data.
        say: function called with a line at each step.

    Returns:
        milliseconds by page, the pages slower than the goal, and the worker's shares of a core.

    Raises:
        BenchFailed: a page does not answer with 200.
    """
    with scene(partitions, identities, sink=sink, say=say) as here:
        pages = _walk(here, addresses(here), rounds, say)
        watched = _watch(here, max(2, rounds // 3), watch_s, say) if watch_s else None
    return {
        "partitions": partitions,
        "identities": identities,
        "goal_ms": GOAL_MS,
        "over": sorted(name for name, each in pages.items() if each["median"] > GOAL_MS),
        "pages": pages,
        "watched": watched,
    }


def addresses(at: Scene) -> dict[str, list[str]]:
    """Return addresses to request in the scene, for each pattern in the page's table of addresses.

    Raises:
        BenchFailed: a pattern has no address here.
    """
    known = {"stream": STREAM, "producer": "user-7", "sequence": 1}
    arrived = get_json(f"{at.page}/event.json?{urlencode(known)}")["arrivals"][0]["at"]
    [dropped] = get_json(f"{at.page}/duplicates.json?{urlencode({'stream': STREAM, 'limit': 1})}")["records"]
    place = {"stream": STREAM, **arrived}
    stream, here = f"?stream={STREAM}", f"/streams/{STREAM}"
    found = {
        "/": ["/"],
        "/tables": ["/tables"],
        "/history": [f"/history{stream}", f"/history{stream}&range=24h"],
        "/streams": ["/streams"],
        "/streams/{stream}": [here, f"{here}?sort=lag"],
        "/streams/{stream}/partitions": [f"{here}/partitions"],
        "/streams/{stream}/identities": [
            f"/streams/{STREAM}/identities",
            f"/streams/{STREAM}/identities?prefix=user-9",
        ],
        "/streams/{stream}/identity": [f"/streams/{STREAM}/identity?identity=user-7"],
        "/lookup": [f"/lookup{stream}&identity=user-7&sequence=1"],
        "/event": [
            f"/event?{urlencode(known)}",
            f"/event?{urlencode(place)}",
            f"/event?{urlencode({'stream': STREAM, **dropped['origin']})}",
            f"/event?{urlencode({'stream': STREAM, 'producer': 'nobody', 'sequence': 1})}",
        ],
        "/producers": [f"/producers{stream}"],
        "/sinks": ["/sinks"],
        "/sinks/{name}": ["/sinks/results"],
        "/table": ["/table?table=totals&stream=orders"],
        "/tables/{table}": ["/tables/totals?stream=orders", "/tables/totals?stream=orders&key=user-7"],
    }
    for path in ("/dead-letters", "/duplicates"):
        found[path] = [path + stream]
        found |= {f"{path}.{ending}": [f"{path}.{ending}{stream}"] for ending in ("csv", "ndjson")}
    found |= {path: [path] for path in ("/workers", "/settings", "/policy", "/proof")}
    if missing := {each.path for each in PAGES} - set(found) - set(NOT_MEASURED):
        raise BenchFailed(f"bench/page.py lists no address for {', '.join(sorted(missing))}")
    return found


def _walk(
    here: Scene, asked: dict[str, list[str]], rounds: int, say: Callable[[str], None]
) -> dict[str, dict[str, float]]:
    """Return the milliseconds of each address, as HTML and as JSON, after an uncounted round."""
    has_json = {each.path: each.has_json for each in PAGES}
    forms = {path: (False, True) if has_json[path] else (False,) for path in asked}
    every = [(each, form) for path, of in asked.items() for each in of for form in forms[path]]
    took: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for each, as_json in every:
            time.sleep(PAUSE_S)
            began = time.perf_counter()
            status, body = get(here.page + each, as_json=as_json)
            ms = (time.perf_counter() - began) * 1000
            if status != 200:
                raise BenchFailed(f"{each} answered with {status}: {body[:500]!r}")
            if number:
                took.setdefault(f"{each} {'JSON' if as_json else 'HTML'}", []).append(ms)
        say(f"round {number} of {rounds}: every page was requested")
    return {name: _summary(each) for name, each in took.items()}


def _summary(took: list[float]) -> dict[str, float]:
    """Return median, 95th percentile and maximum of several times in milliseconds."""
    rising = sorted(took)
    at = min(len(rising) - 1, -(-95 * len(rising) // 100) - 1)
    return {"median": round(median(rising), 1), "p95": round(rising[at], 1), "max": round(rising[-1], 1)}


def _watch(here: Scene, rounds: int, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the worker's share of a core with and without viewers (an open page and a Prometheus)."""
    shares: dict[str, list[float]] = {"not_watched": [], "watched": []}
    for number in range(rounds * 2):
        kind = "watched" if number % 2 else "not_watched"
        if kind == "watched":
            with _watching(here):
                shares[kind].append(_share(here, seconds, number))
        else:
            shares[kind].append(_share(here, seconds, number))
        say(f"{kind}: {shares[kind][-1]:.2%} of a core")
    costs = [on - off for on, off in zip(shares["watched"], shares["not_watched"], strict=True)]
    return {
        "goal_core": GOAL_CORE,
        **{kind: spread(each, 4) for kind, each in shares.items()},
        "cost": spread(costs, 4),
    }


def _share(here: Scene, seconds: float, turn: int) -> float:
    """Return the worker's share of a core over some seconds, with one record a second."""
    time.sleep(3)
    began, before = time.monotonic(), cpu_seconds(here.worker_pid)
    number = turn * 1_000_000
    while time.monotonic() - began < seconds:
        number += 1
        trickle(here.bootstrap, number)
        time.sleep(1)
    return (cpu_seconds(here.worker_pid) - before) / (time.monotonic() - began)


@contextmanager
def _watching(here: Scene) -> Iterator[None]:
    """Run a browser with the first page open, and a Prometheus, until the end of the context."""
    ends = threading.Event()
    parts = urlsplit(here.page)
    listening = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    listening.request("GET", "/events")
    events = listening.getresponse()

    def look() -> None:
        while not ends.is_set() and (line := events.readline()):
            if line.startswith(b"event: changed"):
                get(f"{here.page}/tables")

    def scrape() -> None:
        while not ends.wait(SCRAPE_S):
            get(f"{here.status}/metrics")

    threads = [threading.Thread(target=each, daemon=True) for each in (look, scrape)]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        ends.set()
        for each in threads:
            each.join()
        listening.close()
