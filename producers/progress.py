"""Progress of a name on a topic, stored in a compacted topic, as snapshot and replay in PIP-6.

`read_progress` reads it; `ProgressStore` writes it as its only owner: a newer producer of the name ends the epoch of
the older one.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import structlog
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka import Producer as KafkaProducer

from kafka_ratchet.errors import (
    BrokerUnavailable,
    ProducerFenced,
    RatchetError,
    SettingsError,
    SourceError,
    TopicMissing,
    TopicReplaced,
    TransportError,
)
from kafka_ratchet.producers.client import (
    ATTEMPT_S,
    END_OF_PARTITION,
    EPOCH_ENDED,
    PASSING,
    REFUSED,
    SILENT,
    explained,
    refusal,
)
from kafka_ratchet.producers.headers import NOTHING_YET, SEQUENCE_MAX
from kafka_ratchet.producers.offsets import Answer, ask_offsets, no_offset
from kafka_ratchet.producers.topics import admin_client, describe_topic

PROGRESS_TOPIC = "ratchet-producers"
"""Topic with the progress of all producers: one partition, key [topic, name] and value `Progress`, both in JSON."""

PROGRESS_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    # The broker compacts closed segments only: small ones (1 MiB is Kafka's minimum, KIP-1030) keep the topic, which
    # is read to its end at every start, at a few thousand records.
    "segment.bytes": str(1024 * 1024),
    "segment.ms": str(10 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
    # Every transaction leaves an end marker. Markers outlive their records by this long, a day by default.
    "delete.retention.ms": str(60 * 1000),
}


FORMAT = 1
"""Newest format of a progress that this version reads; a format above 1 is written into the value."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a producer: Kafka has acknowledged every record up to `sequence`, on all partitions."""

    sequence: int
    """Highest sequence such that Kafka has acknowledged all records up to it; -1: none is acknowledged yet."""
    records: int
    """Number of published records."""
    partitions: int
    """Number of partitions that the records were distributed over; see `Producer`."""
    topic_id: str
    """Kafka's id of the topic. A topic created again has another id, and contains none of these records."""
    source: str | None
    """Mark of the source for `sequence`, see `Source.mark`; None: the program numbers its records."""
    highest: int
    """Highest sequence that Kafka has acknowledged on any partition; at least `sequence`."""
    session: str
    """Session of the producer that wrote this progress: a text unique to that run."""
    decision: str | None = None
    """Last decision of a user about this progress, with user and time; None: no decision was needed."""

    def encode(self) -> bytes:
        """Return the value for the compacted topic."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes, where: str) -> Progress:
        """Parse a value of the compacted topic.

        Raises:
            SourceError: the value is not a producer's progress, or has a newer format.
        """
        try:
            fields = json.loads(value)
            if (known := fields.get("format", 1)) != FORMAT:
                raise SourceError(
                    f"{where}: a progress in format {str(known)[:20]}, written by a newer Ratchet; this version reads "
                    f"format {FORMAT}. Publish with the newer version"
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
            raise SourceError(
                f"{where}: not the progress of a producer ({value[:200]!r}). Another program writes to "
                f"{PROGRESS_TOPIC}; delete that record, or publish under another name"
            )
        return progress


def progress_key(topic: str, name: str) -> bytes:
    """Return the key in the compacted topic; JSON keeps topic and name apart."""
    return json.dumps([topic, name], ensure_ascii=False, separators=(",", ":")).encode()


def read_progress(
    options: Mapping[str, str | int | bool], topic: str, name: str, *, timeout_s: float, say: Callable[[str], None]
) -> Progress | None:
    """Return the newest progress of a name on a topic; None: the name is new.

    Uncommitted progress counts, because it was true when it was written. A committed read would stop at the oldest open
    transaction of the partition, perhaps one of a killed producer of another name.

    Raises:
        BrokerUnavailable: Kafka sent nothing for `timeout_s` seconds, or refuses the read.
        SourceError: the stored value is not a producer's progress.
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
            "fetch.wait.max.ms": 10,  # the broker would hold back the answer "end of partition" for half a second
        }
    )
    newest: Progress | None = None
    try:
        with suppress(KafkaException):
            # A client that reads before it has met a broker tries again half a second later.
            consumer.list_topics(PROGRESS_TOPIC, timeout=ATTEMPT_S)
        end = _end(consumer, timeout_s, say)
        consumer.assign([TopicPartition(PROGRESS_TOPIC, 0, OFFSET_BEGINNING)])
        answered_at = time.monotonic()
        while True:
            message = consumer.poll(1.0)
            if message is None or message.error() is not None:
                error = message.error() if message else None
                if message is not None and error is not None and error.code() == END_OF_PARTITION:
                    if (message.offset() or 0) >= end:
                        return newest
                elif error is not None and error.code() not in PASSING:
                    raise KafkaException(error)
                silent_s = time.monotonic() - answered_at
                if silent_s >= timeout_s:
                    raise BrokerUnavailable(
                        f"{PROGRESS_TOPIC}: Kafka sent nothing for {timeout_s:g} s; check that it runs"
                    )
                if silent_s >= ATTEMPT_S:
                    say(f"{PROGRESS_TOPIC}: waiting for Kafka since {silent_s:.0f} s")
                continue
            answered_at = time.monotonic()
            if message.key() == key:
                value = message.value()
                where = f"{PROGRESS_TOPIC} partition 0 offset {message.offset()} (producer {name!r}, topic {topic!r})"
                newest = Progress.decode(value, where) if value is not None else None
    except KafkaException as failure:
        raise BrokerUnavailable(
            f"{PROGRESS_TOPIC} cannot be read: {explained(failure.args[0])}. Correct this, then start again"
        ) from failure
    finally:
        consumer.close()


