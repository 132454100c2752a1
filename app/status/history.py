"""History of counts: the answer of one worker, and the merged answers of all workers.

Each worker counts only its own commits, so sums over workers count no record twice, even if partitions have moved.
The counts of a lost worker are missing; the field `covered` shows for how much of the time there are counts.

    GET /status/history?stream=S[&from=SECONDS][&to=SECONDS][&step=SECONDS][&partitions=0,1]
    GET /status/events[?from=SECONDS]     rebalances, restores, restarts
    GET /status/intervals?stream=S        ranges of input offsets with their policy
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
from aiohttp import web

from kafka_ratchet.app.status.lookup import QueryError, parse_query
from kafka_ratchet.rule.verdicts import COUNTERS, DUPLICATE, UNJUDGED

EVERY_S: Final = 10
"""Seconds that each row of a worker's history covers."""
ROWS: Final = 8_640
"""Maximum number of rows of a worker's history: a day."""
LAG_EVERY_S: Final = 60
LAG_ROWS: Final = 1_440
"""Maximum number of rows with the lag of each partition: a day, with one row a minute."""

COUNTS: Final = tuple(COUNTERS)
POINTS_MOST: Final = 2_000
"""Maximum number of steps of time in one answer."""
PARTITIONS_MOST: Final = 200
"""Maximum number of partitions with a lag in one answer."""


