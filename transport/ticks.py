"""Timers of one's own that run in a lane's transaction: what the lane asks of them, and what it hands them."""

from __future__ import annotations

from typing import Final, Protocol

from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.batch.rows import encode_pairs
from kafka_ratchet.transport.delivery import Delivery

ROOM: Final = 1 << 10
"""bytes, more than a batch of one empty record takes."""


class Ticks(Protocol):
    """The timers of one partition."""

    def wait_s(self) -> float:
        """Seconds until one is due; 0: one is."""

    def take(self, delivery: Delivery) -> None:
        """Call those that are due, and give the delivery back with what they send."""


def tick(topic: str, partition: int, position: int) -> RecordBatch:
    """A batch for a tick: one record without key and value, of the time now, where the input is to be read next."""
    (encoded,) = encode_pairs([(None, None)], ROOM)
    return read_chunk(topic, partition, position, encoded.as_fetched(position), [])
