"""Producer that sends records under a name, in record batches that it encodes itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import repeat
from typing import Final

import numpy as np

from kafka_ratchet.errors import RatchetError, TransportError
from kafka_ratchet.producers import ProducerMetrics, Source, TopicDecision
from kafka_ratchet.producers.headers import SEQUENCE_MAX, check_bytes
from kafka_ratchet.producers.many import in_parts
from kafka_ratchet.producers.named import NamedProducer
from kafka_ratchet.producers.standstill import Standstill, standstill_of
from kafka_ratchet.transport.batch.rows import spans
from kafka_ratchet.transport.publishing.encode import Encoder, Records
from kafka_ratchet.transport.publishing.options import understood
from kafka_ratchet.transport.publishing.sender import BatchSender

TAKEN: Final = frozenset((bytes, type(None)))
"""Permitted types of values and keys.

The producer holds records until it encodes them. If the caller changed a buffer in between, the producer would send the
changed content. A buffer of items larger than a byte would be cut in the wrong places.
"""

BLOCK_LEAST: Final = 1 << 20
BLOCK_MOST: Final = 16 << 20
BLOCK_OF_PARTITION: Final = 64 << 10
"""Bytes of records encoded at once, for each partition of the topic.

With so many bytes, the cost of each call is negligible, and each partition's batch is worth a request.
"""

RECORD_COSTS: Final = 128
"""Bytes counted for each record in addition to its size. So a block of 1 MiB (`BLOCK_LEAST`) has at most 8,192
records, however short."""


class BatchProducer(NamedProducer[BatchSender]):
    """Producer of whole record batches, with the arguments and promises of `Producer`.

    This class is made for many records a second. It encodes and sends record batches without librdkafka, which takes
    headers record by record, and needs the package's extra for workers. A name may be used with `Producer` and
    `BatchProducer` in turn: partitions, numbers, headers and progress are the same.

    `send` collects records until a block (`block_bytes`) is full or `linger.ms` (5) has passed. Progress moves by
    blocks of some thousand records, so more records are sent again after a crash than with `Producer`.

    Of librdkafka's options, these have an effect: those of security, `client.id`, `compression.type`, `linger.ms`,
    `message.max.bytes`, `queue.buffering.max.kbytes` and `request.timeout.ms`. Options that only affect librdkafka's
    guarantees, batching, logging and statistics are ignored. Any other option is an error that names the option.

    Raises:
        SettingsError: an option is unknown or invalid.
    """

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
        self._understood = understood(options)
        super().__init__(
            topic,
            name,
            initial_sequence,
            options=options,
            source=source,
            from_start=from_start,
            topic_replaced=topic_replaced,
            store_records=store_records,
            store_s=store_s,
            timeout_s=timeout_s,
            say=say,
        )
        limit = self._accumulator.limit(self._understood.message_max_bytes)
        self._encoder = Encoder(topic, self._name, self._partitions, limit, self._understood.compression)
        self.block_bytes = min(max(BLOCK_LEAST, BLOCK_OF_PARTITION * self._partitions), BLOCK_MOST)
        """Bytes of records encoded at once, with `RECORD_COSTS` for each record."""
        self._turn = threading.RLock()  # guards what follows
        self._values: list[bytes | None] = []
        self._keys: list[bytes | None] = []
        self._sequences: list[int] = []
        """Sequences that the caller gave for the waiting records; empty if `send` numbers them, up to `_last_sent`."""
        self._last_put = self._last_sent
        """Last sequence of the records already encoded and handed to the sender."""
        self._bytes = 0
        self._is_ending = False
        """True once an interrupted producer stores its progress: no collected record must follow."""
        self._began = threading.Event()
        """Event, set when the first record of a block waits for further records (linger.ms)."""
        self._lingering = threading.Thread(target=self._linger, name=f"linger-{topic}", daemon=True)
        self._lingering.start()

    def send(self, value: bytes | None, key: bytes | None = None, *, sequence: int | None = None) -> int:
        """Send a record, with the arguments and result of `Producer.send`."""
        # Runs for each record: calls written out here save a third of a record's time.
        if type(value) is not bytes or (key is not None and type(key) is not bytes):
            check_bytes(value, key)
        try:
            size = len(value) + len(key)  # type: ignore[arg-type]
        except TypeError:
            size = len(value or b"") + len(key or b"")
        with self._turn:
            accumulator = self._accumulator
            if accumulator.is_over:
                accumulator.check()
            number = self._last_sent + 1 if sequence is None and self._numbered_by_us else self._checked(sequence)
            if number > SEQUENCE_MAX:
                self._checked(sequence)  # raises the error
            if size > self._encoder.most:
                raise self._encoder.too_large(number, size)
            self._values.append(value)
            self._keys.append(key)
            if sequence is not None:
                self._sequences.append(number)
            self._last_sent, self._numbered_by_us = number, sequence is None
            if not self._bytes:
                self._began.set()
            self._bytes += size + RECORD_COSTS
            if self._bytes >= self.block_bytes:
                self._send_taken()
        return number

    def send_many(
        self,
        values: Iterable[bytes | None],
        keys: Iterable[bytes | None] | None = None,
        *,
        sequences: Iterable[int] | None = None,
    ) -> int | None:
        """Send several records, with the arguments and result of `Producer.send_many`."""
        number = None
        for part in in_parts(values, keys, sequences):
            with self._turn:
                self._accumulator.check()
                numbers = self._numbers(part)
                count = len(numbers)
                keys_of = part.keys if part.keys is not None else [None] * count
                if not TAKEN.issuperset(map(type, part.values)) or not TAKEN.issuperset(map(type, keys_of)):
                    count = 0  # `send` below refuses one of them
                    keys_of = []
                size = [len(value or b"") + len(key or b"") for value, key in zip(part.values, keys_of, strict=False)]
                if count < len(part.values) or max(size) > self._encoder.most:
                    given = part.sequences if part.sequences is not None else [None] * len(part.values)
                    for value, key, sequence in zip(part.values, part.keys or repeat(None), given, strict=False):
                        number = self.send(value, key, sequence=sequence)  # one of them is refused
                    continue
                self._values.extend(part.values)
                self._keys.extend(keys_of)
                if part.sequences is not None:
                    self._sequences.extend(numbers)
                if not self._bytes:
                    self._began.set()
                self._bytes += sum(size) + RECORD_COSTS * count
                self._last_sent, self._numbered_by_us = numbers[-1], part.sequences is None
                number = self._last_sent
                if self._bytes >= self.block_bytes:
                    self._send_taken()
        return number

    def send_block(self, records: Records) -> None:
        """Send numbered records in one step, for a source read in blocks.

        Raises:
            SourceError: the first sequence is not above the last one sent.
            RatchetError: as in `send`; the records before a too large record are in flight.
        """
        with self._turn:
            self._send_taken()
            self._checked(int(records.sequences[0]))
            fits = self._encoder.fits(records)
            if fits:
                self._put(records.first(fits))
                self._last_sent, self._numbered_by_us = int(records.sequences[fits - 1]), False
            if fits < len(records.sequences):
                size = max(0, int(records.keys[2][fits])) + max(0, int(records.values[2][fits]))
                raise self._encoder.too_large(int(records.sequences[fits]), size)

    def flush(self) -> None:
        """Wait until all records are acknowledged, as `Producer.flush` does."""
        with self._turn:
            self._send_taken()
        super().flush()

    def metrics(self) -> ProducerMetrics:
        """Return the figures of `Producer.metrics`; acknowledgement times are measured per batch."""
        taken = len(self._values)  # without the lock `_turn`, which a waiting `send` may hold for long
        metrics = super().metrics()
        return replace(metrics, sent=metrics.sent + taken, in_flight=metrics.in_flight + taken)

    def _store_within(self, limit_s: float) -> None:
        self._is_ending = True
        super()._store_within(limit_s)

    def _abandon(self) -> None:
        self._turn = threading.RLock()
        super()._abandon()

    def _connect(self, options: Mapping[str, str | int | bool], timeout_s: float) -> BatchSender:
        return BatchSender(
            self.topic,
            self.name,
            self._understood.client,
            room_bytes=self._understood.room_bytes,
            request_timeout_ms=self._understood.request_timeout_ms,
            timeout_s=timeout_s,
            say=self._say,
            acknowledged=self._delivered,
            why=self._why_silent,
        )

    def _why_silent(self, throttle_s: float, heard: str) -> Standstill:
        return standstill_of(
            self._progress_store.admin, self._options, self.topic, throttle_s=throttle_s, last_error=heard
        )

    def _send_taken(self) -> None:
        """Encode and send the records that `send` has collected. The caller holds the lock `_turn`."""
        if not self._values:
            return
        self._accumulator.wait_for_room()
        count = len(self._values)
        try:
            last = self._last_sent
            if self._sequences:
                is_whole = len(self._sequences) == count
            else:
                is_whole = last == max(self._last_put + 1, self._first) + count - 1
            if not is_whole or len(self._keys) != count:
                raise ValueError(
                    "a call of `send` was interrupted half-way by an exception. Make a new producer and send the "
                    "unacknowledged records again"
                )
            # Counted from the first: one more than the last may exceed 64 bits.
            sequences = np.arange(count, dtype=np.int64) + (last - count + 1)
            if self._sequences:
                sequences = np.array(self._sequences, np.int64)
            self._put(Records(sequences, spans(self._keys), spans(self._values)))
        except RatchetError:
            raise
        except Exception as error:
            # They were taken, and what follows must not overtake them.
            failure = TransportError(
                f"producer {self.name!r}: records cannot be encoded: {error!r}. Acknowledged records stay published; "
                "run the producer again to continue with the next record"
            )
            self._accumulator.fail(failure)
            raise failure from error
        # Only now: after an interruption before this line, the next call or `close` still finds the records.
        self._last_put = last
        self._values, self._keys, self._sequences, self._bytes = [], [], [], 0

    def _put(self, records: Records) -> None:
        self._accumulator.wait_for_room()
        batches = self._encoder.encode(records)
        risen = int(np.count_nonzero(records.sequences > self._reached))
        with self._lock:
            self._accumulator.put(batches)
            sent = ((each.partition, each.last, each.batch.count) for each in batches)
            self._prefix.count_block(sent, int(records.sequences[-1]), len(records.sequences), risen)

    def _delivered(self, partition: int, seconds: float) -> None:
        self._accumulator.measures.acknowledged(seconds)
        with self._lock:
            self._prefix.acknowledge(partition)
            if self._prefix.reported - self._stored_records < self._store_records:
                return
            self._stored_records = self._prefix.reported
        self._progress_writer.wake()

    def _linger(self) -> None:
        """Send collected records after `linger.ms`, in a thread."""
        closed = self._accumulator.closed
        while not closed.is_set():
            if not self._began.wait(1.0) or closed.wait(self._understood.linger_s):
                continue
            self._began.clear()
            with self._turn:
                if not (self._accumulator.is_over or self._is_ending):
                    with suppress(RatchetError):  # the next call of the program raises it
                        self._send_taken()
