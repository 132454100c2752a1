"""Looks at very many partitions at once, for those who wait there until something comes.

A partition without records costs its lane a request every quarter of a second, and its changelog one every second. With
a thousand such lanes that is most of a core, here and at the broker. So who waits where nothing comes asks to be
called: one long fetch for each broker looks at all of their partitions (docs/decisions/0066-lanes-at-rest.md).

Nothing that it brings is used. It says that it is worth looking, and whoever waits there then looks by itself, by its
own request, as if it had never waited: what is judged, and what is said of a log that is not what it was, has one way
only. So it may call once too often, and at any time, but never too seldom: where the watch itself fails, it calls all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable
from typing import Final, Protocol

import structlog
from aiokafka import errors as kafka

from kafka_ratchet.transport.client.fetch_session import (
    NO_OFFSET,
    NO_SESSION,
    Looked,
    SessionFetchRequest,
    Spot,
    answer_of,
)

log = structlog.get_logger(__name__)

WAIT_MS: Final = 500
"""How long the broker may hold back an empty answer. Who begins to wait is looked at from the next request on."""
NUMBERS_MOST: Final = (1 << 31) - 1
PAUSE_S: Final = 0.1
"""After a request that failed; twice as long after the next one, up to PAUSE_MOST_S, until one is answered."""
PAUSE_MOST_S: Final = 30.0
PATIENT_S: Final = 1.0
"""Nobody waits for the watch during a longer pause: each asks Kafka itself, as if there were no watch. They would be
called only at the pause's end, too late, and again after each further failure."""

Key = tuple[bytes, int]
"""Topic id and partition."""


class Asking(Protocol):
    """What a watch needs of a cluster."""

    def known_leader(self, topic: str, partition: int) -> int | None:
        """The broker that leads a partition, as far as it is known."""

    async def send(self, node: int, request: object, connection: Hashable) -> object:
        """Send a request, and wait for the answer."""


class Place:
    """One who waits at a spot. `Watch.place` makes it."""

    def __init__(self, spot: Spot, session: _Session) -> None:
        self.spot, self._session = spot, session
        self.is_covered = False
        """Whether a request that looks there was answered. The next one is under way then, so what comes is noticed at
        once; of the first nobody knows whether it has reached the broker: its connection may still be made."""
        self.high_watermark = NO_OFFSET
        """Last one that the broker gave for this partition; NO_OFFSET before the first."""
        self._called: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_called(self) -> bool:
        """Whether it is worth looking. It stays so: who looks, and waits again, needs another place."""
        return self._called.done()

    @property
    def answered_at(self) -> float:
        """When the broker has last said something of all its places, in seconds since 1970; 0 where it has not."""
        return self._session.answered_at

    def call(self) -> None:
        """It is worth looking."""
        if not self._called.done():
            self._called.set_result(None)

    async def called(self, timeout_s: float) -> bool:
        """Wait until it is worth looking, or this is over; whether it is."""
        await asyncio.wait((self._called,), timeout=timeout_s)
        return self._called.done()


