"""Reading topics for one record, in a bounded time and with word of how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from kafka_ratchet.app.verify.reading import TopicReader
from kafka_ratchet.app.verify.rule import RecordView

LOOK_EVERY: Final = 1_000
"""Records between two looks at the clock."""

Watch = Callable[[int, int], None]
"""Gets how many offsets of how many have been gone through."""


class Scan:
    """Reads partitions one after the other, until the time is up."""

    def __init__(self, reader: TopicReader, limit_s: float, watch: Watch, total: int = 0) -> None:
        """limit_s: seconds for all that is read; total: offsets, for `watch`."""
        self._reader, self._watch = reader, watch
        self._ends_at = time.monotonic() + limit_s
        self.total, self._done = total, 0
        self.stopped: list[str] = []
        """Where reading has ended before its end, one phrase for each."""

    def records(self, topic: str, partition: int, end: int, begin: int) -> Iterator[tuple[int, RecordView]]:
        """The committed records from begin to before end, with their offsets.

        Raises:
            BrokerUnavailable: Kafka does not answer.
            TransportError: it refuses to give them.
        """
        if end <= begin:
            return
        seen = self._done
        for count, (offset, record) in enumerate(self._reader.records(topic, partition, end, begin)):
            if count % LOOK_EVERY == 0:
                self._watch(seen + offset - begin, self.total)
                if time.monotonic() > self._ends_at:
                    self.stopped.append(f"{topic} partition {partition} was read up to offset {offset - 1:,} only")
                    return
            yield offset, record
        self._done = seen + end - begin
        self._watch(self._done, self.total)

    def one(self, topic: str, partition: int, offset: int) -> RecordView | None:
        """The record at an offset; None: there is none that is committed, or it is deleted."""
        begin, stable_end = self._reader.spans(topic).get(partition, (0, 0))
        if not begin <= offset < stable_end:
            return None
        return next((found for at, found in self._reader.records(topic, partition, offset + 1, offset)), None)