def _end(consumer: Consumer, timeout_s: float, say: Callable[[str], None]) -> int:
    """Return the end offset of the progress topic; a new leader answers only once its followers have fetched.

    Raises:
        KafkaException: Kafka refuses the request.
        BrokerUnavailable: Kafka does not answer within `timeout_s` seconds.
    """
    began = time.monotonic()

    def ask(_: list[int]) -> dict[int, Answer]:
        silent_s = time.monotonic() - began
        if silent_s >= ATTEMPT_S:
            say(f"{PROGRESS_TOPIC}: waiting for Kafka since {silent_s:.0f} s")
        place = TopicPartition(PROGRESS_TOPIC, 0, OFFSET_END)
        try:
            (found,) = consumer.offsets_for_times([place], timeout=min(ATTEMPT_S, timeout_s))
        except KafkaException as failure:
            return {0: failure.args[0]}
        error: KafkaError | None = found.error
        return {0: int(found.offset) if error is None else error}

    def patience_s(error: KafkaError | None) -> float:
        if error is None or error.code() in PASSING:
            return timeout_s
        return 0.0

    ends, failures = ask_offsets(ask, [0], patience_s)
    if not failures:
        return ends[0]
    error = failures[0]
    if error is not None and patience_s(error) == 0:
        raise KafkaException(error)
    raise BrokerUnavailable(
        f"{PROGRESS_TOPIC}: Kafka returned no end offset within {timeout_s:g} s ({no_offset(error, explained)}); check "
        "that it runs"
    )


log = structlog.get_logger(__name__)

TRANSACTION_TIMEOUT_MS = 60_000
"""Milliseconds after which Kafka aborts a transaction that a killed producer left open; one takes milliseconds to
write."""

LEAST_S = 0.1
"""Minimum seconds between two transactions, unless a caller waits for one: each costs Kafka some milliseconds."""

PAUSE_S = 0.1
"""Seconds between two attempts, if Kafka refuses the first at once."""

DOUBT_S = 10.0
"""Seconds to wait for a newer producer's progress, after Kafka has ended this producer's epoch.

If there is none, Kafka has ended the epoch because a transaction took too long.
"""


def transactional_id(topic: str, name: str) -> str:
    """Return the transactional id of a name on a topic; it is unique, because topic names contain no slash."""
    return f"{PROGRESS_TOPIC}/{topic}/{name}"