class _Session:
    """The places at one broker, and the session in which it is asked about them: one request at a time."""

    def __init__(self) -> None:
        self.places: dict[Key, Place] = {}
        self.task: asyncio.Task[None] | None = None
        self.answered_at = 0.0
        self._id, self._number = NO_SESSION, 0
        self._known: dict[Key, Place] = {}
        """As the broker was told them last."""
        self._new: dict[Key, Place] = {}
        self._gone: set[Key] = set()
        self._asked: list[Place] = []
        """Those that the request under way names for the first time."""
        self.pause_s = 0.0
        """After the last request, if that has failed."""
        self.goes_on_at = float("-inf")
        """By the event loop's clock, where that pause is a long one: its end."""

    def add(self, key: Key, place: Place) -> None:
        """From the next request on."""
        self.places[key] = self._new[key] = place

    def remove(self, key: Key, place: Place) -> None:
        """It may be gone already."""
        if self.places.get(key) is place:
            del self.places[key]
            self._new.pop(key, None)
            self._gone.add(key)

    def request(self) -> SessionFetchRequest:
        """The next one, about every place that there is now."""
        if self._id == NO_SESSION:
            self._known, self._number, self._new, self._gone = {}, 0, dict(self.places), set()
        # What is named as forgotten would be forgotten, even if it is named as new as well.
        forgotten = [key for key in self._gone if key in self._known and key not in self.places]
        for key in forgotten:
            del self._known[key]
        self._asked = list(self._new.values())
        spots = [each.spot for each in self._asked]
        self._known.update(self._new)
        self._new, self._gone = {}, set()
        return SessionFetchRequest((self._id, self._number), WAIT_MS, spots, forgotten)

    def answered(self, session_id: int, looked: list[Looked]) -> None:
        """Call those of whom the broker has something to say."""
        self._id, self.answered_at = session_id, time.time()
        self._number = self._number % NUMBERS_MOST + 1
        self.pause_s = 0.0
        for asked in self._asked:
            asked.is_covered = True
        for topic_id, partition, code, stable_end, has_records, parts, high in looked:
            key = topic_id, partition
            place = self._known.get(key)  # the one that was asked for, whoever waits there now
            if place is not None and not code:
                place.high_watermark = high
            if place is not None and (code or has_records or parts or stable_end > place.spot.position):
                self.remove(key, place)
                place.call()

    def failed(self) -> None:
        """Begin anew, and let everyone look by himself."""
        self._id = NO_SESSION
        self.pause_s = min(max(PAUSE_S, 2 * self.pause_s), PAUSE_MOST_S)
        if self.pause_s > PATIENT_S:
            self.goes_on_at = asyncio.get_running_loop().time() + self.pause_s
        for key, place in list(self.places.items()):
            self.remove(key, place)
            place.call()


class Watch:
    """Looks for those who wait, at each spot of a partition for one of them at most."""

    def __init__(self, cluster: Asking, name: str) -> None:
        """Nothing is asked before somebody waits. name: of the connection."""
        self._cluster, self._connection = cluster, ("watch", name)
        self._sessions: dict[int, _Session] = {}

    def place(self, topic: str, spot: Spot) -> Place | None:
        """Look at a spot from now on. None: ask by yourself.

        Nobody leads the partition, as far as is known, or another waits there, or the watch fails again and again.
        """
        node = self._cluster.known_leader(topic, spot.partition)
        if node is None:
            return None
        session = self._sessions.setdefault(node, _Session())
        key = spot.topic_id, spot.partition
        if key in session.places or asyncio.get_running_loop().time() < session.goes_on_at:
            return None
        place = Place(spot, session)
        session.add(key, place)
        if session.task is None or session.task.done():
            session.task = asyncio.create_task(self._look(node, session), name=f"watch of node {node}")
        return place

    def leave(self, place: Place) -> None:
        """Look there no more."""
        key = place.spot.topic_id, place.spot.partition
        for session in self._sessions.values():
            session.remove(key, place)

    async def close(self) -> None:
        """Look nowhere any more; everyone is called."""
        sessions, self._sessions = self._sessions, {}
        tasks = [session.task for session in sessions.values() if session.task is not None]
        for session in sessions.values():
            session.failed()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self, node: int, session: _Session) -> None:
        while session.places:
            try:
                answer = answer_of(await self._cluster.send(node, session.request(), self._connection))  # type: ignore[arg-type]
                if answer.error_code:
                    raise kafka.for_code(answer.error_code)
                session.answered(answer.session_id, answer.looked)
            except Exception as error:
                # Whatever it is: nobody may wait for a call that never comes.
                session.failed()
                log.debug("the watch begins anew", node=node, reason=repr(error))
                await asyncio.sleep(session.pause_s)
