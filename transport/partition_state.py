"""The interface between a lane and the table partition whose state its transactions change."""

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
        """Whether the next commit writes another owner than the one that is persisted."""

    def claim(self, owner: Owner) -> None:
        """Write this owner with the next commit, if it differs from the persisted one."""


class PartitionState(ChangelogReader, Protocol):
    """What a lane needs of the table partition that stands behind it (tables.SequencePartition)."""

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
        """Whether the local store has files yet."""

    def make(self) -> None:
        """Make them; it takes long, and the first commit would do it otherwise."""

    limit: int
    """bytes, max.message.bytes of the changelog"""

    @property
    def progress_epoch(self) -> int:
        """Leader epoch of the input batch that ends before `input_position`; NO_EPOCH where it is not known."""

    @property
    def ownership(self) -> Claim:
        """The owner entry, persisted and claimed."""

    def sighted(self, sighting: Sighting) -> None:
        """The leader epoch behind the last commit was looked at."""

    def is_done(self, request: str) -> bool:
        """Whether a request to forget was applied and committed. request: its id."""

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
        """Whether the stream has bounds, so that each transaction asks for `evictions`."""

    def evictions(self, at_ms: int, judged_until_ms: int | None) -> list[EncodedBatch]:
        """More changelog entries of the open transaction: the identities that it evicts.

        Args:
            at_ms: milliseconds since the epoch, when Kafka has appended what `changes` returned
            judged_until_ms: as well, until when all that was written to the input is judged; None: some of it waits
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
        """The transaction is committed: pushed becomes persisted, in one write.

        Args:
            changelog_next: offset behind its last entry
            at_ms: milliseconds since the epoch, when Kafka has appended that entry
        """

    def at_rest(self) -> None:
        """No transaction is open, and no record has come for `FETCH_WAIT_MS`: do what would delay records otherwise."""

    def rollback(self) -> None:
        """The transaction is lost: pushed falls back to persisted."""

    def close(self) -> None:
        """Close the local store."""
