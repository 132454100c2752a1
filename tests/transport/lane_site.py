"""A stream of one partition on a real Kafka, and lanes over it that deliver to the deduplicating agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Producer
from numpy.typing import NDArray

from kafka_ratchet.agents.deduplicate import Deduplicator
from kafka_ratchet.rule.extraction import reader_for
from kafka_ratchet.rule.identity import Identity, SequenceSource
from kafka_ratchet.tables.eviction import EvictionLimits
from kafka_ratchet.tables.map.map import LastSequence
from kafka_ratchet.tables.table import Sequences
from kafka_ratchet.transport.client.cluster import LATEST, Cluster
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.delivery import Delivery
from kafka_ratchet.transport.lane import Lane
from kafka_ratchet.transport.lane_spec import LaneSpec
from tests.agent_queue import AgentQueue
from tests.transport.kafka_side import Read, create_topic, has_open_transaction, read_topic, until, values

PRODUCER, SEQUENCE = "ratchet-producer", "ratchet-sequence"

MakeSite = Callable[..., "Site"]
"""The fixture of that name: from a name and the options of `Site`."""


class Site:
    """One stream of one partition: its topics, and the lanes over them."""

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        name: str,
        changelog_policy: str = "compact",
        bounds: EvictionLimits | None = None,
    ) -> None:
        self.bootstrap, self.folder, self.bounds = bootstrap, folder, bounds
        self.input = create_topic(bootstrap, f"{name}.in")
        self.output, self.dead = create_topic(bootstrap, f"{name}.out"), create_topic(bootstrap, f"{name}.dead")
        self.changelog = create_topic(
            bootstrap,
            f"{name}.changelog",
            cleanup_policy=changelog_policy,
            message_timestamp_type="LogAppendTime",
        )
        self.lanes: list[Owner] = []

    async def owner(self, state: str = "a", **options: Any) -> Owner:
        """A new owner of the partition with a connection and an agent of its own, its lane not yet started."""
        cluster = Cluster(client_options(self.bootstrap, {}))
        await cluster.start(30)
        for topic in (self.input, self.output, self.dead, self.changelog):
            await cluster.offset(topic, 0, LATEST, "here")  # a new topic's leader takes a moment to know that it is
        self.lanes.append(Owner(self, cluster, self.folder / state, options))
        return self.lanes[-1]

    def produce(self, rows: list[Read], compression: str = "none") -> None:
        """Send records to the input with confluent-kafka."""
        # All of them in one batch: it goes out at the flush, not when this thread happens to be slow.
        options = {"bootstrap.servers": self.bootstrap, "compression.type": compression, "linger.ms": 60_000}
        producer = Producer(options)
        self.send(producer, rows)
        assert producer.flush(30) == 0

    def send(self, producer: Producer, rows: list[Read]) -> None:
        for row in rows:
            producer.produce(self.input, row.value, row.key, 0, timestamp=row.timestamp, headers=list(row.headers))

    def output_values(self) -> list[bytes | None]:
        return values(read_topic(self.bootstrap, self.output))


READ = reader_for(SequenceSource.parse(f"header:{SEQUENCE}"))


class FailingDeduplicator(Deduplicator):
    """One that fails so many times, or is stopped in its next batch."""

    failing = 0
    is_stopped = False

    def judge(self, delivery: Delivery) -> NDArray[np.bool_]:
        if self.is_stopped:
            self.is_stopped = False
            raise asyncio.CancelledError
        if self.failing:
            self.failing -= 1
            raise ValueError("the agent's own mistake")
        return super().judge(delivery)


class Owner:
    """A lane, and the deduplicating agent it delivers to."""

    def __init__(self, site: Site, cluster: Cluster, folder: Path, options: dict[str, Any]) -> None:
        self.site, self.cluster = site, cluster
        self.sequences = Sequences(folder, site.changelog, Identity.PRODUCER, 1_000_000, bounds=site.bounds)
        self.deliveries, self.processor = AgentQueue(), FailingDeduplicator(self.sequences, READ)
        spec = {
            "topic": site.input,
            "partition": 0,
            "output": site.output,
            "dead_letters": site.dead,
            "group": f"group-{site.input}",
            "transactional_id": f"id-{site.input}",
            "sequence_header": SEQUENCE.encode(),
            "identity_header": PRODUCER.encode(),
            "commit_interval_ms": 20,
        }
        self.lane = Lane(cluster, LaneSpec(**{**spec, **options}), self.sequences.partition(0), self.processor)
        # Here, and not in the task: it may be cancelled before its first step.
        self.calls = self.processor.connect(self.deliveries)
        self.agent = asyncio.create_task(self.run_agent())

    async def run_agent(self) -> None:
        await self.calls.agent(self.deliveries.each())

    def last(self) -> LastSequence:
        return self.sequences.partition(0).last(b"me")

    async def reach(self, position: int) -> None:
        """Wait until everything before an input offset is committed, and to be seen."""
        await until(lambda: self.lane.status.position == position, f"position {position}")
        # Kafka says that it has committed before it writes the markers.
        here = (self.site.bootstrap, [self.site.output, self.site.dead, self.site.changelog])
        await until(lambda: not has_open_transaction(*here), "the markers")

    async def close(self) -> None:
        await self.lane.stop()
        self.agent.cancel()
        await asyncio.gather(self.agent, return_exceptions=True)
        await self.cluster.close()
