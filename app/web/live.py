"""GET /events: server-sent events, one for each change of the cluster's state.

An event has no contents; after an event, a page in a browser fetches its changing part again. The server reads the
state once for all listening pages together, and does not read it while none listens.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from dataclasses import replace
from typing import Final

import msgspec
import structlog
from aiohttp import web

from kafka_ratchet.app.status.http import HEADERS
from kafka_ratchet.app.web.render import CLUSTER_VIEW, RESULTS, refusal

log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 2.0
SIGN_OF_LIFE_S: Final = 15.0
"""Seconds between comments in the stream of events; if one cannot be sent, the browser has closed the connection."""
LISTENERS_MOST: Final = 64
"""Maximum number of pages that listen to events. Further pages fetch their changing part at intervals instead."""


class LiveSender:
    """Sender of the events to all listening pages, with one task that watches the cluster for all of them."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Event] = set()
        self._ends = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    async def close(self, application: web.Application) -> None:
        """End the connections of all listening pages."""
        self._ends.set()
        for listener in self._listeners:
            listener.set()
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Send events to a listening page until it disconnects, or the server stops."""
        if len(self._listeners) >= LISTENERS_MOST or self._ends.is_set():
            return refusal(request, 503, f"{LISTENERS_MOST} pages listen already; this one asks every two seconds")
        changed = asyncio.Event()
        self._listeners.add(changed)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._look(request.app))
        try:
            headers = {**HEADERS, "Cache-Control": "no-store", "Content-Type": "text/event-stream"}
            response = web.StreamResponse(headers=headers)
            await response.prepare(request)
            await response.write(b"retry: 5000\n\n")
            while not self._ends.is_set():
                try:
                    await asyncio.wait_for(changed.wait(), SIGN_OF_LIFE_S)
                except TimeoutError:
                    await response.write(b": still here\n\n")
                    continue
                changed.clear()
                if not self._ends.is_set():
                    await response.write(b"event: changed\ndata: {}\n\n")
        except ConnectionError:
            log.debug("a listener has gone")
        finally:
            self._listeners.discard(changed)
        return response

    async def _look(self, application: web.Application) -> None:
        """Read the cluster's state every two seconds while pages listen, and send an event when it has changed."""
        before = b""
        while self._listeners:
            overview, sinks = await asyncio.gather(application[CLUSTER_VIEW].overview(), application[RESULTS].latest())
            told = replace(overview, taken_at="", sinks=[replace(sink, taken_at=None) for sink in sinks])
            now = hashlib.sha256(msgspec.json.encode(told)).digest()
            if now != before:
                for listener in self._listeners:
                    listener.set()
            before = now
            await asyncio.sleep(LOOK_EVERY_S)


LIVE = web.AppKey("live", LiveSender)


async def events(request: web.Request) -> web.StreamResponse:
    """Answer with the stream of events."""
    return await request.app[LIVE].answer(request)
