"""Loop written by hand, with confluent-kafka, a dict of last sequences, and transactions.

Options:
    changelog: True: also write last sequences to a compacted topic; without it, a restart loses the dict
"""

from __future__ import annotations

import json
import signal
import sys
import time

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.load import SEQUENCE
from bench.subjects import FIRST, Task

AT_A_TIME = 10_000
QUEUE_FULL_S = 0.05


def main(task: Task) -> None:
    """Run until SIGTERM."""
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    changelog, consumer, producer = _changelog(task), _consumer(task), _producer(task)
    producer.init_transactions()
    consumer.subscribe([task.input])
    last: dict[bytes, int] = {}
    changed: dict[bytes, tuple[int, int]] = {}
    positions: dict[int, int] = {}
    commit_at, said = 0.0, False

    def forward(topic: str, value: bytes, key: bytes, partition: int, **more: object) -> None:
        while True:
            try:
                producer.produce(topic, value, key, partition=partition, **more)
                return
            except BufferError:
                producer.poll(QUEUE_FULL_S)

    def take(message: Message) -> None:
        partition, key, headers = message.partition(), message.key(), message.headers()
        positions[partition] = message.offset() + 1
        sequence = SEQUENCE.unpack(dict(headers)["ratchet-sequence"])[0]
        if sequence > last.get(key, -1):
            last[key] = sequence
            if changelog is not None:
                changed[key] = (partition, sequence)
            forward(task.output, message.value(), key, partition, headers=headers, timestamp=message.timestamp()[1])

    while not stopping:
        messages = consumer.consume(AT_A_TIME, 0.05)
        if messages and not said:
            said = True
            print(FIRST, flush=True)
        if messages and not positions:
            producer.begin_transaction()
            commit_at = time.monotonic() + task.commit_ms / 1000
        for message in messages:
            take(message)
        producer.poll(0)
        if positions and time.monotonic() >= commit_at:
            for key, (partition, sequence) in changed.items():
                forward(changelog or "", SEQUENCE.pack(sequence), key, partition)
            places = [TopicPartition(task.input, partition, offset) for partition, offset in positions.items()]
            producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata())
            producer.commit_transaction()
            positions.clear()
            changed.clear()
    consumer.close()


def _changelog(task: Task) -> str | None:
    """Create the changelog topic, and return its name; None if the task has no changelog."""
    if not task.options.get("changelog"):
        return None
    name = f"{task.output}.changelog"
    topic = NewTopic(name, task.partitions, 1, config={"cleanup.policy": "compact"})
    admin = AdminClient({"bootstrap.servers": task.bootstrap})
    admin.create_topics([topic])[name].result(30)
    return name


def _consumer(task: Task) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": task.bootstrap,
            "group.id": task.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.message.max.bytes": 4 << 20,
            "queued.min.messages": 200_000,
        }
    )


def _producer(task: Task) -> Producer:
    return Producer(
        {
            "bootstrap.servers": task.bootstrap,
            "transactional.id": task.group,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "compression.type": task.options.get("compression", "none"),
        }
    )


if __name__ == "__main__":
    main(Task(**json.loads(sys.argv[1])))
