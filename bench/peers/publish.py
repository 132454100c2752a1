"""Publisher of an NDJSON file, as a process of its own.

    python -m bench.peers.publish batches|single|bare BOOTSTRAP TOPIC FILE [KEY]

It prints the seconds from opening the file to the acknowledgement of the last record, and the CPU seconds of this
process in that time. `batches` and `single` do the same as `ratchet publish` with and without `--batches`, without its
command line. `bare` sends each line of the file with confluent-kafka and the same delivery guarantee (idempotent, all
replicas); it does not parse the lines, and cannot resume.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from confluent_kafka import Producer as Bare

from bench.peers.send import POLL_EVERY, QUEUE_FULL_S
from kafka_ratchet.producers import FileSource, Producer
from kafka_ratchet.producers import publish as publish_source
from kafka_ratchet.transport.publishing.blocks import publish_blocks
from kafka_ratchet.transport.publishing.producer import BatchProducer

NAME = "bench"


def bare(options: dict[str, str], topic: str, path: Path) -> None:
    """Send the file's lines in a loop around `produce`."""
    producer = Bare({**options, "enable.idempotence": True, "acks": "all", "queue.buffering.max.kbytes": 64 * 1024})
    with path.open("rb") as file:
        for number, line in enumerate(file):
            while True:
                try:
                    producer.produce(topic, line[:-1])
                    break
                except BufferError:
                    producer.poll(QUEUE_FULL_S)
            if number % POLL_EVERY == 0:
                producer.poll(0)
    producer.flush()


def main(kind: str, bootstrap: str, topic: str, path: Path, key: str | None) -> tuple[float, float]:
    """Publish the file, and return the seconds and CPU seconds used."""
    options = {"bootstrap.servers": bootstrap}
    began, cpu = time.monotonic(), time.process_time()
    if kind == "bare":
        bare(options, topic, path)
        return time.monotonic() - began, time.process_time() - cpu
    source = FileSource(path, key=key)
    if kind == "single":
        with Producer(topic, NAME, options=options, source=source) as producer:
            publish_source(source, producer)
    else:
        with BatchProducer(topic, NAME, options=options, source=source) as batch_producer:
            publish_blocks(source, batch_producer)
    return time.monotonic() - began, time.process_time() - cpu


if __name__ == "__main__":
    print(*main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), next(iter(sys.argv[5:]), None)))
