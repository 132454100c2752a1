"""Events for three identities at once, fed slowly enough that there is always something left to be killed over."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from worker_process import PATIENCE_S, Site, read_all

from app._verify import verify

EVENTS = 20_000
KEYS = 200
PARTITIONS = 4
IDENTITIES = ("partition", "key", "producer")


def make_site(broker: str, folder: Path, session_timeout_ms: int) -> Site:
    app = f"killed-{uuid.uuid4().hex[:8]}"
    streams = "".join(
        f"""
[streams.by-{identity}]
input = "{app}.{identity}.in"
output = "{app}.{identity}.out"
dead_letters = "{app}.{identity}.dead"
identity = "{identity}"
partitions = {PARTITIONS}
"""
        for identity in IDENTITIES
    )
    topics = [
        NewTopic(f"{app}.{identity}.in", num_partitions=PARTITIONS, replication_factor=1) for identity in IDENTITIES
    ]
    admin = AdminClient({"bootstrap.servers": broker})
    for made in admin.create_topics(topics).values():
        made.result(30)
    settings = f"commit_interval_ms = 20\nsession_timeout_ms = {session_timeout_ms}\n"
    return Site(folder, broker, app, settings + streams)


def events() -> Iterator[tuple[int, str, str, int]]:
    """(partition, key, producer, sequence) without end: every fifth is one that was sent before."""
    choose = random.Random(20_000)
    last: dict[int, int] = defaultdict(int)
    sent: dict[int, list[tuple[int, str, str, int]]] = defaultdict(list)
    while True:
        key = choose.randrange(KEYS)
        partition = key % PARTITIONS
        if sent[partition] and choose.random() < 0.2:
            yield choose.choice(sent[partition][-500:])
            continue
        last[partition] += choose.randint(1, 3)  # gaps are allowed
        event = (partition, f"key-{key}", f"producer-{key % 20}", last[partition])
        sent[partition].append(event)
        yield event


class Feed(threading.Thread):
    """Sends events to all inputs at once, slowly, until told to hurry; then what is missing of `EVENTS`, and ends."""

    def __init__(self, site: Site) -> None:
        super().__init__(daemon=True)
        self.site = site
        self.sent: list[tuple[int, str, str, int]] = []
        self.hurry = threading.Event()

    def run(self) -> None:
        producer = Producer({"bootstrap.servers": self.site.broker, "enable.idempotence": True, "linger.ms": 5})
        for event in events():
            partition, key, name, number = event
            headers = [("ratchet-producer", name.encode()), ("ratchet-sequence", number.to_bytes(8, "big"))]
            for identity in IDENTITIES:
                topic = f"{self.site.app}.{identity}.in"
                producer.produce(topic, f"{number}".encode(), key, partition=partition, headers=headers)
            producer.poll(0)
            self.sent.append(event)
            if self.hurry.is_set():
                if len(self.sent) >= EVENTS:
                    break
            elif len(self.sent) % 100 == 0:
                time.sleep(0.3)
        assert producer.flush(60) == 0

    def finish(self) -> list[tuple[int, str, str, int]]:
        """All that was sent, once it has arrived."""
        self.hurry.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()
        return self.sent


def check(site: Site, sent: list[tuple[int, str, str, int]]) -> None:
    """Every identity's output is its distinct input, in order, and the independent verifier says so too."""
    for identity in IDENTITIES:
        assert distinct(sent, identity) == delivered(site, identity)
        report = verify(site.settings, f"by-{identity}")
        assert report.ok, report.as_dict()
        assert report.pending == 0
        assert report.fresh + report.duplicate == len(sent)
        assert report.invalid == 0


def identity_of(identity: str, partition: int, key: str, producer: str) -> tuple[int, str]:
    return partition, {"partition": "", "key": key, "producer": producer}[identity]


def distinct(sent: list[tuple[int, str, str, int]], identity: str) -> dict[tuple[int, str], list[int]]:
    """The sequences of each identity that moved it forward, in the order they were sent."""
    kept: dict[tuple[int, str], list[int]] = defaultdict(list)
    for partition, key, producer, number in sent:
        sequences = kept[identity_of(identity, partition, key, producer)]
        if not sequences or number > sequences[-1]:
            sequences.append(number)
    return kept


def delivered(site: Site, identity: str) -> dict[tuple[int, str], list[int]]:
    found: dict[tuple[int, str], list[int]] = defaultdict(list)
    for partition, messages in read_all(site.broker, f"{site.app}.{identity}.out").items():
        for message in messages:
            producer = header(message, "ratchet-producer").decode()
            sequence = int.from_bytes(header(message, "ratchet-sequence"), "big")
            found[identity_of(identity, partition, message.key().decode(), producer)].append(sequence)
    return found


def header(message: Message, name: str) -> bytes:
    return dict(message.headers())[name]
