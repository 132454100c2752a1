"""Replaying a changelog into a partition: what the replay goes on from, and the totals that it comes to."""

from __future__ import annotations

from kafka_ratchet.errors import StateError
from kafka_ratchet.tables.eviction import NULLS_LAST_S
from kafka_ratchet.tables.totals import Evicted, Progress
from kafka_ratchet.transport.batch.record_batch import RecordBatch

Totals = tuple[Progress | None, Evicted]


class Replay:
    """One replay, from the local state to the changelog's end; it may be cut short and gone on with."""

    def __init__(self) -> None:
        """None is under way."""
        self.is_earlier = False
        """Whether it goes on from what was here before it began."""
        self._from = 0
        """Seconds, broker time of the newest entry before it; 0 where there was none."""

    def reset(self) -> None:
        """The state is empty: whatever was known before does not count any more."""
        self._from = 0

    def begin(self, position: int, seconds: int) -> None:
        """It begins, or goes on.

        Args:
            position: changelog offset to apply next
            seconds: broker time of the newest entry applied
        """
        self.is_earlier = position > 0
        if not self._from:  # otherwise the last one was cut short, and this goes on with it
            self._from = seconds if position else 0

    def end(self, seconds: int) -> int:
        """It has come to the changelog's end. Returns for how many seconds of broker time the state had not followed.

        seconds: broker time of the newest entry applied
        """
        behind = seconds - self._from if self._from else 0
        self._from, self.is_earlier = 0, False
        return behind


def is_too_old(behind: int) -> bool:
    """Whether a state that was so many seconds behind may know identities that were evicted meanwhile.

    Kafka keeps the null of an evicted identity for a time only: after that it is missing from the changelog, and the
    identity would be known here for ever.
    """
    return behind > NULLS_LAST_S


def read_totals(batch: RecordBatch, progress: int, evicted: int, before: Totals) -> Totals:
    """The totals as of a batch of changelog entries.

    Args:
        batch: the entries
        progress: index of its last progress entry; -1 where it has none
        evicted: the same of the count of evictions
        before: the totals so far

    Raises:
        StateError: an entry that Ratchet did not write, or a newer one.
    """
    done, gone = before
    at = progress
    try:
        if progress >= 0:
            done = Progress.unpack(batch.value(progress) or b"")
        if (at := evicted) >= 0:
            gone = Evicted.unpack(batch.value(evicted) or b"")
    except StateError as error:
        raise StateError(f"{place_of(batch, at)}: {error}") from None
    return done, gone


def place_of(batch: RecordBatch, index: int) -> str:
    """Topic, partition and offset of a record, for an error."""
    return f"{batch.topic}, partition {batch.partition}, offset {int(batch.offsets[index])}"
