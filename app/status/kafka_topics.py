"""Reading topics with librdkafka: partition counts, first and last offsets, and all records up to the end.

For commands, the page, verify, bench and fault runs. Workers have a client of their own (`transport/client`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, TopicMetadata

from kafka_ratchet.errors import BrokerUnavailable, TransportError
from kafka_ratchet.producers import END_OF_PARTITION, PASSING, explained

ADMIN_TIMEOUT_S: Final = 30.0
"""How long an answer of Kafka about topics may take."""
AT_A_TIME: Final = 10_000
CONSUME_S: Final = 0.02
"""librdkafka waits for so long, or until there are `AT_A_TIME`, also where the end of the partition has come: each
partition costs that once."""

Options = Mapping[str, str | int | bool]
"""Client options in librdkafka's names, `bootstrap.servers` among them."""


class OffsetRange(NamedTuple):
    """The offsets that a partition holds: the first one, and the one behind the last."""

    first: int
    end: int


def all_topics(admin: AdminClient) -> dict[str, TopicMetadata]:
    """Every topic that there is, by name.

    Raises:
        BrokerUnavailable: no answer.
    """
    try:
        return dict(admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics)
    except KafkaException as error:
        raise BrokerUnavailable(f"Kafka did not list its topics: {error.args[0].str()}") from None


def partition_counts(admin: AdminClient, topics: list[str]) -> dict[str, int]:
    """Partitions of those of the topics that exist.

    Raises:
        BrokerUnavailable: no answer.
    """
    known = all_topics(admin)
    return {topic: len(known[topic].partitions) for topic in topics if topic in known and known[topic].partitions}


@contextmanager
def consumer(options: Options, group: str, *, committed: bool = True) -> Iterator[Consumer]:
    """A consumer that joins no group, commits nothing and says where a partition ends; closed with the context.

    Args:
        options: of the client.
        group: the client requires one; it is also the group that `committed` asks about.
        committed: whether it reads committed records only, and takes the end of a partition to be there.
    """
    opened = Consumer(
        {
            "log_level": 0,
            "queued.max.messages.kbytes": 16 * 1024,  # fetched ahead; 64 MiB by default
            "fetch.wait.max.ms": 10,  # the end of a partition is answered at once
            **options,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    try:
        yield opened
    finally:
        opened.close()


def offset_ranges(
    asked: Consumer, topic: str, partitions: int, timeout_s: float = ADMIN_TIMEOUT_S
) -> list[OffsetRange]:
    """What each partition of a topic holds, by number.

    Raises:
        BrokerUnavailable: Kafka did not answer in time.
    """
    ranges = []
    for number in range(partitions):
        try:
            first, end = asked.get_watermark_offsets(TopicPartition(topic, number), timeout=timeout_s)
        except KafkaException as failure:
            raise BrokerUnavailable(
                f"{topic} partition {number}: its end cannot be read: {explained(failure.args[0])}"
            ) from failure
        ranges.append(OffsetRange(int(first), int(end)))
    return ranges


def records(
    asked: Consumer, topic: str, partition: int = 0, begin: int = OFFSET_BEGINNING, *, timeout_s: float
) -> Iterator[Message]:
    """The records of a partition from an offset on, up to its end as it is when the reader comes there.

    Args:
        asked: see `consumer`; it reads nothing else meanwhile.
        topic: name.
        partition: number.
        begin: first offset.
        timeout_s: give up when nothing was heard of Kafka for this long.

    Raises:
        BrokerUnavailable: nothing was heard of it.
        TransportError: Kafka refuses to give the records.
    """
    asked.assign([TopicPartition(topic, partition, begin)])
    heard_at = time.monotonic()
    while True:
        for message in asked.consume(AT_A_TIME, CONSUME_S):
            error = message.error()
            if error is None:
                heard_at = time.monotonic()
                yield message
            elif error.code() == END_OF_PARTITION:
                return
            elif error.code() not in PASSING:
                raise TransportError(f"{topic} partition {partition} cannot be read: {explained(error)}")
        if time.monotonic() - heard_at > timeout_s:
            raise BrokerUnavailable(
                f"{topic} partition {partition}: Kafka sent nothing for {timeout_s:g} s; check that it runs"
            )
