"""Time lag of a lane's first uncommitted record, and watermark below which all input is processed."""

from __future__ import annotations

from collections import deque

from kafka_ratchet.transport.batch.record_batch import RecordBatch


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

        Before that record is fetched, the result is the timestamp of the record before it. None if no record was
        fetched since the lane started.
        """
        return self._fetched[0][1] if self._fetched else self._last


class InputEnd:
    """Input watermark: the end of an input when last requested, timed by the brokers' clock alone.

    A clock of this process would not do: the process or its machine may be suspended between the request and the
    commit, while records arrive. Records appended before a request was sent cannot be younger than the answer
    (docs/decisions/0069-judged-until.md).
    """

    def __init__(self) -> None:
        self.known_ms = 0
        """Newest broker time known, in milliseconds since the epoch. Read it before you request the input's end, and
        pass it to `record_end` with the answer."""
        self._waiting: tuple[int, int] | None = None
        """Oldest recorded end that the position has not reached: the end, and `known_ms` before its request."""
        self._newest: tuple[int, int] | None = None
        self._until_ms: int | None = None

    def appended(self, at_ms: int) -> None:
        """Record the time at which a broker appended a record, in milliseconds since the epoch."""
        self.known_ms = max(self.known_ms, at_ms)

    def record_end(self, end: int, known_before_ms: int) -> None:
        """Record the end of the input from Kafka's answer.

        The oldest recorded end stays until the position reaches it: while other producers' transactions are always
        open, newer ends move on faster than the position.

        end: the high watermark, because records after an open transaction's first wait as well; known_before_ms:
        `known_ms` before the request was sent.
        """
        self._newest = end, known_before_ms
        if self._waiting is None:
            self._waiting = self._newest

    def judged_until_ms(self, position: int) -> int | None:
        """Return the broker-time watermark below which all input is processed.

        It is 0 if no broker time was known when the end was requested, and None before the position has reached any
        recorded end.
        """
        for _ in range(2):  # the oldest end, then the newest end
            if self._waiting is not None and position >= self._waiting[0]:
                self._until_ms = max(self._until_ms or 0, self._waiting[1])
                self._waiting = None if self._newest is self._waiting else self._newest
        return self._until_ms

    def is_reached(self, position: int) -> bool:
        """Return True if the newest known end is not beyond this position."""
        return self._newest is not None and position >= self._newest[0]
