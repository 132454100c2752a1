"""Trying again until Kafka answers."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from kafka_ratchet.transport.client.errors import explained

log = structlog.get_logger(__name__)

RETRY_FIRST_S: Final = 0.05
RETRY_MOST_S: Final = 2.0
SAY_AFTER_S: Final = 5.0
"""A leader change takes well under this; what takes longer is worth a line in the log, ..."""
SAY_LEAST_OFTEN_S: Final = 60.0
"""... and more of them with doubled pauses, up to this one: every lane has lines of its own."""


class Retry:
    """Pauses between tries, and a line in the log when it takes long. Time is the event loop's."""

    def __init__(self, what: str, **facts: object) -> None:
        self.what, self.facts = what, facts
        self.pause_s = RETRY_FIRST_S
        self.say_after_s = SAY_AFTER_S
        self._clock = asyncio.get_running_loop().time
        self.began = self.said = self._clock()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._clock() - self.began

    async def wait(self, reason: object) -> None:
        """Sleep a little longer than the last time."""
        now = self._clock()
        if now - self.said > self.say_after_s:
            self.said = now
            self.say_after_s = min(self.say_after_s * 2, SAY_LEAST_OFTEN_S)
            log.warning(
                "still trying", what=self.what, reason=explained(reason), seconds=round(now - self.began), **self.facts
            )
        await asyncio.sleep(self.pause_s)
        self.pause_s = min(self.pause_s * 2, RETRY_MOST_S)
