"""Sends records as fast as they go, as a process of its own.

    python -m bench.peers.send ratchet|bare|bare-headers BOOTSTRAP TOPIC RECORDS VALUE_BYTES

It prints the seconds from the first record to the acknowledgement of the last. `bare` is what one writes with
confluent-kafka for the same delivery guarantee (idempotent, all replicas); `bare-headers` sends the headers as well,
by a loop that knows no names, no progress and no resuming.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from confluent_kafka import Producer as Bare

from kafka_ratchet.producers import PRODUCER_HEADER, SEQUENCE_HEADER, Producer

KEYS = 10_000
POLL_EVERY = 64
QUEUE_FULL_S = 0.1


def bare(options: dict[str, str], topic: str, records: Iterator[tuple[bytes, bytes]], headers: bool) -> None:
    """A loop around `produce`."""
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


def main(kind: str, bootstrap: str, topic: str, count: int, value_bytes: int) -> float:
    """Send the records; returns seconds."""
    keys = [b"key-%d" % number for number in range(KEYS)]
    value = b"v" * value_bytes
    records = ((keys[number % KEYS], value) for number in range(count))
    options = {"bootstrap.servers": bootstrap}
    if kind != "ratchet":
        began = time.monotonic()
        bare(options, topic, records, headers=kind == "bare-headers")
        return time.monotonic() - began
    with Producer(topic, options=options) as producer:
        began = time.monotonic()
        for key, value in records:
            producer.send(value, key)
        producer.flush()
        return time.monotonic() - began


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
