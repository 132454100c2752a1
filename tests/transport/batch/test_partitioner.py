"""Keys go where Java's producers and librdkafka's murmur2 put them."""

from __future__ import annotations

from random import Random

import numpy as np
from aiokafka.partitioner import murmur2 as theirs

from kafka_ratchet.transport.batch.partitioner import choose_partitions
from kafka_ratchet.transport.batch.rows import spans

OF_KAFKA = {  # org.apache.kafka.common.utils.UtilsTest.testMurmur2
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def chosen(keys: list[bytes | None], count: int, of_null: int = 0) -> list[int]:
    partitions = np.full(len(keys), -1, np.int64)
    choose_partitions(spans(keys), partitions, count, of_null)
    return [int(partition) for partition in partitions]


def test_as_kafkas_own_test_has_it() -> None:
    count = 2**31 - 1
    assert chosen(list(OF_KAFKA), count) == [(known & 0x7FFFFFFF) % count for known in OF_KAFKA.values()]


def test_as_another_client_has_it() -> None:
    choose = Random(1)
    keys: list[bytes | None] = [choose.randbytes(length) for length in range(70) for _ in range(20)]
    for count in (1, 3, 10_000):
        assert chosen(keys, count) == [(theirs(key) & 0x7FFFFFFF) % count for key in keys]


def test_what_is_given_stays_and_nulls_go_where_they_are_told() -> None:
    partitions = np.array([-1, 4, -1, 0], np.int64)
    choose_partitions(spans([None, b"21", b"foobar", None]), partitions, 7, 5)
    assert partitions.tolist() == [5, 4, (-790332482 & 0x7FFFFFFF) % 7, 0]
