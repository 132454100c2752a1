"""Replay of a changelog into a partition: its start, the totals that it comes to, and the owner of the changelog."""

from __future__ import annotations

import sys
from typing import Final

import numpy as np

from kafka_ratchet.errors import StateError
from kafka_ratchet.tables.eviction import NULLS_LAST_S
from kafka_ratchet.tables.totals import Evicted, Progress
from kafka_ratchet.transport import owner as entries
from kafka_ratchet.transport.batch.encoding import EncodedBatch, encode_entries
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.changelog import Sighting
from kafka_ratchet.transport.owner import Owner

SKEW_S: Final = 300
"""Largest difference between the clocks of two brokers, in seconds."""

Totals = tuple[Progress | None, Evicted]


class Replay:
    """One replay, from the local state to the changelog's end; it may be cut short and gone on with."""

    def __init__(self) -> None:
        """None is under way."""
        self.is_earlier = False
        """True if the replay continues an earlier state."""
        self._from = self._at = 0
        """Seconds, broker time of the newest entry before it; 0 where there was none."""
        self.unproven = 0
        """Seconds, broker time of the newest entry before the last replay; 0 where it has not brought anything."""

    def reset(self) -> None:
        """Note an empty state: earlier knowledge does not count any more."""
        self._from = self.unproven = 0

    def begin(self, position: int, seconds: int) -> None:
        """Note that the replay begins, or continues.

        Args:
            position: changelog offset to apply next
            seconds: broker time of the newest entry applied
        """
        self.is_earlier, self._at = position > 0, position
        if not self._from:  # otherwise the last one was cut short, and this goes on with it
            self._from = seconds if position else 0

    def end(self, seconds: int, position: int = 0) -> int:
        """Note that it has come to the changelog's end, and return for how many seconds the state had not followed.

        Args:
            seconds: broker time of the newest entry applied
            position: changelog offset to apply next
        """
        behind = seconds - self._from if self._from else 0
        self.unproven = self._from if position > self._at else 0
        self._from, self.is_earlier = 0, False
        return behind


def is_too_old(behind: int) -> bool:
    """Return whether a state so many seconds old may have missed nulls.

    Kafka keeps the null of an evicted identity or a deleted key for a time only. Later it is missing from the
    changelog, and the state would keep the identity or the key. A state from the future has a wrong time.
    """
    return not -SKEW_S <= behind <= NULLS_LAST_S


def read_totals(batch: RecordBatch, progress: int, evicted: int, before: Totals) -> Totals:
    """Return the totals after a batch of changelog entries.

    Args:
        batch: the entries.
        progress: index of its last progress entry; -1 where it has none.
        evicted: the same of the count of evictions.
        before: the totals so far.

    Raises:
        StateError: an entry is foreign, or of a newer version.
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


class Ownership:
    """The owner entry of one partition, with the same two views as its sequences: pushed and persisted."""

    def __init__(self, owner: Owner | None = None, sighting: Sighting | None = None) -> None:
        """owner, sighting: as the store has them; None where it has none."""
        self.owner, self.sighting = owner, sighting
        self._claim: Owner | None = None
        self._unsaved = False

    @property
    def is_claimed(self) -> bool:
        """Return True if the next commit writes another owner than the persisted one."""
        return self._claim is not None

    def claim(self, owner: Owner) -> None:
        """Write this owner with the next commit, if it differs from the persisted one."""
        self._claim = owner if owner != self.owner else None

    def encode(self) -> list[EncodedBatch]:
        """Changelog entries of the open transaction."""
        return encode_entries([self._claim.pack()], sys.maxsize) if self._claim is not None else []

    def commit(self) -> None:
        """Pushed becomes persisted."""
        if self._claim is not None:
            self.owner, self._claim, self._unsaved = self._claim, None, True

    def is_decided_in(self, batch: RecordBatch) -> bool:
        """Return True if a changelog batch has an operator's decision unknown here.

        Raises:
            OwnerDiffers: an entry of a newer format, or none of ours.
        """
        mine = entries.indices(batch)
        if not len(mine):
            return False
        decisions = entries.read(batch, int(mine[-1])).decisions
        return bool(decisions) and (self.owner is None or decisions[-1] not in self.owner.decisions)

    def apply(self, batch: RecordBatch) -> RecordBatch:
        """Take over the owner entries of a changelog batch; return the batch without them.

        Raises:
            OwnerDiffers: an entry of a newer format, or none of ours.
        """
        if batch.epoch >= 0:
            self.sighting = Sighting(batch.next, batch.epoch)
        mine = entries.indices(batch)
        if not len(mine):
            return batch
        self.owner, self._unsaved = entries.read(batch, int(mine[-1])), True
        keep = np.ones(batch.count, np.bool_)
        keep[mine] = False
        return batch.only(keep)

    def unsaved_entries(self) -> list[tuple[bytes, bytes]]:
        """Key and value of the entry, where it was persisted since `saved`."""
        return [self.owner.pack()] if self.owner is not None and self._unsaved else []

    def saved(self) -> None:
        """Note that the store on disk has everything."""
        self._unsaved = False
