"""Retries of a request until Kafka answers."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Final
from weakref import WeakSet

import structlog

from kafka_ratchet.transport.client.errors import explained

log = structlog.get_logger(__name__)

RETRY_FIRST_S: Final = 0.05
RETRY_MOST_S: Final = 2.0
SAY_AFTER_S: Final = 5.0
"""Seconds of retries until the first log line; a change of leaders takes well under this."""
SAY_LEAST_OFTEN_S: Final = 60.0
"""Longest pause between two log lines of one `Retry`, in seconds. The pause doubles from line to line."""


class Attempts:
    """Requests that a task and its child tasks are retrying at the moment, for stall detection.

    The set holds weak references: a `Retry` leaves it when the retrying function returns.
    """

    def __init__(self) -> None:
        self._retries: WeakSet[Retry] = WeakSet()

    def follow(self) -> None:
        """Collect each `Retry` that the current task makes from now on."""
        _ATTEMPTS.set(self)

    def add(self, retry: Retry) -> None:
        """Add a `Retry` to the set."""
        self._retries.add(retry)

    def clear(self) -> None:
        """Remove all entries, even finished ones that the traceback of an exception keeps alive."""
        self._retries.clear()

    def longest(self) -> Retry | None:
        """Return the oldest `Retry`; None without one."""
        return max(self._retries, key=lambda each: each.seconds, default=None)

    def failed(self) -> Retry | None:
        """Return the youngest failed `Retry`; None without one.

        Of nested requests this is the innermost one; the others wait for it.
        """
        failed = [each for each in self._retries if each.error is not None]
        return min(failed, key=lambda each: each.seconds, default=None)


_ATTEMPTS: ContextVar[Attempts | None] = ContextVar("attempts", default=None)


class Retry:
    """Growing pauses between attempts of one request, with a log line after a long time.

    Times are those of the event loop's clock.
    """

    def __init__(self, what: str, **facts: object) -> None:
        self.what, self.facts = what, facts
        self.error: type[BaseException] | None = None
        """Class of the last failure. Not the error itself: its traceback would keep this object alive."""
        self.reason = ""
        """Text of the last failure."""
        if (attempts := _ATTEMPTS.get()) is not None:
            attempts.add(self)
        self.pause_s = RETRY_FIRST_S
        self.say_after_s = SAY_AFTER_S
        self._clock = asyncio.get_running_loop().time
        self.began = self.logged_at = self._clock()

    @property
    def seconds(self) -> float:
        """Return the seconds since the first attempt."""
        return self._clock() - self.began

    async def wait(self, reason: object) -> None:
        """Sleep before the next attempt, a little longer than the last time. reason: why the last attempt failed."""
        now = self._clock()
        self.error, self.reason = type(reason) if isinstance(reason, BaseException) else None, explained(reason)
        if isinstance(reason, BaseException):
            # A future with this error is kept by the error's traceback, and so is the frame that has this object.
            reason.__traceback__ = None
        if now - self.logged_at > self.say_after_s:
            self.logged_at = now
            self.say_after_s = min(self.say_after_s * 2, SAY_LEAST_OFTEN_S)
            log.warning(
                "still trying", what=self.what, reason=explained(reason), seconds=round(now - self.began), **self.facts
            )
        await asyncio.sleep(self.pause_s)
        self.pause_s = min(self.pause_s * 2, RETRY_MOST_S)
