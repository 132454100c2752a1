"""Endless events with repeats and late ones, for all kinds of identity, sent while faults are injected."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from confluent_kafka import Message, Producer

from kafka_ratchet.errors import FaultRunFailed
from kafka_ratchet.producers import PRODUCER_HEADER, SEQUENCE_HEADER

IDENTITIES = ("partition", "key", "producer")
WINDOW = 64
SETTINGS = {
    **{kind: f'identity = "{kind}"' for kind in IDENTITIES},
    "ids": 'identity = ["key", "header:ratchet-sequence"]\nsequence = "none"\ninactive_after_s = 604800',
    "window": f'identity = "partition"\nreorder_window = {WINDOW}',
    "all": "deduplicate = false",
}
"""Rules of the streams, by kind."""
EVERY_KIND = tuple(kind for kind in SETTINGS if kind != "all")
PARTITIONS = 4
KEYS = 200
PRODUCERS = 20
REPEATED = 0.2
"""Share of repeated events, like PIP-6's retries but a hundred times as frequent as in practice."""
HELD_BACK = 0.03
"""Share of late events, as a slow thread would send them."""
HELD_FOR = 2 * PARTITIONS * WINDOW
"""Maximum number of events that overtake a late one. Sequences rise by two, so half the late events are within the
window."""
TRICKLE = 100
"""Number of events sent at a time while no fault asks for more, so that some are always in flight."""
TRICKLE_EVERY_S = 0.3
QUEUE_FULL_PAUSE_S = 0.5
DELIVERED_WITHIN_MS = 300_000
"""Milliseconds until Kafka must have an event, longer than any fault lasts. Otherwise the run is invalid."""


class Event(NamedTuple):
    """One event, sent to the input of every stream."""

    partition: int
    key: str
    producer: str
    sequence: int

    def identity(self, kind: str) -> tuple[int, str]:
        """Return the identity that the event's sequence belongs to.

        The partition is a part of it for every kind, because workers keep their state per partition.
        """
        if kind == "ids":
            return self.partition, f"{self.key} {self.sequence}"
        name = {"partition": "", "window": "", "key": self.key, "producer": self.producer}
        return self.partition, name[kind]


def events(seed: int) -> Iterator[Event]:
    """Yield events without end, always the same for a seed: rising sequences with gaps, repeats and late events."""
    choose = random.Random(seed)  # noqa: S311
    last: dict[int, int] = defaultdict(int)
    sent: dict[int, list[Event]] = defaultdict(list)
    held: list[tuple[int, Event]] = []
    for number in count():
        if held and held[0][0] <= number:
            sent[held[0][1].partition].append(held[0][1])
            yield heappop(held)[1]
        key = choose.randrange(KEYS)
        partition = key % PARTITIONS
        recent = sent[partition]
        if recent and choose.random() < REPEATED:
            yield choose.choice(recent)
            continue
        last[partition] += choose.randint(1, 3)
        event = Event(partition, f"key-{key}", f"producer-{key % PRODUCERS}", last[partition])
        if choose.random() < HELD_BACK:
            heappush(held, (number + choose.randrange(1, HELD_FOR), event))
            continue
        recent.append(event)
        if len(recent) > 1000:
            del recent[:500]
        yield event


class Feed(threading.Thread):
    """Thread that sends events to all inputs: a trickle, or at full speed up to the number given to `allow`."""

    def __init__(self, bootstrap: str, inputs: list[str], seed: int) -> None:
        """Prepare the producer without sending anything.

        Args:
            bootstrap: host:port of Kafka, without the proxies that cut or delay the workers' connections.
            inputs: topics; each receives every event.
            seed: seed of the events.
        """
        super().__init__(name="feed", daemon=True)
        self.inputs = inputs
        self.sent: list[Event] = []
        self.clock_shift_s = 0
        """Seconds added to the events' timestamps, because producers' clocks differ from the broker's."""
        self._events = events(seed)
        self._allowed = 0
        self._ending = threading.Event()
        self._abandoned = False
        self._error: BaseException | None = None
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "log_level": 0,  # that a broker is away is no news here
                "linger.ms": 5,
                "delivery.timeout.ms": DELIVERED_WITHIN_MS,
                "queue.buffering.max.messages": 200_000,
            }
        )

    def allow(self, total: int) -> None:
        """Send at full speed until `total` events have been sent."""
        self._allowed = max(self._allowed, total)

    def abandon(self) -> None:
        """End the thread as soon as possible, and drop events in flight."""
        self._abandoned = True
        self._ending.set()
        self.join()

    def finish(self) -> list[Event]:
        """Send events up to the number given to `allow`, end the thread, and return all events sent.

        Raises:
            FaultRunFailed: Kafka has not accepted all of them.
        """
        self._ending.set()
        self.join()
        self.check()
        return self.sent

    def check(self) -> None:
        """Raise an error if an event could not be sent.

        Without this check, a run would wait for progress on events that never arrive.

        Raises:
            FaultRunFailed: Kafka has refused an event, or did not store it in time.
        """
        if self._error is not None:
            raise FaultRunFailed(f"the events could not be sent: {self._error}") from self._error

    def run(self) -> None:
        """Send events until the feed is finished or abandoned; runs in the thread."""
        try:
            while not (self._ending.is_set() and (self._abandoned or len(self.sent) >= self._allowed)):
                for _ in range(TRICKLE):
                    self._send(next(self._events))
                self._producer.poll(0)
                if len(self.sent) >= self._allowed:
                    self._ending.wait(TRICKLE_EVERY_S)
            if self._abandoned:
                self._producer.purge()
            if left := self._producer.flush(DELIVERED_WITHIN_MS / 1000):
                raise FaultRunFailed(
                    f"Kafka has not acknowledged {left} events within {DELIVERED_WITHIN_MS / 1000:.0f} s"
                )
        except BaseException as error:
            # A thread has no caller to raise to; `finish` does it.
            self._error = error

    def _send(self, event: Event) -> None:
        if self._error is not None:
            raise self._error
        headers = [(PRODUCER_HEADER, event.producer.encode()), (SEQUENCE_HEADER, event.sequence.to_bytes(8, "big"))]
        value = f'{{"key": "{event.key}", "sequence": {event.sequence}}}'.encode()
        stamp = int((time.time() + self.clock_shift_s) * 1000)
        for topic in self.inputs:
            while True:
                try:
                    self._producer.produce(
                        topic,
                        value,
                        event.key,
                        partition=event.partition,
                        headers=headers,
                        timestamp=stamp,
                        on_delivery=self._delivered,
                    )
                    break
                except BufferError:
                    if self._abandoned:
                        return
                    self._producer.poll(QUEUE_FULL_PAUSE_S)
        self.sent.append(event)

    def _delivered(self, error: Any, message: Message) -> None:
        if error is not None and self._error is None:
            self._error = FaultRunFailed(f"{message.topic()}, partition {message.partition()}: {error.str()}")
