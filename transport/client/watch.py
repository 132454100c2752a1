"""Idle watcher, which checks very many partitions at once for new records, on behalf of idle lanes.

A partition without records costs its lane a request every quarter of a second, and its changelog one every second.
With a thousand such lanes, these requests take most of a core, in the worker and at the broker. So idle lanes wait for
the watcher: one long fetch for each broker covers all of their partitions (docs/decisions/0066-lanes-at-rest.md).

The records of this fetch are not used. The watcher only calls the lane, which then sends its own request, as if it had
never waited. So verdicts, and errors about replaced logs, have one path only. The watcher may call a lane without need,
but must never miss new records: after an error it calls all lanes of the broker.
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
    PositionToWatch,
    SessionFetchRequest,
    SpotAnswer,
    answer_of,
)

log = structlog.get_logger(__name__)

WAIT_MS: Final = 500
"""Milliseconds that the broker may hold back an empty answer. The next request adds new positions."""
NUMBERS_MOST: Final = (1 << 31) - 1
PAUSE_S: Final = 0.1
"""Seconds of pause after a failed request; doubled after each further failure, up to PAUSE_MOST_S."""
PAUSE_MOST_S: Final = 30.0
PATIENT_S: Final = 1.0
"""Longest pause of a failing watcher that its lanes still wait out, in seconds.

During a longer pause each lane asks Kafka itself, because the watcher would call it too late.
"""

Key = tuple[bytes, int]
"""Topic id and partition."""


class WatchRequests(Protocol):
    """Requests that a watcher sends to a cluster; implemented by `Cluster`."""

    def known_leader(self, topic: str, partition: int) -> int | None:
        """Return the partition's leader according to cached metadata; None if the cache has no leader."""

    async def send(self, node: int, request: object, connection: Hashable) -> object:
        """Send a request, and wait for the answer."""


class WatchedPosition:
    """Position at which an idle lane waits for new records; made by `Watch.place`."""

    def __init__(self, spot: PositionToWatch, session: _Session) -> None:
        self.spot, self._session = spot, session
        self.is_covered = False
        """True once the broker has answered a request with this position.

        From then on a request is always in flight, so that changes are noticed at once. Before, the first request may
        still wait for its connection.
        """
        self.high_watermark = NO_OFFSET
        """The partition's high watermark from the broker's last answer; NO_OFFSET before the first answer."""
        self._called: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_called(self) -> bool:
        """Return True once new records may have come.

        The result stays True; to wait again, call `Watch.place` again.
        """
        return self._called.done()

    @property
    def answered_at(self) -> float:
        """Return the time of the broker's last answer, in seconds since 1970; 0 without an answer."""
        return self._session.answered_at

    def call(self) -> None:
        """Wake the waiting lane, because a fetch is worthwhile."""
        if not self._called.done():
            self._called.set_result(None)

    async def called(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for new records; return True if a fetch is worthwhile."""
        await asyncio.wait((self._called,), timeout=timeout_s)
        return self._called.done()


class _Session:
    """Fetch session with one broker, and the positions watched there; one request at a time."""

    def __init__(self) -> None:
        self.places: dict[Key, WatchedPosition] = {}
        self.task: asyncio.Task[None] | None = None
        self.answered_at = 0.0
        self._id, self._number = NO_SESSION, 0
        self._known: dict[Key, WatchedPosition] = {}
        """Positions in the broker's session, as of the last request."""
        self._new: dict[Key, WatchedPosition] = {}
        self._gone: set[Key] = set()
        self._additions: list[WatchedPosition] = []
        """Positions that the current request adds to the session."""
        self.pause_s = 0.0
        """Seconds of pause after the last request; 0 unless the request failed."""
        self.goes_on_at = float("-inf")
        """End of a long pause, in seconds of the event loop's clock."""

    def add(self, key: Key, place: WatchedPosition) -> None:
        """Add a position, to be watched from the next request on."""
        self.places[key] = self._new[key] = place

    def remove(self, key: Key, place: WatchedPosition) -> None:
        """Remove a position, if it is still watched."""
        if self.places.get(key) is place:
            del self.places[key]
            self._new.pop(key, None)
            self._gone.add(key)

    def request(self) -> SessionFetchRequest:
        """Return the session's next request, which adds new positions and removes those no longer watched."""
        if self._id == NO_SESSION:
            self._known, self._number, self._new, self._gone = {}, 0, dict(self.places), set()
        # The broker forgets a place that one request names as both forgotten and new.
        forgotten = [key for key in self._gone if key in self._known and key not in self.places]
        for key in forgotten:
            del self._known[key]
        self._additions = list(self._new.values())
        spots = [each.spot for each in self._additions]
        self._known.update(self._new)
        self._new, self._gone = {}, set()
        return SessionFetchRequest((self._id, self._number), WAIT_MS, spots, forgotten)

    def answered(self, session_id: int, answers: list[SpotAnswer]) -> None:
        """Process the broker's answer: wake the lane of each position with news."""
        self._id, self.answered_at = session_id, time.time()
        self._number = self._number % NUMBERS_MOST + 1
        self.pause_s = 0.0
        for asked in self._additions:
            asked.is_covered = True
        for topic_id, partition, code, stable_end, has_records, parts, high in answers:
            key = topic_id, partition
            place = self._known.get(key)  # the requested place, even if another lane waits there now
            if place is not None and not code:
                place.high_watermark = high
            if place is not None and (code or has_records or parts or stable_end > place.spot.position):
                self.remove(key, place)
                place.call()

    def failed(self) -> None:
        """End the session after an error, and wake the lane of every position."""
        self._id = NO_SESSION
        self.pause_s = min(max(PAUSE_S, 2 * self.pause_s), PAUSE_MOST_S)
        if self.pause_s > PATIENT_S:
            self.goes_on_at = asyncio.get_running_loop().time() + self.pause_s
        for key, place in list(self.places.items()):
            self.remove(key, place)
            place.call()


class Watch:
    """Watcher of idle partitions, for many lanes with few requests.

    At most one lane waits for each partition.
    """

    def __init__(self, cluster: WatchRequests, name: str) -> None:
        """Make a watcher without positions, which sends no request yet. name: name of its connection."""
        self._cluster, self._connection = cluster, ("watch", name)
        self._sessions: dict[int, _Session] = {}

    def place(self, topic: str, spot: PositionToWatch) -> WatchedPosition | None:
        """Watch a position from now on; None: the lane must use its own requests.

        Return None if the partition has no known leader, if another lane waits for the partition, or if the watcher
        fails repeatedly.
        """
        node = self._cluster.known_leader(topic, spot.partition)
        if node is None:
            return None
        session = self._sessions.setdefault(node, _Session())
        key = spot.topic_id, spot.partition
        if key in session.places or asyncio.get_running_loop().time() < session.goes_on_at:
            return None
        place = WatchedPosition(spot, session)
        session.add(key, place)
        if session.task is None or session.task.done():
            session.task = asyncio.create_task(self._look(node, session), name=f"watch of node {node}")
        return place

    def leave(self, place: WatchedPosition) -> None:
        """Stop watching a position."""
        key = place.spot.topic_id, place.spot.partition
        for session in self._sessions.values():
            session.remove(key, place)

    async def close(self) -> None:
        """Stop watching all positions, and wake their lanes."""
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
                session.answered(answer.session_id, answer.answers)
            except Exception as error:
                # Any error: a lane must not wait for a call that never comes.
                session.failed()
                log.debug("the idle watcher starts again", node=node, reason=repr(error))
                await asyncio.sleep(session.pause_s)
