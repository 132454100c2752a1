"""Worker's client, for record batches that librdkafka does not read to their end.

Kafka accepts compressed batches that clients read differently. Of a gzip batch with two members, librdkafka returns the
records of the first member, and requests the rest again without end. Its client for Python does not return headers if
a name is not UTF-8; here such bytes become U+FFFD.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from kafka_ratchet.errors import BrokerUnavailable, PositionLost, TopicMissing
from kafka_ratchet.topic_log.clients import Options
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.partition_reader import FetchOptions, PartitionAddress, PartitionReader
from kafka_ratchet.transport.client.security import client_options

if TYPE_CHECKING:
    from confluent_kafka import Message

log = structlog.get_logger(__name__)

BOOTSTRAP: Final = "bootstrap.servers"
ASK_S: Final = 15.0
WAIT_MS: Final = 500
FETCH_BYTES: Final = 1
"""Minimum bytes of a fetch; a broker returns at least one whole batch."""


@dataclass(frozen=True, slots=True)
class SecondRecord:
    """Record with the methods of librdkafka's messages."""

    batch: RecordBatch
    index: int

    def error(self) -> None:
        """Return None: the record has no error."""

    def topic(self) -> str:
        """Return the topic's name."""
        return self.batch.topic

    def partition(self) -> int:
        """Return the partition's number."""
        return self.batch.partition

    def offset(self) -> int:
        """Return the record's offset."""
        return int(self.batch.offsets[self.index])

    def key(self) -> bytes | None:
        """Return the record's key."""
        return self.batch.key(self.index)

    def value(self) -> bytes | None:
        """Return the record's value."""
        return self.batch.value(self.index)

    def headers(self) -> list[tuple[str, bytes | None]]:
        """Return names and values of the record's headers."""
        return [(each.name, each.value) for each in self.batch.headers(self.index)]

    def timestamp(self) -> tuple[int, int]:
        """Return the type of the timestamp, always 1 (creation time), and the timestamp in milliseconds since 1970."""
        return 1, int(self.batch.timestamps[self.index])


class SecondClient:
    """Reader of single batches where librdkafka is stuck; connects for each batch."""

    def __init__(self, options: Options, batch_most: int, *, committed: bool) -> None:
        """Store the settings without connecting; see `reading.second_read`."""
        self._options, self._batch_most, self._committed = options, batch_most, committed

    def read(self, topic: str, partition: int, position: int) -> tuple[list[Message], int] | None:
        """Return the records of the batch at a position, and the position after the batch; None: there is no batch.

        Raises:
            CorruptBatch: this client cannot read the batch either; the error names topic, partition and offset.
            BatchTooLarge: the batch decompresses to more bytes than a worker would read.
        """
        try:
            batch = asyncio.run(self._read(topic, partition, position))
        except (BrokerUnavailable, TopicMissing, PositionLost, TimeoutError):
            return None
        if batch.next <= position:
            return None
        log.warning(
            "this batch is read by the worker's client, because librdkafka does not read it to its end",
            topic=topic,
            partition=partition,
            offset=position,
            next=batch.next,
        )
        found = [SecondRecord(batch, index) for index in range(batch.count)]
        return [each for each in found if each.offset() >= position], batch.next

    async def _read(self, topic: str, partition: int, position: int) -> RecordBatch:
        options = {name: value for name, value in self._options.items() if name != BOOTSTRAP}
        cluster = Cluster(client_options(str(self._options[BOOTSTRAP]), options))
        async with AsyncExitStack() as stack, asyncio.timeout(ASK_S):
            await cluster.start(ASK_S)
            stack.push_async_callback(cluster.close)
            there = await cluster.topics([topic])
            if topic not in there:
                raise TopicMissing(f"topic {topic} does not exist")
            place = PartitionAddress(topic, partition, there[topic].id)
            fetching = FetchOptions(
                "second", FETCH_BYTES, WAIT_MS, self._batch_most, committed=self._committed, in_thread=True
            )
            reader = PartitionReader(cluster, place, position, fetching, skips_deleted=False)
            batch = await reader.read(position + 1)
            assert batch is not None  # noqa: S101 - the position is before that end
            return batch
