"""Input of a bench, the same records for every subject, and the output that they demand."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Literal

from confluent_kafka import Message, Producer, TopicPartition

from bench.kafka import FETCH_BYTES, committed_reader, create, produce
from kafka_ratchet.errors import BenchFailed
from kafka_ratchet.topic_log.clients import offset_ranges

PARTITIONS: Final = 4
VALUE_BYTES: Final = 200
SEQUENCE: Final = struct.Struct(">q")
HEAD: Final = b'{"sequence": %010d, "user": %010d, "filler": "'
SEQUENCE_AT: Final = slice(13, 23)
"""Position of the sequence in a value, so that counting millions of records needs no JSON parser."""
RECENT: Final = 1_000
STRIDE: Final = 2_654_435_761
"""A prime (Knuth's, for hashing): its multiples modulo a smaller number of keys are all the keys, in no order."""
RESENT_EVERY: Final = 1_000
"""Number of fresh records between two times at which the last records are sent again."""
READ_WITHIN_S: Final = 1_200.0
FLUSH_S: Final = 300.0
SETTLE_S: Final = 30.0
"""Seconds until the partitions of a new topic must have leaders."""
AT_A_TIME: Final = 10_000


@dataclass(frozen=True, slots=True)
class Load:
    """Content of the input.

    Values are JSON. Headers hold the sequence of the key, the key as a producer's name, and an order that
    rises over all fresh records, so that it is a sequence of each partition too.

    Attributes:
        records: number in all, a fifth of them duplicates.
        keys: number of identities; each is in one partition. Fresh records choose theirs at random; with no more
            fresh records than keys, they take each key once, in no order, as a third would never come otherwise.
        compression: none, gzip, snappy, lz4 or zstd.
        duplicates: spread (every fifth record is one of the last thousand again) or resent (after every thousand fresh
            ones the last 250 again, as a retrying producer does).
        partitions: partitions of the input and the output.
        value_bytes: bytes of each value.
        batch_bytes: most bytes of a batch of the input's producer.
    """

    records: int = 2_000_000
    keys: int = 10_000
    compression: str = "none"
    duplicates: Literal["spread", "resent"] = "spread"
    partitions: int = PARTITIONS
    value_bytes: int = VALUE_BYTES
    batch_bytes: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Truth:
    """Demanded output: sequences 1 to last of every key, each once, in order."""

    last: list[int]

    @property
    def fresh(self) -> int:
        """Return the number of records in the output."""
        return sum(self.last)


def producer_options(bootstrap: str, load: Load) -> dict[str, Any]:
    """Return the options of the client that sends an input."""
    return {
        "bootstrap.servers": bootstrap,
        "linger.ms": 50,
        "batch.size": load.batch_bytes,
        "compression.type": load.compression,
        "enable.idempotence": True,
        "queue.buffering.max.messages": 1_000_000,
        # As Java's default: a subject that chooses the output partition by key chooses the input's.
        "partitioner": "murmur2",
    }


def filler_of(choose: random.Random, load: Load) -> str:
    """Return a random text; its pieces fill the values."""
    return "".join(choose.choices("abcdefghijklmnopqrstuvwxyz0123456789      ", k=4 * load.value_bytes))


def filled(head: bytes, filler: str, at: int, load: Load) -> bytes:
    """Return a value of the load's size.

    The value is its head, which ends within a JSON text, and as much filler as fits, from `at` on.
    """
    start = at % (3 * load.value_bytes)
    return head + filler[start : start + load.value_bytes - len(head) - 2].encode() + b'"}'


def flush(producer: Producer, topic: str, load: Load) -> None:
    """Wait until Kafka has accepted the input.

    Raises:
        BenchFailed: Kafka did not accept all records.
    """
    if left := producer.flush(FLUSH_S):
        raise BenchFailed(
            f"{topic}: Kafka has not acknowledged {left} of {load.records} records within {FLUSH_S:.0f} s"
        )


def begin(bootstrap: str, topic: str, load: Load) -> tuple[Producer, random.Random, str]:
    """Create the topic.

    Returns:
        the client that fills the topic, the source of random choices (the same each time), text for values
    """
    create(bootstrap, topic, partitions=load.partitions)
    choose = random.Random(1)
    return Producer(producer_options(bootstrap, load)), choose, filler_of(choose, load)


def fill(bootstrap: str, topic: str, load: Load) -> Truth:
    """Create the topic and send the input.

    Raises:
        BenchFailed: Kafka did not accept all records.
    """
    producer, choose, filler = begin(bootstrap, topic, load)
    last: list[int] = [0] * load.keys
    recent: list[tuple[int, int, int]] = []
    in_turn = load.keys >= load.records * 4 // 5
    sent = fresh_sent = 0

    def send(user: int, sequence: int, order: int) -> None:
        nonlocal sent
        head = HEAD % (sequence, user)
        value = filled(head, filler, user * 31 + sequence, load)
        key = b"user-%d" % user
        headers = [
            ("ratchet-sequence", SEQUENCE.pack(sequence)),
            ("ratchet-producer", key),
            ("bench-order", SEQUENCE.pack(order)),
        ]
        produce(producer, topic, value, key, headers=headers)
        producer.poll(0)
        sent += 1

    while sent < load.records:
        if load.duplicates == "spread" and sent % 5 == 4:
            send(*choose.choice(recent[-RECENT:]))
            continue
        user = fresh_sent * STRIDE % load.keys if in_turn else choose.randrange(load.keys)
        fresh_sent += 1
        last[user] += 1
        fresh = (user, last[user], sent)
        recent.append(fresh)
        send(*fresh)
        if len(recent) > 2 * RECENT:
            del recent[:RECENT]
        if load.duplicates == "resent" and sent % (RESENT_EVERY + RESENT_EVERY // 4) == RESENT_EVERY:
            for again in recent[-RESENT_EVERY // 4 :][: load.records - sent]:
                send(*again)
    flush(producer, topic, load)
    return Truth(last)


def is_right(bootstrap: str, topic: str, truth: Truth) -> bool:
    """Return True if the committed output is the demanded one, record by record.

    Raises:
        BenchFailed: the output cannot be read to its end.
    """
    reached = [0] * len(truth.last)
    with closing(committed_records(bootstrap, topic)) as records:
        for message in records:
            user, sequence = int(message.key()[5:]), int(message.value()[SEQUENCE_AT])
            if sequence != reached[user] + 1:
                return False
            reached[user] = sequence
    return reached == truth.last


def committed_records(bootstrap: str, topic: str) -> Generator[Message, None, None]:
    """Yield the committed records of a topic, one partition after the other.

    Raises:
        BenchFailed: a partition cannot be read to its end.
    """
    reader = committed_reader(bootstrap, topic, [], fetch_message_max_bytes=FETCH_BYTES)
    try:
        partitions = len(reader.list_topics(topic, 30).topics[topic].partitions)
        for number, held in enumerate(offset_ranges(reader, topic, partitions, settle_s=SETTLE_S)):
            place = TopicPartition(topic, number, 0)
            reader.assign([place])
            deadline = time.monotonic() + READ_WITHIN_S
            while held.end and reader.position([place])[0].offset < held.end:
                if time.monotonic() > deadline:
                    raise BenchFailed(f"{topic}, partition {number}: cannot be read to its end, {held.end}")
                yield from reader.consume(AT_A_TIME, 0.1)
    finally:
        reader.close()
