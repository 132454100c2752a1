"""How far a job is, without Spark and without taking over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_sink._plan import TopicPlanner
from spark_sink._store import ResultStore


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

    @property
    def lag(self) -> dict[int, int]:
        """Offsets left to read per partition; markers and aborted records count."""
        return {p: end - self.offsets.get(p, self.earliest[p]) for p, end in self.end.items()}

    def as_dict(self) -> dict[str, Any]:
        """For one line of JSON."""
        return {
            "generation": self.generation,
            "partitions": {
                str(partition): {"offset": self.offsets.get(partition), "end": end, "lag": self.lag[partition]}
                for partition, end in self.end.items()
            },
            "lag": sum(self.lag.values()),
        }


def standing(store: ResultStore, planner: TopicPlanner) -> Standing:
    """Ask the store, then the topic.

    Raises:
        SinkError: see `ResultStore.offsets` and `TopicPlanner.extent`.
    """
    generation, offsets = store.generation(), store.offsets()
    extent = planner.extent()
    return Standing(generation, offsets, extent.earliest, extent.end)
