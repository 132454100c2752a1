"""How far a job is, without Spark and without taking over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from kafka_ratchet.spark_sink.errors import SinkError
from kafka_ratchet.spark_sink.job.lag import waiting_s
from kafka_ratchet.spark_sink.job.plan import OffsetRange, TopicPlanner, resume
from kafka_ratchet.spark_sink.stores.store import ResultStore


@dataclass(frozen=True)
class SinkStatus:
    """What the store has of a topic, next to what the topic has."""

    generation: int
    """How often a job of the name has taken over."""
    offsets: dict[int, int]
    """Next offset to read per partition, where one is stored."""
    offset_range: OffsetRange
    waiting_s: dict[int, float] = field(default_factory=dict)
    """See `lag.waiting_s`."""
    trouble: str = ""
    """Reason why the job does not go on from these offsets; empty: it does."""

    @property
    def end(self) -> dict[int, int]:
        """Return the high watermark of each partition, or the last stable offset where that alone is known."""
        return self.offset_range.top

    @property
    def lag(self) -> dict[int, int | None]:
        """Offsets left to read per partition; None where the stored offset is not in the topic.

        Markers and aborted records count.
        """
        held, lag = self.offset_range, self.offset_range.lag(self.offsets)
        return {
            partition: left if held.earliest[partition] <= self.offsets.get(partition, end) <= end else None
            for (partition, end), left in zip(self.end.items(), lag.values(), strict=True)
        }

    @property
    def total_lag(self) -> int | None:
        """Offsets left to read; None where the job does not go on."""
        lags = list(self.lag.values())
        known = [lag for lag in lags if lag is not None]
        return None if self.trouble or len(known) < len(lags) else sum(known)

    @property
    def lag_s(self) -> dict[int, float | None]:
        """Age in seconds of the oldest record that the table lacks; 0 where it has all, None where `lag` is None."""
        return {
            partition: None if lag is None else round(self.waiting_s.get(partition, 0.0), 3)
            for partition, lag in self.lag.items()
        }

    @property
    def total_lag_s(self) -> float | None:
        """The greatest `lag_s`; None where the job does not go on."""
        known = [seconds for seconds in self.lag_s.values() if seconds is not None]
        return None if self.total_lag is None else max(known, default=0.0)

    @property
    def stalled(self) -> tuple[str, str] | None:
        """Return cause and sentence of a standstill that Kafka and the store show; None where there is none."""
        if self.trouble:
            return "halted", self.trouble
        blocked = self.offset_range.blocked
        waits = {number: lag for number, lag in self.lag.items() if lag}
        if waits and all(lag <= blocked.get(number, 0) for number, lag in waits.items()):
            return "open-transaction", f"{sum(waits.values()):,} offsets wait behind an open transaction"
        return None

    def as_dict(self) -> dict[str, Any]:
        """The line that `--json` prints."""
        return {
            "generation": self.generation,
            "partitions": {
                str(partition): {
                    "offset": self.offsets.get(partition),
                    "end": end,
                    "lag": self.lag[partition],
                    "lag_s": self.lag_s[partition],
                    **self._open(partition),
                }
                for partition, end in self.end.items()
            },
            "lag": self.total_lag,
            "lag_s": self.total_lag_s,
            "trouble": self.trouble or None,
            **({"stalled": {"cause": self.stalled[0], "text": self.stalled[1]}} if self.stalled else {}),
        }

    def _open(self, partition: int) -> dict[str, int]:
        """Return the keys of a partition with an open transaction; nothing for others."""
        if not (blocked := self.offset_range.blocked.get(partition)):
            return {}
        return {"stable_end": self.offset_range.end[partition], "blocked": blocked}


def sink_status(
    store: ResultStore, planner: TopicPlanner, require_startable: Callable[[], object] = lambda: None
) -> SinkStatus:
    """Ask the store, then the topic.

    Args:
        store: not open.
        planner: of the job's topic.
        require_startable: raises a `SinkError` where the job would refuse to start.

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
