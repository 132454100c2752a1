"""Base class of named producers: take-over of the name, and storage of its progress."""

from __future__ import annotations

import os
import threading
import time
import uuid
from abc import ABC, abstractmethod
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import index
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, get_args
from weakref import WeakSet

import structlog

from kafka_ratchet.errors import (
    ProducerFenced,
    RatchetError,
    SettingsError,
    SourceError,
    TopicError,
    TopicMissing,
    TransportError,
)
from kafka_ratchet.producers.accumulator import SILENCE_S
from kafka_ratchet.producers.beginning import ProgressCheck, TopicDecision
from kafka_ratchet.producers.headers import NOTHING_YET, SEQUENCE_MAX, name_bytes, partition_of, sequence_bytes, whole
from kafka_ratchet.producers.many import RecordsPart
from kafka_ratchet.producers.metrics import Measures, ProducerMetrics, known
from kafka_ratchet.producers.prefix import AcknowledgedPrefix
from kafka_ratchet.producers.progress import (
    PROGRESS_TOPIC,
    PROGRESS_TOPIC_CONFIG,
    Progress,
    ProgressStore,
    ProgressWriter,
)
from kafka_ratchet.producers.source import Source
from kafka_ratchet.producers.standstill import Standstill, standstill_of
from kafka_ratchet.producers.topics import TopicShape, admin_client, cleanup_policy, create_topic, describe_topic

log = structlog.get_logger(__name__)

LAG_S = 5.0
"""Seconds without progress of the acknowledged watermark after which the producer drains its queue once.

The client requests a delivery report for one record in 64. So the last records of a partition can be acknowledged
without a report, until another record follows there or the queue is drained.
"""

ENDED_BY_USER = (KeyboardInterrupt, SystemExit, CancelledError)
"""Exceptions of a user or a signal that ends a program; asyncio turns SIGINT into a CancelledError."""

ENDING_S = 6.0
"""Maximum seconds that an interrupted producer waits for Kafka, to store its progress.

Otherwise the stored position would be up to `store_s` seconds old. The next run would accept a change of lines already
in Kafka, and send them again under numbers that the worker drops.
"""

POLL_S = 0.1
"""Seconds of one wait for acknowledgements."""


class RecordTransport(Protocol):
    """Transport of records that ends at its first failure, so that no later record overtakes a refused one."""

    failure: RatchetError | None
    """Error that ended the transport; None: it has not failed."""
    measures: Measures
    standstill: Standstill | None
    """Cause of missing acknowledgements; None: records are acknowledged."""

    def __len__(self) -> int:
        """Return the number of records that wait to be sent or acknowledged."""

    @property
    def is_closed(self) -> bool:
        """Return True if `stop` was called."""

    def is_empty(self) -> bool:
        """Return True if Kafka has acknowledged everything; False after a failure."""

    def check(self) -> None:
        """Raise the error that ended the transport, if there is one."""

    def poll(self, timeout_s: float) -> None:
        """Process reports of acknowledgements, waiting up to `timeout_s` seconds for them."""

    def drain(self) -> None:
        """Wait until all records are acknowledged; raise the error that prevents it."""

    def fail(self, failure: RatchetError) -> None:
        """End the transport with an error, and discard the waiting records."""

    def abandon(self, failure: RatchetError) -> None:
        """End the transport with an error in a forked child, without its threads and locks."""

    def stop(self) -> None:
        """Stop at once, without waiting for records in flight."""


C = TypeVar("C", bound=RecordTransport)


