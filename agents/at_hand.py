"""Current event of a run, and stream time of a partition, for tables with event time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from kafka_ratchet.agents.event import known_times
from kafka_ratchet.agents.reading import NO_RECORD, NO_ROWS, Reading
from kafka_ratchet.tables.values.own_table import NO_TIME, NO_TIMESTAMP
from kafka_ratchet.tables.values.partition import PartitionTables
from kafka_ratchet.transport.batch.record_batch import RecordBatch

log = structlog.get_logger(__name__)

SAY_AGAIN_S: Final = 10.0
"""Minimum seconds between two warnings about timestamps far ahead; a line for each event would fill the disk."""
FAR_MS: Final = 3_600_000
"""Minimum lead of a timestamp over the stream time for a warning, in milliseconds.

Such a timestamp may expire windows before all of their events have been read.
"""


class CurrentRecord:
    """Current record of a run, for tables with event time; implements `tables.values.windows.CurrentEvent`.

    The stream time is computed when a table first asks for it, so that programs without windows need not compute it.
    """

    def __init__(self, partition: PartitionTables, reading: Reading) -> None:
        """Start without a batch.

        Args:
            partition: tables of the partition, with the stream time before the batch
            reading: reading of the run, with the batch and the current record
        """
        self._partition, self._reading = partition, reading
        self._rows = NO_ROWS
        self._stamps: list[int] | None = None
        self._times: list[int] | None = None

    def take(self, rows: NDArray[np.int64]) -> None:
        """Begin the next batch.

        rows: indexes in the batch of the records that the agent processes.
        """
        self._rows, self._stamps, self._times = rows, None, None

    @property
    def timestamp(self) -> int | None:
        """Return the current record's timestamp, as described in `CurrentEvent`."""
        delivery, index = self._reading.delivery, self._reading.index
        if delivery is None or index == NO_RECORD:
            return None
        if self._stamps is None:
            self._stamps = delivery.batch.timestamps.tolist()
        return self._stamps[index]

    @property
    def stream_time(self) -> int:
        """Return the stream time at the current record, as described in `CurrentEvent`."""
        delivery, index = self._reading.delivery, self._reading.index
        if delivery is None or index == NO_RECORD:
            return self._partition.stream_time
        if self._times is None:
            batch, rows = delivery.batch, self._rows
            along = np.zeros(batch.count, np.int64)
            stamps = known_times(batch.timestamps[rows])
            along[rows] = np.maximum.accumulate(np.maximum(stamps, self._partition.stream_time))
            self._times = along.tolist()
        return self._times[index]

    @property
    def place(self) -> str:
        """Return the current record's topic, partition and offset for messages, as described in `CurrentEvent`."""
        return self._reading.place


class StreamClock:
    """Stream time of a partition, advanced batch by batch.

    `advance` warns of an event far ahead of all earlier ones.
    """

    def __init__(self, partition: PartitionTables, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with the partition's stream time. clock: monotonic seconds, used to limit log lines."""
        self._partition, self._clock = partition, clock
        self._logged_at = -SAY_AGAIN_S

    def advance(self, batch: RecordBatch, rows: NDArray[np.int64]) -> None:
        """Advance the stream time by the records of a batch.

        rows: int64[records], indexes in the batch; at least one.
        """
        rows = rows[batch.timestamps[rows] != NO_TIMESTAMP]
        if not len(rows):
            return
        before, stamps = self._partition.stream_time, batch.timestamps[rows]
        self._partition.advance(int(stamps.max()))
        first = stamps[0] if before == NO_TIME else before
        along = np.maximum.accumulate(np.concatenate(([first], stamps)))
        steps = np.diff(along)
        at = int(steps.argmax())
        if steps[at] <= FAR_MS or self._clock() - self._logged_at < SAY_AGAIN_S:
            return
        self._logged_at = self._clock()
        log.warning(
            "the timestamp of one event is far ahead of all earlier ones, and windows expire by it. If it is wrong, "
            "set message.timestamp.after.max.ms for the topic, so that Kafka refuses such events",
            topic=batch.topic,
            partition=batch.partition,
            offset=int(batch.offsets[rows[at]]),
            event_timestamp=int(stamps[at]),
            stream_time=int(along[at]),
        )
