"""Topics that agents send to. A lane writes to these topics in its transactions, as to its output."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from kafka_ratchet.errors import PartitionsDiffer
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.topic_id import TopicState


class SentTopic(NamedTuple):
    """Topic that agents send to.

    partitions: partition count; 0 until the lane knows it.
    limit: max.message.bytes of the topic; 0 until the lane knows it.
    read_by: stream of this application that reads the topic as its input; the partition count must then not change.
    "": no such stream.
    """

    partitions: int = 0
    limit: int = 0
    read_by: str = ""


SentTopics = Mapping[str, SentTopic]
"""Sent topics by name."""


async def ask(cluster: Cluster, sends: SentTopics, connection: Hashable) -> SentTopics:
    """Return the topics with their present partition counts and limits.

    Raises:
        TopicReplaced: a topic does not exist.
        PartitionsDiffer: the topic is a stream's input, and its partition count has changed since the worker started.
        TransportError: this user has no right to describe the topics.
    """
    there, limits = await cluster.found(sends), await cluster.message_limits(sends, connection)
    for name, (before, _, stream) in sends.items():
        if stream and there[name].partitions != before:
            raise PartitionsDiffer(
                f"{name}: the topic had {before} partitions when this worker started, and has "
                f"{there[name].partitions} now. It is the input of stream {stream}: a key would now go to another "
                "partition, where duplicates pass. Move that stream to new topics; see docs/guide/partitions.md"
            )
    return {name: SentTopic(there[name].partitions, limits[name], each.read_by) for name, each in sends.items()}


def changed(sends: SentTopics, topics: Mapping[str, TopicState]) -> str | None:
    """Return the first topic with a changed partition count; None without one. topics: present topics by name."""
    return next((name for name in sends if name in topics and topics[name].partitions != sends[name].partitions), None)
