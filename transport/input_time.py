"""Time lag of a lane's first uncommitted record, and watermark of processed input."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from kafka_ratchet.transport.arrivals import Arrivals
from kafka_ratchet.transport.batch.record_batch import RecordBatch

END_OLD_MS: Final = 1_000
"""Age of the input watermark above which a commit renews the watermark before evictions, in ms of the brokers' clock.

Without this renewal, a stream with rare records would evict inactive identities one commit later.
"""
END_WAIT_S: Final = 1.0
"""Seconds that a commit waits for the new end of the input. Without an answer, the commit uses the older watermark."""


class PendingTimestamps:
    """Timestamps of fetched batches until their commit, to compute the lag."""

    def __init__(self) -> None:
        self._fetched: deque[tuple[int, int, int]] = deque()
        """Fetched batches: (offset after the batch, timestamp of its first record, timestamp of its last)."""
        self._last: int | None = None

    def fetched(self, batch: RecordBatch) -> None:
        """Record a fetched batch. Call it in the order of offsets."""
        if batch.count:
            self._fetched.append((batch.next, int(batch.timestamps[0]), int(batch.timestamps[-1])))

    def committed(self, position: int) -> None:
        """Remove the batches below a committed position. position: the next offset to read."""
        while self._fetched and self._fetched[0][0] <= position:
            self._last = self._fetched.popleft()[2]

    def clear(self) -> None:
        """Remove all batches, because the lane starts again, perhaps on another worker."""
        self._fetched.clear()
        self._last = None

    @property
    def since_ms(self) -> int | None:
        """Return the timestamp of the first uncommitted record, in ms since the epoch.

        If that record is not fetched yet, return the timestamp of the last committed record. None: no record was
        fetched since the lane started.
        """
        return self._fetched[0][1] if self._fetched else self._last


class InputEnd:
    """Recorded ends of an input, for its watermark of processed input.

    When a lane reaches a recorded end, it has processed all records appended before the request for that end
    (docs/decisions/0069-judged-until.md). Times are of the brokers' clock alone. A clock of this process would be
    wrong, because the process may be suspended between the request and the commit, while records arrive.

    arrivals: progress of the stream that copies records to this input; None: producers write to it
    """

    def __init__(self, arrivals: Arrivals | None = None) -> None:
        self._arrivals = arrivals
        self._appended_ms = self._arrived_ms = 0
        self._round: tuple[int, int] | None = None
        """The next round of `arrivals` to begin, and `_appended_ms` before its begin."""
        self._waiting: tuple[int, int] | None = None
        """Oldest recorded end that the position has not reached: the end, and `known_ms` before its request."""
        self._newest: tuple[int, int] | None = None
        self._until_ms: int | None = None

    @property
    def known_ms(self) -> int:
        """Return the newest broker time before which no record is still on its way to this input.

        It is in milliseconds since the epoch. Without `arrivals` it is the newest broker time known. Read it before you
        request the input's end, and pass it to `record_end` with the answer.
        """
        if self._arrivals is None:
            return self._appended_ms
        if self._round is not None and self._arrivals.proven >= self._round[0]:
            return self._round[1]
        return self._arrived_ms

    def appended(self, at_ms: int) -> None:
        """Record the time at which a broker appended a record, in milliseconds since the epoch."""
        self._appended_ms = max(self._appended_ms, at_ms)
        if self._arrivals is not None:
            self._arrived_ms = self.known_ms
            if self._round is None or self._arrivals.proven >= self._round[0]:
                self._round = self._arrivals.begun + 1, self._appended_ms

    def record_end(self, end: int, known_before_ms: int) -> None:
        """Record the end of the input from Kafka's answer.

        An end is kept until the position reaches it, although newer ends arrive. While other producers always have open
        transactions, the newest end stays ahead of the position.

        Args:
            end: high watermark, so that records held back by an open transaction count as not processed.
            known_before_ms: `known_ms` before the request was sent.
        """
        self._newest = end, known_before_ms
        if self._waiting is None:
            self._waiting = self._newest

    def judged_until_ms(self, position: int) -> int | None:
        """Return the broker-time watermark below which all input is processed.

        Return 0 if no broker time was known when the end was requested, and None until the position has reached a
        recorded end.
        """
        for _ in range(2):  # the oldest end, then the newest end
            if self._waiting is not None and position >= self._waiting[0]:
                self._until_ms = max(self._until_ms or 0, self._waiting[1])
                self._waiting = None if self._newest is self._waiting else self._newest
        return self._until_ms

    async def renewed(self, position: int, at_ms: int, ask: Callable[[], Awaitable[int]]) -> int | None:
        """Return the watermark as `judged_until_ms` does; request the input's end first if the watermark is old.

        Args:
            position: next offset to read.
            at_ms: latest append time known from Kafka, in milliseconds since the epoch.
            ask: function that requests the input's high watermark.
        """
        self.appended(at_ms)
        if self._arrivals is not None:
            await self._arrivals.ask()
        known_ms = self.known_ms
        until_ms = self.judged_until_ms(position)
        if until_ms is None or not self.is_reached(position) or known_ms - until_ms <= END_OLD_MS:
            return until_ms
        with suppress(TimeoutError):  # then the older watermark stays
            async with asyncio.timeout(END_WAIT_S):
                self.record_end(await ask(), known_ms)
        return self.judged_until_ms(position)

    def is_reached(self, position: int) -> bool:
        """Return True if the newest known end is not beyond this position."""
        return self._newest is not None and position >= self._newest[0]
