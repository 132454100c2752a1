"""Interface between a lane and the table partition that its transactions change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kafka_ratchet.transport.batch.encoding import EncodedBatch
from kafka_ratchet.transport.changelog import ChangelogReader, Sighting
from kafka_ratchet.transport.owner import Owner
from kafka_ratchet.transport.policy import Forget


class Claim(Protocol):
    """The owner entry of a changelog: what its positions and sequences belong to."""

    @property
    def is_claimed(self) -> bool:
        """Return True if the next commit writes another owner than the persisted one."""

    def claim(self, owner: Owner) -> None:
        """Write this owner with the next commit, if it differs from the persisted one."""


class PartitionState(ChangelogReader, Protocol):
    """Table partition as a lane needs it (tables.SequencePartition)."""

    @property
    def input_position(self) -> int | None:
        """Next input offset as of the last commit; None where nothing was ever committed."""

    @property
    def policy_position(self) -> int:
        """Next offset of the policy topic as of the last commit: who goes on must know as much."""

    def open(self) -> None:
        """Load the local store; nothing to do when it is open."""

    @property
    def is_made(self) -> bool:
        """Return True if the local store has files yet."""

    def make(self) -> None:
        """Make them; it takes long, and the first commit would do it otherwise."""

    limit: int
    """bytes, max.message.bytes of the changelog"""

    @property
    def progress_epoch(self) -> int:
        """Leader epoch of the input batch that ends before `input_position`; NO_EPOCH where it is not known."""

    @property
    def ownership(self) -> Claim:
        """Return the owner entry, persisted and claimed."""

    def sighted(self, sighting: Sighting) -> None:
        """Note the leader epoch after the last commit."""

    def is_done(self, request: str) -> bool:
        """Return True if a request to forget was applied and committed. request: its id."""

    def forget(self, requests: Sequence[Forget], position: int) -> None:
        """Apply requests as part of the open transaction, which has judged nothing. position: next input offset."""

    def changes(self, next_offset: int, epoch: int) -> list[EncodedBatch]:
        """Changelog entries of the open transaction.

        Args:
            next_offset: of the input, before which it ends
            epoch: leader epoch of the input batch that ends before it
        """

    @property
    def is_bounded(self) -> bool:
        """Return True if the stream has bounds, so that each transaction needs `evictions`."""

    def evictions(self, at_ms: int, judged_until_ms: int | None) -> list[EncodedBatch]:
        """Return further changelog entries of the open transaction, for evicted identities.

        Args:
            at_ms: milliseconds since the epoch, Kafka's append time of the entries of `changes`
            judged_until_ms: input watermark in the same clock; None: records wait below it
        """

    @property
    def is_unproven(self) -> bool:
        """True until the next commit has shown the age of the store under the last replay."""

    def prove(self, seconds: int) -> None:
        """Compare the age of that store with `delete.retention.ms`.

        seconds: broker time at which the replay ended

        Raises:
            Aborted: it was too old, and is rebuilt.
        """

    def committed(self, changelog_next: int, at_ms: int) -> None:
        """Make the pushed state persisted in one write, after the commit.

        Args:
            changelog_next: offset after its last entry
            at_ms: milliseconds since the epoch, Kafka's append time of that entry
        """

    def at_rest(self) -> None:
        """Do work that would delay records otherwise.

        Called while no transaction is open and no record has come for `FETCH_WAIT_MS`.
        """

    def rollback(self) -> None:
        """Set the pushed state back to the persisted one: the transaction is lost."""

    def close(self) -> None:
        """Close the local store."""
