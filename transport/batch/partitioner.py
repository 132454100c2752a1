"""Choice of a key's partition, as Java's producers make it, and librdkafka's with `partitioner=murmur2_random`."""

from __future__ import annotations

import numpy as np

from kafka_ratchet.transport.batch.compiled import compiled
from kafka_ratchet.transport.batch.rows import Ints, Spans

SEED, FACTOR = 0x9747B28C, 0x5BD1E995


@compiled(inline="always")
def murmur2(data, start, length):  # type: ignore[no-untyped-def]
    """Return Kafka's murmur2 hash of data[start : start + length], as an unsigned number.

    It equals org.apache.kafka.common.utils.Utils.murmur2.
    """
    mask = np.int64(0xFFFFFFFF)  # a factor has 31 bits and its multiplicand 32: no product leaves an int64
    h = np.int64(SEED) ^ length
    at, end = start, start + (length & ~3)
    while at < end:
        k = np.int64(data[at]) | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) << 16
        k |= np.int64(data[at + 3]) << 24
        k = k * FACTOR & mask
        k ^= k >> 24
        k = k * FACTOR & mask
        h = h * FACTOR & mask ^ k
        at += 4
    rest = length & 3
    if rest == 3:
        h ^= np.int64(data[at + 2]) << 16
    if rest >= 2:
        h ^= np.int64(data[at + 1]) << 8
    if rest >= 1:
        h = (h ^ np.int64(data[at])) * FACTOR & mask
    h ^= h >> 13
    h = h * FACTOR & mask
    return h ^ h >> 15


@compiled()
def _choose(data, starts, lengths, partitions, count):  # type: ignore[no-untyped-def]
    for i in range(len(partitions)):
        if partitions[i] < 0 and lengths[i] >= 0:
            partitions[i] = (murmur2(data, starts[i], lengths[i]) & 0x7FFFFFFF) % count


def choose_partitions(keys: Spans, partitions: Ints, count: int, of_null: int) -> None:
    """Choose a partition from the key of each record with the value -1 in `partitions`.

    Args:
        keys: keys of the records
        partitions: int64[records], changed in place
        count: number of the topic's partitions
        of_null: partition of a record without a key
    """
    _choose(*keys, partitions, count)
    partitions[partitions < 0] = of_null
