"""Writing down what a name has reached, as its only owner: a newer producer of the name ends the older one's epoch."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as KafkaProducer

from kafka_ratchet.errors import (
    BrokerUnavailable,
    ProducerFenced,
    RatchetError,
    SettingsError,
    TopicMissing,
    TopicReplaced,
    TransportError,
)
from kafka_ratchet.producers.client import ATTEMPT_S, EPOCH_ENDED, REFUSED, refusal
from kafka_ratchet.producers.progress import PROGRESS_TOPIC, Progress, progress_key, read_progress
from kafka_ratchet.producers.topics import admin_client, describe_topic

log = structlog.get_logger(__name__)

TRANSACTION_TIMEOUT_MS = 60_000
"""Kafka ends a transaction that a killed producer left open after this long; one takes milliseconds to write."""

LEAST_S = 0.1
"""From one transaction to the next, in seconds, unless somebody waits for it: each costs Kafka some milliseconds."""

PAUSE_S = 0.1
"""Between two attempts, where Kafka refuses the first at once."""

DOUBT_S = 10.0
"""An epoch that has ended may mean a successor that has not written its first progress yet. A producer that finds only
its own there asks again for this long before it takes the time-out of a transaction for the reason."""


def transactional_id(topic: str, name: str) -> str:
    """What the epoch belongs to. A topic's name has no slash in it, so no two pairs share an id."""
    return f"{PROGRESS_TOPIC}/{topic}/{name}"


class ProgressStore:
    """The progress of one name, written in transactions of an id that is the name's.

    Kafka gives each producer that takes over the id a higher epoch, aborts what its predecessor left open, and refuses
    whatever the predecessor writes after that. It refuses a producer whose transaction has timed out with the same
    words: which of the two it was is told by the newest progress, which carries its writer's `session`.

    Not thread-safe, but for `stop`.
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
        self._admin = admin_client(options)

    def read(self) -> Progress | None:
        """The newest progress of the name, whoever wrote it."""
        return read_progress(self._options, self.topic, self.name, timeout_s=self._timeout_s, say=self._say)

    def take_over(self) -> Progress | None:
        """Begin an epoch, which ends that of any other producer of the name, and read what it has reached.

        Raises:
            BrokerUnavailable: no answer within the limit.
            TransportError: Kafka does not let this user write under the id.
        """
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
                        f"{self._where}: the name could not be taken over within {self._timeout_s:g} s "
                        f"({error.str()}). Check that Kafka runs; kafka_timeout_s sets the limit"
                    ) from failure
                self._say(f"producer {self.name!r} waits for Kafka to take over its name ({error.str()})")
                self._pause()

    def store(self, progress: Progress) -> None:
        """Write it in a transaction of its own, however long Kafka is away; or until `stop`.

        Raises:
            ProducerFenced: a newer producer has taken over the name.
            TransportError: Kafka refuses the progress for good.
        """
        while not self._stopped.is_set():
            try:
                if self._producer is None:
                    self._begin_anew()
                else:
                    self._write(self._producer, progress)
                    return
            except BrokerUnavailable as away:
                self._say(str(away))
            except KafkaException as failure:
                self._recover(failure.args[0])

    def confirm_topic(self, topic_id: str) -> None:
        """Find the topic to be the one with this id still, however long Kafka is away; or until `stop`.

        An id never comes back. So what was acknowledged before this was asked is in the topic with this id.

        Raises:
            TopicReplaced: it was deleted and created again.
            TopicMissing: it was deleted.
            TopicError: Kafka refuses the question.
        """
        while not self._stopped.is_set():
            try:
                # That Kafka is away is said by those who wait for it.
                shape = describe_topic(self._admin, self.topic, timeout_s=ATTEMPT_S, say=lambda sentence: None)
            except BrokerUnavailable:
                continue
            if shape is None:
                raise TopicMissing(
                    f"topic {self.topic!r} was deleted while producer {self.name!r} published to it: nothing that was "
                    "sent to it is there any more. Create it, and publish again"
                )
            if shape.id != topic_id:
                raise TopicReplaced(
                    f"topic {self.topic!r} was deleted and created again while producer {self.name!r} published to it "
                    f"(its id was {topic_id}, and is {shape.id}): what was sent before is not in it. Start the "
                    "producer again; it says what can be done"
                )
            return

    def stop(self) -> None:
        """End attempts that wait for Kafka. What is not committed then is as if it had not been written."""
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
                }
            )
        except (KafkaException, ValueError, TypeError) as error:
            raise SettingsError(f"kafka: the client options are not accepted: {error}") from error

    def _write(self, producer: KafkaProducer, progress: Progress) -> None:
        refused: list[KafkaError] = []

        def written(error: KafkaError | None, message: Message) -> None:
            refused.extend([error] if error is not None else [])

        producer.begin_transaction()
        producer.produce(PROGRESS_TOPIC, progress.encode(), self._key, partition=0, on_delivery=written)
        try:
            self._insist(producer.commit_transaction)
        except KafkaException as failure:
            # What became of the record says more than that its transaction cannot be committed.
            if refused and refused[0].code() in REFUSED and not failure.args[0].fatal():
                raise KafkaException(refused[0]) from failure
            raise

    def _recover(self, error: KafkaError) -> None:
        """Do what makes another transaction possible.

        Raises:
            TransportError: nothing does.
        """
        self._pause()
        if self._stopped.is_set():
            return
        if error.code() not in EPOCH_ENDED and not error.fatal() and self._producer is not None:
            if error.code() in REFUSED or not (error.retriable() or error.txn_requires_abort()):
                raise refusal(error, self._where)
            try:
                self._insist(self._producer.abort_transaction)
                return
            except KafkaException as failure:
                error = failure.args[0]
                if not error.fatal():
                    return  # there was none to abort, or the next one says what is wrong
        if error.code() not in EPOCH_ENDED:
            raise refusal(error, self._where)
        self._producer = None  # this client will do nothing more

    def _insist(self, step: Callable[[float], Any]) -> None:
        """Repeat the end of a transaction until Kafka has answered; the same answer comes again where it was lost."""
        while True:
            try:
                step(ATTEMPT_S)
                return
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if not error.retriable() or error.txn_requires_abort() or self._stopped.is_set():
                    raise
                self._pause()

    def _begin_anew(self) -> None:
        """Find out why the epoch has ended, and begin another if nobody has taken over.

        Raises:
            ProducerFenced: somebody has.
            BrokerUnavailable: Kafka does not answer, and this has to be asked again.
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
                f"has started, and has come to sequence {newest.sequence}. This one sends nothing any more. A name "
                "belongs to one program at a time: stop the one that is not meant to run, or give it a name of its own"
            )

    def _pause(self) -> None:
        self._stopped.wait(PAUSE_S)


