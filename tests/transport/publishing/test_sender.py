"""Batches on their way through a Kafka that refuses, loses answers and carries requests out late: none lost or twice.

The broker is a model of what Kafka keeps of an idempotent producer in a partition (ProducerStateManager): the last five
batches, and nothing of a producer that it has not heard of. A real one is killed under a producer in test_producer.py.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiokafka.errors import KafkaConnectionError, RequestTimedOutError

from kafka_ratchet.errors import RecordTooLarge, TransportError
from kafka_ratchet.producers.standstill import Standstill
from kafka_ratchet.transport.batch.chunk import HEAD
from kafka_ratchet.transport.batch.rows import spans
from kafka_ratchet.transport.client.produce import BatchRequest
from kafka_ratchet.transport.publishing import sender as sender_module
from kafka_ratchet.transport.publishing.encode import Encoder, Outgoing, Records
from kafka_ratchet.transport.publishing.sender import BatchSender

NOT_LEADER, TOO_LARGE, OUT_OF_ORDER, DUPLICATE = 6, 10, 45, 46
KEPT = 5


class Partition:
    """The log of one partition: (first sequence of the producer's numbering, records) of each batch."""

    def __init__(self) -> None:
        self.log: list[tuple[int, int]] = []

    def append(self, base: int, count: int) -> int:
        """Kafka's error code."""
        if self.log:
            following = sum(self.log[-1])
            if (base, count) in self.log[-KEPT:]:
                return 0
            if base != following:
                return DUPLICATE if base < following else OUT_OF_ORDER
        self.log.append((base, count))
        return 0


class Kafka:
    """Stand-in for `Cluster`."""

    chance: random.Random
    trouble: float
    partitions: dict[int, Partition]
    broken: int | None

    def __init__(self, options: dict[str, Any], request_timeout_ms: int) -> None:
        self.request_timeout_ms = request_timeout_ms
        self.client = SimpleNamespace(get_random_node=lambda: 1, cluster=SimpleNamespace(brokers=lambda: list[Any]()))
        self.late: list[tuple[int, int, int]] = []

    async def start(self, timeout_s: float) -> None:
        pass

    async def close(self) -> None:
        pass

    def refresh(self) -> None:
        pass

    throttle_s = 0.0

    async def leader(self, topic: str, partition: int) -> int:
        return 1

    async def send(self, node: int, request: Any, connection: str) -> Any:
        if not isinstance(request, BatchRequest):
            return SimpleNamespace(error_code=0, producer_id=7, producer_epoch=0)
        number = request._topics[0][1][0][0]
        head = HEAD.unpack_from(request._batch)
        base, count = head[11], head[12]
        # In the order in which they leave: this is a connection.
        if self.late and self.chance.random() < 0.5:
            place, *batch = self.late.pop(0)
            self.partitions[place].append(*batch)
        fate = self.chance.random() / self.trouble if self.trouble else 1.0
        if self.broken is not None:
            code = self.broken
        elif fate < 0.3:
            code = NOT_LEADER
        elif fate < 0.5:
            self.late.append((number, base, count))
            code = -1
        elif fate < 0.6:
            code = -1
        else:
            code = self.partitions[number].append(base, count)
            if fate < 1:
                code = -1
        await asyncio.sleep(self.chance.random() / 1000)
        if code < 0:
            raise self.chance.choice([KafkaConnectionError, RequestTimedOutError])("lost")
        return SimpleNamespace(topics=[("t", [(number, code, 0, -1)])])


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> type[Kafka]:
    class Its(Kafka):
        chance, trouble, broken = random.Random(1), 0.0, None
        partitions = defaultdict(Partition)  # noqa: RUF012 - each test has its own

    monkeypatch.setattr(sender_module, "Cluster", Its)
    monkeypatch.setattr(sender_module, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(sender_module, "RETRY_MOST_S", 0.004)
    return Its


def sender(told: list[int], **more: Any) -> BatchSender:
    settings = {"room_bytes": 10_000, "request_timeout_ms": 1000, "timeout_s": 5.0, "say": print}
    settings["why"] = lambda throttle_s, heard: Standstill("unexplained", heard)
    settings["acknowledged"] = lambda partition, seconds: told.append(partition)
    return BatchSender("t", "me", {"bootstrap_servers": ["nowhere:1"]}, **{**settings, **more})


def batches(first: int, records: int, partitions: int) -> list[Outgoing]:
    keys: list[bytes | None] = [b"%d" % (n % 50) for n in range(first, first + records)]
    made = Records(np.arange(first, first + records), spans(keys), spans([b"v"] * records))
    return Encoder("t", b"me", partitions, 1000, "none").encode(made)


@pytest.mark.parametrize("seed", range(9))
def test_every_batch_once_and_in_its_order_whatever_becomes_of_requests(kafka: type[Kafka], seed: int) -> None:
    kafka.chance, kafka.trouble = random.Random(seed), (0.2, 0.6, 0.9)[seed % 3]
    wanted: dict[int, list[tuple[int, int]]] = defaultdict(list)
    told: list[int] = []
    sending = sender(told)
    for block in range(30):
        made = batches(block * 40, 40, 3)
        for outgoing in made:
            before = sum(count for _, count in wanted[outgoing.partition])
            wanted[outgoing.partition].append((before, outgoing.batch.count))
        sending.wait_for_room()
        sending.put(made)
    sending.drain()
    assert sending.is_empty()
    assert {number: partition.log for number, partition in kafka.partitions.items()} == wanted
    assert {number: told.count(number) for number in wanted} == {number: len(each) for number, each in wanted.items()}
    assert (sending.measures.retries(0) or 0) > 0
    sending.stop()


def test_what_kafka_refuses_for_good_ends_everything(kafka: type[Kafka]) -> None:
    for code, error, said in (
        (TOO_LARGE, RecordTooLarge, r"partition \d, up to sequence \d+.*max\.message\.bytes"),
        (OUT_OF_ORDER, TransportError, r"partition \d, up to sequence \d+.*may have lost acknowledged records"),
    ):
        kafka.broken = None
        told: list[int] = []
        sending = sender(told)
        sending.put(batches(0, 10, 1))
        sending.drain()
        there = len(told)
        kafka.broken = code
        sending.put(batches(10, 10, 1))
        with pytest.raises(error, match=said) as refused:
            sending.drain()
        assert "Acknowledged records stay published" not in str(refused.value)
        with pytest.raises(error):
            sending.wait_for_room()
        assert len(told) == there
        assert not sending.is_empty()
        sending.stop()
        sending.stop()
        kafka.partitions.clear()


def test_a_sender_that_waits_for_room_is_woken_by_an_end(kafka: type[Kafka]) -> None:
    kafka.broken = NOT_LEADER
    said: list[str] = []
    sending = sender([], room_bytes=1, say=said.append)
    sending.put(batches(0, 10, 1))
    threading.Timer(0.1, lambda: sending.fail(TransportError("taken over"))).start()
    with pytest.raises(TransportError, match="taken over"):
        sending.wait_for_room()
    sending.stop()
    with pytest.raises(TransportError, match="taken over"):
        sending.check()


def test_a_silence_names_its_cause(kafka: type[Kafka], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "SILENCE_S", 0.05)
    kafka.broken = NOT_LEADER
    said: list[str] = []
    sending = sender([], say=said.append)
    sending.put(batches(0, 10, 1))
    while not said:
        time.sleep(0.01)
    waiting = "10 records of producer 'me' wait and are sent as soon as it does (refused): Kafka refuses a batch:"
    assert waiting in said[0]
    named = sending.standstill
    assert named is not None
    kafka.broken = None
    sending.drain()
    assert sending.standstill is None
    sending.stop()
    kafka.partitions.clear()
