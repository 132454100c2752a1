"""History of a worker for its status address: counts, events, and policy intervals."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.app.status.history import COUNTS, EventsAnswer, HistoryAnswer, HistoryQuery, Interval
from kafka_ratchet.app.version import ratchet_version
from kafka_ratchet.app.worker.journal.events import Key, WorkerEvents
from kafka_ratchet.app.worker.journal.history import WorkerHistory
from kafka_ratchet.app.worker.views import Stream
from kafka_ratchet.transport.lane import Lane
from kafka_ratchet.transport.lane_spec import LaneStatus

FOLDER: Final = "_history"
"""Folder of the history. No stream can have this name, since stream names begin with a letter."""


class _Source:
    """Adapter of a stream to the protocol of the history (`kafka_ratchet.app.worker.journal.history.Source`)."""

    def __init__(self, stream: Stream, lanes: Mapping[tuple[str, int], Lane]) -> None:
        self._stream, self._lanes = stream, lanes

    @property
    def partitions(self) -> int:
        return self._stream.topics.partitions

    def counted(self) -> NDArray[np.int64]:
        total = np.zeros(len(COUNTS), np.int64)
        for partition in list(self._stream.sequences.partitions.values()):
            total += partition.counted
        return total

    def served(self) -> dict[int, LaneStatus]:
        changelog = self._stream.topics.changelog
        return {number: lane.status for (of, number), lane in self._lanes.items() if of == changelog}


class HistoryReader:
    """Provider of a worker's history; implements `kafka_ratchet.app.status.history.HistoryProvider`.

    Args:
        folder: folder of the application's state
        streams: streams by name
        lanes: this worker's lanes by changelog and partition, kept up to date by the caller
    """

    def __init__(self, folder: Path, streams: Mapping[str, Stream], lanes: Mapping[tuple[str, int], Lane]) -> None:
        self._streams, self._lanes = streams, lanes
        names = {stream.topics.changelog: name for name, stream in streams.items()}

        def by_stream() -> dict[Key, Lane]:
            return {(names[changelog], number): lane for (changelog, number), lane in lanes.items()}

        sources = {name: _Source(stream, lanes) for name, stream in streams.items()}
        self._history = WorkerHistory(folder / FOLDER, sources)
        self._events = WorkerEvents(folder / FOLDER, ratchet_version(), by_stream)

    async def run(self) -> None:
        """Record counts and events until cancelled. An unexpected error ends this task, but not the worker."""
        await asyncio.gather(self._history.run(), self._events.run())

    async def history(self, query: HistoryQuery) -> HistoryAnswer | None:
        """Return the points of a query; None if this worker has no such stream, or keeps no history."""
        return await self._history.answer(query)

    async def events(self, begin: float) -> EventsAnswer:
        """Return the newest events. begin: earliest time, in seconds since the epoch."""
        return await self._events.answer(begin)

    def intervals(self, stream: str) -> list[Interval]:
        """Return the policy intervals of a stream's partitions in this worker, the newest of each first."""
        if stream not in self._streams:
            return []
        at_work = self._streams[stream]
        found = []
        for (changelog, number), lane in sorted(self._lanes.items()):
            if changelog == at_work.topics.changelog:
                state: Any = lane.state
                found += _with_ends(number, sorted(state.intervals, reverse=True))
        return found


def _with_ends(number: int, intervals: list[Any]) -> list[Interval]:
    """Return a partition's policy intervals, each ending at the offset where the next one begins.

    intervals: the intervals, the newest first
    """
    ends = [None, *(each.start for each in intervals)]
    return [
        Interval(number, each.number, each.deduplicate, each.start, end, each.unjudged)
        for each, end in zip(intervals, ends, strict=False)
    ]
