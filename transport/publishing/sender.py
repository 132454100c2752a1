"""Sender of record batches: idempotent, in order per partition, with endless retries.

Kafka appends the batches of an idempotent producer only in the order of their sequences. It recognises repeats of the
last five batches in a partition, and appends none of them twice. Kafka learns of a producer by the first batch in the
partition, so the sender sends that batch alone. After a failure, the sender also sends batches one at a time, until
Kafka has acknowledged one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from aiokafka import errors as kafka
from aiokafka.protocol.transaction import InitProducerIdRequest

from kafka_ratchet.errors import (
    BrokerUnavailable,
    RatchetError,
    RecordRefused,
    RecordTooLarge,
    TopicError,
    TransportError,
)
from kafka_ratchet.producers.client import LOST_RECORDS
from kafka_ratchet.producers.metrics import Measures
from kafka_ratchet.producers.standstill import UNEXPLAINED, Standstill, silence_sentence
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.connection import refused_by
from kafka_ratchet.transport.client.errors import UNAUTHORIZED, InvalidRecord, explained, raise_for
from kafka_ratchet.transport.client.produce import BatchRequest
from kafka_ratchet.transport.client.retry import RETRY_FIRST_S, RETRY_MOST_S
from kafka_ratchet.transport.publishing.encode import Outgoing
from kafka_ratchet.transport.transactions.crash_points import crash_point

IN_FLIGHT: Final = 5
"""Maximum number of a partition's batches in flight. Kafka recognises repeats of that many batches."""

SILENCE_S: Final = 3.0
"""Seconds of Kafka's silence before a warning and between warnings, as in `kafka_ratchet.producers.accumulator`."""

TOO_LARGE: Final = (kafka.MessageSizeTooLargeError, kafka.RecordListTooLargeError)
AWAY: Final = (kafka.KafkaConnectionError, kafka.NodeNotReadyError, kafka.RequestTimedOutError)
REFUSED: Final = (InvalidRecord, kafka.PolicyViolationError, kafka.InvalidTimestampError, kafka.InvalidTopicError)
LOST: Final = (
    kafka.OutOfOrderSequenceNumber,
    kafka.UnknownProducerId,
    kafka.InvalidProducerEpoch,
    kafka.InvalidProducerIdMapping,
)
"""Kafka's errors for lost acknowledged batches, or for a batch ahead of a missing one."""


class _Under(NamedTuple):
    batch: Outgoing
    data: memoryview
    put_at: float
    again: bool = False
    """True for a repeated batch."""


@dataclass(slots=True)
class _Lane:
    """Waiting and sent batches of one partition."""

    partition: int
    waiting: deque[_Under] = field(default_factory=deque)
    under_way: deque[tuple[_Under, asyncio.Task[None]]] = field(default_factory=deque)
    window: int = 1
    """Maximum number of batches in flight; 1 after a failure, until one batch sent alone has been answered."""
    attendant: asyncio.Task[None] | None = None


