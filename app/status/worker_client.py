"""HTTP client that sends a request to all workers at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Final, TypeVar

import aiohttp
import msgspec

from kafka_ratchet.app.status.producers import shown

WORKER_TIMEOUT_S: Final = 2.0
"""Maximum seconds to wait for a worker, which answers from memory. A slower one counts as not answering."""
MAX_BODY_BYTES: Final = 16 * 2**20
"""Maximum number of bytes of an answer: enough for a status of 60,000 partitions, with some 250 bytes each."""
SENTENCE_MOST: Final = 500
"""Maximum number of characters of an error message from a worker, since the answer may come from a stranger."""

Body = TypeVar("Body")


class WorkerClient:
    """HTTP client that sends a request to all workers at once. It keeps connections; use it with `async with`."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> WorkerClient:
        # trust_env stays off: a proxy of the environment has no business between the page and its workers.
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=WORKER_TIMEOUT_S), cookie_jar=aiohttp.DummyCookieJar()
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask_all(self, urls: Iterable[str], path: str, body: type[Body]) -> tuple[dict[str, Body], dict[str, str]]:
        """Send a request to all workers.

        Args:
            urls: status addresses of the workers.
            path: path and query of the request.
            body: type of the answers.

        Returns:
            (answers by address; by address, the reason why a worker gave no answer)
        """
        urls = list(urls)
        outcomes = await asyncio.gather(*(self._ask(url + path, body) for url in urls), return_exceptions=True)
        answers: dict[str, Body] = {}
        failures: dict[str, str] = {}
        for url, outcome in zip(urls, outcomes, strict=True):
            if isinstance(outcome, (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError)):
                failures[url] = _reason(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                answers[url] = outcome
        return answers, failures

    async def _ask(self, url: str, body: type[Body]) -> Body:
        if self._session is None:
            raise RuntimeError("WorkerClient is used outside `async with`")
        async with self._session.get(url, allow_redirects=False) as response:
            raw = await response.content.read(MAX_BODY_BYTES + 1)
            while len(raw) <= MAX_BODY_BYTES and (more := await response.content.read(MAX_BODY_BYTES + 1 - len(raw))):
                raw += more
            if len(raw) > MAX_BODY_BYTES:
                raise aiohttp.ClientPayloadError(f"its answer is longer than {MAX_BODY_BYTES:,} bytes")
            if response.status == 400:
                raise aiohttp.ClientPayloadError(_refused(raw))
            if response.status != 200:
                raise aiohttp.ClientPayloadError(f"it answered with status {response.status}")
            return msgspec.json.decode(raw, type=body)


def _refused(body: bytes) -> str:
    """Return the error message in the answer of a worker that refuses the query."""
    try:
        sentence = msgspec.json.decode(body, type=dict[str, str])["error"]
    except (msgspec.MsgspecError, KeyError):
        return "it answered with status 400"
    return shown(sentence[:SENTENCE_MOST].encode())


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {WORKER_TIMEOUT_S:g} s"
    if isinstance(error, msgspec.MsgspecError):
        return f"the answer does not come from a worker of this version ({error})"
    return str(error) or type(error).__name__
