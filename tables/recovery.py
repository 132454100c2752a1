"""Replay of a changelog into a partition: the age of the local state, the totals, and the changelog's owner."""

from __future__ import annotations

import sys
from typing import Final

import numpy as np

from kafka_ratchet.errors import StateError
from kafka_ratchet.tables.eviction import NULLS_LAST_S
from kafka_ratchet.tables.totals import EvictedTotals, Progress
from kafka_ratchet.transport import owner as entries
from kafka_ratchet.transport.batch.encoding import EncodedBatch, encode_entries
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.changelog import KnownPosition
from kafka_ratchet.transport.owner import Owner

SKEW_S: Final = 300
"""Maximum difference between the clocks of two brokers, in seconds."""

Totals = tuple[Progress | None, EvictedTotals]


class Replay:
    """Progress of one replay, from the local state to the changelog's end; an interrupted replay can be continued.

    The state is unproven until a broker time shows that it was recent enough at the replay to have missed no tombstone.
    """

    def __init__(self) -> None:
        """Start without a replay."""
        self.is_earlier = False
        """True if the replay began with a state that contains entries."""
        self._from = self._at = 0
        """Value of `earlier` for the running replay; 0: none runs, or its state was empty. Next offset at its start."""
        self.unproven = 0
        """Broker time in seconds of the state's newest entry before the first unproven replay; 0: the state is proven.

        A later replay that applies no entry proves nothing: a lane's replay may continue the state of its standby.
        """
        self.has_ended = False
        """True once the replay has reached the end of the changelog; entries applied later are newer than this end."""

    @property
    def earlier(self) -> int:
        """Return the broker time of the local state before an unfinished or unproven replay; 0: the state is proven.

        The time is in seconds. The store keeps it, because entries applied in the replay do not show whether the state
        before them had missed tombstones.
        """
        return self.unproven or self._from

    def opened(self, position: int, unproven: int) -> None:
        """Take over the value of `earlier` from an opened store.

        Args:
            position: next changelog offset to apply; 0: the store is empty, and its age does not matter
            unproven: value of `earlier` in the store
        """
        self.unproven = unproven
        if not position:
            self._from = self.unproven = 0

    def begin(self, position: int, seconds: int) -> None:
        """Record that the replay starts or continues.

        Args:
            position: next changelog offset to apply
            seconds: broker time of the newest applied entry
        """
        self.is_earlier, self.has_ended, self._at = position > 0, False, position
        if not self._from:  # otherwise this continues an interrupted replay
            self._from = (self.unproven or seconds) if position else 0

    def end(self, seconds: int, position: int = 0) -> int:
        """Record the end of the replay, and return for how many seconds the state had not followed the changelog.

        Args:
            seconds: broker time of the newest applied entry
            position: next changelog offset to apply
        """
        behind = seconds - self._from if self._from else 0
        self.unproven = self.unproven or (self._from if position > self._at else 0)
        self._from, self.is_earlier, self.has_ended = 0, False, True
        return behind


def is_too_old(behind: int) -> bool:
    """Return True if a state this many seconds older than the changelog may have missed tombstones.

    Kafka keeps the tombstone of an evicted identity or a deleted key only for a limited time. Later the changelog lacks
    the tombstone, and an old state would keep the identity or the key. A state from the future has a wrong time and
    counts as too old.
    """
    return not -SKEW_S <= behind <= NULLS_LAST_S


def read_totals(batch: RecordBatch, progress: int, evicted: int, before: Totals) -> Totals:
    """Return the totals after a batch of changelog entries.

    Args:
        batch: the entries.
        progress: index of the batch's last progress entry; -1: none.
        evicted: index of the batch's last entry with totals of evictions; -1: none.
        before: totals before the batch.

    Raises:
        StateError: Ratchet did not write an entry, or a newer version did.
    """
    done, gone = before
    at = progress
    try:
        if progress >= 0:
            done = Progress.unpack(batch.value(progress) or b"")
        if (at := evicted) >= 0:
            gone = EvictedTotals.unpack(batch.value(evicted) or b"")
    except StateError as error:
        raise StateError(f"{place_of(batch, at)}: {error}") from None
    return done, gone


def place_of(batch: RecordBatch, index: int) -> str:
    """Return topic, partition and offset of a record, as text for an error."""
    return f"{batch.topic}, partition {batch.partition}, offset {int(batch.offsets[index])}"


class Ownership:
    """Owner entry of one partition's changelog, in two states like its sequences: pushed and persisted."""

    def __init__(self, owner: Owner | None = None, sighting: KnownPosition | None = None) -> None:
        """Start with the entries in the store.

        Args:
            owner: owner in the store; None: none.
            sighting: last known leader epoch in the store; None: none.
        """
        self.owner, self.sighting = owner, sighting
        self._claim: Owner | None = None
        self._unsaved = False

    @property
    def is_claimed(self) -> bool:
        """Return True if the next commit writes a new owner."""
        return self._claim is not None

    def claim(self, owner: Owner) -> None:
        """Write this owner with the next commit, unless it is the persisted one already."""
        self._claim = owner if owner != self.owner else None

    def encode(self) -> list[EncodedBatch]:
        """Encode the owner entry of the open transaction as a changelog batch."""
        return encode_entries([self._claim.pack()], sys.maxsize) if self._claim is not None else []

    def commit(self) -> None:
        """Make the pushed owner persisted."""
        if self._claim is not None:
            self.owner, self._claim, self._unsaved = self._claim, None, True

    def is_decided_in(self, batch: RecordBatch) -> bool:
        """Return True if a changelog batch contains an operator's decision that this state lacks.

        Raises:
            OwnerDiffers: Ratchet did not write the owner entry, or a newer version did.
        """
        mine = entries.indices(batch)
        if not len(mine):
            return False
        decisions = entries.read(batch, int(mine[-1])).decisions
        return bool(decisions) and (self.owner is None or decisions[-1] not in self.owner.decisions)

    def apply(self, batch: RecordBatch) -> RecordBatch:
        """Apply the owner entries of a changelog batch, and return the batch without them.

        Raises:
            OwnerDiffers: Ratchet did not write the owner entry, or a newer version did.
        """
        if batch.epoch >= 0:
            self.sighting = KnownPosition(batch.next, batch.epoch)
        mine = entries.indices(batch)
        if not len(mine):
            return batch
        self.owner, self._unsaved = entries.read(batch, int(mine[-1])), True
        keep = np.ones(batch.count, np.bool_)
        keep[mine] = False
        return batch.only(keep)

    def unsaved_entries(self) -> list[tuple[bytes, bytes]]:
        """Return key and value of the owner entry, if it was persisted after the last snapshot."""
        return [self.owner.pack()] if self.owner is not None and self._unsaved else []

    def saved(self) -> None:
        """Mark the persisted owner as contained in the store on disk."""
        self._unsaved = False