class ProgressStore:
    """Store of one name's progress, written in transactions with a transactional id of the name alone.

    Kafka gives each producer that takes over the id a higher epoch, aborts its predecessor's open transaction, and
    refuses the predecessor's later writes. It refuses a producer after a transaction's time-out with the same message;
    the newest progress distinguishes the two, because it contains the `session` of its writer.

    It is not thread-safe, except for `stop`.
    """

    def __init__(
        self,
        options: Mapping[str, str | int | bool],
        topic: str,
        name: str,
        *,
        timeout_s: float,
        say: Callable[[str], None],
    ) -> None:
        self.topic, self.name = topic, name
        self.session = uuid.uuid4().hex
        self._options, self._timeout_s, self._say = dict(options), timeout_s, say
        self._key = progress_key(topic, name)
        self._where = f"topic {topic!r}, producer {name!r}, progress in {PROGRESS_TOPIC}"
        self._stopped = threading.Event()
        self._producer: KafkaProducer | None = None
        self.admin = admin_client(options)
        self._progress_topic_id: str | None = None
        """Id of the progress topic at the take-over; None: there was no take-over yet."""

    def read(self) -> Progress | None:
        """Return the newest progress of the name, whichever producer wrote it; None: the name is new."""
        return read_progress(self._options, self.topic, self.name, timeout_s=self._timeout_s, say=self._say)

    def take_over(self) -> Progress | None:
        """Start a new epoch, which ends that of any other producer of the name.

        Returns:
            The newest progress of the name; None: the name is new.

        Raises:
            BrokerUnavailable: Kafka does not answer within the time limit.
            TransportError: this user may not write with the transactional id.
        """
        self._confirm_progress_topic()
        self._producer = self._client()
        with suppress(KafkaException):
            # As in `read_progress`: asked without a connection, it would wait for half a second.
            self._producer.list_topics(PROGRESS_TOPIC, timeout=ATTEMPT_S)
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                self._producer.init_transactions(ATTEMPT_S)
                return self.read()
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if not error.retriable():
                    raise refusal(error, self._where) from failure
                if time.monotonic() >= deadline:
                    raise BrokerUnavailable(
                        f"{self._where}: Kafka did not fence the former owner of the name within {self._timeout_s:g} s "
                        f"({error.str()}). Check that Kafka runs; kafka_timeout_s sets the limit"
                    ) from failure
                self._say(f"producer {self.name!r} waits for Kafka to take over its name ({error.str()})")
                self._pause()

    def store(self, progress: Progress) -> None:
        """Write the progress in one transaction, retrying until Kafka answers or `stop` is called.

        Raises:
            ProducerFenced: a newer producer has taken over the name.
            TransportError: Kafka refuses the progress for good.
        """
        while not self._stopped.is_set():
            try:
                if self._producer is None:
                    self._begin_new_epoch()
                else:
                    self._write(self._producer, progress)
                    return
            except BrokerUnavailable as away:
                self._confirm_progress_topic()
                self._say(str(away))
            except KafkaException as failure:
                self._confirm_progress_topic()
                self._recover(failure.args[0])

    def confirm_topic(self, topic_id: str) -> None:
        """Require that the topic still has this id, retrying until Kafka answers or `stop` is called.

        An id is never used again. So records acknowledged before this call are in the topic with this id.

        Raises:
            TopicReplaced: the topic, or the progress topic, was deleted and created again.
            TopicMissing: the topic, or the progress topic, was deleted.
            TopicError: Kafka refuses the request.
        """
        self._confirm_progress_topic()
        while not self._stopped.is_set():
            try:
                # Callers that wait for Kafka report that it is away.
                shape = describe_topic(self.admin, self.topic, timeout_s=ATTEMPT_S, say=lambda sentence: None)
            except BrokerUnavailable:
                continue
            if shape is None:
                raise TopicMissing(
                    f"topic {self.topic!r} was deleted while producer {self.name!r} published to it: nothing "
                    "sent to it is left. Create it, and publish again"
                )
            if shape.id != topic_id:
                raise TopicReplaced(
                    f"topic {self.topic!r} was deleted and created again while producer {self.name!r} published to it "
                    f"(its id was {topic_id}, and is {shape.id}): earlier records are not in it. Start the "
                    "producer again: its error names the possible decisions"
                )
            return

    def _confirm_progress_topic(self) -> None:
        """Refuse to continue if the progress topic was replaced since this store took over.

        If Kafka does not answer, nothing is checked.

        Raises:
            TopicReplaced: the progress topic was deleted and created again.
            TopicMissing: the progress topic was deleted.
            TopicError: Kafka refuses the request.
        """
        try:
            shape = describe_topic(self.admin, PROGRESS_TOPIC, timeout_s=ATTEMPT_S, say=lambda sentence: None)
        except BrokerUnavailable:
            return
        if self._progress_topic_id is None and shape is not None:
            self._progress_topic_id = shape.id
        if shape is not None and shape.id == self._progress_topic_id:
            return
        what = (
            f"topic {PROGRESS_TOPIC!r} was deleted while producer {self.name!r} published to {self.topic!r}"
            if shape is None
            else f"topic {PROGRESS_TOPIC!r} was deleted and created again while producer {self.name!r} published to "
            f"{self.topic!r} (its id was {self._progress_topic_id}, and is {shape.id})"
        )
        raise (TopicMissing if shape is None else TopicReplaced)(
            f"{what}: the progress of every name in it is lost, and with it the position of this producer. Restore "
            "the topic from a copy if there is one. Otherwise start the producer again: it creates the topic and "
            "sends its source from the beginning, and workers drop the duplicates. This needs the same sequences as "
            "before: for a log with removed older files choose another producer name, because its files would get "
            "other numbers; a program that numbers its records itself has to number them as before. It also needs the "
            "same partitions: if the topic got more since the name was first used, choose another name, and leave out "
            "the records already sent"
        )

    def stop(self) -> None:
        """Make the other methods stop waiting for Kafka; uncommitted progress is lost."""
        self._stopped.set()

    def _client(self) -> KafkaProducer:
        try:
            return KafkaProducer(
                {
                    "log_level": 0,
                    "reconnect.backoff.max.ms": 2000,
                    **self._options,
                    "linger.ms": 0,  # a transaction is one record
                    "acks": "all",
                    "enable.idempotence": True,
                    "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
                    "transactional.id": transactional_id(self.topic, self.name),
                    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                },
                logger=SILENT,
            )
        except (KafkaException, ValueError, TypeError) as error:
            raise SettingsError(
                f"kafka: librdkafka refuses the client options: {error}. Correct these options"
            ) from error

    def _write(self, producer: KafkaProducer, progress: Progress) -> None:
        refused: list[KafkaError] = []

        def written(error: KafkaError | None, message: Message) -> None:
            refused.extend([error] if error is not None else [])

        producer.begin_transaction()
        producer.produce(PROGRESS_TOPIC, progress.encode(), self._key, partition=0, on_delivery=written)
        try:
            self._retry_until_answered(producer.commit_transaction)
        except KafkaException as failure:
            # What became of the record says more than that its transaction cannot be committed.
            if refused and refused[0].code() in REFUSED and not failure.args[0].fatal():
                raise KafkaException(refused[0]) from failure
            raise

    def _recover(self, error: KafkaError) -> None:
        """Prepare for another transaction after a failed one.

        Raises:
            TransportError: no further transaction is possible.
        """
        self._pause()
        if self._stopped.is_set():
            return
        if error.code() not in EPOCH_ENDED and not error.fatal() and self._producer is not None:
            if error.code() in REFUSED or not (error.retriable() or error.txn_requires_abort()):
                raise refusal(error, self._where)
            try:
                self._retry_until_answered(self._producer.abort_transaction)
                return
            except KafkaException as failure:
                error = failure.args[0]
                if not error.fatal():
                    return  # there was none to abort, or the next call reports the error
        if error.code() not in EPOCH_ENDED:
            raise refusal(error, self._where)
        self._producer = None  # this client will do nothing more

    def _retry_until_answered(self, step: Callable[[float], Any]) -> None:
        """Call `step`, which asks Kafka to end a transaction, again and again until Kafka answers.

        If only Kafka's answer was lost, a repeated request gets it again.
        """
        while True:
            try:
                step(ATTEMPT_S)
                return
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if not error.retriable() or error.txn_requires_abort() or self._stopped.is_set():
                    raise
                self._confirm_progress_topic()
                self._pause()

    def _begin_new_epoch(self) -> None:
        """Find out why the epoch ended, and start a new one unless another producer took over.

        Raises:
            ProducerFenced: a newer producer has taken over.
            BrokerUnavailable: Kafka does not answer; call this again.
        """
        deadline = time.monotonic() + DOUBT_S
        while time.monotonic() < deadline and not self._stopped.is_set():
            self._refuse_if_not_ours(self.read())
            self._pause()
        if self._stopped.is_set():
            return
        log.warning(
            "Kafka has ended a transaction that took too long; the producer goes on under a new epoch",
            topic=self.topic,
            producer=self.name,
        )
        self._refuse_if_not_ours(self.take_over())

    def _refuse_if_not_ours(self, newest: Progress | None) -> None:
        if newest is not None and newest.session != self.session:
            raise ProducerFenced(
                f"producer {self.name!r} of topic {self.topic!r} has been taken over: a newer producer with this name "
                f"has started, and has reached sequence {newest.sequence}. This one sends nothing any more. A name "
                "belongs to one program at a time: stop one of the two, or give it a name of its own"
            )

    def _pause(self) -> None:
        self._stopped.wait(PAUSE_S)


