"""Events of a worker: rebalances, restores, restarts, in a bounded file of JSON lines.

The lanes are checked once a second. A change is one event for all partitions of a stream together: a rebalance of 1,000
partitions is one line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from kafka_ratchet.app.status.history import Event, EventsAnswer
from kafka_ratchet.transport.lane import Lane
from kafka_ratchet.transport.lane_spec import LaneState

log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 1.0
FILE_MOST: Final = 256 << 10
"""Maximum number of bytes of the file. At this size its older half is dropped."""
ANSWER_MOST: Final = 500
TEXT_MOST: Final = 500
"""Maximum number of characters of an error in an event."""
SAY_AGAIN_S: Final = 60.0
"""Minimum seconds between two events about the same error of a stream."""

_EVENT_OF: Final = msgspec.json.Decoder(Event)
"""JSON decoder of events. It is made at import, because threads share it: see `kafka_ratchet.transport.owner`."""

Key = tuple[str, int]
"""Stream and partition."""


class EventLog:
    """File of events, one JSON line each. Its methods block, so call them in a thread. Torn lines are skipped."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, events: Iterable[Event]) -> None:
        """Append events to the file; drop its older half if it would become too large.

        Raises:
            OSError: the file cannot be written.
        """
        self.path.parent.mkdir(
            parents=True, exist_ok=True, mode=0o700
        )  # the first to write here may be this or the history
        data = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        try:
            before = self.path.read_bytes() if self.path.stat().st_size + len(data) > FILE_MOST else None
        except FileNotFoundError:
            before = None
        if before is not None:
            kept = before[-FILE_MOST // 2 :].partition(b"\n")[2]
            beside = self.path.with_name(f"{self.path.name}.new")
            beside.write_bytes(kept + data)
            beside.replace(self.path)
            return
        with self.path.open("ab") as file:
            if file.tell():
                file.write(b"\n")  # ends a torn line; an empty one is left out
            file.write(data)

    def read(self, begin: float) -> list[Event]:
        """Return the newest events, at most ANSWER_MOST. begin: earliest time, in seconds since the epoch."""
        try:
            lines = self.path.read_bytes()[-FILE_MOST:].split(b"\n")
        except OSError:
            return []
        found: list[Event] = []
        for line in lines:
            try:
                event = _EVENT_OF.decode(line)
            except msgspec.MsgspecError:
                continue
            if event.at >= begin:
                found.append(event)
        return found[-ANSWER_MOST:]


class LaneWatch:
    """Detector of events, which compares the lanes with their state at the previous check."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lanes: dict[Key, tuple[Lane, LaneState, int]] = {}
        self._since: dict[Key, float] = {}
        """Time of the first observation of a lane that never ran."""
        self._news: dict[tuple[str, str], float] = {}
        """Time of the last event about an error, by stream and text of the error."""

    def look(self, lanes: Mapping[Key, Lane]) -> list[Event]:
        """Return the events since the previous call."""
        now = self._clock()
        gained = {key for key, lane in lanes.items() if key not in self._lanes or self._lanes[key][0] is not lane}
        lost = self._lanes.keys() - lanes.keys()
        changed: dict[tuple[str, str, str], list[int]] = {}
        restored: dict[str, list[tuple[int, int, float]]] = {}
        for key, lane in lanes.items():
            status = lane.status
            _, state, restarts = (lane, LaneState.STARTING, 0) if key in gained else self._lanes[key]
            if key in gained:
                self._since[key] = now
            if status.restarts > restarts:
                kind = "halted" if status.state is LaneState.HALTED else "restarted"
                changed.setdefault((key[0], kind, (status.error or "")[:TEXT_MOST]), []).append(key[1])
            if status.state is LaneState.RUNNING and state is not LaneState.RUNNING:
                if (since := self._since.pop(key, None)) is not None:
                    restored.setdefault(key[0], []).append((key[1], status.restored, now - since))
                else:
                    changed.setdefault((key[0], "running", "again"), []).append(key[1])
        self._lanes = {key: (lane, lane.status.state, lane.status.restarts) for key, lane in lanes.items()}
        for key in lost:
            self._since.pop(key, None)
        return [
            *_assigned(now, "assigned", "given to this worker", gained),
            *_assigned(now, "assigned", "taken from this worker", lost),
            *(_restored(now, stream, done) for stream, done in restored.items()),
            *(
                Event(now, kind, text, stream, sorted(numbers))
                for (stream, kind, text), numbers in changed.items()
                if self._is_news(stream, kind, text, now)
            ),
        ]

    def _is_news(self, stream: str, kind: str, text: str, now: float) -> bool:
        if kind == "running":
            self._news = {}
            return True
        before = self._news.get((stream, text))
        if before is not None and now - before < SAY_AGAIN_S:
            return False
        self._news[stream, text] = now
        return True


def _assigned(now: float, kind: str, text: str, keys: Iterable[Key]) -> Iterable[Event]:
    by_stream: dict[str, list[int]] = {}
    for stream, number in sorted(keys):
        by_stream.setdefault(stream, []).append(number)
    return (Event(now, kind, text, stream, numbers) for stream, numbers in by_stream.items())


def _restored(now: float, stream: str, done: list[tuple[int, int, float]]) -> Event:
    records, longest_s = sum(each[1] for each in done), max(each[2] for each in done)
    text = f"{records:,} changelog records, within {max(LOOK_EVERY_S, longest_s):.0f} s"
    return Event(now, "restored", text, stream, sorted(each[0] for each in done))


class WorkerEvents:
    """Writer of a worker's events: checks its lanes periodically and appends each change to the file."""

    def __init__(self, folder: Path, version: str, lanes: Callable[[], Mapping[Key, Lane]]) -> None:
        self._log, self._version, self._lanes = EventLog(folder / "events.ndjson"), version, lanes
        self._watch, self._started_at = LaneWatch(), time.time()

    async def run(self) -> None:
        """Check the lanes once a second and write their events, until cancelled."""
        await self._write([Event(self._started_at, "started", f"Ratchet {self._version}")])
        try:
            while True:
                await self._write(self._watch.look(self._lanes()))
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            await self._write([Event(time.time(), "stopped", "on request, or by a crash with an error in its log")])

    async def _write(self, events: list[Event]) -> None:
        if not events:
            return
        try:
            await asyncio.to_thread(self._log.append, events)
        except OSError as error:
            log.warning("events were not written", file=str(self._log.path), reason=str(error))

    async def answer(self, begin: float) -> EventsAnswer:
        """Return the worker's version and start, and its newest events. begin: as in `EventLog.read`."""
        events = await asyncio.to_thread(self._log.read, begin)
        return EventsAnswer(self._version, self._started_at, events)
