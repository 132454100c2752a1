"""Latency of records at a steady rate, from the producer's call to a reader of committed records."""

from __future__ import annotations

import struct
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass
from typing import Final

import numpy as np
from confluent_kafka import Producer

from bench.kafka import committed_reader, create
from bench.load import PARTITIONS, SEQUENCE, VALUE_BYTES
from bench.measure import STOP_WITHIN_S, Result, RunningProcess
from bench.subjects import Task, deduplicating
from kafka_ratchet.errors import BenchFailed

SENT_AT: Final = struct.Struct(">q")
"""Encoding of the time of sending at the start of a value: nanoseconds of the monotonic clock."""
TICK_S: Final = 0.001
KEYS: Final = 10_000
DRAIN_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Latency(Result):
    """Latencies of one run in milliseconds, of the records sent after the warm-up."""

    rate: int
    records: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class _OutputReader(threading.Thread):
    """Thread that reads the output's committed records, and stores when each was sent and seen."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(name="reader", daemon=True)
        self.sent_at: list[int] = []
        self.seen_at: list[int] = []
        self.ending = threading.Event()
        self._consumer = committed_reader(bootstrap, topic, [0] * PARTITIONS, fetch_wait_max_ms=5)

    def run(self) -> None:
        """Read the output until `ending` is set. It runs in the thread."""
        while not self.ending.is_set():
            for message in self._consumer.consume(1_000, 0.005):
                self.seen_at.append(time.monotonic_ns())
                self.sent_at.append(SENT_AT.unpack_from(message.value())[0])
        self._consumer.close()


def latency(subject: str, bootstrap: str, rate: int, seconds: float, warm_up_s: float, commit_ms: int) -> Latency:
    """Send new records at a steady rate, and measure how soon a reader of committed records receives them.

    Args:
        subject: a name of SUBJECTS; its program must deduplicate.
        bootstrap: host:port of Kafka.
        rate: records a second.
        seconds: seconds of sending after the warm-up.
        warm_up_s: seconds of sending before that. These records do not count, since the programs compile their code.
        commit_ms: commit interval of the subject, in ms.

    Raises:
        BenchFailed: the subject does not start, or loses a record.
    """
    run = f"latency-{subject}-{uuid.uuid4().hex[:8]}"
    source, output = f"bench.{run}.in", f"bench.{run}.out"
    create(bootstrap, source, output, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "partitioner": "murmur2"})
    with tempfile.TemporaryDirectory(prefix="ratchet-bench-") as folder:
        chosen = deduplicating(subject)
        task = Task(bootstrap, source, output, f"bench-{run}", folder, commit_ms)
        running = RunningProcess(chosen.command(task), chosen.started)
        reader = _OutputReader(bootstrap, output)
        reader.start()
        try:
            sent, counted_from = _send(producer, source, rate, seconds + warm_up_s, warm_up_s, running)
            deadline = time.monotonic() + DRAIN_S
            while len(reader.seen_at) < sent:
                running.check()
                if time.monotonic() > deadline:
                    raise BenchFailed(f"{subject}: the output has {len(reader.seen_at)} of {sent} records")
                time.sleep(0.05)
        finally:
            reader.ending.set()
            reader.join(STOP_WITHIN_S)
            running.stop()
    sent_at, seen_at = np.array(reader.sent_at), np.array(reader.seen_at)
    took = (seen_at - sent_at)[sent_at >= counted_from] / 1e6
    p50, p99 = np.percentile(took, [50, 99])
    return Latency(subject, rate, len(took), round(float(p50), 1), round(float(p99), 1), round(float(took.max()), 1))


def _send(
    producer: Producer, topic: str, rate: int, seconds: float, warm_up_s: float, running: RunningProcess
) -> tuple[int, int]:
    """Send records at a steady rate, after a single first record that starts a waiting subject.

    Returns:
        number of records sent; monotonic nanoseconds at the first record that counts
    """
    filler = b"x" * (VALUE_BYTES - SENT_AT.size)
    # One record first, or a subject that waits for one would be awaited for ever.
    sent = _one(producer, topic, 0, filler)
    producer.flush(30)
    running.wait_until_started()
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < seconds:
        for number in range(sent, int(elapsed * rate)):
            sent += _one(producer, topic, number, filler)
        producer.poll(0)
        time.sleep(TICK_S)
    if producer.flush(30):
        raise BenchFailed(f"{topic}: Kafka has not acknowledged all records")
    return sent, int((began + warm_up_s) * 1e9)


def _one(producer: Producer, topic: str, number: int, filler: bytes) -> int:
    headers = [("ratchet-sequence", SEQUENCE.pack(number // KEYS)), ("bench-order", SEQUENCE.pack(number))]
    key = b"user-%d" % (number % KEYS)
    producer.produce(topic, SENT_AT.pack(time.monotonic_ns()) + filler, key, headers=headers)
    return 1
