"""Progress of a job, without Spark and without taking over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kafka_ratchet.spark_sink.errors import SinkError
from kafka_ratchet.spark_sink.job.lag import waiting_s
from kafka_ratchet.spark_sink.job.plan import OffsetRange, TopicPlanner, resume
from kafka_ratchet.spark_sink.stores.store import ResultStore


@dataclass(frozen=True)
class SinkStatus:
    """Progress of a job: stored offsets compared with the topic's offsets."""

    generation: int
    """Number of take-overs by jobs of the name."""
    offsets: dict[int, int]
    """Next offset to read per partition, if one is stored."""
    offset_range: OffsetRange
    waiting_s: dict[int, float] = field(default_factory=dict)
    """Ages of missing records, see `lag.waiting_s`."""
    trouble: str = ""
    """Reason why the job cannot continue from these offsets; empty: it can."""

    @property
    def end(self) -> dict[int, int]:
        """Return each partition's high watermark, or its last stable offset if the watermark is unknown."""
        return self.offset_range.top

    @property
    def lag(self) -> dict[int, int | None]:
        """Return the number of offsets left to read per partition; None if the topic lacks the stored offset.

        Markers and aborted records count.
        """
        held, lag = self.offset_range, self.offset_range.lag(self.offsets)
        return {
            partition: left if held.earliest[partition] <= self.offsets.get(partition, end) <= end else None
            for (partition, end), left in zip(self.end.items(), lag.values(), strict=True)
        }

    @property
    def total_lag(self) -> int | None:
        """Return the number of offsets left to read in all partitions; None if the job cannot continue."""
        lags = list(self.lag.values())
        known = [lag for lag in lags if lag is not None]
        return None if self.trouble or len(known) < len(lags) else sum(known)

    @property
    def lag_s(self) -> dict[int, float | None]:
        """Return the age in seconds of each partition's oldest missing record.

        The age is 0 if no record is missing, and None if `lag` is None.
        """
        return {
            partition: None if lag is None else round(self.waiting_s.get(partition, 0.0), 3)
            for partition, lag in self.lag.items()
        }

    @property
    def total_lag_s(self) -> float | None:
        """Return the greatest `lag_s` of all partitions; None if the job cannot continue."""
        known = [seconds for seconds in self.lag_s.values() if seconds is not None]
        return None if self.total_lag is None else max(known, default=0.0)

    @property
    def stalled(self) -> tuple[str, str] | None:
        """Return cause and message of a standstill that Kafka or the store shows; None: there is no standstill."""
        if self.trouble:
            return "halted", self.trouble
        blocked = self.offset_range.blocked
        waits = {number: lag for number, lag in self.lag.items() if lag}
        if waits and all(lag <= blocked.get(number, 0) for number, lag in waits.items()):
            return "open-transaction", f"{sum(waits.values()):,} offsets wait behind an open transaction"
        return None


def sink_status(
    store: ResultStore, planner: TopicPlanner, require_startable: Callable[[], object] = lambda: None
) -> SinkStatus:
    """Read the progress of a job: the store's offsets, then the topic's.

    Args:
        store: the store, not open.
        planner: planner of the job's topic.
        require_startable: function that raises a `SinkError` if the job would refuse to start.

    Raises:
        SinkError: see `ResultStore.offsets` and `TopicPlanner.offset_range`.
    """
    generation, offsets = store.generation(), store.offsets()
    high = planner.high_watermarks()  # before the last stable offsets, or records in between would seem to wait
    offset_range = replace(planner.offset_range(), high=high)
    trouble = ""
    try:
        resume(offset_range, offsets)
        require_startable()
    except SinkError as error:
        trouble = str(error)
    return SinkStatus(generation, offsets, offset_range, waiting_s(planner, offset_range, offsets), trouble)
