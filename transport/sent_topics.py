"""Topics that agents send to: a lane writes to them in its transactions, as to its output."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from kafka_ratchet.errors import PartitionsDiffer
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.topic_id import TopicState


class SentTopic(NamedTuple):
    """Topic that agents send to.

    partitions: its partition count; 0 until the lane knows it.
    limit: bytes, max.message.bytes; 0 until the lane knows it.
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
        PartitionsDiffer: a stream's input has another count than the worker found when it started.
        TransportError: this user has no right to describe the topics.
    """
    there, limits = await cluster.found(sends), await cluster.message_limits(sends, connection)
    for name, (before, _, stream) in sends.items():
        if stream and there[name].partitions != before:
            raise PartitionsDiffer(
                f"{name}: the topic had {before} partitions when this worker started, and has "
                f"{there[name].partitions} now. It "
                f"is the input of stream {stream}: a sent key would go to another partition than before. See "
                "docs/guide/partitions.md"
            )
    return {name: SentTopic(there[name].partitions, limits[name], each.read_by) for name, each in sends.items()}


def changed(sends: SentTopics, topics: Mapping[str, TopicState]) -> str | None:
    """Return the first topic with a changed partition count; None without one. topics: present topics by name."""
    return next((name for name in sends if name in topics and topics[name].partitions != sends[name].partitions), None)
