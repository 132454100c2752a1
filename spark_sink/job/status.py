"""How far a job is, without Spark and without taking over."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka_ratchet.spark_sink.job.plan import Extent, TopicPlanner
from kafka_ratchet.spark_sink.stores.store import ResultStore


@dataclass(frozen=True)
class Standing:
    """What the store has of a topic, next to what the topic has."""

    generation: int
    """How often a job of the name has taken over."""
    offsets: dict[int, int]
    """Next offset to read per partition, where one is stored."""
    earliest: dict[int, int]
    end: dict[int, int]
    """The last stable offsets: what can be read now."""
    waiting_s: dict[int, float] = field(default_factory=dict)
    """See `waiting_s`."""

    @property
    def lag(self) -> dict[int, int]:
        """Offsets left to read per partition; markers and aborted records count."""
        return lag_of(self.earliest, self.end, self.offsets)

    @property
    def lag_s(self) -> dict[int, float]:
        """How old the oldest record is that the table does not have yet, in seconds; 0 where it has all."""
        return {partition: self.waiting_s.get(partition, 0.0) for partition in self.end}

    def as_dict(self) -> dict[str, Any]:
        """For one line of JSON."""
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


def lag_of(earliest: Mapping[int, int], end: Mapping[int, int], stored: Mapping[int, int]) -> dict[int, int]:
    """Offsets left to read per partition."""
    return {p: max(0, offset - stored.get(p, earliest[p])) for p, offset in end.items()}


def waiting_s(planner: TopicPlanner, extent: Extent, stored: Mapping[int, int]) -> dict[int, float]:
    """Age of the oldest record that is not stored yet, by its own timestamp and this machine's clock, in seconds.

    Markers and aborted records wait for nobody: a partition that has nothing else left is missing, as is one that is
    read to its end. A timestamp of the future counts as now.

    Raises:
        KafkaUnavailable: Kafka did not answer.
    """
    found = planner.oldest(extent, stored)
    now_ms = time.time() * 1000
    return {partition: max(0.0, (now_ms - timestamp) / 1000) for partition, timestamp in found.items()}


def standing(store: ResultStore, planner: TopicPlanner) -> Standing:
    """Ask the store, then the topic.

    Raises:
        SinkError: see `ResultStore.offsets` and `TopicPlanner.extent`.
    """
    generation, offsets = store.generation(), store.offsets()
    extent = planner.extent()
    return Standing(generation, offsets, extent.earliest, extent.end, waiting_s(planner, extent, offsets))
