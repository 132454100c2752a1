"""Readings of Kafka or a store for a page: functions that run in threads, a few at a time, with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from aiohttp import web

from kafka_ratchet.app.event_loop import in_thread
from kafka_ratchet.app.extras import missing_extra
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.http import json_refusal
from kafka_ratchet.app.status.lookup import QueryError, parse_query
from kafka_ratchet.app.web.render import CLUSTER_VIEW, html_response, json_response, wants_json
from kafka_ratchet.errors import RatchetError, SettingsError
from kafka_ratchet.spark_sink.errors import SinkError
from kafka_ratchet.spark_sink.secrets import hidden

Found = TypeVar("Found")

AT_ONCE: Final = 3
"""Maximum number of readings at the same time. Each has its own Kafka clients, and takes some 50 MB of memory."""
TURN_S: Final = 5.0
"""Maximum seconds that a request waits until another reading ends, if too many run."""
PATIENCE_S: Final = 15.0
"""Maximum seconds that a page waits for a reading. Most readings have a lower limit themselves."""
KAFKA_TIMEOUT_S: Final = 5.0
"""Maximum seconds to wait for Kafka, as in the rest of the page."""
MAX_PARAMETERS: Final = 12
"""Maximum number of parameters in an address of a page that reads Kafka or a store."""


class Unanswered(RatchetError):
    """Error for a reading that gave no result in time; the text says why."""


class Readings:
    """Runner of a limited number of readings in threads.

    Args:
        at_once: maximum number of readings at the same time. An abandoned reading counts until it ends.
    """

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._turns = asyncio.Semaphore(at_once)

    async def read(self, work: Callable[[], Found], patience_s: float = PATIENCE_S, *, instead: str = "") -> Found:
        """Run `work` in a thread, and return its result.

        Args:
            work: function that reads.
            patience_s: maximum seconds to wait for its result.
            instead: command that gives the same result, for the error text; "": no command does.

        Raises:
            Unanswered: too many other readings run, or `work` takes too long.
            RatchetError: raised by `work`.
        """
        hint = f" The same in a terminal: {instead}" if instead else ""
        try:
            async with asyncio.timeout(TURN_S):
                await self._turns.acquire()
        except TimeoutError:
            raise Unanswered(
                f"too many requests of this page are reading from Kafka just now. Try again in a moment.{hint}"
            ) from None
        asking = in_thread(work)
        asking.add_done_callback(self._ended)
        await asyncio.wait({asking}, timeout=patience_s)
        if not asking.done():
            raise Unanswered(f"Kafka or the store was not read within {patience_s:g} s. Try again.{hint}")
        return asking.result()

    def _ended(self, asking: asyncio.Future[Any]) -> None:
        self._turns.release()
        if not asking.cancelled():
            asking.exception()  # retrieve the exception of an abandoned reading


async def read(
    request: web.Request, work: Callable[[], Found], patience_s: float = PATIENCE_S, *, instead: str = ""
) -> Found:
    """Run `work`, which reads from Kafka, in a thread, and return its result; see `Readings.read`.

    Raises:
        Unanswered: Kafka does not answer; or see `Readings.read`.
        RatchetError: raised by `work`.
    """
    if (away := await request.app[CLUSTER_VIEW].kafka_away()) is not None:
        raise Unanswered(away)
    return await request.app[READINGS].read(work, patience_s, instead=instead)


READINGS = web.AppKey("readings", Readings)
BOOTSTRAP = web.AppKey("bootstrap", str)


def impatient(settings: Settings) -> Settings:
    """Return the settings with a `kafka_timeout_s` of at most `KAFKA_TIMEOUT_S`, for a reading by the page."""
    return settings.model_copy(update={"kafka_timeout_s": min(settings.kafka_timeout_s, KAFKA_TIMEOUT_S)})


async def answer(
    request: web.Request, template: str, ask: Callable[[dict[str, str]], Awaitable[Any]], **context: Any
) -> web.StreamResponse:
    """Return the answer to the query in an address, as a page or JSON.

    If the query is invalid, or cannot be answered, the page shows the query again with the reason.

    Args:
        request: request with the query.
        template: name of the template. It gets `found` (result or None), `problem` (sentence or None) and `asked`
            (parameters).
        ask: function that gets the parameters, and returns the result, a whole response, or None if it gets no query.
        context: further values for the template.
    """
    found, problem, status, asked = None, None, 200, dict[str, str]()
    try:
        asked = parse_query(request.rel_url.raw_query_string, MAX_PARAMETERS)
        found = await ask(asked)
        if isinstance(found, web.StreamResponse):
            return found
    except (QueryError, SettingsError) as error:
        problem, status = hidden(str(error)), 400
    except (RatchetError, SinkError) as error:
        problem, status = hidden(str(error)), 503
    except ModuleNotFoundError as error:
        problem, status = missing_extra(error) or str(error), 503
    if wants_json(request):
        if problem is None and found is None:
            problem, status = "the address has no parameters to answer; docs/guide/page.md lists them", 400
        return json_response(found) if problem is None else json_refusal(request, status, problem)
    return html_response(request, template, {"found": found, "problem": problem, "asked": asked, **context}, status)
