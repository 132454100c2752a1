"""Moving a partition by hand: its owner entry, its progress and the group's offset, in the lane's own transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kafka_ratchet.errors import LogTruncated, PositionLost
from kafka_ratchet.transport.batch.encoding import EncodedBatch
from kafka_ratchet.transport.changelog import Changelog
from kafka_ratchet.transport.client.cluster import Cluster, Committed
from kafka_ratchet.transport.client.topic_id import NO_EPOCH
from kafka_ratchet.transport.owner import INPUT, Owner
from kafka_ratchet.transport.partition_state import PartitionState
from kafka_ratchet.transport.transactions.producer import TransactionalProducer
from kafka_ratchet.transport.transactions.requests import OURS, offset_metadata


class MovableState(PartitionState, Protocol):
    """Table partition as a move needs it, beyond the needs of a lane."""

    def __len__(self) -> int:
        """Identities with a persisted sequence."""

    def moved(self, owner: Owner, position: int, *, forget: bool) -> list[EncodedBatch]:
        """Changelog entries of the decision.

        Args:
            owner: with the decision in it
            position: input offset to read next
            forget: whether every identity is forgotten
        """


class PartitionMove:
    """Takes a partition from its lane, writes an operator's decision into it, and leaves it to the next owner."""

    def __init__(
        self,
        cluster: Cluster,
        state: MovableState,
        *,
        topic: str,
        partition: int,
        group: str,
        transactional_id: str,
        writes: tuple[str, ...],
        timeout_ms: int = 60_000,
    ) -> None:
        """Prepare the move without sending anything.

        Args:
            cluster: connected.
            state: empty, in a folder of its own.
            topic: the input.
            partition: its number.
            group: group of the offset.
            transactional_id: the lane's id.
            writes: topics that the lane writes to.
            timeout_ms: time-out of the transaction.
        """
        self.cluster, self.state, self.topic, self.partition, self.group = cluster, state, topic, partition, group
        self._connection = ("move", topic, partition)
        partitions = [(name, partition) for name in writes]
        self._producer = TransactionalProducer(cluster, transactional_id, group, timeout_ms, partitions)
        self._committed: Committed | None = None

    async def take_over(self) -> None:
        """Fence the lane, as a successor would.

        Raises:
            TransactionError: Kafka refuses.
        """
        await self._producer.initialise()

    async def read(self) -> None:
        """Read the group's committed offset, and the changelog from its beginning.

        Raises:
            RatchetError: the changelog cannot be read.
        """
        self._committed = await self.cluster.committed(self.group, self.topic, self.partition, self._connection)
        self.state.open()
        await Changelog(self.cluster, self.state, self.partition, self._connection).restore()

    @property
    def position(self) -> int | None:
        """Input offset of our own to read next; None where there is none."""
        known = self.state.input_position
        if self._committed is None:
            return known
        if self.foreign_offset is not None:
            return known  # another client's offset does not tell which records were judged
        return self._committed.offset if known is None else max(known, self._committed.offset)

    @property
    def foreign_offset(self) -> int | None:
        """Group offset that another client has committed; None where there is none."""
        if self._committed is None or OURS.fullmatch(self._committed.metadata) is not None:
            return None
        return self._committed.offset

    @property
    def committed_in(self) -> str | None:
        """Id of the topic that the group's offset is in, as text; None where it does not say."""
        found = OURS.fullmatch(self._committed.metadata) if self._committed else None
        return found["topic"] if found else None

    @property
    def uncounted(self) -> range:
        """Return the offsets below the group's own one that the changelog does not account for."""
        if self._committed is None or self.foreign_offset is not None:
            return range(0)
        return range(self.state.input_position or 0, self._committed.offset)

    async def lost(self) -> str | None:
        """Return why the position is invalid, if the input lost its end after it was read; else None."""
        position = self.position
        if position is None or position != self.state.input_position:
            return None
        topic_id = (await self.cluster.found([self.topic]))[self.topic].id
        try:
            await self.cluster.fetch(
                self.topic,
                self.partition,
                position,
                self._connection,
                max_bytes=1,
                max_wait_ms=0,
                topic_id=topic_id,
                last_epoch=self.state.progress_epoch,
            )
        except LogTruncated as error:
            return str(error)
        except PositionLost:
            pass  # seen by the offsets that there are
        return None

    async def write(self, owner: Owner, position: int, *, forget: bool) -> None:
        """Commit the newest decision in `owner`.

        Raises:
            Fenced: the lane has taken over again.
            Aborted: none of it is visible.
        """
        await self.commit(self.state.moved(owner, position, forget=forget), position, owner.topics[INPUT].id)

    async def commit(
        self, entries: Iterable[EncodedBatch], position: int, input_id: str, epoch: int = NO_EPOCH
    ) -> None:
        """Commit entries of the changelog together with the group's offset.

        Args:
            entries: with the progress
            position: input offset to read next
            input_id: of the input topic, as text
            epoch: leader epoch of the input batch that ends before position

        Raises:
            Fenced, Aborted: as `write`.
        """
        changelog = self.state.changelog
        self._producer.begin([(changelog, self.partition)])
        for each in entries:
            await self._producer.produce(changelog, self.partition, each)
        await self._producer.commit(self.topic, self.partition, position, offset_metadata(input_id, epoch))

    def close(self) -> None:
        """Release the store."""
        self.state.close()
