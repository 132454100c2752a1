"""Whose changelog a partition's state was made from: its owner entry, and where its log was last looked at."""

from __future__ import annotations

import sys

import numpy as np

from kafka_ratchet.transport import owner as entries
from kafka_ratchet.transport.batch.encoding import EncodedBatch, encode_entries
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.changelog import Sighting
from kafka_ratchet.transport.owner import Owner


class Ownership:
    """The owner entry of one partition, with the same two views as its sequences: pushed and persisted."""

    def __init__(self, owner: Owner | None = None, sighting: Sighting | None = None) -> None:
        """owner, sighting: as the store has them; None where it has none."""
        self.owner, self.sighting = owner, sighting
        self._claim: Owner | None = None
        self._unsaved = False

    @property
    def is_claimed(self) -> bool:
        """Whether the next commit writes another owner than the one that is persisted."""
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
        """Whether a batch of the changelog has an operator's decision that is not known here.

        Raises:
            OwnerDiffers: an entry of a newer format, or none of ours.
        """
        mine = entries.indices(batch)
        if not len(mine):
            return False
        decisions = entries.read(batch, int(mine[-1])).decisions
        return bool(decisions) and (self.owner is None or decisions[-1] not in self.owner.decisions)

    def apply(self, batch: RecordBatch) -> RecordBatch:
        """Take over what a batch of the changelog says of its owner; returns the batch without it.

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
        """The store on disk has everything."""
        self._unsaved = False
