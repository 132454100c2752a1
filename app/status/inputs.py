"""Checks for misspelt topic names: topics that do not exist, and inputs that never had a record."""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import structlog
from confluent_kafka.admin import AdminClient

from kafka_ratchet.app.settings import StreamSettings
from kafka_ratchet.errors import BrokerUnavailable, TopicMissing
from kafka_ratchet.topic_log.clients import all_topics
from kafka_ratchet.transport.client.cluster import LATEST, Cluster

log = structlog.get_logger(__name__)

LIST_AGAIN_S: Final = 1.0
"""Seconds until the topics are listed a second time, because just after its start a broker may not list all."""
ASK_EVERY_S: Final = 5.0
"""Seconds between two checks of the inputs without a record. An input with a record is not checked again."""
SAY_EVERY_S: Final = 60.0


def refuse_missing(admin: AdminClient, name: str, stream: StreamSettings, found: Collection[str]) -> None:
    """Raise an error if a topic of the stream does not exist.

    Args:
        admin: client that lists the present topics, for names similar to a missing one.
        name: name of the stream.
        stream: settings of the stream.
        found: existing topics of the stream.

    Raises:
        TopicMissing: a topic is missing; the message names topics of similar names.
        BrokerUnavailable: Kafka did not answer.
    """
    wanted = {"input": stream.input, "output": stream.output, "dead_letters": stream.dead_letters}
    if stream.duplicates is not None:
        wanted["duplicates"] = stream.duplicates
    if all(topic in found for topic in wanted.values()):
        return
    time.sleep(LIST_AGAIN_S)
    known = all_topics(admin)
    missing = {role: topic for role, topic in wanted.items() if topic not in known}
    if not missing:
        raise BrokerUnavailable(
            f"stream {name}: Kafka first listed topics of the stream as missing, and then as existing. Try again"
        )
    told = "; ".join(f"{role} {topic!r}{similar(topic, known, but=wanted.values())}" for role, topic in missing.items())
    raise TopicMissing(
        f"stream {name}: the topic for {told} does not exist, and create_topics is false, so Ratchet creates none. "
        "Correct the name, or create the topic with as many partitions as the input has"
    )


def similar(topic: str, known: Iterable[str], but: Collection[str] = ()) -> str:
    """Return " (did you mean ...?)" if a known topic has a name similar to `topic`; else "". but: topics to ignore."""
    close = difflib.get_close_matches(topic, [name for name in known if name != topic and name not in but], n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def never_had_a_record(stream: str, topic: str) -> str:
    """Return the sentence about an input that never had a record, for log, status and page."""
    return (
        f"stream {stream}: its input {topic!r} has never had a record. Check the name if its producers are running, "
        "or set create_topics = false to have a misspelt name refused"
    )


class EmptyInputs:
    """Watcher of those inputs of a worker that never had a record, because their names may be misspelt.

    Args:
        cluster: client of the Kafka cluster, which must be connected when `watch` is called.
        inputs: by stream, its input topic and the topic's partition count.
    """

    def __init__(self, cluster: Cluster, inputs: Mapping[str, tuple[str, int]]) -> None:
        self._cluster = cluster
        self._unknown = dict(inputs)
        self._empty: dict[str, str] = {}

    def problem(self, stream: str) -> str | None:
        """Return the sentence about a stream's input, if the input never had a record; else None."""
        return never_had_a_record(stream, self._empty[stream]) if stream in self._empty else None

    async def watch(self) -> None:
        """Check the inputs at intervals until each has had a record, and log those without one."""
        said_at = float("-inf")
        while self._unknown:
            for stream, (topic, partitions) in list(self._unknown.items()):
                if await self._had_one(topic, partitions):
                    del self._unknown[stream]
                    self._empty.pop(stream, None)
                else:
                    self._empty[stream] = topic
            if self._empty and time.monotonic() - said_at > SAY_EVERY_S:
                said_at = time.monotonic()
                for stream, topic in self._empty.items():
                    log.warning(never_had_a_record(stream, topic))
            await asyncio.sleep(ASK_EVERY_S)

    async def _had_one(self, topic: str, partitions: int) -> bool:
        ends = await self._cluster.offsets(topic, range(partitions), LATEST, "inputs")
        return any(end > 0 for end in ends.values())
