"""Partitioners that Kafka producers use for record keys."""

from __future__ import annotations

from enum import StrEnum


class Partitioner(StrEnum):
    """Partitioner of record keys.

    MURMUR2: used by Java's producers, and by `topic.send` of an agent; CRC32: librdkafka's default, used by Ratchet's
    producer.
    """

    MURMUR2 = "murmur2"
    CRC32 = "crc32"

    def place(self, key: bytes, count: int) -> int:
        """Return the partition of a key in a topic with `count` partitions."""
        if self is Partitioner.CRC32:
            from zlib import crc32

            return crc32(key) % count
        from aiokafka.partitioner import murmur2

        return int(murmur2(key) & 0x7FFFFFFF) % count
