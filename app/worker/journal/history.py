"""A day of a worker's counts, in files of fixed size next to its state (docs/decisions/0050).

STREAM.counts   a row of 12 integers every 10 seconds: 830 KB
STREAM.lags     a row every minute, with an integer for each partition: 11.5 KB a partition, plus 23 KB

The values are read from memory once in ten seconds, and written in a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from kafka_ratchet.app.status.history import (
    COUNTS,
    EVERY_S,
    LAG_EVERY_S,
    LAG_ROWS,
    ROWS,
    HistoryAnswer,
    HistoryQuery,
    StreamPoints,
)
from kafka_ratchet.app.worker.journal.ring import RingFile, Values

log = structlog.get_logger(__name__)

FIELDS: Final = ("partitions", *COUNTS, "arrived", "lag", "lag_ms")
LAG, LAG_MS, ARRIVED = FIELDS.index("lag"), FIELDS.index("lag_ms"), FIELDS.index("arrived")
UNKNOWN: Final = -1


class ServedPartition(Protocol):
    """Status of a lane that the history records."""

    @property
    def position(self) -> int | None:
        """Return the next input offset to read."""

    @property
    def end(self) -> int | None:
        """Return the end offset of the input partition; None: not known."""

    def lag_s(self, now_s: float) -> float | None:
        """Return the lane's time lag in seconds; None: not known. now_s: seconds since the epoch."""


class Source(Protocol):
    """Numbers of one of this worker's streams that the history records."""

    @property
    def partitions(self) -> int:
        """Return the number of partitions of the stream, in all workers together."""

    def counted(self) -> NDArray[np.int64]:
        """Return the records that this worker has committed since its start: int64[6] in the order of COUNTS."""

    def served(self) -> Mapping[int, ServedPartition]:
        """Return the lanes of this worker by partition number."""