@dataclass(frozen=True, slots=True)
class StreamPoints:
    """Counts of one stream by step of time. Each list has one entry for each step.

    times: ascending start times of the steps, in seconds since the epoch; steps without data are omitted.
    covered: served seconds of the step, summed over partitions: 4 served partitions in 10 seconds give 40.
    counts: number of records committed in the step, by name in COUNTS.
    arrived: number of offsets added to the input in the step.
    lag: number of records left to read at the end of the step; None: unknown.
    lag_ms: the longest time lag of a partition, in ms; None: unknown.
    """

    times: list[int] = field(default_factory=list)
    covered: list[int] = field(default_factory=list)
    counts: dict[str, list[int]] = field(default_factory=dict)
    arrived: list[int] = field(default_factory=list)
    lag: list[int | None] = field(default_factory=list)
    lag_ms: list[int | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class HistoryAnswer:
    """Body of GET /status/history.

    step_s: seconds of each step; lags: by partition, its lags as (seconds since the epoch, number of records)
    """

    stream: str
    step_s: int
    points: StreamPoints
    lags: dict[int, list[tuple[int, int]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """Event in a worker, such as a start or a halt.

    at: time in seconds since the epoch.
    kind: started, stopped, assigned, restored, restarted, halted or running.
    stream, partitions: stream and partitions of the event, if it has any.
    text: sentence for display.
    """

    at: float
    kind: str
    text: str
    stream: str | None = None
    partitions: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EventsAnswer:
    """Body of GET /status/events, the newest event last."""

    version: str
    started_at: float
    events: list[Event]


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Query of a stream's history.

    begin, end: seconds since the epoch; step_s: seconds of each step; partitions: partitions to return the lag for
    """

    stream: str
    begin: int
    end: int
    step_s: int = EVERY_S
    partitions: tuple[int, ...] = ()

    def parameters(self) -> dict[str, str]:
        """Return the query as parameters of an address."""
        told = {"stream": self.stream, "from": str(self.begin), "to": str(self.end), "step": str(self.step_s)}
        return told | ({"partitions": ",".join(map(str, self.partitions))} if self.partitions else {})


def parse_history_query(query: Mapping[str, str]) -> HistoryQuery:
    """Return the history query in the parameters of an address; `to` defaults to now, `from` to an hour before `to`.

    Raises:
        QueryError: a parameter is invalid, or the query is too large for one answer.
    """
    end = _number(query, "to", int(time.time()))
    begin = _number(query, "from", end - 3_600)
    step = _number(query, "step", EVERY_S)
    if step < EVERY_S or step % EVERY_S:
        raise QueryError(f"step must be {EVERY_S} or a multiple of {EVERY_S}, in seconds")
    if not 0 <= end - begin <= POINTS_MOST * step:
        raise QueryError(
            f"from is {begin} and to is {end}: from must not be after to, and at most {POINTS_MOST:,} steps of "
            f"{step} s before it. Correct from, or give a longer step"
        )
    try:
        numbers = tuple(int(each) for each in query.get("partitions", "").split(",") if each)
    except ValueError:
        raise QueryError("partitions must be numbers separated by commas") from None
    if len(numbers) > PARTITIONS_MOST:
        raise QueryError(f"more than {PARTITIONS_MOST} partitions are requested. Ask for fewer at a time")
    return HistoryQuery(query.get("stream", ""), begin, end, step, numbers)


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise QueryError(f"{name} must be a whole number of seconds")
    return int(text)


@dataclass(frozen=True, slots=True)
class History:
    """History of a stream, merged from all workers.

    points: sums over the workers; the lag of a step is unknown if two workers reported the same partition in it.
    missing_s: seconds of each step without a worker's report, summed over partitions.
    """

    stream: str
    step_s: int
    partitions: int
    points: StreamPoints
    missing_s: list[int]
    problems: list[str] = field(default_factory=list)
    lags: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    @property
    def covered(self) -> float | None:
        """Return the share, 0 to 1, of the partitions' time that workers have reported; None without data."""
        all_s = len(self.points.times) * self.step_s * self.partitions
        return 1 - sum(self.missing_s) / all_s if all_s else None

    def total(self, name: str) -> int:
        """Return the sum of a count over all steps. name: one of the names in COUNTS."""
        return sum(self.points.counts.get(name, ()))

    @property
    def duplicate_ratio(self) -> float | None:
        """Return the share of duplicates among judged records, 0 to 1; None without judged records."""
        judged = sum(self.total(name) for name in COUNTS if name != UNJUDGED)
        return self.total(DUPLICATE) / judged if judged else None


def merge_history(
    query: HistoryQuery, answers: Iterable[HistoryAnswer], partitions: int, problems: Iterable[str] = ()
) -> History:
    """Return the history of a stream, merged from the workers' answers. partitions: the stream's partition count."""
    usable = [each for each in answers if each.stream == query.stream and each.step_s == query.step_s]
    rows: dict[int, list[tuple[StreamPoints, int]]] = {}
    for answer in usable:
        for index, moment in enumerate(answer.points.times):
            rows.setdefault(moment, []).append((answer.points, index))
    merged = StreamPoints(counts={name: [] for name in COUNTS})
    missing = []
    for moment, told in sorted(rows.items()):
        covered = sum(points.covered[index] for points, index in told)
        merged.times.append(moment)
        merged.covered.append(covered)
        merged.arrived.append(sum(points.arrived[index] for points, index in told))
        for name in COUNTS:
            merged.counts[name].append(sum(points.counts[name][index] for points, index in told))
        lags = [points.lag[index] for points, index in told]
        seconds = [points.lag_ms[index] for points, index in told]
        is_whole = covered == partitions * query.step_s
        merged.lag.append(_sum(lags) if is_whole else None)
        merged.lag_ms.append(max((each for each in seconds if each is not None), default=None))
        missing.append(max(0, partitions * query.step_s - covered))
    return History(query.stream, query.step_s, partitions, merged, missing, [*problems], _lags(usable))


def _sum(lags: list[int | None]) -> int | None:
    known = [lag for lag in lags if lag is not None]
    return sum(known) if len(known) == len(lags) else None


def _lags(answers: Iterable[HistoryAnswer]) -> dict[int, list[tuple[int, int]]]:
    """Return the lag of each partition by minute.

    If two workers reported a partition, the greater lag counts.
    """
    found: dict[int, dict[int, int]] = {}
    for answer in answers:
        for number, points in answer.lags.items():
            mine = found.setdefault(number, {})
            for moment, lag in points:
                mine[moment] = max(lag, mine.get(moment, 0))
    return {number: sorted(points.items()) for number, points in found.items()}


INTERVALS_MOST = 1_000
"""Maximum number of policy intervals in one answer, the newest of each partition first."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Range [start, end) of a partition's input offsets with the same policy; end: None: it continues."""

    partition: int
    number: int
    deduplicate: bool
    start: int
    end: int | None
    unjudged: int


@dataclass(frozen=True, slots=True)
class IntervalsAnswer:
    """Body of GET /status/intervals. A partition without an interval was deduplicated from its beginning."""

    intervals: list[Interval] = field(default_factory=list)


class HistoryProvider(Protocol):
    """Interface of a worker's history for its status address."""

    async def history(self, query: HistoryQuery) -> HistoryAnswer | None:
        """Return the history of a stream; None if the stream is unknown or has no history."""

    async def events(self, begin: float) -> EventsAnswer:
        """Return the newest events since a moment, given in seconds since the epoch."""

    def intervals(self, stream: str) -> list[Interval]:
        """Return the policy intervals of the partitions on this worker."""


def add_history(application: web.Application, provider: HistoryProvider) -> None:
    """Add the history's addresses to the status server."""

    async def history(request: web.Request) -> web.Response:
        query = parse_history_query(parse_query(request.rel_url.raw_query_string))
        answer = await provider.history(query)
        if answer is None:
            raise QueryError(f"this worker has no history of a stream {query.stream!r:.100}")
        return _json(answer)

    async def events(request: web.Request) -> web.Response:
        text = parse_query(request.rel_url.raw_query_string).get("from") or "0"
        if not (text.isascii() and text.isdigit() and len(text) <= 12):
            raise QueryError("from must be a whole number of seconds since the epoch")
        return _json(await provider.events(int(text)))

    async def intervals(request: web.Request) -> web.Response:
        stream = parse_query(request.rel_url.raw_query_string).get("stream", "")
        return _json(IntervalsAnswer(provider.intervals(stream)[:INTERVALS_MOST]))

    application.router.add_get("/status/history", history)
    application.router.add_get("/status/events", events)
    application.router.add_get("/status/intervals", intervals)


def _json(body: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json", charset="utf-8")
