"""Reader of topics for `ratchet why`, with limits of time and size, and progress reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from kafka_ratchet.app.verify.reading import TopicReader
from kafka_ratchet.app.verify.rule import RecordView
from kafka_ratchet.topic_log.clients import OffsetRange

Item = TypeVar("Item")

LOOK_EVERY: Final = 1_000
"""Number of records between two checks of the limits."""

Watch = Callable[[int, int], None]
"""Function called with the number of offsets read so far, and the number of all offsets to read."""


class Scan:
    """Reader of Kafka partitions; all calls together have one limit of time and one of size."""

    def __init__(
        self, reader: TopicReader, limit_s: float, watch: Watch, total: int = 0, limit_bytes: int | None = None
    ) -> None:
        """Start the time limit. total: number of offsets to read, for `watch`."""
        self._reader, self._watch = reader, watch
        self._ends_at, self._limit_bytes = time.monotonic() + limit_s, limit_bytes
        self._bytes = 0
        self.total, self._done = total, 0
        self.stopped: list[str] = []
        """Phrases about reads that a limit has ended."""

    def bounded(
        self, items: Iterable[Item], size: Callable[[Item], int], cut: Callable[[Item], str], every: int = LOOK_EVERY
    ) -> Iterator[Item]:
        """Yield the items until a limit is reached.

        Args:
            items: items to read.
            size: function that returns the bytes of an item.
            cut: function that returns a phrase for `stopped`, given the first item that a limit leaves out.
            every: number of items between two checks of the limits.
        """
        for count, item in enumerate(items):
            if count % every == 0 and (why := self._used_up()) is not None:
                self.stopped.append(f"{why}: {cut(item)}")
                return
            self._bytes += size(item)
            yield item

    def _used_up(self) -> str | None:
        if time.monotonic() > self._ends_at:
            return "the time was up"
        if self._limit_bytes is not None and self._bytes > self._limit_bytes:
            return f"{self._limit_bytes:,} bytes were read"
        return None

    def records(
        self, topic: str, partition: int, end: int, begin: int, *, committed: bool = True
    ) -> Iterator[tuple[int, RecordView]]:
        """Yield the committed records from `begin` to before `end`, within the limits.

        Each comes with its offset.

        committed: False to read records of open and aborted transactions as well.

        Raises:
            BrokerUnavailable: Kafka does not answer.
            TransportError: Kafka refuses the read.
        """
        if end <= begin:
            return
        seen, stops = self._done, len(self.stopped)

        def cut(item: tuple[int, RecordView]) -> str:
            return f"{topic} partition {partition} was read up to offset {item[0] - 1:,} only"

        given = self._reader.records(topic, partition, end, begin, committed=committed)
        found = self.bounded(given, _size, cut)
        for count, (offset, record) in enumerate(found):
            if count % LOOK_EVERY == 0:
                self._watch(seen + offset - begin, self.total)
            yield offset, record
        if len(self.stopped) == stops:
            self._done = seen + end - begin
            self._watch(self._done, self.total)

    def between(self, topic: str, spans: Mapping[int, OffsetRange]) -> Iterator[tuple[int, RecordView]]:
        """Yield the records in offset ranges of several partitions, until a limit is reached.

        Each record comes with its partition number. Records of different partitions are interleaved, and those of open
        and aborted transactions are included.

        Raises:
            BrokerUnavailable: Kafka does not answer.
            TransportError: Kafka refuses the read.
        """
        found = self.bounded(
            self._reader.records_between(topic, spans, committed=False),
            lambda item: _size(item[1:]),
            lambda item: f"the unread records of {topic} were searched in part only",
        )
        for number, _, record in found:
            yield number, record

    def one(self, topic: str, partition: int, offset: int, *, committed: bool = True) -> RecordView | None:
        """Return the record at an offset; None without one.

        committed: False: return a record of an open or aborted transaction too
        """
        begin, end = self._reader.span(topic, partition, committed=committed) or (0, 0)
        if not begin <= offset < end:
            return None
        found = self._reader.records(topic, partition, offset + 1, offset, committed=committed)
        return next((record for _, record in found), None)


def _size(item: tuple[int, RecordView]) -> int:
    record = item[1]
    return len(record.key or b"") + len(record.value or b"")
