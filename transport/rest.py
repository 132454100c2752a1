"""When a lane that gets no records stops asking for them by itself, and lets the watch look for all lanes at once.

A lane that has had something asks on its own connection, as often as ever. After QUIET_S without anything it has the
watch look at its partition as well, and once that does, it waits to be called. Then it looks, on a connection that all
share, and where nothing came it waits again. A lane that starts looks once and waits.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from kafka_ratchet.transport.client.fetch_session import NO_OFFSET, Spot
from kafka_ratchet.transport.client.watch import Place

QUIET_S: Final = 2.0
"""Without a record, until a lane rests. Whoever sends more often than that is served as if nobody rested."""
LOOK_EVERY_S: Final = 30.0
"""After so long it looks by itself, whatever the watch says."""
SPREAD: Final = 10
"""Lanes that began together do not all look together: up to so many seconds later, by their number."""


class Watching(Protocol):
    """What looks for those who rest: `kafka_ratchet.transport.client.watch.Watch`."""

    def place(self, topic: str, spot: Spot) -> Place | None:
        """Look at a spot from now on; None: it cannot."""

    def leave(self, place: Place) -> None:
        """Look there no more."""


class Rest:
    """Of one who reads one partition, from one spot at a time. Make it where the event loop runs."""

    def __init__(self, watch: Watching, topic: str, partition: int) -> None:
        """Nothing was heard yet: the first look is at once, and then it rests."""
        self._watch, self._topic = watch, topic
        self._look_every_s = LOOK_EVERY_S + partition % SPREAD
        self._clock = asyncio.get_running_loop().time
        self._heard_at: float | None = None
        self._looked_at = float("-inf")
        self._place: Place | None = None

    def heard(self) -> None:
        """Something came."""
        self.leave()
        self._heard_at = self._clock()

    def leave(self) -> None:
        """Wait no more."""
        if self._place is not None:
            self._watch.leave(self._place)
            self._place = None

    @property
    def is_at_rest(self) -> bool:
        """Whether the watch looks for it, and has not called."""
        return self._place is not None and self._place.is_covered and not self._place.is_called

    @property
    def answered_at(self) -> float:
        """When the broker has last told the watch how things are, in seconds since 1970; 0 where it has not."""
        return self._place.answered_at if self._place is not None else 0.0

    @property
    def high_watermark(self) -> int:
        """The input's high watermark as the watch knows it; NO_OFFSET where it knows none."""
        return self._place.high_watermark if self._place is not None else NO_OFFSET

    async def over(self, spot: Spot) -> bool:
        """Wait while it rests at that spot. Returns whether to look at once; otherwise to ask, and wait there."""
        if self._heard_at is None:
            self._heard_at = float("-inf")
            return True
        if self._clock() - self._heard_at < QUIET_S:
            return False
        place = self._place_at(spot)
        if place is None or (not place.is_covered and self._heard_at > float("-inf")):
            return False
        await place.called(self._look_every_s)
        return True

    def is_still(self, spot: Spot) -> bool:
        """Whether the watch looks at that spot, and has not called: there is nothing. Otherwise it looks from now on.

        For who comes by now and then, and does not wait. After LOOK_EVERY_S it is not, whatever the watch says.
        """
        now = self._clock()
        if self._place_at(spot) and self.is_at_rest and now - self._looked_at < self._look_every_s:
            return True
        self._looked_at = now
        return False

    def _place_at(self, spot: Spot) -> Place | None:
        """Where the watch looks there, or is about to; None: it cannot."""
        if self._place is not None and (self._place.spot != spot or self._place.is_called):
            self.leave()
        if self._place is None:
            self._place = self._watch.place(self._topic, spot)
        return self._place
