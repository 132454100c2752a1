"""A sender of webhooks: several threads, each of which tries again and comes out of order. Ends by SIGKILL, or done.

BOOTSTRAP TOPIC FIRST END SEED; events from FIRST to before END, each one to three times.
"""

from __future__ import annotations

import json
import random
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Producer

THREADS = 4


def event_of(number: int) -> tuple[str, bytes]:
    """Id and value of an event."""
    name = "evt_" + uuid.uuid5(uuid.NAMESPACE_OID, str(number)).hex
    return name, json.dumps({"id": name, "type": "order.paid", "data": {"order": number}}).encode()


def send(bootstrap: str, topic: str, numbers: list[int], seed: int) -> None:
    choose = random.Random(seed)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
    waiting = [number for number in numbers for _ in range(choose.choice([1, 1, 1, 2, 3]))]
    choose.shuffle(waiting)
    for number in waiting:
        name, value = event_of(number)
        producer.produce(topic, value, name)
        producer.poll(0)
        time.sleep(0.0005)
    producer.flush(60)


def main() -> None:
    bootstrap, topic, *numbers = sys.argv[1:]
    first, end, seed = map(int, numbers)
    with ThreadPoolExecutor(THREADS) as threads:
        # Threads share events, as the workers of a queue do that hand one over.
        parts = [[*range(first + number, end, THREADS), *range(first, end, 10)] for number in range(THREADS)]
        for done in [threads.submit(send, bootstrap, topic, part, seed + at) for at, part in enumerate(parts)]:
            done.result()


if __name__ == "__main__":
    main()
