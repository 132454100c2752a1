"""Producers that send under a name: `Producer`, and `AsyncProducer` for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any
from zlib import crc32

from confluent_kafka import KafkaError, KafkaException, Message

from kafka_ratchet.producers.accumulator import IDLE_S, POLL_EVERY_RECORDS, Accumulator, Headers
from kafka_ratchet.producers.headers import PRODUCER_HEADER, SEQUENCE_HEADER, SEQUENCE_MAX, check_bytes, pack
from kafka_ratchet.producers.many import RecordsPart, in_parts
from kafka_ratchet.producers.metrics import ProducerMetrics
from kafka_ratchet.producers.named import NamedProducer


class Producer(NamedProducer[Accumulator]):
    """Named producer that numbers its records and resumes after a crash.

    With a name, the user promises one live producer and one source. Records are sent idempotently, acknowledged by all
    in-sync replicas, and retried without end (PIP-6's send time-out of 0), with several requests in flight and in order
    per partition. A record that Kafka refuses for good stops the producer, so that no later record overtakes it.

    Two methods return how far it has come. An example with partitions A and B: sequences 1 (A), 2 (B), 3 (A) and 4 (A)
    were sent, and B is slow, so Kafka has acknowledged 1, 3 and 4. `last_sequence_id()` returns 4, the highest
    persisted sequence. `resume_from()` returns 1: no record up to it is missing, so a program that starts again reads
    its source after 1. It sends 3 and 4 again, and the worker drops them as duplicates; a program that continued after
    4 would have lost 2.

    A record goes to partition crc32(key) modulo the number of partitions, librdkafka's own rule for keys. Without a key
    the name is used instead. So all keyless records of a name are in one partition and in order. Above all, a re-sent
    record reaches the partition of its first copy, because verdicts are made per partition. For the same reason a name
    keeps its first number of partitions when the topic gets more.

    Progress is stored in the compacted topic `ratchet-producers`, which is created if missing. It is stored after
    `store_records` records, at most ten times a second, and in any case after `store_s` seconds. By this much, and by
    the time that Kafka takes to commit, it may be older than `resume_from()`.

    It is written in Kafka transactions with an id of the name. A second producer of the name takes over this id, which
    ends the epoch of the first: its next transaction is refused, and every later call raises `ProducerFenced`. A
    producer writes a transaction every `store_s` seconds, even while idle, and in every `flush` and `close`. So after a
    take-over it may still send for at most that long, plus the time of one request. The records are not in these
    transactions: they would be invisible until the next commit, and could not be retried for longer than Kafka lets a
    transaction stay open.

    Only one thread at a time may call `send`.

    Args:
        topic: topic to send to; it must exist.
        name: 1 to 256 bytes of UTF-8 without control characters. None: a unique one, see `name`, which can be resumed
            like any other.
        initial_sequence: first automatic sequence of a name without published records.
        options: client options of librdkafka, at least "bootstrap.servers". Options that the guarantees need cannot be
            overridden.
        source: source of the records, to notice whether it has changed; None: the program numbers its records.
        from_start: True sends everything again under the same name; the worker drops the duplicates.
        topic_replaced: action for a topic that was deleted and created again after the name last published. "resend":
            begin again, as if nothing had been published; "keep": continue after the stored progress. The choice is
            stored with the progress. None: raise `TopicReplaced`, which names both choices.
        store_records: number of acknowledged records after which progress is stored, at most ten times a second.
        store_s: seconds after which progress is stored in any case.
        timeout_s: maximum seconds to reach Kafka at the start. Later there is no limit.
        say: function called with a sentence every few seconds while Kafka does not answer. Default: a warning in the
            log.

    Raises:
        SettingsError: the name, the initial sequence or a client option is invalid.
        TopicMissing: the topic does not exist.
        TopicReplaced: the topic was deleted and created again, and `topic_replaced` is None.
        BrokerUnavailable: Kafka cannot be reached within `timeout_s`.
        SourceError: another source was published under this name.
    """

    _since_poll = 0

    def _connect(self, options: Mapping[str, str | int | bool], timeout_s: float) -> Accumulator:
        return Accumulator(self.topic, self.name, options, self._say)

    def send(self, value: bytes | None, key: bytes | None = None, *, sequence: int | None = None) -> int:
        """Send one record, which is in flight when this returns; wait while the local queue is full.

        Args:
            value: value of the record.
            key: key of the record.
            sequence: sequence of the record, higher than that of the record before it; gaps are allowed. None: the next
                one, from `initial_sequence` or after the stored progress. Either all records have an own sequence, or
                none has.

        Returns:
            Sequence of the record.

        Raises:
            SourceError: the sequence is not above the one before it (after a resume: the stored progress), or not
                within 0 and 2^63-1; or own and automatic sequences are mixed.
            RecordTooLarge: the record is larger than the client or the topic allows.
            ProducerFenced: a newer producer has taken over the name.
            TransportError: Kafka has refused this or an earlier record for good, or the producer is closed.
        """
        while (number := self._offer(value, key, sequence)) is None:
            self._accumulator.poll(IDLE_S)
        return number

    def offer(self, value: bytes | None, key: bytes | None = None, *, sequence: int | None = None) -> int | None:
        """Send a record as `send` does, but return None at once if the local queue is full."""
        return self._offer(value, key, sequence)

    def send_many(
        self,
        values: Iterable[bytes | None],
        keys: Iterable[bytes | None] | None = None,
        *,
        sequences: Iterable[int] | None = None,
    ) -> int | None:
        """Send records with the promises of `send`, but faster than in a loop.

        After an error, the records before the refused one are in flight, and no later one is. `resume_from()` then
        returns how far records are persisted, and the next `send` uses the number that the refused record would have
        had.

        Args:
            values: values of the records, read while they are sent.
            keys: one key for each value; None: no record has a key.
            sequences: one sequence for each value, increasing; None: the next ones, as in `send`.

        Returns:
            Sequence of the last record; None: there was none.

        Raises:
            SourceError: there are fewer keys or sequences than values, or more; the records complete until then are in
                flight. If the lengths are known beforehand, nothing is sent.
            RatchetError: as `send`.
        """
        number = None
        for part in in_parts(values, keys, sequences):
            number = self._send_part(part)
        return number

    def _send_part(self, part: RecordsPart) -> int:
        """Send the records of a part, waiting while the queue is full; return the last one's sequence."""
        values, keys = part.values, part.keys or [None] * len(part.values)
        self._accumulator.check()
        numbers = self._numbers(part)
        at = 0
        while at < len(numbers):
            self._accumulator.check()
            at, is_full = self._send_some(values, keys, numbers, at)
            self._numbered_by_us = part.sequences is None
            self._accumulator.poll(IDLE_S if is_full else 0)
        if at < len(values):
            self._checked(part.sequences[at] if part.sequences is not None else None)  # raises its error
        return self._last_sent

    def _send_some(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None], numbers: Sequence[int], first: int
    ) -> tuple[int, bool]:
        """Send up to POLL_EVERY_RECORDS records, as `_offer` does, with the common work done once.

        Returns:
            Index of the next record, and whether the queue is full.
        """
        prefix, topic, name = self._prefix, self.topic, self._name
        produce, note = self._accumulator.produce, self._accumulator.note
        partition = 0
        with self._lock:
            if self._lags and not self._nothing_waits():
                return first, True
            self._lags = False
            try:
                for at in range(first, min(first + POLL_EVERY_RECORDS, len(numbers))):
                    key, number = keys[at], numbers[at]
                    partition = self._keyless if key is None else crc32(key) % self._partitions
                    run = prefix.silent_run(partition)
                    is_reported = run is None and prefix.needs_report(partition)
                    report = partial(self._delivered, number, partition) if is_reported else note
                    headers = {PRODUCER_HEADER: name, SEQUENCE_HEADER: pack(number)}
                    produce(topic, values[at], key, partition, report, headers=headers)
                    if run is None:
                        prefix.count_sent(partition, number, is_reported=is_reported)
                    else:
                        prefix.count_silently(run, number)
                    self._last_sent = number
            except BufferError:
                self._accumulator.full_at = monotonic()
                return at, True
            except TypeError:
                check_bytes(values[at], keys[at])
                raise
            except KafkaException as failure:
                refused = failure
            else:
                return at + 1, False
        raise self._accumulator.refused(refused, partition) from refused

    def _offer(self, value: bytes | None, key: bytes | None, sequence: int | None) -> int | None:
        # Runs for each record: calls written out here save a third of a record's time.
        accumulator, prefix = self._accumulator, self._prefix
        if accumulator.is_over:
            accumulator.check()
        number = self._last_sent + 1 if sequence is None and self._numbered_by_us else self._number(sequence)
        if not 0 <= number <= SEQUENCE_MAX:
            self._checked(sequence)  # says so
        headers: Headers = {PRODUCER_HEADER: self._name, SEQUENCE_HEADER: pack(number)}
        try:
            partition = self._keyless if key is None else crc32(key) % self._partitions
            with self._lock:
                if self._lags and not self._nothing_waits():
                    return None
                self._lags = False
                if (run := prefix.silent_run(partition)) is not None:
                    accumulator.produce(self.topic, value, key, partition, accumulator.note, headers=headers)
                    prefix.count_silently(run, number)
                else:
                    is_reported = prefix.needs_report(partition)
                    report = partial(self._delivered, number, partition) if is_reported else accumulator.note
                    accumulator.produce(self.topic, value, key, partition, report, headers=headers)
                    prefix.count_sent(partition, number, is_reported=is_reported)
        except BufferError:
            accumulator.full_at = monotonic()
            return None
        except TypeError:
            check_bytes(value, key)
            raise
        except KafkaException as failure:
            raise accumulator.refused(failure, partition) from failure
        self._last_sent = number
        self._numbered_by_us = sequence is None
        self._since_poll += 1
        if self._since_poll >= POLL_EVERY_RECORDS:
            self._since_poll = 0
            accumulator.poll(0)
        return number

    def _delivered(self, sequence: int, partition: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._accumulator.lost(error, message, f"sequence {sequence}, partition {partition}")
            return
        if self._accumulator.has_failed():
            return  # a record before this one may have
        self._accumulator.restart_silence()
        self._accumulator.measures.acknowledged(message.latency())
        with self._lock:
            self._prefix.acknowledge(partition)
            if self._prefix.reported - self._stored_records < self._store_records:
                return
            self._stored_records = self._prefix.reported
        self._progress_writer.wake()


ASK_EVERY_S = 0.005
"""Seconds between two polls of the client while a caller waits."""


class AsyncProducer:
    """Producer for an event loop, with the rules and errors of `Producer`.

    ::

        async with AsyncProducer("orders.raw", "shop", options={"bootstrap.servers": "..."}) as producer:
            sequence = await producer.send(b"...", b"customer-1")  # accepted: on its way, in its order
            await producer.persisted(sequence)                     # in Kafka, with everything before it

    When `send` returns, the record is accepted, but not yet in Kafka. It returns at once while the local queue has
    room, and waits without blocking the loop while the queue is full. So a program that sends faster than Kafka accepts
    is slowed down, and its memory stays limited. Records of several tasks are numbered and sent in the order of the
    calls.

    Args:
        arguments: positional arguments of `Producer`.
        options: keyword arguments of `Producer`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._make = partial(Producer, *arguments, **options)
        self._made: Producer | None = None
        self._turn = asyncio.Lock()
        self._has_sent = False

    async def __aenter__(self) -> AsyncProducer:
        """Connect, and take over the name; see `Producer` for errors."""
        self._made = await asyncio.to_thread(self._make)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; after an exception, do not wait for records in flight."""
        await asyncio.to_thread(self._producer.__exit__, kind, error, trace)

    @property
    def _producer(self) -> Producer:
        if self._made is None:
            raise RuntimeError("an AsyncProducer works only within 'async with'")
        return self._made

    @property
    def name(self) -> str:
        """Return the given name, or the unique one made for this producer."""
        return self._producer.name

    async def send(self, value: bytes | None, key: bytes | None = None, *, sequence: int | None = None) -> int:
        """Send one record, which is accepted when this returns; see `Producer.send` for arguments and errors.

        Returns:
            Sequence of the record.
        """
        async with self._turn:
            if not self._has_sent:
                await asyncio.to_thread(self._producer.leave_source)  # waits for Kafka
                self._has_sent = True
            while (number := self._producer.offer(value, key, sequence=sequence)) is None:
                await asyncio.sleep(ASK_EVERY_S)
                self._producer.has_persisted(0)  # takes the news, which makes room
            return number

    async def persisted(self, sequence: int) -> None:
        """Wait until Kafka has this record and all before it, on all partitions; see `Producer.flush` for errors."""
        # The client has no event to wait for: its reports come by polling.
        while not self._producer.has_persisted(sequence):  # noqa: ASYNC110
            await asyncio.sleep(ASK_EVERY_S)

    async def flush(self) -> None:
        """Wait until Kafka has all records, and store the progress; see `Producer.flush` for errors."""
        await asyncio.to_thread(self._producer.flush)

    def metrics(self) -> ProducerMetrics:
        """Return the producer's metrics."""
        return self._producer.metrics()

    def last_sequence_id(self) -> int:
        """Return the highest sequence known to be persisted for the name, on any partition; -1: none."""
        return self._producer.last_sequence_id()

    def resume_from(self) -> int:
        """Return the highest sequence such that all records up to it are persisted, on all partitions; -1: none."""
        return self._producer.resume_from()
