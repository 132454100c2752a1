"""What a name has reached on a topic, kept in a compacted topic: snapshot and replay, as in PIP-6."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from kafka_ratchet.errors import BrokerUnavailable, SourceError
from kafka_ratchet.producers.client import ATTEMPT_S, END_OF_PARTITION, PASSING, explained
from kafka_ratchet.producers.headers import NOTHING_YET, SEQUENCE_MAX

PROGRESS_TOPIC = "ratchet-producers"
"""One partition; key [topic, name], value the newest `Progress`, both JSON."""

PROGRESS_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    # The broker compacts closed segments only: small ones (1 MiB is Kafka's minimum, KIP-1030) keep the topic, which
    # is read to its end at every start, at a few thousand records.
    "segment.bytes": str(1024 * 1024),
    "segment.ms": str(10 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
    # Every transaction leaves an end marker. Markers stay for this long after their records are gone, a day by default.
    "delete.retention.ms": str(60 * 1000),
}


FORMAT = 1
"""Of a progress, the newest that is read. It is said where it is more than 1."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Everything up to `sequence` is acknowledged by Kafka, on all partitions."""

    sequence: int
    """-1: nothing yet, the name is only taken."""
    records: int
    """How many records that were."""
    partitions: int
    """Partition count the records were spread over; see `Producer`."""
    topic_id: str
    """Kafka's id of the topic. A topic created again has another, and holds nothing of what this states."""
    source: str | None
    """The source's mark for `sequence` (see `Source.mark`); None for a program that calls `send` itself."""
    highest: int
    """The highest sequence that Kafka has acknowledged, on whichever partition; `sequence` at least."""
    session: str
    """Of the producer that wrote this: any text that is its alone."""
    decision: str | None = None
    """What a person has decided about this progress last, who and when; None: nothing had to be decided."""

    def encode(self) -> bytes:
        """The value in the compacted topic."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes, where: str) -> Progress:
        """Read the value back.

        Raises:
            SourceError: it is not of this form, or of a newer one.
        """
        try:
            fields = json.loads(value)
            if (known := fields.get("format", 1)) != FORMAT:
                raise SourceError(
                    f"{where}: a progress in format {str(known)[:20]}, written by a newer Ratchet; this one reads "
                    f"{FORMAT}. Publish with the newer one"
                )
            # Progress of an earlier version has no decision.
            progress = cls(**{name: fields[name] for name in cls.__slots__ if name != "decision" or name in fields})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise SourceError(
                f"{where}: not the progress of a producer ({error!r}). Another program writes to {PROGRESS_TOPIC}; "
                "delete that record, or publish under another name"
            ) from error
        numbers = (progress.sequence, progress.records, progress.partitions, progress.highest)
        texts = (progress.topic_id, progress.session, progress.source or "", progress.decision or "")
        if (
            any(type(number) is not int for number in numbers)
            or any(type(text) is not str for text in texts)
            or not NOTHING_YET <= progress.sequence <= progress.highest <= SEQUENCE_MAX
            or progress.partitions < 1
        ):
            raise SourceError(f"{where}: not the progress of a producer ({value[:200]!r})")
        return progress


def progress_key(topic: str, name: str) -> bytes:
    """The key in the compacted topic; JSON, so that no topic and name can be mistaken for another pair."""
    return json.dumps([topic, name], ensure_ascii=False, separators=(",", ":")).encode()


def read_progress(
    options: Mapping[str, str | int | bool], topic: str, name: str, *, timeout_s: float, say: Callable[[str], None]
) -> Progress | None:
    """The newest progress of the name on the topic; None for a new name.

    Uncommitted progress counts: it was true when it was written. What is committed cannot be read beyond the oldest
    open transaction of the partition, which may be that of a killed producer of another name.

    Raises:
        BrokerUnavailable: nothing came for `timeout_s` seconds.
        SourceError: what stands there is not a progress.
    """
    key = progress_key(topic, name)
    consumer = Consumer(
        {
            "log_level": 0,
            **options,
            "group.id": "ratchet-producers-reader",  # required by the client; no group is joined, nothing committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": 10,  # the broker would hold back the answer "that is the end" for half a second
        }
    )
    newest: Progress | None = None
    heard_at = time.monotonic()
    try:
        with suppress(KafkaException):
            # A client that is asked to read before it has met a broker tries again half a second later.
            consumer.list_topics(PROGRESS_TOPIC, timeout=ATTEMPT_S)
        consumer.assign([TopicPartition(PROGRESS_TOPIC, 0, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(1.0)
            if message is None or message.error() is not None:
                error = message.error() if message else None
                if error is not None and error.code() == END_OF_PARTITION:
                    return newest
                if error is not None and error.code() not in PASSING:
                    raise KafkaException(error)
                silent_s = time.monotonic() - heard_at
                if silent_s >= timeout_s:
                    raise BrokerUnavailable(
                        f"{PROGRESS_TOPIC}: Kafka sent nothing for {timeout_s:g} s; check that it runs"
                    )
                if silent_s >= ATTEMPT_S:
                    say(f"{PROGRESS_TOPIC}: waiting for Kafka since {silent_s:.0f} s")
                continue
            heard_at = time.monotonic()
            if message.key() == key:
                value = message.value()
                where = f"{PROGRESS_TOPIC} partition 0 offset {message.offset()} (producer {name!r}, topic {topic!r})"
                newest = Progress.decode(value, where) if value is not None else None
    except KafkaException as failure:
        raise BrokerUnavailable(f"{PROGRESS_TOPIC} cannot be read: {explained(failure.args[0])}") from failure
    finally:
        consumer.close()