class ProgressWriter:
    """Thread that stores the progress at intervals, without delaying `send`.

    It writes even if nothing was sent: only by writing does an idle producer learn that it is fenced.
    """

    def __init__(
        self,
        progress_store: ProgressStore,
        progress: Callable[[], Progress],
        failed: Callable[[RatchetError], None],
        every_s: float,
    ) -> None:
        """Start the thread.

        Args:
            progress_store: store of a name after its take-over.
            progress: function that returns the progress to store; it may raise SourceError.
            failed: function called once, with the error that ended the thread.
            every_s: seconds between the beginnings of two transactions, unless `wake` or `ask` is called before.
        """
        self._progress_store, self._progress, self._failed, self._every_s = progress_store, progress, failed, every_s
        self._turn = threading.Condition()  # guards the four below
        self._tickets = self._answered = 0
        self._due = self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"progress-{progress_store.topic}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Make the thread store the progress soon, without waiting for it."""
        with self._turn:
            self._due = True
            self._turn.notify_all()

    def ask(self) -> int:
        """Request that the present progress is stored, and return a ticket for `wait`."""
        with self._turn:
            self._tickets += 1
            self._turn.notify_all()
            return self._tickets

    def wait(self, ticket: int, patience_s: float) -> bool:
        """Wait until the progress requested by `ask` is stored, at most `patience_s` seconds.

        Args:
            ticket: result of `ask`.
            patience_s: maximum seconds to wait.

        Returns:
            True if it is stored, or the thread has ended; False: storing takes longer.
        """
        with self._turn:
            return self._turn.wait_for(lambda: self._ended or self._answered >= ticket, patience_s)

    def close(self) -> None:
        """End the thread, without waiting for a Kafka that does not answer."""
        self._end()
        self._progress_store.stop()
        self._thread.join()

    def _run(self) -> None:
        try:
            while (ticket := self._next_turn()) is not None:
                began = time.monotonic()
                progress = self._progress()
                self._progress_store.confirm_topic(progress.topic_id)
                self._progress_store.store(progress)
                with self._turn:
                    if self._ended:
                        return  # it may have been given up
                    self._answered = ticket
                    self._turn.notify_all()
                    self._turn.wait_for(self._is_urgent, max(0.0, began + LEAST_S - time.monotonic()))
        except RatchetError as failure:
            self._failed(failure)
        except Exception as error:
            # A thread has no caller to raise to: without this, `flush` would wait for it for ever.
            self._failed(
                TransportError(
                    f"the progress of producer {self._progress_store.name!r} on topic {self._progress_store.topic!r} "
                    f"could not be stored: {error!r}. Correct the cause, and start the producer again"
                )
            )
        finally:
            self._end()

    def _next_turn(self) -> int | None:
        """Wait until the progress has to be stored, and return the newest ticket; None: the thread has to end."""
        with self._turn:
            self._turn.wait_for(lambda: self._due or self._is_urgent(), self._every_s)
            self._due = False
            return None if self._ended else self._tickets

    def _is_urgent(self) -> bool:
        return self._ended or self._tickets > self._answered

    def _end(self) -> None:
        with self._turn:
            self._ended = True
            self._turn.notify_all()
