"""Watches the topics while the worker runs: their partition counts, and whether they are still the same topics.

A producer that learns of more partitions sends a key elsewhere. Last sequences are kept by partition, so a record that
is sent again after that would be new where it arrives. Nothing in the record tells; the count does. A topic that was
deleted and created again has another id; a lane finds that out by itself for the input, from which it fetches by id,
and is told of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kafka_ratchet.errors import PartitionsDiffer
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.topic_id import TopicState

ASK_EVERY_S: Final = 1.0
"""Producers learn of new partitions within minutes (metadata.max.age.ms), those that just start at once. One small
request a second for all topics together costs nothing that can be measured."""


async def watch(
    cluster: Cluster,
    inputs: Mapping[str, int],
    others: Iterable[str] = (),
    tell: Callable[[Mapping[str, TopicState]], None] = lambda topics: None,
) -> None:
    """Return never; raise when an input has other partitions than it had.

    Args:
        cluster: connected.
        inputs: partitions of each input topic as the worker found them.
        others: more topics to look at.
        tell: called with all of them that there are, each time.

    Raises:
        PartitionsDiffer: one was given more.
    """
    while True:
        topics = await cluster.topics([*inputs, *others])
        tell(topics)
        for topic, before in inputs.items():
            if topic in topics and topics[topic].partitions > before:
                raise PartitionsDiffer(
                    f"{topic}: had {before} partitions when this worker started, and has {topics[topic].partitions} "
                    "now. Keys have moved between partitions, so records that are sent again could no longer be "
                    "recognised; the worker stops. The way to more partitions is in docs/guide/partitions.md"
                )
        await asyncio.sleep(ASK_EVERY_S)
