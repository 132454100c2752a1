"""Input of a bench, with the same records for every subject, and the right output for it."""

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
"""Position of the sequence in a value. To read it there is quicker than a JSON parser."""
RECENT: Final = 1_000
STRIDE: Final = 2_654_435_761
"""Knuth's prime number for hashing. Its multiples, modulo the number of keys, give every key in no obvious order."""
RESENT_EVERY: Final = 1_000
"""Number of new records between two repetitions of the newest ones."""
READ_WITHIN_S: Final = 1_200.0
FLUSH_S: Final = 300.0
SETTLE_S: Final = 30.0
"""Maximum seconds until the partitions of a new topic have leaders."""
AT_A_TIME: Final = 10_000


@dataclass(frozen=True, slots=True)
class Load:
    """Content of the input.

    Values are JSON. A record has three headers: its sequence within its key; the key as the producer's name; and a
    number that rises over all new records, and so can serve as a sequence within each partition.

    Attributes:
        records: number of records; a fifth of them are duplicates.
        keys: number of keys, which are the identities; each is in one partition. New records have random keys. But if
            there are no more new records than keys, each new record has a key of its own, in no obvious order. A random
            choice would leave out a third of the keys.
        compression: none, gzip, snappy, lz4 or zstd.
        duplicates: spread (every fifth record repeats one of the last thousand) or resent (after every thousand new
            records, the last 250 are sent again, as by a retrying producer).
        partitions: partition count of the input and the output.
        value_bytes: bytes of each value.
        batch_bytes: maximum number of bytes of a batch that the input's producer sends.
    """

    records: int = 2_000_000
    keys: int = 10_000
    compression: str = "none"
    duplicates: Literal["spread", "resent"] = "spread"
    partitions: int = PARTITIONS
    value_bytes: int = VALUE_BYTES
    batch_bytes: int = 1_000_000


@dataclass(frozen=True, slots=True)
class ExpectedOutput:
    """Output that the subjects must write: sequences 1 to `last` of every key, each once, in order."""

    last: list[int]

    @property
    def fresh(self) -> int:
        """Return the number of records in the right output."""
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
    """Return a random text to fill values with, up to their size."""
    return "".join(choose.choices("abcdefghijklmnopqrstuvwxyz0123456789      ", k=4 * load.value_bytes))


def filled(head: bytes, filler: str, at: int, load: Load) -> bytes:
    """Return a value of the load's size, in JSON.

    It begins with `head`, which ends inside a JSON string, and continues with the text of `filler` from `at` on.
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
        the producer for the topic; a random generator, with the same seed each time; a text to fill values with
    """
    create(bootstrap, topic, partitions=load.partitions)
    choose = random.Random(1)
    return Producer(producer_options(bootstrap, load)), choose, filler_of(choose, load)


def fill(bootstrap: str, topic: str, load: Load) -> ExpectedOutput:
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
    return ExpectedOutput(last)


def is_right(bootstrap: str, topic: str, truth: ExpectedOutput) -> bool:
    """Return True if the committed records of the output are exactly the right ones.

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
                    raise BenchFailed(f"{topic}, partition {number}: cannot be read to its end at offset {held.end}")
                yield from reader.consume(AT_A_TIME, 0.1)
    finally:
        reader.close()
