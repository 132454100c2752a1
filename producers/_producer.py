"""Sending under a name."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType

import structlog
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as KafkaProducer

from errors import RatchetError, SettingsError, SourceError, TopicMissing, TransportError
from producers._client import AUTHENTICATION_FAILED, CLIENT_STOPPED, refusal
from producers._headers import NOTHING_YET, PRODUCER_HEADER, SEQUENCE_HEADER, name_bytes, sequence_bytes
from producers._prefix import AcknowledgedPrefix
from producers._progress import PROGRESS_TOPIC, PROGRESS_TOPIC_CONFIG, Progress, progress_key, read_progress
from producers._source import Source
from producers._topics import TopicShape, admin_client, create_topic, describe_topic

log = structlog.get_logger(__name__)

QUEUE_KBYTES = 64 * 1024
"""Bytes of records that wait to be sent or acknowledged; `send` waits when there are more. librdkafka's own bound
is 1 GiB, which a file that is read faster than Kafka takes it would fill."""

IDLE_S = 0.1
"""How often delivery reports are fetched for a program that does not call `send` at the moment, in seconds."""

POLL_EVERY_RECORDS = 64
"""`send` fetches delivery reports after this many records; each time costs a call into the client."""

SILENCE_S = 3.0
"""When Kafka has acknowledged nothing for this long although records wait, it is said, and again as often."""


class Producer:
    """Sends records to a topic under a name, each with a sequence, and knows after a crash where to go on.

    The name is its user's promise: one live producer, one source. Records are sent idempotently, with acknowledgement
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
    most `store_records` records or `store_s` seconds behind `resume_from()`.

    `send` is for one thread at a time.

    Args:
        topic: where to; it must exist.
        name: 1 to 256 bytes of UTF-8 without control characters.
        options: librdkafka client options, at least "bootstrap.servers". What the guarantees above rest on cannot be
            overridden.
        source: where the records come from, if it is one that can tell whether it has changed.
        from_start: send everything once more under the same name; the worker drops what it has seen.
        store_records: at most this many acknowledged records are not yet stored as progress.
        store_s: ... or for at most this many seconds.
        timeout_s: how long to look for Kafka at the start, in seconds. Later there is no limit.
        say: told, every few seconds, that Kafka does not answer. Default: a warning in the log.

    Raises:
        SettingsError: a bad name or bad client options.
        TopicMissing: the topic does not exist.
        BrokerUnavailable: Kafka cannot be reached within `timeout_s`.
        SourceError: the source is not the one that was published under this name.
    """

    def __init__(
        self,
        topic: str,
        name: str,
        *,
        options: Mapping[str, str | int | bool],
        source: Source | None = None,
        from_start: bool = False,
        store_records: int = 1000,
        store_s: float = 1.0,
        timeout_s: float = 60.0,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.topic = topic
        self.name = name
        self._name = name_bytes(name)
        self._source = source
        self._store_records = store_records
        self._store_s = store_s
        self._say = say or log.warning

        admin = admin_client(options)
        shape = describe_topic(admin, topic, timeout_s=timeout_s, say=self._say)
        if shape is None:
            raise TopicMissing(f"topic {topic!r} does not exist: create it, or have it created with a partition count")
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
        self._progress_key = progress_key(topic, name)
        stored = read_progress(options, topic, name, timeout_s=timeout_s, say=self._say)
        self._progress = self._begin(stored, shape)
        self._resumed_after = self._progress.sequence

        self._lock = threading.Lock()  # guards the prefix and what is said about progress; held for microseconds
        self._prefix = AcknowledgedPrefix(self._progress.sequence)
        self._records_before = self._progress.records
        self._highest_acknowledged = self._progress.sequence
        self._last_sent = NOTHING_YET if from_start else self._progress.sequence
        self._stored_records = 0  # of this run, what the newest progress sent to Kafka covers
        self._stored_at = self._heard_at = self._polled_at = time.monotonic()
        self._since_poll = 0
        self._client_error = ""
        self._failure: RatchetError | None = None
        self._closed = threading.Event()
        self._producer = self._client(options)
        self._attendant = threading.Thread(target=self._attend, name=f"producer-{topic}", daemon=True)
        self._attendant.start()
        if self._progress is not stored:
            # The name's partition count stands before its first record can be anywhere.
            with self._lock:
                self._store()
            try:
                self._drain()
            except BaseException:
                self._stop()
                raise

    def send(self, value: bytes | None, key: bytes | None = None, *, sequence: int) -> None:
        """Send one record; it is on its way when this returns. Waits while the local queue is full.

        Raises:
            SourceError: the sequence does not rise above that of the record before (or, where publishing was resumed,
                above what the name had reached), or is not within 0 and 2^63-1.
            RecordTooLarge: the record is larger than the client or the topic allows.
            TransportError: Kafka has refused this or an earlier record for good, or the producer is closed.
        """
        self._check()
        if sequence <= self._last_sent:
            raise SourceError(
                f"sequence {sequence} of producer {self.name!r} does not rise above {self._last_sent}: the worker "
                "would drop the record as a duplicate. Give every record a higher sequence than the one before"
            )
        headers: list[tuple[str, str | bytes | None]] = [
            (PRODUCER_HEADER, self._name),
            (SEQUENCE_HEADER, sequence_bytes(sequence)),
        ]
        partition = zlib.crc32(self._name if key is None else key) % self._progress.partitions
        with self._lock:
            if not len(self._prefix):
                self._heard_at = time.monotonic()  # silence is counted from when there is something to hear
            self._prefix.sent(sequence)
        try:
            self._produce(value, key, partition, headers, partial(self._delivered, sequence))
        except Exception:
            with self._lock:
                self._prefix.withdraw()
            raise
        self._last_sent = sequence
        self._since_poll += 1
        if self._since_poll >= POLL_EVERY_RECORDS:
            self._poll(0)

    def last_sequence_id(self) -> int:
        """The highest sequence that is known to be persisted for the name, on any partition; -1 for a new name."""
        return self._highest_acknowledged

    def resume_from(self) -> int:
        """The highest sequence up to which everything is persisted on all partitions; -1 for a new name."""
        return self._prefix.sequence

    @property
    def resumed_after(self) -> int:
        """What `resume_from()` was when this producer started."""
        return self._resumed_after

    def flush(self) -> None:
        """Wait until Kafka has acknowledged everything that was sent, however long that takes, and store the progress.

        Raises:
            TransportError: Kafka has refused a record for good.
        """
        self._drain()
        with self._lock:
            if self._prefix.sequence != self._progress.sequence:
                self._store()
        self._drain()

    def close(self) -> None:
        """Flush, then stop. A closed producer sends nothing any more."""
        if not self._closed.is_set():
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

    def _begin(self, stored: Progress | None, shape: TopicShape) -> Progress:
        if stored is not None and stored.topic_id != shape.id:
            log.warning(
                "the topic was deleted and created again since this name last published; it starts from the beginning",
                topic=self.topic,
                producer=self.name,
                last_sequence=stored.sequence,
            )
            stored = None
        if stored is None:
            source = self._source.mark(NOTHING_YET) if self._source else None
            return Progress(NOTHING_YET, 0, shape.partitions, shape.id, source)
        if self._source and stored.source is not None and self._source.mark(stored.sequence) != stored.source:
            raise SourceError(
                f"the source has changed since producer {self.name!r} published it to {self.topic!r} up to sequence "
                f"{stored.sequence}: what stands before that position is not the same. Publish it under another "
                "producer name"
            )
        return stored

    def _client(self, options: Mapping[str, str | int | bool]) -> KafkaProducer:
        try:
            return KafkaProducer(
                {
                    "log_level": 0,  # `say` speaks instead
                    "queue.buffering.max.kbytes": QUEUE_KBYTES,
                    "reconnect.backoff.max.ms": 2000,  # a Kafka that is back is noticed soon, not after 10 s
                    **options,
                    "acks": "all",
                    "enable.idempotence": True,
                    # A record refused for good fails all that follow it on its partition, instead of being skipped.
                    "enable.gapless.guarantee": True,
                    "max.in.flight.requests.per.connection": 5,  # the most that idempotence keeps in order
                    "message.timeout.ms": 0,  # without end
                    "error_cb": self._client_failed,
                }
            )
        except (KafkaException, ValueError, TypeError) as error:
            raise SettingsError(f"kafka: the client options are not accepted: {error}") from error

    def _produce(
        self,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        headers: list[tuple[str, str | bytes | None]],
        report: Callable[[KafkaError | None, Message], None],
    ) -> None:
        while True:
            try:
                self._producer.produce(
                    self.topic, value=value, key=key, partition=partition, headers=headers, on_delivery=report
                )
                return
            except BufferError:
                self._poll(IDLE_S)
                self._check()
            except KafkaException as failure:
                if failure.args[0].code() == CLIENT_STOPPED:
                    self._stopped(failure.args[0])
                    self._check()
                raise self._refusal(failure.args[0], f"partition {partition}") from failure

    def _delivered(self, sequence: int, error: KafkaError | None, message: Message) -> None:
        self._heard_at = time.monotonic()
        if error is not None:
            self._fail(self._refusal(error, f"sequence {sequence}, partition {message.partition()}"))
            return
        with self._lock:
            self._highest_acknowledged = max(self._highest_acknowledged, sequence)
            self._prefix.acknowledge(sequence)
            if self._prefix.records - self._stored_records >= self._store_records:
                self._store()

    def _store(self) -> None:
        """Send the progress. The lock is held."""
        sequence = self._prefix.sequence
        try:
            progress = Progress(
                sequence,
                self._records_before + self._prefix.records,
                self._progress.partitions,
                self._progress.topic_id,
                self._source.mark(sequence) if self._source else self._progress.source,
            )
            self._producer.produce(
                PROGRESS_TOPIC, value=progress.encode(), key=self._progress_key, partition=0, on_delivery=self._stored
            )
        except BufferError:
            return  # the queue is full of records; the next delivery report tries again
        except SourceError as failure:
            self._fail(failure)
            return
        except KafkaException as failure:
            self._fail(self._refusal(failure.args[0], f"progress in {PROGRESS_TOPIC}"))
            return
        self._progress = progress
        self._stored_records = self._prefix.records
        self._stored_at = time.monotonic()

    def _stored(self, error: KafkaError | None, message: Message) -> None:
        self._heard_at = time.monotonic()
        if error is not None:
            self._fail(self._refusal(error, f"progress in {PROGRESS_TOPIC}"))

    def _attend(self) -> None:
        """Keep acknowledgements and progress fresh while the program does something else.

        Delivery reports run under Python's interpreter lock, which a busy thread gives up only every 5 ms: this thread
        must not compete with a `send` that fetches them itself.
        """
        while not self._closed.wait(IDLE_S):
            if time.monotonic() - self._polled_at >= IDLE_S:
                self._poll(0)
            with self._lock:
                moved = self._prefix.sequence != self._progress.sequence
                if moved and time.monotonic() - self._stored_at >= self._store_s:
                    self._store()
            silent_s = time.monotonic() - self._heard_at
            if len(self._producer) and silent_s >= SILENCE_S:
                self._heard_at += SILENCE_S  # once per SILENCE_S
                self._say(
                    f"Kafka acknowledges nothing; {len(self._producer)} records of producer {self.name!r} wait and "
                    f"will be sent when it does{': ' + self._client_error if self._client_error else ''}"
                )

    def _poll(self, timeout_s: float) -> None:
        self._since_poll = 0
        self._polled_at = time.monotonic()
        try:
            self._producer.poll(timeout_s)
        except KafkaException as failure:
            self._stopped(failure.args[0])
        self._polled_at = time.monotonic()

    def _drain(self) -> None:
        while len(self._producer) and self._failure is None:
            self._poll(IDLE_S)
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed.is_set():
            raise TransportError(f"producer {self.name!r} is closed: nothing can be sent any more")

    def _fail(self, failure: RatchetError) -> None:
        # The first one is the cause; what follows it on the partition fails only because of it.
        self._failure = self._failure or failure

    def _refusal(self, error: KafkaError, what: str) -> RatchetError:
        return refusal(error, f"topic {self.topic!r}, producer {self.name!r}, {what}")

    def _stopped(self, error: KafkaError) -> None:
        """The client has given up for good. The report of the record that made it so may follow, and says more."""
        deadline = time.monotonic() + SILENCE_S
        while self._failure is None and time.monotonic() < deadline:
            try:
                self._producer.poll(IDLE_S)
            except KafkaException:
                continue  # the same news again
        self._fail(self._refusal(error, "the client has stopped"))

    def _client_failed(self, error: KafkaError) -> None:
        self._client_error = error.str()
        if error.code() == AUTHENTICATION_FAILED:
            self._fail(self._refusal(error, "authentication"))

    def _stop(self) -> None:
        self._closed.set()
        self._attendant.join()
        self._producer.purge()
        self._poll(0)