class BatchSender:
    """Sender of batches to one topic, in its own thread; the first failure ends it.

    A failed sender sends nothing more.

    Only one thread at a time may call `put`; any thread may call the other methods.

    Args:
        topic: topic of the batches.
        name: the producer's name, for messages.
        options: options of aiokafka, as made by `client_options`.
        room_bytes: bytes of unacknowledged batches at which `wait_for_room` begins to wait.
        request_timeout_ms: time without an answer before a batch is sent again.
        timeout_s: maximum seconds to wait for Kafka at the start.
        say: function called every few seconds while Kafka does not answer.
        acknowledged: function called for each acknowledged batch, in the partition's order, with the partition and the
            seconds since `put`.
        why: function that explains missing acknowledgements, from the quota's delay in seconds and the last connection
            error.

    Raises:
        BrokerUnavailable: Kafka cannot be reached within `timeout_s`.
        TopicError: this user has no right to a producer id or to the topic.
    """

    def __init__(
        self,
        topic: str,
        name: str,
        options: dict[str, Any],
        *,
        room_bytes: int,
        request_timeout_ms: int,
        timeout_s: float,
        say: Callable[[str], None],
        acknowledged: Callable[[int, float], None],
        why: Callable[[float, str], Standstill],
    ) -> None:
        self.topic, self.name, self._say, self._acknowledged, self._why = topic, name, say, acknowledged, why
        self.measures = Measures()
        self.failure: RatchetError | None = None
        self.is_over = False
        """True once the sender has failed or is closed; `check` raises the reason. Read before each record."""
        self._room_bytes = room_bytes
        self._changed = threading.Condition()  # guards the two below
        self._records = self._bytes = 0
        self.closed = threading.Event()
        """Event that `stop` sets."""
        self._answered_at = time.monotonic()
        self._last_error: Exception | None = None
        self.standstill: Standstill | None = None
        """Reason why Kafka acknowledges nothing at present; None while it acknowledges batches."""
        self._lanes: dict[int, _Lane] = {}
        self._next: dict[int, int] = {}  # each partition's next sequence in the sense of Kafka: of its records
        self._cluster = Cluster(options, request_timeout_ms)
        self._producer_id, self._epoch = -1, -1
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name=f"batches-{topic}", daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._start(timeout_s), self._loop).result()
            self._watch = asyncio.run_coroutine_threadsafe(self._report_silence(), self._loop)
        except BaseException:
            self.stop()
            raise

    def __len__(self) -> int:
        """Return the number of records that wait to be sent or acknowledged."""
        return self._records

    @property
    def is_closed(self) -> bool:
        """Return True once `stop` has been called."""
        return self.closed.is_set()

    def is_empty(self) -> bool:
        """Return True if Kafka has acknowledged all records; False after a failure."""
        return not self._records and self.failure is None

    def limit(self, most: int) -> int:
        """Return the topic's max.message.bytes if known and below `most`; else `most`."""

        async def ask() -> int:
            return (await self._cluster.message_limits([self.topic], "limits"))[self.topic]

        asked = asyncio.run_coroutine_threadsafe(asyncio.wait_for(ask(), SILENCE_S), self._loop)
        try:
            return min(most, asked.result())
        except (TransportError, TimeoutError):
            return most

    def put(self, batches: Sequence[Outgoing]) -> None:
        """Queue batches for sending, in this order within a partition. Does not wait."""
        sealed = []
        for outgoing in batches:
            base = self._next.get(outgoing.partition, 0)
            self._next[outgoing.partition] = (base + outgoing.batch.count) & 0x7FFFFFFF
            data = outgoing.batch.seal(self._producer_id, self._epoch, base)
            sealed.append(_Under(outgoing, data, time.monotonic()))
        with self._changed:
            self._records += sum(each.batch.batch.count for each in sealed)
            self._bytes += sum(len(each.data) for each in sealed)
        self._loop.call_soon_threadsafe(self._take, sealed)

    def wait_for_room(self) -> None:
        """Wait until the sender has room for another batch; raise the error that ended the sender."""
        self.check()
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < self._room_bytes or self.is_over)
        self.check()

    def poll(self, timeout_s: float) -> None:
        """Wait until a batch is acknowledged, or `timeout_s` seconds have passed."""
        if timeout_s:
            with self._changed:
                self._changed.wait(timeout_s)

    def drain(self) -> None:
        """Wait without a limit until all batches are acknowledged; raise the error that ends the sender."""
        with self._changed:
            self._changed.wait_for(lambda: not self._records or self.is_over)
        self.check()

    def check(self) -> None:
        """Raise the error that ended this sender, if any."""
        if self.failure is not None:
            raise self.failure
        if self.closed.is_set():
            raise TransportError(f"producer {self.name!r} is closed and sends nothing more. Make a new producer")

    def fail(self, failure: RatchetError) -> None:
        """End the sender with an error; waiting batches are not sent any more. Only the first failure is kept."""
        with self._changed:
            if self.failure is None:
                self.failure, self.is_over = failure, True
            self._changed.notify_all()

    def abandon(self, failure: RatchetError) -> None:
        """End the sender in a forked child, where another thread of the parent may have held the lock."""
        self._changed = threading.Condition()
        self.failure, self.is_over = failure, True

    def stop(self) -> None:
        """Stop at once, without waiting for batches in flight."""
        if not self._thread.is_alive():
            return
        self.closed.set()
        self.is_over = True
        with self._changed:
            self._changed.notify_all()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # What follows runs in the thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _start(self, timeout_s: float) -> None:
        await self._cluster.start(timeout_s)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                await self._cluster.leader(self.topic, 0)  # adds the topic to the metadata
                node = self._cluster.client.get_random_node()
                answer = await self._cluster.send(node, InitProducerIdRequest(None, -1), "producer id")
                raise_for(answer.error_code)
                self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
                return
            except UNAUTHORIZED as error:
                raise self._refusal(error, "no producer id") from None
            except kafka.KafkaError as error:
                if time.monotonic() >= deadline:
                    raise BrokerUnavailable(
                        f"topic {self.topic!r}, producer {self.name!r}: Kafka gave no producer id within "
                        f"{timeout_s:g} s ({explained(error)}). Check that Kafka runs; kafka_timeout_s sets the "
                        "limit"
                    ) from None
                await asyncio.sleep(RETRY_FIRST_S)

    def _take(self, sealed: list[_Under]) -> None:
        for each in sealed:
            lane = self._lanes.setdefault(each.batch.partition, _Lane(each.batch.partition))
            lane.waiting.append(each)
            if lane.attendant is None:
                lane.attendant = self._loop.create_task(self._deliver(lane))
            elif lane.under_way:
                self._fill(lane)

    def _fill(self, lane: _Lane) -> None:
        """Send the next waiting batches, as many as may be in flight. The requests keep the batches' order."""
        while lane.waiting and len(lane.under_way) < lane.window and not self.is_over:
            each = lane.waiting.popleft()
            lane.under_way.append((each, self._loop.create_task(self._produce(each))))

    async def _deliver(self, lane: _Lane) -> None:
        """Process the answers of one partition in the order of its batches, until no batch is left."""
        pause_s = RETRY_FIRST_S
        try:
            while not self.is_over:
                self._fill(lane)
                if not lane.under_way:
                    return
                each, answer = lane.under_way[0]
                is_alone = lane.window == 1
                try:
                    await answer
                except kafka.DuplicateSequenceNumber:
                    pass  # an earlier try was appended
                except kafka.KafkaError as error:
                    await self._settle(lane)
                    if (refusal := self._final(error, each, is_alone)) is not None:
                        self.fail(refusal)
                        return
                    self._last_error = error
                    self._cluster.refresh()
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, RETRY_MOST_S)
                    continue
                lane.under_way.popleft()
                lane.window, pause_s = IN_FLIGHT, RETRY_FIRST_S
                self._acknowledge(each)
        except Exception as error:
            # A task has no caller to raise to: without this, `drain` would wait for it for ever.
            self.fail(
                TransportError(
                    f"topic {self.topic!r}, producer {self.name!r}: an error ended the sending of "
                    f"batches: {error!r}. Make a new producer and send the unacknowledged records again"
                )
            )
        finally:
            # Kafka forgets a producer that sends nothing for a day (producer.id.expiration.ms).
            lane.attendant, lane.window = None, 1

    async def _settle(self, lane: _Lane) -> None:
        """Wait for all answers, then put every batch without a confirmed append back into the queue, in order."""
        under_way = list(lane.under_way)
        lane.window = 1
        await asyncio.gather(*(answer for _, answer in under_way), return_exceptions=True)
        lane.under_way.clear()
        lane.waiting.extendleft(each._replace(again=True) for each, _ in reversed(under_way))

    async def _produce(self, each: _Under) -> None:
        partition = each.batch.partition
        leader = await self._cluster.leader(self.topic, partition)
        request = BatchRequest(None, self._cluster.request_timeout_ms, self.topic, partition, each.data)
        self.measures.transmitted(each.batch.value_bytes, each.batch.batch.count if each.again else 0)
        response = await self._cluster.send(leader, request, "batches")
        raise_for(response.topics[0][1][0][1], f"{self.topic}, partition {partition}")

    def _acknowledge(self, each: _Under) -> None:
        """Report an acknowledged batch, then remove it.

        In this order, a caller that sees no batch in flight finds every batch reported.
        """
        crash_point("batch-there")
        self._answered_at = time.monotonic()
        self._last_error = self.standstill = None
        self._acknowledged(each.batch.partition, self._answered_at - each.put_at)
        with self._changed:
            self._records -= each.batch.batch.count
            self._bytes -= len(each.data)
            self._changed.notify_all()

    def _final(self, error: Exception, each: _Under, is_alone: bool) -> RatchetError | None:
        """Return the error that ends the sender; None if another attempt may help."""
        servers = [f"{node.host}:{node.port}" for node in self._cluster.client.cluster.brokers()]
        if isinstance(error, kafka.KafkaConnectionError | kafka.NodeNotReadyError) and (away := refused_by(servers)):
            return TransportError(
                f"topic {self.topic!r}, producer {self.name!r}: {away}. Acknowledged records stay published; "
                "run the producer again to continue with the next record"
            )
        if isinstance(error, (*TOO_LARGE, *REFUSED, *UNAUTHORIZED)) or (isinstance(error, LOST) and is_alone):
            self.measures.refused += 1
            return self._refusal(error, f"partition {each.batch.partition}, up to sequence {each.batch.last}")
        return None

    def _refusal(self, error: Exception, what: str) -> RatchetError:
        text = f"topic {self.topic!r}, producer {self.name!r}, {what}: {explained(error)}"
        if isinstance(error, TOO_LARGE):
            return RecordTooLarge(
                f"{text}. Raise max.message.bytes of the topic and message.max.bytes in the `kafka` settings, or leave "
                "the record out"
            )
        if isinstance(error, UNAUTHORIZED):
            return TopicError(text)
        if isinstance(error, LOST):
            return TransportError(f"{text}. {LOST_RECORDS}")
        kind = RecordRefused if isinstance(error, REFUSED) else TransportError
        return kind(
            f"{text}. Acknowledged records stay published; run the producer again to continue with the next record"
        )

    async def _report_silence(self) -> None:
        """Call `say` at intervals while Kafka does not answer."""
        while True:
            await asyncio.sleep(SILENCE_S / 10)
            now = time.monotonic()
            if not self._records:
                self._answered_at = now  # silence counts only while records wait
            elif now - self._answered_at >= SILENCE_S and not self.is_over:
                self._answered_at += SILENCE_S
                self.standstill = found = await self._why_silent()
                self._say(silence_sentence(self.topic, self.name, self._records, found))

    async def _why_silent(self) -> Standstill:
        error = self._last_error
        heard = "" if error is None else explained(error)
        is_away = error is None or isinstance(error, AWAY)
        found = await asyncio.to_thread(self._why, self._cluster.throttle_s, heard if is_away else "")
        if found.cause == UNEXPLAINED and not is_away:
            return Standstill("refused", f"Kafka refuses a batch: {heard}")
        return found

    async def _end(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        tasks += [answer for lane in self._lanes.values() for _, answer in lane.under_way]
        await self._cluster.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # not on Windows
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