class NamedProducer(ABC, Generic[C]):
    """Base class of producers that send under a name; see `Producer` for arguments and errors."""

    name: str
    """Name of the producer: the given one, or a unique one made for it."""

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
        self._check(initial_sequence, topic_replaced)
        self.topic = topic
        self.name = f"unnamed-{uuid.uuid4()}" if name is None else name
        self._name = name_bytes(self.name)
        self._source, self._from_start, self._topic_replaced = source, from_start, topic_replaced
        self._store_records = store_records
        self._say = say or log.warning
        self._options = dict(options)
        self._notices: list[str] = []

        self._progress_store = ProgressStore(options, topic, self.name, timeout_s=timeout_s, say=self._say)
        shape = self._topic_shape(options, timeout_s)
        self._accumulator = self._connect(options, timeout_s)
        try:
            # Compared before the take-over as well: a producer with the wrong source must not stop the right one.
            self._begin(self._progress_store.read(), shape)
            stored = self._progress_store.take_over()
            if stored is not None:
                # Stored before the source is compared again, which may take minutes: after `DOUBT_S` without the
                # session of another producer, the older one would take its name back.
                stored = replace(stored, session=self._progress_store.session)
                self._progress_store.store(stored)
            self._progress = self._begin(stored, shape)
            # The name's partition count stands before its first record can be anywhere.
            self._progress_store.store(self._progress)
        except BaseException:
            self._accumulator.stop()
            raise
        self._reached, self._resumed_mark = self._progress.sequence, self._progress.source
        """Highest sequence of the name's earlier progress; -1: none. The stored progress never falls below it."""
        self._resumed_after = NOTHING_YET if from_start else self._reached
        self._left_mark = self._progress.source if source is None else None
        """Mark of a source that this producer was made without, until the first record; None: there is none."""
        self._partitions = self._progress.partitions
        self._keyless = partition_of(None, self._name, self._partitions)
        """Partition that gets the records without a key."""

        self._lock = threading.Lock()  # guards the prefix; held for microseconds
        self._prefix = AcknowledgedPrefix(self._resumed_after, reached=self._reached)
        self._records_before = self._progress.records
        self._stored_records = 0  # records of this run that the newest stored progress covers
        self._highest_before = self._progress.highest
        self._lags = False
        """True while the acknowledged watermark waits for a report about a run of records.

        `offer` then refuses records until everything is acknowledged.
        """
        self._moved_at, self._reported_then = time.monotonic(), 0
        self._last_sent = self._stood_at = self._resumed_after
        self._first = initial_sequence if self._last_sent == NOTHING_YET else 0
        self._numbered_by_us: bool | None = None
        """True if sequences are automatic, False if the program gives them; None: no record was sent yet."""
        self._progress_writer = ProgressWriter(
            self._progress_store, self._newest_progress, self._accumulator.fail, store_s
        )
        self._process = os.getpid()
        """Id of the process that made the producer; 0 in a forked child."""
        _PRODUCERS.add(self)

    @staticmethod
    def _check(initial_sequence: int, topic_replaced: str | None) -> None:
        if not 0 <= initial_sequence <= SEQUENCE_MAX:
            raise SettingsError(f"initial_sequence {initial_sequence} is not within 0 and 2^63-1")
        if topic_replaced not in (None, *get_args(TopicDecision)):
            raise SettingsError(f"--topic-replaced {topic_replaced}: write resend or keep")

    @abstractmethod
    def _connect(self, options: Mapping[str, str | int | bool], timeout_s: float) -> C:
        """Connect the transport of the records, and return it."""

    def last_sequence_id(self) -> int:
        """Return the highest sequence known to be persisted for the name, on any partition; -1: none."""
        with self._lock:
            self._nothing_waits()
            return max(self._highest_before, self._prefix.highest)

    def resume_from(self) -> int:
        """Return the highest sequence such that all records up to it are persisted, on all partitions; -1: none.

        With `from_start`, only records of this producer count.
        """
        with self._lock:
            self._nothing_waits()
            return self._prefix.sequence

    @property
    def resumed_after(self) -> int:
        """Return the value of `resume_from()` at the start of this producer; -1 with `from_start`."""
        return self._resumed_after

    @property
    def resumed_mark(self) -> str | None:
        """Return the source's mark at the start of this producer; None: the program numbers its records."""
        return self._resumed_mark

    def metrics(self) -> ProducerMetrics:
        """Return the producer's metrics, from any thread and even after it was closed."""
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
            stalled=standstill.cause if (standstill := accumulator.standstill) is not None else "",
        )

    def has_persisted(self, sequence: int) -> bool:
        """Poll the client, and return True if every record up to this sequence is persisted.

        Raises:
            ProducerFenced: a newer producer has taken over the name.
            TransportError: Kafka has refused a record for good.
        """
        self._accumulator.poll(0)
        self._accumulator.check()
        return self.resume_from() >= sequence

    def flush(self) -> None:
        """Wait until Kafka has acknowledged all sent records, and store the progress.

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
        self._store_now()

    def leave_source(self) -> None:
        """Store that the name's further sequences are not those of a source.

        A producer without a source does this before its first record. Otherwise the source's next run would skip the
        records with the sequences that the producer has used.
        """
        if self._left_mark is not None:
            self._left_mark = None
            self._store_now()

    def _store_now(self) -> None:
        """Store the progress, and wait for it without a limit."""
        ticket = self._progress_writer.ask()
        while not self._progress_writer.wait(ticket, SILENCE_S):
            why = standstill_of(self._progress_store.admin, self._options, PROGRESS_TOPIC)
            self._say(
                f"producer {self.name!r} waits for Kafka to store its progress, in a transaction on {PROGRESS_TOPIC} "
                f"({why.cause}): {why.text}"
            )
        self._accumulator.check()

    def _store_within(self, limit_s: float) -> None:
        """Store the progress, once everything is acknowledged or a part of the time limit has passed."""
        began = time.monotonic()
        while not self._accumulator.is_empty() and self._accumulator.failure is None:
            if time.monotonic() - began >= limit_s / 2:
                break
            self._accumulator.poll(POLL_S)
        if self._accumulator.failure is not None:
            return  # in a forked child, the writer's lock may be held for ever
        # Half of the time is for the transaction.
        self._progress_writer.wait(self._progress_writer.ask(), limit_s / 2)

    def close(self) -> None:
        """Flush, then stop; a closed producer sends nothing more."""
        if not self._accumulator.is_closed:
            try:
                self.flush()
            finally:
                self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; after an exception, do not wait for records in flight, which the next run sends again.

        If the user ended the program, store what Kafka acknowledges within `ENDING_S` seconds.
        """
        if kind is None:
            self.close()
            return
        try:
            if issubclass(kind, ENDED_BY_USER) and not self._accumulator.is_closed:
                self._store_within(ENDING_S)
        finally:
            self._stop()

    def _topic_shape(self, options: Mapping[str, str | int | bool], timeout_s: float) -> TopicShape:
        admin = admin_client(options)
        shape = describe_topic(admin, self.topic, timeout_s=timeout_s, say=self._say)
        if shape is None:
            raise TopicMissing(
                f"topic {self.topic!r} does not exist: create it, or correct the name. `ratchet publish` creates "
                "it where it is given --partitions"
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
        elif (policy := cleanup_policy(admin, PROGRESS_TOPIC, timeout_s=timeout_s)) not in (None, "compact"):
            # A name without its progress would begin at 0 again, and all its records would be duplicates.
            raise TopicError(
                f"topic {PROGRESS_TOPIC!r}: cleanup.policy is {policy}, so the progress of a name would be deleted "
                "with time, and its next records dropped as duplicates. Set cleanup.policy=compact on the topic"
            )
        return shape

    def _begin(self, stored: Progress | None, shape: TopicShape) -> Progress:
        decision = self._topic_replaced or ("resend" if self._from_start else None)
        who = ProgressCheck(self.topic, self.name, self._progress_store.session, self._source, decision)
        progress, notice = who.after(stored, shape)
        if notice and notice not in self._notices:
            self._notices.append(notice)
            self._say(notice)
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
                    f"producer {self.name!r} has used its last sequence, 2^63-1: continue under another name"
                )
        else:
            number = sequence if type(sequence) is int else whole(sequence)
            if 0 <= number <= self._last_sent:
                raise SourceError(
                    f"sequence {number} of producer {self.name!r} does not rise above {self._last_sent}: the worker "
                    "would drop the record as a duplicate. Give every record a higher sequence than the one before"
                )
        if self._numbered_by_us is None:
            self.leave_source()
        return number

    def _numbers(self, part: RecordsPart) -> Sequence[int]:
        """Return the sequences of the part's records, up to the first that `_number` refuses."""
        if part.sequences is None:
            first = self._number(None)
            return range(first, min(first + len(part.values), SEQUENCE_MAX + 1))
        last = self._checked(whole(part.sequences[0])) - 1
        numbers: list[int] = []
        with suppress(TypeError):  # no whole number: the caller that sends the rest raises it
            for number in map(index, part.sequences):
                if not last < number <= SEQUENCE_MAX:
                    break
                numbers.append(number)
                last = number
        return numbers

    def _checked(self, sequence: int | None) -> int:
        """Check the sequence for the next record, and return it.

        Args:
            sequence: sequence that the caller gave the record; None: the next automatic one.

        Raises:
            SourceError: the record must not have this sequence.
        """
        number = self._number(sequence)
        sequence_bytes(number)
        return number

    def _nothing_waits(self) -> bool:
        """Update the acknowledged watermark, and return True if nothing is in flight.

        The caller holds the lock, so no record is sent during the call.
        """
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
            if not under_way or sequence != self._stood_at:
                self._moved_at, self._reported_then = time.monotonic(), self._prefix.reported
            self._stood_at = sequence
            # Where nothing at all is acknowledged, Kafka is away, and emptying the queue would not help.
            is_stuck = self._prefix.reported > self._reported_then
            self._lags = is_stuck and time.monotonic() - self._moved_at >= LAG_S
            self._stored_records = self._prefix.reported
        sequence = max(sequence, self._reached)
        self._progress = replace(
            self._progress,
            sequence=sequence,
            records=self._records_before + records,
            source=self._left_mark if self._source is None else self._source.mark(sequence),
            highest=highest,
        )
        return self._progress

    def _stop(self) -> None:
        if self._process:  # a forked child has none of the threads to stop
            self._progress_writer.close()
            self._accumulator.stop()

    def _abandon(self) -> None:
        """End the producer in a forked child, where it would send nothing, and `close` would wait without end."""
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self._accumulator.abandon(
            TransportError(
                f"topic {self.topic!r}, producer {self.name!r}: was made in process {self._process} and is used after "
                f"a fork, in process {os.getpid()}, which has no connection. Make a new producer in the child"
            )
        )
        self._process = 0


_PRODUCERS: WeakSet[NamedProducer[Any]] = WeakSet()
"""Producers of this process, which end in a forked child."""


def _abandon_all() -> None:
    for producer in list(_PRODUCERS):
        producer._abandon()  # noqa: SLF001


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_abandon_all)
