"""Input of a lane in time: the lag of its first uncommitted record, and the watermark below which all is judged."""

from __future__ import annotations

from collections import deque

from kafka_ratchet.transport.batch.record_batch import RecordBatch


class Unread:
    """Timestamps of the batches that were fetched and are not committed yet."""

    def __init__(self) -> None:
        self._fetched: deque[tuple[int, int, int]] = deque()
        """For each batch: the offset behind it, and the timestamps of its first and last record."""
        self._last: int | None = None

    def fetched(self, batch: RecordBatch) -> None:
        """Note a batch. They come in the order of their offsets."""
        if batch.count:
            self._fetched.append((batch.next, int(batch.timestamps[0]), int(batch.timestamps[-1])))

    def committed(self, position: int) -> None:
        """Leave out what is below the offset to be read next."""
        while self._fetched and self._fetched[0][0] <= position:
            self._last = self._fetched.popleft()[2]

    def clear(self) -> None:
        """Forget everything: the lane starts again, perhaps elsewhere."""
        self._fetched.clear()
        self._last = None

    @property
    def since_ms(self) -> int | None:
        """Timestamp of the first record that is not committed, in ms since the epoch.

        Where that one was not fetched yet it is the timestamp of the record before it: it cannot be much older. None:
        no record was fetched since the lane started.
        """
        return self._fetched[0][1] if self._fetched else self._last


class InputEnd:
    """Where an input ended when it was last asked, by the brokers' clock alone.

    No clock of this process can say it: the process may be stopped, or its whole machine, between a look at the input's
    end and the commit that goes by it, and records come meanwhile. What a broker has appended before a question was
    sent cannot be younger than the answer (docs/decisions/0069-judged-until.md).
    """

    def __init__(self) -> None:
        self.known_ms = 0
        """The newest time that a broker has told: take it before a question, and give it to `told` with the answer."""
        self._end: int | None = None
        self._asked_ms = 0

    def appended(self, at_ms: int) -> None:
        """A broker has appended something at that time, in milliseconds since the epoch."""
        self.known_ms = max(self.known_ms, at_ms)

    def told(self, end: int, asked_ms: int) -> None:
        """An answer. end: the last stable offset; asked_ms: `known_ms`, as it was before the question was sent."""
        self._end, self._asked_ms = end, asked_ms

    def judged_until_ms(self, position: int) -> int | None:
        """The time until which all that was written is below position; 0: nobody knows. None: there is more to read."""
        return self._asked_ms if self._end is not None and position >= self._end else None
