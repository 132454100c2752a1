"""Sending under a name."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import get_args

import structlog
from confluent_kafka import KafkaError, KafkaException, Message

from kafka_ratchet.errors import ProducerFenced, SettingsError, SourceError, TopicMissing
from kafka_ratchet.producers.accumulator import IDLE_S, POLL_EVERY_RECORDS, SILENCE_S, Accumulator, Headers
from kafka_ratchet.producers.beginning import Beginning, TopicDecision
from kafka_ratchet.producers.headers import (
    NOTHING_YET,
    PRODUCER_HEADER,
    SEQUENCE_HEADER,
    SEQUENCE_MAX,
    name_bytes,
    partition_of,
    sequence_bytes,
)
from kafka_ratchet.producers.metrics import ProducerMetrics, known
from kafka_ratchet.producers.prefix import AcknowledgedPrefix
from kafka_ratchet.producers.progress import PROGRESS_TOPIC, PROGRESS_TOPIC_CONFIG, Progress
from kafka_ratchet.producers.progress_store import ProgressStore, ProgressWriter
from kafka_ratchet.producers.source import Source
from kafka_ratchet.producers.topics import TopicShape, admin_client, create_topic, describe_topic

log = structlog.get_logger(__name__)

LAG_S = 5.0
"""When Kafka acknowledges and the prefix has still not moved for this long, in seconds, the queue is emptied once: the
end of a run is reported only if another record of its partition comes."""


class Producer:
    """Sends records to a topic under a name, each with a sequence, and knows after a crash where to go on.

    A name is its user's promise: one live producer, one source. Records are sent idempotently, with acknowledgement
    by all in-sync replicas and retried without end (PIP-6's send time-out of 0), several requests in flight, and their
    order kept per partition. A record that Kafka refuses for good stops the producer, so that nothing overtakes it.

    Two answers to "how far?", by the example of partitions A and B, sequences 1 (A), 2 (B), 3 (A), 4 (A), and B
    lagging: Kafka has acknowledged 1, 3 and 4. `last_sequence_id()` is 4, the highest that is persisted.
    `resume_from()` is 1: below it nothing is missing, so a program that starts again reads its source after 1. It sends
    3 and 4 again, and the worker drops them as duplicates; a program that went on after 4 would have lost 2.

    A record goes to partition crc32(key) modulo the partition count, librdkafka's own rule for keys. Without a key the
    name takes the key's place: all keyless records of a name share a partition and keep their order, and, above all, a
    record that is sent again meets its first copy, because verdicts are made per partition. For the same reason a name
    keeps the partition count it began with when a topic is given more partitions later.

    How far the name has come is kept in the compacted topic `ratchet-producers`, which is created if missing, and is at
    most `store_records` records (or the tenth of a second) or `store_s` seconds behind `resume_from()`, and as much
    longer as Kafka takes to commit it.

    It is written in Kafka transactions of an id that belongs to the name. A second producer of the name takes over the
    id, and the epoch of the first ends: its next transaction is refused, and with `ProducerFenced` everything that it
    is asked for from then on. It writes one every `store_s`, also while it is idle, and one in every `flush` and
    `close`; so for at most that long after the take-over, and the time of one request, it may still send. The records
    themselves are not in these transactions: they would be invisible until the next commit, and could not be retried
    for longer than Kafka lets a transaction be open.

    `send` is for one thread at a time.

    Args:
        topic: where to; it must exist.
        name: 1 to 256 bytes of UTF-8 without control characters. None: one that no other producer has, see `name`. It
            can be resumed like any other by who has noted it down.
        initial_sequence: the first automatic sequence of a name that has published nothing yet.
        options: librdkafka client options, at least "bootstrap.servers". What the guarantees above rest on cannot be
            overridden.
        source: where the records come from, if it is one that can tell whether it has changed.
        from_start: send everything once more under the same name; the worker drops what it has seen.
        topic_replaced: what to do where the topic was deleted and created again since the name last published.
            "resend": begin anew, as if nothing had been published; "keep": go on after what the name had reached. It is
            kept with the progress. None: refuse, with what both are.
        store_records: progress is stored when so many records were acknowledged, at most ten times a second ...
        store_s: ... or after so many seconds.
        timeout_s: how long to look for Kafka at the start, in seconds. Later there is no limit.
        say: told, every few seconds, that Kafka does not answer. Default: a warning in the log.

    Raises:
        SettingsError: a bad name, initial sequence or client option.
        TopicMissing: the topic does not exist.
        TopicReplaced: it was deleted and created again, and nobody has decided.
        BrokerUnavailable: Kafka cannot be reached within `timeout_s`.
        SourceError: the source is not the one that was published under this name.
    """

    name: str
    """The given one, or the one it was given."""

    def __init__(
        self,
        topic: str,
        name: str | None = None,
        initial_sequence: int = 0,
        *,
        options: Mapping[str, str | int | bool],
        source: Source | None = None,
        from_start: bool = False,
        topic_replaced: TopicDecision | None = None,
        store_records: int = 1000,
        store_s: float = 1.0,
        timeout_s: float = 60.0,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.topic = topic
        self.name = f"unnamed-{uuid.uuid4()}" if name is None else name
        self._name = name_bytes(self.name)
        if not 0 <= initial_sequence <= SEQUENCE_MAX:
            raise SettingsError(f"initial_sequence {initial_sequence} is not within 0 and 2^63-1")
        if topic_replaced not in (None, *get_args(TopicDecision)):
            raise SettingsError(f"--topic-replaced {topic_replaced}: write resend or keep")
        self._source, self._from_start, self._topic_replaced = source, from_start, topic_replaced
        self._store_records = store_records
        self._say = say or log.warning
        self._said: list[str] = []

        self._progress_store = ProgressStore(options, topic, self.name, timeout_s=timeout_s, say=self._say)
        shape = self._topic_shape(options, timeout_s)
        self._accumulator = Accumulator(topic, self.name, options, self._say)  # connects while the rest is looked up
        try:
            # Asked before it is taken over as well: who comes with the wrong source must not stop the right one.
            self._begin(self._progress_store.read(), shape)
            self._progress = self._begin(self._progress_store.take_over(), shape)
            # The name's partition count stands before its first record can be anywhere.
            self._progress_store.store(self._progress)
        except BaseException:
            self._accumulator.stop()
            raise
        self._resumed_after = self._progress.sequence

        self._lock = threading.Lock()  # guards the prefix; held for microseconds
        self._prefix = AcknowledgedPrefix(self._progress.sequence)
        self._records_before = self._progress.records
        self._stored_records = 0  # of this run, what the newest progress covers
        self._highest_before = self._progress.highest
        self._lags = False
        """The prefix waits for the end of a run whose partition gets no more records: `offer` takes nothing more until
        all is acknowledged."""
        self._moved_at, self._reported_then = time.monotonic(), 0
        self._since_poll = 0
        self._last_sent = NOTHING_YET if from_start else self._progress.sequence
        self._first = initial_sequence if self._last_sent == NOTHING_YET else 0
        self._numbered_by_us: bool | None = None
        """Whether sequences are automatic; None before the first record."""
        self._progress_writer = ProgressWriter(
            self._progress_store, self._newest_progress, self._accumulator.fail, store_s
        )

    def send(self, value: bytes | None, key: bytes | None = None, *, sequence: int | None = None) -> int:
        """Send one record; it is on its way when this returns. Waits while the local queue is full.

        Args:
            value: the record's value.
            key: its key.
            sequence: higher than that of the record before; gaps are fine. None: the next one, counted from
                `initial_sequence`, or from what the name had reached. All records have one, or none has.

        Returns:
            its sequence

        Raises:
            SourceError: the sequence does not rise above that of the record before (or, where publishing was resumed,
                above what the name had reached), or is not within 0 and 2^63-1; or own and automatic ones are mixed.
            RecordTooLarge: the record is larger than the client or the topic allows.
            ProducerFenced: a newer producer has taken over the name.
            TransportError: Kafka has refused this or an earlier record for good, or the producer is closed.
        """
        while (number := self.offer(value, key, sequence=sequence)) is None:
            self._accumulator.poll(IDLE_S)
        return number

    def offer(self, value: bytes | None, key: bytes | None = None, *, sequence: int | None = None) -> int | None:
        """As `send`, but return None at once where the local queue is full."""
        accumulator, prefix = self._accumulator, self._prefix
        accumulator.check()
        number = self._number(sequence)
        headers: Headers = {PRODUCER_HEADER: self._name, SEQUENCE_HEADER: sequence_bytes(number)}
        partition = partition_of(key, self._name, self._progress.partitions)
        try:
            with self._lock:
                if self._lags and not self._nothing_waits():
                    return None
                self._lags = False
                is_reported = prefix.needs_report(partition)
                report = partial(self._delivered, number, partition) if is_reported else accumulator.note
                accumulator.produce(self.topic, value, key, partition, report, headers=headers)
                prefix.sent(partition, number, is_reported=is_reported)
        except BufferError:
            return None
        except KafkaException as failure:
            raise accumulator.refused(failure, partition) from failure
        self._last_sent = number
        self._numbered_by_us = sequence is None
        self._since_poll += 1
        if self._since_poll >= POLL_EVERY_RECORDS:
            self._since_poll = 0
            accumulator.poll(0)
        return number

    def last_sequence_id(self) -> int:
        """The highest sequence that is known to be persisted for the name, on any partition; -1 for a new name."""
        with self._lock:
            self._nothing_waits()
            return max(self._highest_before, self._prefix.highest)

    def resume_from(self) -> int:
        """The highest sequence up to which everything is persisted on all partitions; -1 for a new name."""
        with self._lock:
            self._nothing_waits()
            return self._prefix.sequence

    @property
    def resumed_after(self) -> int:
        """What `resume_from()` was when this producer started."""
        return self._resumed_after

    def metrics(self) -> ProducerMetrics:
        """The producer's figures as of now, also after it was closed; for any thread."""
        accumulator = self._accumulator
        with self._lock:
            self._nothing_waits()
            sent, acknowledged, persisted = self._prefix.taken, self._prefix.reported, self._prefix.sequence
        counts, seconds = accumulator.measures.histogram()
        return ProducerMetrics(
            name=self.name,
            topic=self.topic,
            sent=sent,
            acknowledged=acknowledged,
            refused=accumulator.measures.refused,
            in_flight=min(len(accumulator), sent - acknowledged),
            retries=accumulator.measures.retries(sent),
            sent_bytes=accumulator.measures.sent_bytes,
            published_sequence=known(self._last_sent),
            persisted_sequence=known(persisted),
            fenced=isinstance(accumulator.failure, ProducerFenced),
            acknowledge_counts=counts,
            acknowledge_s=seconds,
        )

    def has_persisted(self, sequence: int) -> bool:
        """Whether everything up to this sequence is persisted; asks the client for news.

        Raises:
            ProducerFenced: a newer producer has taken over the name.
            TransportError: Kafka has refused a record for good.
        """
        self._accumulator.poll(0)
        self._accumulator.check()
        return self.resume_from() >= sequence

    def flush(self) -> None:
        """Wait until Kafka has acknowledged everything that was sent, however long that takes, and store the progress.

        Raises:
            ProducerFenced: a newer producer has taken over the name.
            TransportError: Kafka has refused a record for good.
        """
        with self._lock:
            taken = self._prefix.taken
        self._accumulator.drain()
        with self._lock:
            if self._prefix.taken == taken:  # the client's own news may make it look as if something waited
                self._prefix.acknowledge_all()
        asked = self._progress_writer.ask()
        while not self._progress_writer.wait(asked, SILENCE_S):
            self._say(f"producer {self.name!r} waits for Kafka to store what it has reached")
        self._accumulator.check()

    def close(self) -> None:
        """Flush, then stop. A closed producer sends nothing any more."""
        if not self._accumulator.is_closed:
            try:
                self.flush()
            finally:
                self._stop()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; after an exception without waiting for what is in flight: the next run sends it again."""
        if kind is None:
            self.close()
        else:
            self._stop()

    def _topic_shape(self, options: Mapping[str, str | int | bool], timeout_s: float) -> TopicShape:
        admin = admin_client(options)
        shape = describe_topic(admin, self.topic, timeout_s=timeout_s, say=self._say)
        if shape is None:
            raise TopicMissing(
                f"topic {self.topic!r} does not exist: create it, or have it created with a partition count"
            )
        if describe_topic(admin, PROGRESS_TOPIC, timeout_s=timeout_s, say=self._say) is None:
            create_topic(
                admin,
                PROGRESS_TOPIC,
                partitions=1,
                replication=-1,  # the broker's own default
                config=PROGRESS_TOPIC_CONFIG,
                timeout_s=timeout_s,
                say=self._say,
            )
        return shape

    def _begin(self, stored: Progress | None, shape: TopicShape) -> Progress:
        decision = self._topic_replaced or ("resend" if self._from_start else None)
        who = Beginning(self.topic, self.name, self._progress_store.session, self._source, decision)
        progress, said = who.after(stored, shape)
        if said and said not in self._said:
            self._said.append(said)
            self._say(said)
        return progress

    def _number(self, sequence: int | None) -> int:
        if self._numbered_by_us is not None and self._numbered_by_us != (sequence is None):
            raise SourceError(
                f"producer {self.name!r} has sent records "
                + (
                    f"without a sequence of their own, and this one has {sequence}"
                    if self._numbered_by_us
                    else "with sequences of their own, and this one has none"
                )
                + ": give every record of a producer a sequence, or none"
            )
        if sequence is None:
            number = max(self._last_sent + 1, self._first)
            if number > SEQUENCE_MAX:
                raise SourceError(
                    f"producer {self.name!r} has come to its last sequence, 2^63-1: go on under another name"
                )
        else:
            number = sequence
            if 0 <= number <= self._last_sent:
                raise SourceError(
                    f"sequence {number} of producer {self.name!r} does not rise above {self._last_sent}: the worker "
                    "would drop the record as a duplicate. Give every record a higher sequence than the one before"
                )
        return number

    def _delivered(self, sequence: int, partition: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._accumulator.lost(error, message, f"sequence {sequence}, partition {partition}")
            return
        if self._accumulator.has_failed():
            return  # a record before this one may have
        self._accumulator.heard()
        self._accumulator.measures.acknowledged(message.latency())
        with self._lock:
            self._prefix.acknowledge(partition)
            if self._prefix.reported - self._stored_records < self._store_records:
                return
            self._stored_records = self._prefix.reported
        self._progress_writer.wake()

    def _nothing_waits(self) -> bool:
        """Bring the prefix up to date; whether nothing is under way. The lock is held: nothing sets out meanwhile."""
        nothing_waits = self._accumulator.is_empty()
        if nothing_waits:
            self._prefix.acknowledge_all()
        self._prefix.advance()
        return nothing_waits

    def _newest_progress(self) -> Progress:
        with self._lock:
            under_way = not self._nothing_waits()
            sequence, records = self._prefix.sequence, self._prefix.records
            highest = max(self._highest_before, self._prefix.highest)
            if not under_way or sequence != self._progress.sequence:
                self._moved_at, self._reported_then = time.monotonic(), self._prefix.reported
            # Where nothing at all is acknowledged, Kafka is away, and emptying the queue would not help.
            is_stuck = self._prefix.reported > self._reported_then
            self._lags = is_stuck and time.monotonic() - self._moved_at >= LAG_S
            self._stored_records = self._prefix.reported
        self._progress = replace(
            self._progress,
            sequence=sequence,
            records=self._records_before + records,
            source=self._source.mark(sequence) if self._source else self._progress.source,
            highest=highest,
        )
        return self._progress

    def _stop(self) -> None:
        self._progress_writer.close()
        self._accumulator.stop()
