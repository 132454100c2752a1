"""Timestamp of each partition's first record that the table does not have yet."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import KafkaUnavailable

if TYPE_CHECKING:
    from confluent_kafka import Consumer

FETCH_BYTES = 64 * 1024
"""Maximum bytes of a fetch. The call needs one record of each partition; Kafka sends a whole batch even if it is
larger."""

END_OF_PARTITION = -191
NO_SUCH_OFFSET = -140
"""Error code of librdkafka for an offset that Kafka lacks (RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET). `END_OF_PARTITION` is
RD_KAFKA_RESP_ERR__PARTITION_EOF."""


def first_unread_timestamps(
    bootstrap: str,
    options: Mapping[str, str],
    topic: str,
    start: Mapping[int, int],
    end: Mapping[int, int],
    timeout_s: float,
    *,
    committed: bool = True,
) -> dict[int, int]:
    """Return the timestamp of each partition's first committed record from `start` on.

    Timestamps are milliseconds since 1970. Transaction markers and aborted records are skipped. The result has no entry
    for a partition without such a record, or with a record that has no timestamp.

    Args:
        bootstrap: host:port[,host:port].
        options: client options in librdkafka's names.
        topic: the topic.
        start: first offset to read, for each requested partition.
        end: the last stable offsets; later records do not count.
        timeout_s: limit of the whole call, in seconds.
        committed: False: records of open and aborted transactions count too.

    Raises:
        KafkaUnavailable: Kafka did not answer, or refused.
    """
    from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaException, TopicPartition

    waiting = {partition for partition, offset in start.items() if offset < end[partition]}
    found: dict[int, int] = {}
    if not waiting:
        return found
    consumer = open_consumer(bootstrap, options, committed=committed)
    deadline = time.monotonic() + timeout_s
    try:
        with suppress(KafkaException):  # a lasting error runs into the deadline
            consumer.list_topics(topic, timeout=timeout_s)  # otherwise it would look for the leaders a second later
        consumer.assign([TopicPartition(topic, partition, start[partition]) for partition in sorted(waiting)])
        while waiting:
            message = consumer.poll(max(0.0, min(1.0, deadline - time.monotonic())))
            if time.monotonic() > deadline:
                raise KafkaUnavailable(
                    f"{topic}/{min(waiting)}: Kafka at {bootstrap} did not send the record at offset "
                    f"{start[min(waiting)]} within {timeout_s:g} s. Check that Kafka runs, then try again"
                )
            if message is None:
                continue
            error, partition = message.error(), message.partition()
            if error is not None and error.code() != END_OF_PARTITION:
                if partition in waiting and error.code() == NO_SUCH_OFFSET:
                    waiting.discard(partition)  # retention has passed the offset since; the next look begins later
                continue  # librdkafka tries again; a lasting error runs into the deadline
            if partition not in waiting:
                continue
            waiting.discard(partition)
            consumer.incremental_unassign([TopicPartition(topic, partition)])
            if error is None and (message.offset() or 0) < end[partition]:
                kind, timestamp = message.timestamp()
                if kind != TIMESTAMP_NOT_AVAILABLE:
                    found[partition] = timestamp
    finally:
        consumer.close()
    return found


def open_consumer(bootstrap: str, options: Mapping[str, str], *, committed: bool) -> Consumer:
    """Return a client that reads single records, reports a partition's end, and joins no group."""
    from confluent_kafka import Consumer

    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,  # errors are raised below
            **options,
            "group.id": "ratchet-sink-status",  # never joined
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.wait.max.ms": 10,  # Kafka answers at once at the end of a partition
            "fetch.message.max.bytes": FETCH_BYTES,
            "queued.min.messages": 1,
            "fetch.queue.backoff.ms": 10,  # the time that a client with one record waits before it fetches others
        }
    )
