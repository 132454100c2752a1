"""Interface between a lane and the table partition that its transactions change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kafka_ratchet.transport.batch.encoding import EncodedBatch
from kafka_ratchet.transport.changelog import ChangelogReader, KnownPosition
from kafka_ratchet.transport.owner import Owner
from kafka_ratchet.transport.policy import ForgetRequest


class Claim(Protocol):
    """Owner entry of a changelog: the application, rule and topics that positions and sequences belong to."""

    @property
    def is_claimed(self) -> bool:
        """Return True if the next commit writes an owner entry that differs from the persisted one."""

    def claim(self, owner: Owner) -> None:
        """Write this owner with the next commit, if it differs from the persisted one."""


class PartitionState(ChangelogReader, Protocol):
    """Interface of a table partition for its lane; `tables.SequencePartition` implements it."""

    @property
    def input_position(self) -> int | None:
        """Return the next input offset as of the last commit; None before the first commit."""

    @property
    def has_processed(self) -> bool:
        """Return True if a record was processed, judged or not, or state was imported."""

    @property
    def policy_position(self) -> int:
        """Return the next offset of the policy topic as of the last commit.

        A later owner must have read the policy topic at least to there.
        """

    def open(self) -> None:
        """Load the local store, unless it is open."""

    @property
    def is_made(self) -> bool:
        """Return True if the local store already has files."""

    def make(self) -> None:
        """Create the store's files early, because this takes long and would delay the first commit."""

    limit: int
    """bytes, max.message.bytes of the changelog"""

    @property
    def progress_epoch(self) -> int:
        """Return the leader epoch of the input batch that ends before `input_position`; NO_EPOCH if unknown."""

    @property
    def ownership(self) -> Claim:
        """Return the owner entries of the changelog: the persisted one, and the one to write with the next commit."""

    def sighted(self, sighting: KnownPosition) -> None:
        """Store the changelog's leader epoch after the last commit."""

    def is_done(self, request: str) -> bool:
        """Return True if a request to forget was applied and committed. request: its id."""

    def forget(self, requests: Sequence[ForgetRequest], position: int) -> None:
        """Apply requests to forget identities, in an open transaction without verdicts. position: next input offset."""

    def changes(self, next_offset: int, epoch: int) -> list[EncodedBatch]:
        """Return the changelog entries of the open transaction.

        Args:
            next_offset: next input offset after the transaction
            epoch: leader epoch of the input batch that ends before next_offset
        """

    @property
    def is_bounded(self) -> bool:
        """Return True if the stream limits its identities by age or number.

        Each transaction then needs `evictions`.
        """

    def evictions(self, at_ms: int, judged_until_ms: int | None) -> list[EncodedBatch]:
        """Return further changelog entries of the open transaction, for evicted identities.

        Args:
            at_ms: milliseconds since the epoch, Kafka's append time of the entries of `changes`
            judged_until_ms: watermark of processed input, by the same clock; None: unknown
        """

    @property
    def is_unproven(self) -> bool:
        """Return True until a commit has shown that the local store was recent enough at the last replay."""

    def prove(self, seconds: int) -> None:
        """Compare the age that the local store had at the last replay with `delete.retention.ms`.

        seconds: broker time, in seconds since the epoch, at which the last replay ended, or slightly later.

        Raises:
            Aborted: the store was too old, and is rebuilt.
        """

    def committed(self, changelog_next: int, at_ms: int) -> None:
        """Write the committed changes to the local store, in one write.

        Args:
            changelog_next: changelog offset after the transaction's last entry
            at_ms: milliseconds since the epoch, Kafka's append time of that entry
        """

    def at_rest(self) -> None:
        """Do maintenance that would delay records at other times.

        Called while no transaction is open and no record has come for `FETCH_WAIT_MS`.
        """

    def rollback(self) -> None:
        """Discard the uncommitted changes, because the transaction was rolled back."""

    def close(self) -> None:
        """Close the local store."""
