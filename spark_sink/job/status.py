"""How far a job is, without Spark and without taking over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kafka_ratchet.spark_sink.job.lag import waiting_s
from kafka_ratchet.spark_sink.job.plan import OffsetRange, TopicPlanner
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

    @property
    def end(self) -> dict[int, int]:
        """The last stable offsets: what can be read now."""
        return self.offset_range.end

    @property
    def lag(self) -> dict[int, int]:
        """Offsets left to read per partition; markers and aborted records count."""
        return self.offset_range.lag(self.offsets)

    @property
    def lag_s(self) -> dict[int, float]:
        """How old the oldest record is that the table does not have yet, in seconds; 0 where it has all."""
        return {partition: self.waiting_s.get(partition, 0.0) for partition in self.end}

    def as_dict(self) -> dict[str, Any]:
        """The line that `--json` prints."""
        return {
            "generation": self.generation,
            "partitions": {
                str(partition): {
                    "offset": self.offsets.get(partition),
                    "end": end,
                    "lag": self.lag[partition],
                    "lag_s": round(self.lag_s[partition], 3),
                }
                for partition, end in self.end.items()
            },
            "lag": sum(self.lag.values()),
            "lag_s": round(max(self.lag_s.values(), default=0.0), 3),
        }


def sink_status(store: ResultStore, planner: TopicPlanner) -> SinkStatus:
    """Ask the store, then the topic.

    Raises:
        SinkError: see `ResultStore.offsets` and `TopicPlanner.offset_range`.
    """
    generation, offsets = store.generation(), store.offsets()
    offset_range = planner.offset_range()
    return SinkStatus(generation, offsets, offset_range, waiting_s(planner, offset_range, offsets))
