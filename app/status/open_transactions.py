"""Open transactions that hold back readers of committed records, as commands request them from Kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from aiokafka import errors as kafka

from kafka_ratchet.app.inspect.document import Document
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.errors import RatchetError
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.errors import explained
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.stalls import STALLED_AFTER_S
from kafka_ratchet.transport.transactions.open_transactions import OpenTransaction, find_open, named

ASK_S: Final = 10.0
"""Maximum seconds for all requests together. Without Kafka's answer, the sentence does not name the producer."""


@dataclass(frozen=True, slots=True)
class BlockedRange(Document):
    """Range of a partition's offsets that an open transaction holds back.

    start: last stable offset; end: high watermark.
    unknown: reason why Kafka did not name the transaction.
    """

    json_keys = (
        "topic",
        "partition",
        "start",
        "end",
        "transactions",
    )

    topic: str
    partition: int
    start: int
    end: int
    transactions: list[OpenTransaction] = field(default_factory=list)
    unknown: str = ""

    @property
    def count(self) -> int:
        """Return the number of offsets that the transaction holds back, including transaction markers."""
        return self.end - self.start

    @property
    def is_old(self) -> bool:
        """Return True if the transaction is too old to be the transaction of a worker's lane.

        A transaction that Kafka does not name counts as old, because its age is unknown. If Kafka answers that none is
        open, the transaction has ended since Kafka reported the offsets; then it is not old.
        """
        if not self.transactions:
            return bool(self.unknown)
        begun_ms = min(each.since_ms or each.last_ms for each in self.transactions)
        return time.time() * 1000 - begun_ms >= STALLED_AFTER_S * 1000

    def __str__(self) -> str:
        who = f" ({self.unknown})" if self.unknown else named(self.transactions)
        return (
            f"{self.topic}, partition {self.partition}: {self.count:,} offsets, from {self.start:,} on, wait for an "
            f"open transaction{who}"
        )


def ask_about(bootstrap: str, settings: Settings, ends: dict[tuple[str, int], tuple[int, int]]) -> list[BlockedRange]:
    """Return the partitions that an open transaction holds back, with the transaction's producer if Kafka names it.

    The call blocks. Call it in a thread without a running event loop.

    Args:
        bootstrap: host:port[,host:port].
        settings: options of the client.
        ends: last stable offset and high watermark by topic and partition.
    """
    waiting = {place: each for place, each in ends.items() if each[1] > each[0]}
    if not waiting:
        return []
    found, unknown = asyncio.run(_ask(bootstrap, settings, waiting))
    return [
        BlockedRange(*place, *each, [one for one in found if (one.topic, one.partition) == place], unknown)
        for place, each in sorted(waiting.items())
    ]


async def _ask(
    bootstrap: str, settings: Settings, places: Collection[tuple[str, int]]
) -> tuple[list[OpenTransaction], str]:
    cluster = Cluster(client_options(bootstrap, settings.kafka))
    try:
        async with asyncio.timeout(ASK_S):
            await cluster.start(ASK_S)
            return await find_open(cluster, places, "open-transactions"), ""
    except (kafka.KafkaError, RatchetError, TimeoutError) as error:
        return [], f"Kafka does not name its producer: {explained(error)}"
    finally:
        await cluster.close()