class StreamHistory:
    """History of one stream: two ring files, and the values of the previous row."""

    def __init__(self, folder: Path, name: str, source: Source) -> None:
        self.source = source
        self.counts = RingFile(folder / f"{name}.counts", EVERY_S, ROWS, len(FIELDS))
        self.lags = RingFile(folder / f"{name}.lags", LAG_EVERY_S, LAG_ROWS, source.partitions)
        self._counted = np.zeros(len(COUNTS), np.int64)
        self._ends: dict[int, int] = {}

    def take(self, now_s: float) -> tuple[Values, Values]:
        """Return the next row of each file: the counts since the last call, and the lags in records.

        The counts are in the order of FIELDS, the lags in the order of the partitions.
        """
        counted, lanes = self.source.counted(), self.source.served()
        row, lags = np.full(len(FIELDS), UNKNOWN, np.int64), np.full(self.source.partitions, UNKNOWN, np.int64)
        ends, seconds = {}, []
        for number, lane in lanes.items():
            if lane.end is not None:
                ends[number] = lane.end
                if lane.position is not None:
                    lags[number] = max(0, lane.end - lane.position)
            if (lag_s := lane.lag_s(now_s)) is not None:
                seconds.append(lag_s)
        row[0], row[1 : 1 + len(COUNTS)] = len(lanes), counted - self._counted
        row[ARRIVED] = sum(max(0, end - self._ends[number]) for number, end in ends.items() if number in self._ends)
        known = lags[lags >= 0]
        if lanes and len(known) == len(lanes):
            row[LAG] = known.sum()
        if seconds:
            row[LAG_MS] = int(max(seconds) * 1000)
        self._counted, self._ends = counted.copy(), ends
        return row, lags

    def write(self, slot: int, row: Values, lags: Values) -> None:
        """Write the two rows that `take` returned to the files; call in a thread.

        If the file already has a row for this slot, as after a restart, the counts of both are added up.
        """
        _, before = self.counts.read(slot, slot)
        if len(before):
            row = row.copy()
            row[1:LAG] += before[0, 1:LAG]
        self.counts.write(slot, row)
        if (slot + 1) * EVERY_S % LAG_EVERY_S == 0:
            self.lags.write(slot * EVERY_S // LAG_EVERY_S, lags)

    def answer(self, query: HistoryQuery) -> HistoryAnswer:
        """Read the points of a query from the files; call in a thread."""
        slots, rows = self.counts.read(query.begin // EVERY_S, query.end // EVERY_S)
        wanted = {number for number in query.partitions if 0 <= number < self.source.partitions}
        lags: dict[int, list[tuple[int, int]]] = {}
        if wanted:
            minutes, values = self.lags.read(query.begin // LAG_EVERY_S, query.end // LAG_EVERY_S)
            for number in wanted:
                known = values[:, number] >= 0
                moments = (minutes[known] * LAG_EVERY_S).tolist()
                lags[number] = list(zip(moments, values[known, number].tolist(), strict=True))
        return HistoryAnswer(query.stream, query.step_s, _points(slots, rows, query.step_s), lags)


def _points(slots: Values, rows: Values, step_s: int) -> StreamPoints:
    """Add up rows into steps of `step_s` seconds.

    The lag in records of a step comes from its last row; None without that row. The lag in time is the longest of the
    step.
    """
    if not len(slots):
        return StreamPoints(counts={name: [] for name in COUNTS})
    steps = slots * EVERY_S // step_s
    firsts = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1))
    sums = np.add.reduceat(np.maximum(rows, 0), firsts, axis=0)
    lasts = np.append(firsts[1:], len(steps)) - 1
    is_end = (slots[lasts] + 1) * EVERY_S % step_s == 0
    longest = np.maximum.reduceat(rows[:, LAG_MS], firsts)
    lag = np.where(is_end, rows[lasts, LAG], UNKNOWN)
    return StreamPoints(
        (steps[firsts] * step_s).tolist(),
        (sums[:, 0] * EVERY_S).tolist(),
        {name: sums[:, 1 + index].tolist() for index, name in enumerate(COUNTS)},
        sums[:, ARRIVED].tolist(),
        [None if each < 0 else each for each in lag.tolist()],
        [None if each < 0 else each for each in longest.tolist()],
    )


class WorkerHistory:
    """History of all streams of a worker. If its folder cannot be used, a warning is logged and nothing is kept."""

    def __init__(self, folder: Path, sources: Mapping[str, Source], clock: Callable[[], float] = time.time) -> None:
        self._folder, self._clock = folder, clock
        self.streams = {name: StreamHistory(folder, name, source) for name, source in sources.items()}
        self._is_open = False

    def open(self) -> None:
        """Open the files, or create them."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for ring in self._rings():
                ring.open()
        except OSError as error:
            self.close()
            log.warning(
                "the worker keeps no history, because its folder cannot be used",
                folder=str(self._folder),
                reason=str(error),
            )
        else:
            self._is_open = True

    def close(self) -> None:
        """Close the files."""
        self._is_open = False
        for ring in self._rings():
            ring.close()

    def _rings(self) -> Iterable[RingFile]:
        return (ring for stream in self.streams.values() for ring in (stream.counts, stream.lags))

    async def run(self) -> None:
        """Write a row at the end of each step, and one for the unfinished step when cancelled."""
        await asyncio.to_thread(self.open)
        try:
            while self._is_open:
                now = self._clock()
                slot = int(now // EVERY_S)
                await asyncio.sleep((slot + 1) * EVERY_S - now + 0.05)
                await self.write(slot)
        finally:
            if self._is_open:
                await self.write(int(self._clock() // EVERY_S))
            self.close()

    async def write(self, slot: int) -> None:
        """Write every stream's row for a slot. slot: number of the step since the epoch."""
        taken = [(stream, *stream.take(self._clock())) for stream in self.streams.values()]

        def write() -> None:
            for stream, row, lags in taken:
                stream.write(slot, row, lags)

        try:
            await asyncio.to_thread(write)
        except OSError as error:
            log.warning("a row of the history was not written", folder=str(self._folder), reason=str(error))

    async def answer(self, query: HistoryQuery) -> HistoryAnswer | None:
        """Return the points of a query; None if this worker has no such stream, or keeps no history."""
        if query.stream not in self.streams or not self._is_open:
            return None
        return await asyncio.to_thread(self.streams[query.stream].answer, query)
