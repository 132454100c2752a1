"""Idle state of a lane without records; one idle watcher looks for records of all idle lanes.

A lane with records fetches on its own connection, without a pause. After QUIET_S seconds without a record, the lane has
the idle watcher watch its partition as well. As soon as the watcher observes the partition, the lane stops fetching
until the watcher calls. The lane then fetches on a shared connection; if no record comes, it waits for the next call. A
new lane fetches once and then waits.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from kafka_ratchet.transport.client.fetch_session import NO_OFFSET, PositionToWatch
from kafka_ratchet.transport.client.watch import WatchedPosition

QUIET_S: Final = 2.0
"""Seconds without a record until a lane is idle. A lane with more frequent records is never idle."""
LOOK_EVERY_S: Final = 30.0
"""Seconds after which an idle lane fetches in any case."""
SPREAD: Final = 10
"""Number of different idle waits: the first is `LOOK_EVERY_S`, and each further one is a second longer.

The partition number modulo `SPREAD` selects the wait, so that lanes that started together do not all fetch together.
"""


class IdleWatcher(Protocol):
    """Interface of `kafka_ratchet.transport.client.watch.Watch`, the watcher of idle partitions."""

    def place(self, topic: str, spot: PositionToWatch) -> WatchedPosition | None:
        """Watch a position from now on; None if the watcher cannot."""

    def leave(self, place: WatchedPosition) -> None:
        """Stop watching a position."""


class IdleWait:
    """Idle state of one partition's reader: waits for new records at one position at a time.

    Make it inside the event loop.
    """

    def __init__(self, watch: IdleWatcher, topic: str, partition: int) -> None:
        """Store the partition and its watcher. The lane fetches once before it can be idle."""
        self._watch, self._topic = watch, topic
        self._look_every_s = LOOK_EVERY_S + partition % SPREAD
        self._clock = asyncio.get_running_loop().time
        self._records_at: float | None = None
        self._fetched_at = float("-inf")
        self._place: WatchedPosition | None = None

    def wake(self) -> None:
        """Mark the lane as not idle, because records came."""
        self.leave()
        self._records_at = self._clock()

    def leave(self) -> None:
        """Stop watching the position, if any."""
        if self._place is not None:
            self._watch.leave(self._place)
            self._place = None

    @property
    def is_at_rest(self) -> bool:
        """Return True while the watcher observes the position and has not reported news."""
        return self._place is not None and self._place.is_covered and not self._place.is_called

    @property
    def answered_at(self) -> float:
        """Return the time of the broker's last answer to the watcher, in seconds since 1970; 0 without one."""
        return self._place.answered_at if self._place is not None else 0.0

    @property
    def high_watermark(self) -> int:
        """Return the input's high watermark from the watcher; NO_OFFSET if the watcher knows none."""
        return self._place.high_watermark if self._place is not None else NO_OFFSET

    async def over(self, spot: PositionToWatch) -> bool:
        """Wait for the watcher's news if the lane is idle at this position.

        Returns:
            True to fetch at once; False to fetch with a request that waits for records.
        """
        if self._records_at is None:
            self._records_at = float("-inf")
            return True
        if self._clock() - self._records_at < QUIET_S:
            return False
        place = self._place_at(spot)
        if place is None or (not place.is_covered and self._records_at > float("-inf")):
            return False
        await place.called(self._look_every_s)
        return True

    def is_still(self, spot: PositionToWatch) -> bool:
        """Return True if the watcher observes that position and has reported no news.

        Otherwise have the position watched, and return False: new entries may have come. After about LOOK_EVERY_S the
        result is False in any case. Use this method to check at intervals; `over` waits.
        """
        now = self._clock()
        if self._place_at(spot) and self.is_at_rest and now - self._fetched_at < self._look_every_s:
            return True
        self._fetched_at = now
        return False

    def _place_at(self, spot: PositionToWatch) -> WatchedPosition | None:
        """Return the watched position if it is the given one, or watch that one; None if the watcher cannot."""
        if self._place is not None and (self._place.spot != spot or self._place.is_called):
            self.leave()
        if self._place is None:
            self._place = self._watch.place(self._topic, spot)
        return self._place
