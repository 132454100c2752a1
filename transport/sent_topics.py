"""Topics besides its output that a lane writes to in its transactions: those to which agents send."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from kafka_ratchet.errors import PartitionsDiffer
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.topic_id import TopicState


class SentTopic(NamedTuple):
    """A topic to which agents send.

    partitions: how many it has; 0 until the lane has asked
    limit: bytes, max.message.bytes; 0 until the lane has asked
    read_by: the stream of this application whose input it is: its count may not change; "" where it is none
    """

    partitions: int = 0
    limit: int = 0
    read_by: str = ""


SentTopics = Mapping[str, SentTopic]
"""By name."""


async def ask(cluster: Cluster, sends: SentTopics, connection: Hashable) -> SentTopics:
    """Partition counts and limits as they are now.

    Raises:
        TopicReplaced: one does not exist.
        PartitionsDiffer: a stream's input has another count than the worker found when it started.
        TransportError: this user may not ask.
    """
    there, limits = await cluster.found(sends), await cluster.message_limits(sends, connection)
    for name, (before, _, stream) in sends.items():
        if stream and there[name].partitions != before:
            raise PartitionsDiffer(
                f"{name}: had {before} partitions when this worker started, and has {there[name].partitions} now. It "
                f"is the input of stream {stream}: a key that is sent would go to another partition than before. See "
                "docs/guide/partitions.md"
            )
    return {name: SentTopic(there[name].partitions, limits[name], each.read_by) for name, each in sends.items()}


def changed(sends: SentTopics, topics: Mapping[str, TopicState]) -> str | None:
    """One that has another partition count now, if there is one. topics: as they are now, by name."""
    return next((name for name in sends if name in topics and topics[name].partitions != sends[name].partitions), None)
