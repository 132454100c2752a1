"""How far everything is acknowledged, from few reports: Kafka acknowledges each partition in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from kafka_ratchet.producers.headers import NOTHING_YET

REPORT_EVERY = 64
"""Of a busy partition, so many records share one report: a report costs as much as sending a record."""


class Run:
    """Records of one partition, in a row; the last one is reported once `is_closed`."""

    __slots__ = ("before", "is_closed", "last", "records", "risen_before")

    def __init__(self, before: int, risen_before: int) -> None:
        self.before, self.risen_before = before, risen_before  # as of the record sent before the first, anywhere
        self.last, self.records, self.is_closed = before, 0, False


class AcknowledgedPrefix:
    """What was sent to each partition, and up to where Kafka has everything.

    A record whose delivery is reported stands for all before it in its partition. One that is the only one under way
    there is reported, and of others one in `REPORT_EVERY`; a run whose end is not reported waits for the next record of
    the partition, or for `acknowledge_all`. Not thread-safe; memory is bounded by the reports under way.
    """

    def __init__(self, sequence: int = NOTHING_YET) -> None:
        self.sequence = sequence
        """Everything up to and including this one is acknowledged, as of the last `advance`; -1 when nothing is."""
        self.records = 0
        """Records that have raised `sequence` since this was made."""
        self.highest = sequence
        """The highest sequence that is known to be acknowledged, wherever."""
        self.reported = 0
        """Records that are known to be acknowledged since this was made."""
        self.taken = 0
        """Records that were sent since this was made."""
        self._began_at, self._last, self._risen = sequence, NOTHING_YET, 0
        self._runs: dict[int, deque[Run]] = {}

    def needs_report(self, partition: int) -> bool:
        """Whether the delivery of the next record to this partition has to be reported."""
        runs = self._runs.get(partition)
        if not runs:
            return True
        run = runs[-1]
        return not run.is_closed and (len(runs) == 1 or run.records >= REPORT_EVERY - 1)

    def sent(self, partition: int, sequence: int, *, is_reported: bool) -> None:
        """This sequence, higher than all before, is on its way."""
        runs = self._runs.get(partition)
        if runs is None:
            runs = self._runs[partition] = deque()
        if not runs or runs[-1].is_closed:
            runs.append(Run(self._last, self._risen))
        run = runs[-1]
        run.last, run.is_closed = sequence, is_reported
        run.records += 1
        self._last = sequence
        self.taken += 1
        # A source that is published a second time begins below what its name had reached.
        self._risen += sequence > self._began_at

    def silent_run(self, partition: int) -> Run | None:
        """The run that the next record to this partition only makes longer; None: ask `needs_report`."""
        runs = self._runs.get(partition)
        if not runs or len(runs) == 1:
            return None
        run = runs[-1]
        return None if run.is_closed or run.records >= REPORT_EVERY - 1 else run

    def sent_silently(self, run: Run, sequence: int) -> None:
        """As `sent`, for a record whose `silent_run` this is."""
        run.last = self._last = sequence
        run.records += 1
        self.taken += 1
        self._risen += sequence > self._began_at

    def sent_block(self, batches: Iterable[tuple[int, int, int]], last: int, records: int, risen: int) -> None:
        """Records are on their way, each batch of them with a report of its own.

        What is reached moves by whole blocks: a source keeps a mark for the end of each.

        Args:
            batches: partition, last sequence and records of each, those of a partition in their order
            last: the last sequence of all
            records: how many there are
            risen: how many of these are above what the name had reached
        """
        for partition, last_there, records_there in batches:
            run = Run(self._last, self._risen)
            run.last, run.records, run.is_closed = last_there, records_there, True
            self._runs.setdefault(partition, deque()).append(run)
        self._last = last
        self.taken += records
        self._risen += risen

    def acknowledge(self, partition: int) -> None:
        """Kafka has the oldest record of this partition whose report was awaited."""
        run = self._runs[partition].popleft()
        self.reported += run.records
        self.highest = max(self.highest, run.last)

    def acknowledge_all(self) -> None:
        """Kafka has everything."""
        self._runs.clear()
        self.reported = self.taken
        self.highest = max(self.highest, self._last)

    def advance(self) -> None:
        """Bring `sequence` and `records` up to date."""
        oldest = min((runs[0] for runs in self._runs.values() if runs), key=lambda run: run.before, default=None)
        reached, records = (self._last, self._risen) if oldest is None else (oldest.before, oldest.risen_before)
        if reached > self.sequence:
            self.sequence, self.records = reached, records
