"""Histories, events and policy intervals of all workers, for the page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from kafka_ratchet.app.status.cluster_view import ClusterView
from kafka_ratchet.app.status.history import (
    LAG_EVERY_S,
    Event,
    EventsAnswer,
    History,
    HistoryAnswer,
    HistoryQuery,
    Interval,
    IntervalsAnswer,
    merge_history,
)

SETTLED_S: Final = 12
"""Seconds from the end of a row's time until every worker has added the row to its history."""
RANGES: Final = {"1h": (3_600, 10), "6h": (21_600, 60), "24h": (86_400, 300)}
"""Spans of the page's history by name: (seconds of the span, seconds of a step)."""
FRESH_FOR_S: Final = {"1h": 5.0, "6h": 30.0, "24h": 60.0}
"""Minimum seconds between two requests to the workers, by span, however many pages are open."""
KEPT_MOST: Final = 256
"""Maximum number of histories to keep in memory, one for each stream and span."""


@dataclass(frozen=True, slots=True)
class WorkerPast:
    """Worker with its version and start time; None in a field: the worker did not answer, or does not report the field.

    program: digest of the worker's program; "": no program
    """

    name: str
    url: str
    error: str | None
    version: str | None = None
    started_at: float | None = None
    program: str = ""


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """Event in a worker, with the worker's name."""

    worker: str
    event: Event


@dataclass(frozen=True, slots=True)
class Pasts:
    """All workers, and the events in them, the newest first."""

    workers: list[WorkerPast]
    events: list[WorkerEvent] = field(default_factory=list)


class PastView:
    """Reader of all workers' histories, which keeps their answers for some seconds."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._kept: dict[tuple[str, str], tuple[float, History]] = {}
        self._asking = asyncio.Lock()

    async def history(self, stream: str, span: str, partitions: int) -> History:
        """Return a stream's history. span: one of RANGES; partitions: number of the stream's partitions."""
        async with self._asking:
            now = asyncio.get_running_loop().time()
            kept = self._kept.get((stream, span))
            if kept is not None and now - kept[0] < FRESH_FOR_S[span]:
                return kept[1]
            length, step = RANGES[span]
            end = (int(time.time()) - SETTLED_S) // step * step
            found = await self._ask(HistoryQuery(stream, end - length, end - 1, step), partitions)
            if len(self._kept) >= KEPT_MOST:
                self._kept.clear()
            self._kept[stream, span] = now, found
            return found

    async def lags(self, stream: str, numbers: Sequence[int], partitions: int) -> dict[int, list[tuple[int, int]]]:
        """Return the lags of the partitions `numbers` in the last six hours, as (seconds since the epoch, records)."""
        end = int(time.time())
        query = HistoryQuery(stream, end - 6 * 3_600, end, 6 * LAG_EVERY_S, tuple(numbers))
        return (await self._ask(query, partitions)).lags

    async def _ask(self, query: HistoryQuery, partitions: int) -> History:
        answers, failures = await self._cluster.ask_workers("/status/history", query.parameters(), HistoryAnswer)
        problems = [f"worker {name} returned no history: {failure}" for name, failure in sorted(failures.items())]
        return merge_history(query, answers.values(), partitions, problems)

    async def intervals(self, stream: str) -> list[Interval]:
        """Return the policy intervals of all served partitions, sorted by partition, the newest of each first."""
        answers, _ = await self._cluster.ask_workers("/status/intervals", {"stream": stream}, IntervalsAnswer)
        found = {(each.partition, each.number): each for answer in answers.values() for each in answer.intervals}
        return sorted(found.values(), key=lambda each: (each.partition, -each.number))

    async def pasts(self, span_s: int) -> Pasts:
        """Return all workers with their events of the last `span_s` seconds."""
        begin = str(int(time.time()) - span_s)
        overview = await self._cluster.overview()
        answers, _ = await self._cluster.ask_workers("/status/events", {"from": begin}, EventsAnswer)
        workers = []
        for worker in overview.workers:
            name = worker.name or worker.url
            told = answers.get(name)
            version, started = (told.version, told.started_at) if told else (None, None)
            workers.append(WorkerPast(name, worker.url, worker.error, version, started, worker.program))
        events = [WorkerEvent(name, event) for name, answer in answers.items() for event in answer.events]
        return Pasts(workers, sorted(events, key=lambda each: -each.event.at))