class ProgressWriter:
    """A thread that has the progress stored every so often; a busy or waiting `send` neither delays nor feels it.

    It is stored as often when nothing has been sent: that an idle producer has been fenced is found out by writing.
    """

    def __init__(
        self,
        progress_store: ProgressStore,
        progress: Callable[[], Progress],
        failed: Callable[[RatchetError], None],
        every_s: float,
    ) -> None:
        """Start it.

        Args:
            progress_store: taken over.
            progress: what to store now. May raise SourceError.
            failed: told, once, what has ended the thread.
            every_s: between the beginnings of two transactions, unless `wake` or `ask` comes first, in seconds.
        """
        self._progress_store, self._progress, self._failed, self._every_s = progress_store, progress, failed, every_s
        self._turn = threading.Condition()  # guards the four below
        self._asked = self._answered = 0
        self._due = self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"progress-{progress_store.topic}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Store soon, and do not wait for it."""
        with self._turn:
            self._due = True
            self._turn.notify_all()

    def ask(self) -> int:
        """Store at once what is reached by now; returns what to `wait` for."""
        with self._turn:
            self._asked += 1
            self._turn.notify_all()
            return self._asked

    def wait(self, asked: int, patience_s: float) -> bool:
        """Whether that is done, or the thread has ended, within so many seconds."""
        with self._turn:
            return self._turn.wait_for(lambda: self._ended or self._answered >= asked, patience_s)

    def close(self) -> None:
        """End it, without waiting for a Kafka that does not answer."""
        self._end()
        self._progress_store.stop()
        self._thread.join()

    def _run(self) -> None:
        try:
            while (asked := self._next_turn()) is not None:
                began = time.monotonic()
                progress = self._progress()
                self._progress_store.confirm_topic(progress.topic_id)
                self._progress_store.store(progress)
                with self._turn:
                    if self._ended:
                        return  # it may have been given up
                    self._answered = asked
                    self._turn.notify_all()
                    self._turn.wait_for(self._is_urgent, max(0.0, began + LEAST_S - time.monotonic()))
        except RatchetError as failure:
            self._failed(failure)
        except Exception as error:
            # A thread has nobody to raise to: without this, `flush` would wait for it for ever.
            self._failed(
                TransportError(f"the progress of producer {self._progress_store.name!r} is not stored: {error!r}")
            )
        finally:
            self._end()

    def _next_turn(self) -> int | None:
        """Wait for it; returns what is asked for by then, None at the end."""
        with self._turn:
            self._turn.wait_for(lambda: self._due or self._is_urgent(), self._every_s)
            self._due = False
            return None if self._ended else self._asked

    def _is_urgent(self) -> bool:
        return self._ended or self._asked > self._answered

    def _end(self) -> None:
        with self._turn:
            self._ended = True
            self._turn.notify_all()
