"""Count at the end of a run: each identity's output is compared with the sent events.

Where agents have counted (faults/programs/agents.py), their outputs and tables are compared as well.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, astuple, dataclass
from itertools import pairwise
from typing import Any

from confluent_kafka import Message

from faults.events import WINDOW, Event
from kafka_ratchet.errors import FaultRunFailed, RatchetError
from kafka_ratchet.producers import PRODUCER_HEADER, SEQUENCE_HEADER
from kafka_ratchet.topic_log.clients import consumer, offset_ranges, partition_count
from kafka_ratchet.topic_log.reading import records_between

READ_WITHIN_S = 300.0

SequencesByIdentity = dict[tuple[int, str], list[int]]
"""Sequences by identity (partition and name), in the order of the records."""
CountsByKey = dict[tuple[int, str], int]
"""Number of events by partition and key."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Numbers of wrong records in a stream's output, and of events wrong in its agent's table.

    table_wrong: entries of a hosted program's tables that differ.
    """

    lost: int = 0
    doubled: int = 0
    reordered: int = 0
    table_lost: int = 0
    table_doubled: int = 0
    table_wrong: int = 0

    def __add__(self, other: Difference) -> Difference:
        return Difference(*(mine + yours for mine, yours in zip(astuple(self), astuple(other), strict=True)))


@dataclass(slots=True)
class Result:
    """Findings of a run; subclasses add the injected faults."""

    seed: int
    lost: int = 0
    doubled: int = 0
    reordered: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Return True if every event counted exactly once."""
        return self.lost == self.doubled == self.reordered == 0

    def add(self, difference: Difference) -> None:
        """Add the findings of one count."""
        self.lost += difference.lost
        self.doubled += difference.doubled
        self.reordered += difference.reordered

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON object for `--json`."""
        return {**asdict(self), "seconds": round(self.seconds, 1)}


def fresh(sent: Iterable[Event], kind: str) -> Iterator[Event]:
    """Yield the events that the stream's rule has to forward.

    The code states the rules in their plainest form. With the kinds "partition", "key" and "producer", an event is
    fresh if its sequence is higher than all earlier ones of its identity. The same code serves "ids", where the first
    event with each id is fresh: the identity then contains the sequence. With "window", an event is fresh if it is new
    and its sequence is not too far below the highest. With "all", every event is fresh.
    """
    if kind == "all":
        yield from sent
        return
    if kind == "window":
        yield from _fresh_in_window(sent, kind)
        return
    last: dict[tuple[int, str], int] = {}
    for event in sent:
        identity = event.identity(kind)
        if event.sequence > last.get(identity, -1):
            last[identity] = event.sequence
            yield event


def _fresh_in_window(sent: Iterable[Event], kind: str) -> Iterator[Event]:
    seen, highest = set[Event](), dict[tuple[int, str], int]()
    for event in sent:
        identity = event.identity(kind)
        top = highest.get(identity, -1)
        if event not in seen and event.sequence >= top - WINDOW:
            seen.add(event)
            highest[identity] = max(top, event.sequence)
            yield event


def expected(sent: Iterable[Event], kind: str) -> SequencesByIdentity:
    """Return the output expected for the sent events."""
    kept: SequencesByIdentity = defaultdict(list)
    for event in fresh(sent, kind):
        kept[event.identity(kind)].append(event.sequence)
    return kept


def expected_counts(sent: Iterable[Event], kind: str) -> CountsByKey:
    """Return the counts that the table of a stream with a counting agent must have."""
    return Counter((event.partition, event.key) for event in fresh(sent, kind))


def delivered(bootstrap: str, topic: str, kind: str) -> SequencesByIdentity:
    """Return the committed output of a stream.

    Raises:
        FaultRunFailed: the topic cannot be read to its end.
    """
    found: SequencesByIdentity = defaultdict(list)
    for message, sequence in records(bootstrap, topic):
        producer = dict(message.headers())[PRODUCER_HEADER].decode()
        event = Event(message.partition(), message.key().decode(), producer, sequence)
        found[event.identity(kind)].append(sequence)
    return found


def computed(bootstrap: str, topic: str, kind: str) -> tuple[SequencesByIdentity, SequencesByIdentity]:
    """Return the committed output of a stream with a counting agent.

    Returns:
        sequences by identity, counts by partition and key; both in the order of the output

    Raises:
        FaultRunFailed: the topic cannot be read to its end.
    """
    found: SequencesByIdentity = defaultdict(list)
    counts: SequencesByIdentity = defaultdict(list)
    for message in messages(bootstrap, topic):
        value = json.loads(message.value())
        event = Event(message.partition(), message.key().decode(), value["producer"], value["sequence"])
        found[event.identity(kind)].append(event.sequence)
        counts[event.partition, value["key"]].append(value["count"])
    return found, counts


def table(bootstrap: str, changelog: str, name: str) -> CountsByKey:
    """Return a table from the committed records of its changelog: the last entry of each key.

    Raises:
        FaultRunFailed: the changelog cannot be read to its end.
    """
    found: CountsByKey = {}
    prefix = b"t" + bytes([len(name)]) + name.encode()
    for message in messages(bootstrap, changelog):
        key = message.key()
        if key is not None and key.startswith(prefix):
            place = message.partition(), json.loads(key[len(prefix) :])
            found[place] = json.loads(message.value())
    return found


def compare_counts(wanted: CountsByKey, yielded: SequencesByIdentity, kept: CountsByKey) -> Difference:
    """Return the errors of a counting table, and of its agent's outputs.

    Args:
        wanted: expected count of each key
        yielded: counts in the agent's output, in order, by key
        kept: count of each key in the table
    """
    on_the_way = compare({place: list(range(1, count + 1)) for place, count in wanted.items()}, yielded)
    lost = doubled = 0
    for place in wanted.keys() | kept.keys():
        surplus = kept.get(place, 0) - wanted.get(place, 0)
        lost, doubled = lost + max(0, -surplus), doubled + max(0, surplus)
    return Difference(
        reordered=on_the_way.reordered, table_lost=on_the_way.lost + lost, table_doubled=on_the_way.doubled + doubled
    )


def records(bootstrap: str, topic: str) -> Iterator[tuple[Message, int]]:
    """Yield every committed record of a topic with its sequence, partition by partition, in order.

    Raises:
        FaultRunFailed: the topic cannot be read to its end.
    """
    for message in messages(bootstrap, topic):
        yield message, int.from_bytes(dict(message.headers())[SEQUENCE_HEADER], "big")


def messages(bootstrap: str, topic: str) -> Iterator[Message]:
    """Yield every committed record of a topic, partition by partition, in order.

    Raises:
        FaultRunFailed: the topic cannot be read to its end.
    """
    options = {"bootstrap.servers": bootstrap}
    try:
        with consumer(options, "ratchet-faults-count") as client:
            for number, held in enumerate(offset_ranges(client, topic, partition_count(client, topic))):
                yield from records_between(client, topic, {number: held}, timeout_s=READ_WITHIN_S)
    except RatchetError as error:
        raise FaultRunFailed(f"{topic}: cannot be read to its end: {error}") from error


def compare(wanted: SequencesByIdentity, found: SequencesByIdentity) -> Difference:
    """Count the lost, doubled and reordered sequences of all identities.

    Sequences are compared as multisets: a record too many is as wrong as one too few.
    """
    lost = doubled = reordered = 0
    for identity in wanted.keys() | found.keys():
        right, there = wanted.get(identity, []), found.get(identity, [])
        if right == there:
            continue
        missing, surplus = Counter(right) - Counter(there), Counter(there) - Counter(right)
        lost, doubled = lost + missing.total(), doubled + surplus.total()
        reordered += sum(1 for before, after in pairwise(there) if after < before)
    return Difference(lost, doubled, reordered)
