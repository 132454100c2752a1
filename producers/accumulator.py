"""Records in flight: the idempotent client that sends them, in order per partition and with endless retries."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError, KafkaException, Message, ThrottleEvent
from confluent_kafka import Producer as KafkaProducer

from kafka_ratchet.errors import RatchetError, SettingsError, TransportError
from kafka_ratchet.producers.client import AUTHENTICATION_FAILED, CLIENT_STOPPED, PURGED, SILENT, refusal, refused
from kafka_ratchet.producers.metrics import STATISTICS_EVERY_MS, Measures
from kafka_ratchet.producers.standstill import Standstill, silence_sentence, standstill_of

Headers = dict[str, str | bytes | None]

QUEUE_KBYTES = 64 * 1024
"""Maximum KiB of records that wait to be sent or acknowledged; `produce` refuses more.

librdkafka's own limit is 1 GiB, which a file would fill if it is read faster than Kafka accepts the records.
"""

IDLE_S = 0.1
"""Seconds between two fetches of delivery reports while the program sends nothing."""

POLL_EVERY_RECORDS = 64
"""Number of sent records after which a sender fetches delivery reports; each fetch costs a call into the client."""

SILENCE_S = 3.0
"""Seconds without an acknowledgement, while records wait, before a warning is logged and between two warnings."""

THROTTLED_FOR_S = 15.0
"""Seconds after a delay by quota during which that delay explains missing acknowledgements."""


class Accumulator:
    """Client that sends records to one topic until its first failure.

    Any failure ends it, because no later record may overtake a refused one.

    One thread at a time may call `produce`; any thread may call the other methods.
    """

    def __init__(
        self, topic: str, name: str, options: Mapping[str, str | int | bool], say: Callable[[str], None]
    ) -> None:
        self.topic, self.name, self._say = topic, name, say
        self.measures = Measures()
        self.failure: RatchetError | None = None
        """Error that ended this client; None: it has not failed."""
        self.is_over = False
        """True once the client has failed or is closed (`check` raises the cause); senders read it before each
        record."""
        self._closed = threading.Event()
        self._client_error = ""
        self._fatal: KafkaError | None = None
        """Error that stopped the client; its calls then only say that there was one."""
        self._throttled = float("-inf"), 0.0
        """Time of the last delay by quota, by the monotonic clock, and the delay in seconds."""
        self.full_at = float("-inf")
        """Last time when the queue was full, by the monotonic clock."""
        self.standstill: Standstill | None = None
        """Reason why Kafka acknowledges nothing at present; None while it acknowledges records."""
        self._answered_at = self._polled_at = self._silent_since = time.monotonic()
        self._notes: dict[KafkaError | None, Message | None] = {None: None}
        self.note = self._notes.setdefault
        """Delivery callback of most records: it keeps the first error of each kind, and ignores successes. It is called
        from C and runs no Python code, which matters at a million records a second."""
        self._options = options
        self._producer = self._client(options)
        self.produce = self._producer.produce
        """The client's own `produce`; raises BufferError while the queue is full, else errors to pass to `refused`."""
        self._attendant = threading.Thread(target=self._fetch_when_idle, name=f"producer-{topic}", daemon=True)
        self._attendant.start()

    def __len__(self) -> int:
        """Return the number of records that wait to be sent or acknowledged, and of unfetched client events."""
        return len(self._producer)

    def is_empty(self) -> bool:
        """Return True if Kafka has acknowledged everything; False after a failure."""
        return not len(self._producer) and not self.has_failed()

    def has_failed(self) -> bool:
        """Return True if any record was refused, or the client has stopped."""
        return self.failure is not None or len(self._notes) > 1

    def refused(self, failure: KafkaException, partition: int) -> RatchetError:
        """Return the error for a record that `produce` refused.

        After a record too large for the client, further records can be sent.
        """
        error: KafkaError = failure.args[0]
        if error.code() == CLIENT_STOPPED:
            self._fail_after_stop(error)
        if self.failure is not None:
            return self.failure
        self.measures.refused += 1
        return self.refusal(error, f"partition {partition}")

    def lost(self, error: KafkaError, message: Message, what: str) -> None:
        """Process the delivery report of a record that Kafka did not store.

        Args:
            error: error of the report.
            message: the record.
            what: name of the record, for the error.
        """
        if error.code() in PURGED:
            self.note(error, message)  # the report of the refused record says why
        else:
            self.measures.refused += 1
            self.fail(self.refusal(error, what))

    def restart_silence(self) -> None:
        """Restart the measurement of silence, after an acknowledgement or when the queue is empty."""
        self._answered_at = self._silent_since = time.monotonic()
        self.standstill, self._client_error = None, ""

    def poll(self, timeout_s: float) -> None:
        """Fetch delivery reports, waiting up to `timeout_s` seconds for them."""
        self._polled_at = time.monotonic()
        try:
            self._producer.poll(timeout_s)
        except KafkaException as failure:
            self._fail_after_stop(failure.args[0])
        self._take_notes()
        self._polled_at = time.monotonic()

    def drain(self) -> None:
        """Wait until all records are acknowledged, however long that takes.

        Raises:
            RatchetError: the client has failed, or is closed.
        """
        while len(self._producer) and self.failure is None:
            self.poll(IDLE_S)
        self._take_notes()  # another thread may have fetched the last report
        self.check()

    def check(self) -> None:
        """Raise the error that ended this client, if there is one."""
        if self.failure is not None:
            raise self.failure
        if self._closed.is_set():
            raise TransportError(f"producer {self.name!r} is closed and sends nothing more. Make a new producer")

    def fail(self, failure: RatchetError) -> None:
        """End the client with an error, and discard the waiting records; later errors are ignored."""
        if self.failure is None:
            self.failure, self.is_over = failure, True
            self._producer.purge(in_flight=False, blocking=False)

    def abandon(self, failure: RatchetError) -> None:
        """End the client in a forked child, which has none of its threads."""
        self.failure, self.is_over = failure, True

    def refusal(self, error: KafkaError, what: str) -> RatchetError:
        """Return the error for a record that Kafka refuses; `what` names the record."""
        return refusal(error, f"topic {self.topic!r}, producer {self.name!r}, {what}")

    def stop(self) -> None:
        """Stop at once, without waiting for records in flight."""
        self._closed.set()
        self.is_over = True
        self._attendant.join()
        self._producer.purge()
        self.poll(0)

    @property
    def is_closed(self) -> bool:
        """Return True if `stop` was called."""
        return self._closed.is_set()

    def _client(self, options: Mapping[str, str | int | bool]) -> KafkaProducer:
        try:
            return KafkaProducer(
                {
                    "log_level": 0,  # `say` speaks instead
                    "queue.buffering.max.kbytes": QUEUE_KBYTES,
                    "reconnect.backoff.max.ms": 2000,  # notice a returning Kafka soon, not after 10 s
                    "statistics.interval.ms": STATISTICS_EVERY_MS,
                    **options,
                    "acks": "all",
                    "enable.idempotence": True,
                    # A record refused for good fails all that follow it on its partition, instead of being skipped.
                    "enable.gapless.guarantee": True,
                    "max.in.flight.requests.per.connection": 5,  # the most that idempotence keeps in order
                    "message.timeout.ms": 0,  # without end
                    "error_cb": self._client_failed,
                    "throttle_cb": self._client_throttled,
                    "stats_cb": self.measures.take_statistics,
                },
                logger=SILENT,
            )
        except (KafkaException, ValueError, TypeError) as error:
            raise SettingsError(
                f"kafka: librdkafka refuses the client options: {error}. Correct these options"
            ) from error

    def _take_notes(self) -> None:
        if len(self._notes) == 1 or self.failure is not None:
            return
        self._wait_for_cause()
        notes = [(error, message) for error, message in self._notes.items() if error is not None]
        error, message = next((note for note in notes if note[0].code() not in PURGED), notes[0])
        assert message is not None  # noqa: S101 - as Kafka's client reports errors
        self.measures.refused += error.code() not in PURGED
        self.fail(self.refusal(error, f"partition {message.partition()}"))

    def _wait_for_cause(self) -> None:
        """Wait up to SILENCE_S for the report of the refused record, which explains why others were dropped.

        After a refusal the client drops the following records. The reports of the refused and the dropped records
        arrive in any order.
        """
        deadline = time.monotonic() + SILENCE_S
        while self.failure is None and not self._closed.is_set() and time.monotonic() < deadline:
            if any(error is not None and error.code() not in PURGED for error in self._notes):
                return
            try:
                self._producer.poll(IDLE_S)
            except KafkaException:
                pass  # the client says again that it has stopped

    def _fetch_when_idle(self) -> None:
        """Fetch delivery reports while the program does not send.

        Reports run under Python's interpreter lock, which a busy thread releases only every 5 ms: this thread must not
        compete with a sender that fetches reports itself.
        """
        while not self._closed.wait(IDLE_S):
            if time.monotonic() - self._polled_at >= IDLE_S:
                self.poll(0)
            if not len(self._producer):
                self.restart_silence()  # silence begins when a record waits for an acknowledgement
            silent_s = time.monotonic() - self._answered_at
            if len(self._producer) and silent_s >= SILENCE_S:
                self._answered_at += SILENCE_S  # once per SILENCE_S
                self._report_silence()

    def _report_silence(self) -> None:
        """Find the cause of missing acknowledgements, and report it."""
        self.poll(0)  # errors of connections wait in the same queue, and would count as records
        waiting, now = len(self._producer), time.monotonic()
        if not waiting:
            return
        throttled_at, throttle_s = self._throttled
        found = standstill_of(
            self._producer,
            self._options,
            self.topic,
            throttle_s=throttle_s if now - throttled_at < throttle_s + THROTTLED_FOR_S else 0.0,
            last_error=self._client_error,
        )
        if self._silent_since > now:
            return  # an acknowledgement came during the request to Kafka
        self.standstill = found
        full = ". The queue is full, so nothing more is taken" if now - self.full_at < SILENCE_S else ""
        self._say(silence_sentence(self.topic, self.name, waiting, found) + full)

    def _fail_after_stop(self, error: KafkaError) -> None:
        """End the client with the report of the record that stopped it; without such a report, with `error`."""
        self._wait_for_cause()
        self._take_notes()
        self.fail(self.refusal(self._fatal or error, "the client has stopped"))

    def _client_throttled(self, event: ThrottleEvent) -> None:
        self._throttled = time.monotonic(), float(event.throttle_time)

    def _client_failed(self, error: KafkaError) -> None:
        self._client_error = error.str()
        if error.fatal() and self._fatal is None:
            self._fatal = error
        if error.code() == AUTHENTICATION_FAILED and (sentence := refused(error, self._options)) is not None:
            self.fail(
                TransportError(
                    f"topic {self.topic!r}, producer {self.name!r}: {sentence}. Acknowledged records stay published; "
                    "start again to go on after it"
                )
            )
