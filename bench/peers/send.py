"""Sender of records at full speed, as a process of its own.

    python -m bench.peers.send ratchet|ratchet-many|batches|batches-many|bare|bare-headers BOOTSTRAP TOPIC RECORDS BYTES

It prints the seconds from the first record to the acknowledgement of the last, and the CPU seconds of this process.
`ratchet` uses `Producer`, and `batches` uses `BatchProducer`, both with `send`; with `-many`, they use `send_many`.
`bare` is a loop written by hand with confluent-kafka and the same delivery guarantee (idempotent, all replicas), and
`bare-headers` also sends Ratchet's headers. These two have no progress to resume from.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from confluent_kafka import Producer as Bare

from kafka_ratchet.producers import PRODUCER_HEADER, SEQUENCE_HEADER, Producer
from kafka_ratchet.transport.publishing.producer import BatchProducer

KEYS = 10_000
POLL_EVERY = 64
QUEUE_FULL_S = 0.1


def bare(options: dict[str, str], topic: str, records: Iterator[tuple[bytes, bytes]], headers: bool) -> None:
    """Send the records in a loop around `produce`."""
    producer = Bare({**options, "enable.idempotence": True, "acks": "all", "queue.buffering.max.kbytes": 64 * 1024})
    for number, (key, value) in enumerate(records):
        more = {}
        if headers:
            more["headers"] = {PRODUCER_HEADER: b"bench", SEQUENCE_HEADER: number.to_bytes(8, "big")}
        while True:
            try:
                producer.produce(topic, value, key, **more)
                break
            except BufferError:
                producer.poll(QUEUE_FULL_S)
        if number % POLL_EVERY == 0:
            producer.poll(0)
    producer.flush()


def main(kind: str, bootstrap: str, topic: str, count: int, value_bytes: int) -> tuple[float, float]:
    """Send the records, and return the seconds and the CPU seconds of this process."""
    names = [b"key-%d" % number for number in range(KEYS)]
    keys = [names[number % KEYS] for number in range(count)]
    values = [b"v" * value_bytes] * count
    options = {"bootstrap.servers": bootstrap}
    if kind.startswith("bare"):
        began, cpu = time.monotonic(), time.process_time()
        bare(options, topic, zip(keys, values, strict=True), headers=kind == "bare-headers")
        return time.monotonic() - began, time.process_time() - cpu
    with producer_of(kind)(topic, options=options) as producer:
        began, cpu = time.monotonic(), time.process_time()
        if kind.endswith("-many"):
            producer.send_many(values, keys)
        else:
            for key, value in zip(keys, values, strict=True):
                producer.send(value, key)
        producer.flush()
        return time.monotonic() - began, time.process_time() - cpu


def producer_of(kind: str) -> type[Producer | BatchProducer]:
    """Return the producer class for a kind of sender."""
    return BatchProducer if kind.startswith("batches") else Producer


if __name__ == "__main__":
    print(*main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
