"""Since when a lane's first uncommitted record has been there: its lag in time."""

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
