"""Acknowledged watermark: the highest sequence such that Kafka has all records up to it.

Kafka acknowledges each partition in order, so few delivery reports suffice to compute it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from kafka_ratchet.producers.headers import NOTHING_YET

REPORT_EVERY = 64
"""Number of records of a busy partition that share one report: a report costs as much as sending a record."""


class Run:
    """Consecutive records of one partition that share one delivery report.

    The report is requested for the last of them. `is_closed`: it was requested, so no further record joins the run.
    """

    __slots__ = ("before", "is_closed", "last", "records", "risen_before")

    def __init__(self, before: int, risen_before: int) -> None:
        self.before, self.risen_before = before, risen_before  # as of the record sent before the first, anywhere
        self.last, self.records, self.is_closed = before, 0, False


class AcknowledgedPrefix:
    """Records sent to each partition, and the highest sequence such that Kafka has all records up to it.

    A delivery report covers all earlier records of its partition. A record is reported if it is the only one in flight
    in its partition; of the other records, every `REPORT_EVERY`-th one is reported. A run without a reported end waits
    for the next record of the partition, or for `acknowledge_all`. This class is not thread-safe; its memory is limited
    by the reports in flight.
    """

    def __init__(self, sequence: int = NOTHING_YET, *, reached: int = NOTHING_YET) -> None:
        """Begin after a sequence.

        Args:
            sequence: sequence such that all records up to it are acknowledged.
            reached: highest sequence of the name's earlier progress; at least `sequence`. A source published again
                begins below it.
        """
        self.sequence = sequence
        """Highest sequence such that all records up to it are acknowledged, at the last `advance`; -1: none."""
        self.records = 0
        """Number of records up to `sequence`, and above the earlier progress, sent since this object was created."""
        self.highest = sequence
        """Highest sequence known to be acknowledged on any partition."""
        self.reported = 0
        """Number of records known to be acknowledged since this object was created."""
        self.taken = 0
        """Number of records sent since this object was created."""
        self._reached, self._last, self._risen = max(sequence, reached), NOTHING_YET, 0
        self._runs: dict[int, deque[Run]] = {}

    def needs_report(self, partition: int) -> bool:
        """Return True if the next record to this partition needs a delivery report."""
        runs = self._runs.get(partition)
        if not runs:
            return True
        run = runs[-1]
        return not run.is_closed and (len(runs) == 1 or run.records >= REPORT_EVERY - 1)

    def count_sent(self, partition: int, sequence: int, *, is_reported: bool) -> None:
        """Count a sent record, which has a higher sequence than all before."""
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
        # A source published a second time begins below the sequence that its name had reached.
        self._risen += sequence > self._reached

    def silent_run(self, partition: int) -> Run | None:
        """Return the run that the partition's next record can join without a report.

        None: there is no such run, and `needs_report` decides whether the record needs a report.
        """
        runs = self._runs.get(partition)
        if not runs or len(runs) == 1:
            return None
        run = runs[-1]
        return None if run.is_closed or run.records >= REPORT_EVERY - 1 else run

    def count_silently(self, run: Run, sequence: int) -> None:
        """Count a sent record that belongs to a run from `silent_run`; see `count_sent`."""
        run.last = self._last = sequence
        run.records += 1
        self.taken += 1
        self._risen += sequence > self._reached

    def count_block(self, batches: Iterable[tuple[int, int, int]], last: int, records: int, risen: int) -> None:
        """Count sent records in batches, each with a report of its own.

        The watermark advances by whole blocks, because a source keeps a mark only for the end of each block.

        Args:
            batches: partition, last sequence and number of records of each batch, in order within a partition.
            last: last sequence of the block.
            records: number of records in the block.
            risen: number of these records with a sequence above the name's earlier progress.
        """
        for partition, last_there, records_there in batches:
            run = Run(self._last, self._risen)
            run.last, run.records, run.is_closed = last_there, records_there, True
            self._runs.setdefault(partition, deque()).append(run)
        self._last = last
        self.taken += records
        self._risen += risen

    def acknowledge(self, partition: int) -> None:
        """Acknowledge the oldest run of this partition that waits for a report."""
        runs = self._runs.get(partition)
        if not runs:
            return  # an interruption came between the sending of a record and its counting
        run = runs.popleft()
        self.reported += run.records
        self.highest = max(self.highest, run.last)

    def acknowledge_all(self) -> None:
        """Mark all records as acknowledged by Kafka."""
        self._runs.clear()
        self.reported = self.taken
        self.highest = max(self.highest, self._last)

    def advance(self) -> None:
        """Update `sequence` and `records` from the acknowledged runs."""
        oldest = min((runs[0] for runs in self._runs.values() if runs), key=lambda run: run.before, default=None)
        reached, records = (self._last, self._risen) if oldest is None else (oldest.before, oldest.risen_before)
        if reached > self.sequence:
            self.sequence, self.records = reached, records
