"""The count at the end: what each identity's output holds, against what was sent."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition

from faults.events import Event
from kafka_ratchet.errors import FaultRunFailed
from kafka_ratchet.producers import END_OF_PARTITION, PRODUCER_HEADER, SEQUENCE_HEADER

READ_WITHIN_S = 300.0

SequencesByIdentity = dict[tuple[int, str], list[int]]
"""By identity, in their order."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Records of one stream that are not as they must be."""

    lost: int = 0
    doubled: int = 0
    reordered: int = 0

    def __add__(self, other: Difference) -> Difference:
        return Difference(self.lost + other.lost, self.doubled + other.doubled, self.reordered + other.reordered)


@dataclass(slots=True)
class Result:
    """What a run has found; subclasses add what it has done."""

    seed: int
    lost: int = 0
    doubled: int = 0
    reordered: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether every event counted exactly once."""
        return self.lost == self.doubled == self.reordered == 0

    def add(self, difference: Difference) -> None:
        """Take what one count has found."""
        self.lost += difference.lost
        self.doubled += difference.doubled
        self.reordered += difference.reordered

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "seconds": round(self.seconds, 1)}


def expected(sent: Iterable[Event], kind: str) -> SequencesByIdentity:
    """The ratchet in its plainest form: a sequence counts if it is higher than all before it of its identity."""
    kept: SequencesByIdentity = defaultdict(list)
    for event in sent:
        sequences = kept[event.identity(kind)]
        if not sequences or event.sequence > sequences[-1]:
            sequences.append(event.sequence)
    return kept


def delivered(bootstrap: str, topic: str, kind: str) -> SequencesByIdentity:
    """What a reader of committed data finds in the output.

    Raises:
        FaultRunFailed: it cannot be read to its end.
    """
    found: SequencesByIdentity = defaultdict(list)
    for message, sequence in records(bootstrap, topic):
        producer = dict(message.headers())[PRODUCER_HEADER].decode()
        event = Event(message.partition(), message.key().decode(), producer, sequence)
        found[event.identity(kind)].append(sequence)
    return found


def records(bootstrap: str, topic: str) -> Iterator[tuple[Message, int]]:
    """Every committed record of a topic with its sequence, partition by partition, in order.

    Raises:
        FaultRunFailed: it cannot be read to its end.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "ratchet-faults-count",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end is answered at once
            "isolation.level": "read_committed",
        }
    )
    try:
        for number in consumer.list_topics(topic, 30).topics[topic].partitions:
            consumer.assign([TopicPartition(topic, number, 0)])
            deadline = time.monotonic() + READ_WITHIN_S
            while True:
                if time.monotonic() > deadline:
                    raise FaultRunFailed(f"{topic}, partition {number}: cannot be read to its end")
                if (message := consumer.poll(1.0)) is None:
                    continue
                if (error := message.error()) is not None:
                    if error.code() == END_OF_PARTITION:
                        break
                    raise FaultRunFailed(f"{topic}, partition {number}: {error.str()}")
                yield message, int.from_bytes(dict(message.headers())[SEQUENCE_HEADER], "big")
    finally:
        consumer.close()


def compare(wanted: SequencesByIdentity, found: SequencesByIdentity) -> Difference:
    """Multisets and order: a record too many is as wrong as one too few."""
    lost = doubled = reordered = 0
    for identity in wanted.keys() | found.keys():
        right, there = wanted.get(identity, []), found.get(identity, [])
        if right == there:
            continue
        missing, surplus = Counter(right) - Counter(there), Counter(there) - Counter(right)
        lost, doubled = lost + missing.total(), doubled + surplus.total()
        reordered += sum(1 for before, after in pairwise(there) if after < before)
    return Difference(lost, doubled, reordered)
