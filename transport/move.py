"""Operator's move of a partition, which changes owner entry, progress and group offset in one transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kafka_ratchet.errors import LogTruncated, PositionLost
from kafka_ratchet.transport.batch.encoding import EncodedBatch
from kafka_ratchet.transport.changelog import Changelog
from kafka_ratchet.transport.client.cluster import Cluster, CommittedPosition
from kafka_ratchet.transport.client.topic_id import NO_EPOCH
from kafka_ratchet.transport.former import restore_fenced
from kafka_ratchet.transport.owner import INPUT, Owner
from kafka_ratchet.transport.partition_state import PartitionState
from kafka_ratchet.transport.resumption import known_position
from kafka_ratchet.transport.transactions.producer import TransactionalProducer
from kafka_ratchet.transport.transactions.requests import OURS, UNKNOWN_EPOCH, offset_metadata
from kafka_ratchet.transport.transactions.states import State


class MovableState(PartitionState, Protocol):
    """Table partition with the methods that an operator's move needs in addition to a lane's."""

    def __len__(self) -> int:
        """Return the number of identities with a persisted sequence."""

    def moved(self, owner: Owner, position: int, *, forget: bool) -> list[EncodedBatch]:
        """Return the changelog entries that record an operator's decision.

        Args:
            owner: owner entry with the decision in it
            position: input offset to read next
            forget: True to delete the last sequences of all identities
        """


class PartitionMove:
    """Operator's move of a partition, in three steps.

    It fences the partition's lane, commits an operator's decision, and leaves the partition to the next owner.
    """

    def __init__(
        self,
        cluster: Cluster,
        state: MovableState,
        *,
        topic: str,
        partition: int,
        app: str,
        group: str,
        transactional_id: str,
        writes: tuple[str, ...],
        shared: Iterable[tuple[str, int]] = (),
        timeout_ms: int = 60_000,
    ) -> None:
        """Prepare the move without sending anything.

        Args:
            cluster: connected client of the Kafka cluster.
            state: empty table partition, in its own folder.
            topic: input topic.
            partition: number of its partition.
            app: name of the application.
            group: consumer group with the committed offset.
            transactional_id: the lane's transactional id.
            writes: topics that the lane writes to, in the partition of this number.
            shared: further partitions that the lane writes to, together with other lanes.
            timeout_ms: timeout of the transaction.
        """
        self.cluster, self.state, self.topic, self.partition, self.group = cluster, state, topic, partition, group
        self._app = app
        self._connection = ("move", topic, partition)
        partitions = list(dict.fromkeys((*((name, partition) for name in writes), *shared)))
        self._producer = TransactionalProducer(cluster, transactional_id, group, timeout_ms, partitions)
        self._committed: CommittedPosition | None = None

    async def take_over(self) -> None:
        """Fence the lane, by initialising its transactional id.

        Raises:
            TransactionError: Kafka refuses the request.
        """
        await self._producer.initialise()

    async def read(self) -> None:
        """Read the group's committed offset, and the changelog from its beginning.

        Raises:
            Fenced: the lane has taken over again, after `take_over`.
            RatchetError: the changelog cannot be read.
        """
        self._committed = await self.cluster.committed(self.group, self.topic, self.partition, self._connection)
        self.state.open()
        changelog = Changelog(self.cluster, self.state, self.partition, self._connection)
        if self._producer.state is State.READY:
            # `ratchet resume` may change the input of a partition with records too.
            await restore_fenced(
                changelog, self._producer, self._app, lambda owner: owner.topics[INPUT].name != self.topic
            )
        else:
            await changelog.restore()  # the lane may have a transaction open

    def comparable(self, now: Owner) -> Owner | None:
        """Return the changelog's owner as a lane compares it with the present one; None: no entry names an owner."""
        state = self.state
        return None if state.owner is None else state.owner.comparable(now, has_processed=state.has_processed)

    @property
    def known(self) -> int | None:
        """Return the changelog's next offset of the input; None without one."""
        return known_position(self.state, self.topic)

    @property
    def position(self) -> int | None:
        """Return the next input offset according to Ratchet's own commits and changelog; None without one."""
        known = self.known
        if self._committed is None:
            return known
        if self.foreign_offset is not None:
            return known  # another client's offset does not tell which records were judged
        return self._committed.offset if known is None else max(known, self._committed.offset)

    @property
    def foreign_offset(self) -> int | None:
        """Return the group's offset if another client has committed it; else None."""
        if self._committed is None or OURS.fullmatch(self._committed.metadata) is not None:
            return None
        return self._committed.offset

    @property
    def committed_in(self) -> str | None:
        """Return the topic id that the committed offset's metadata names, as text; None if it names none."""
        found = OURS.fullmatch(self._committed.metadata) if self._committed else None
        return found["topic"] if found else None

    @property
    def uncounted(self) -> range:
        """Return the input offsets that the group has committed but the changelog does not cover."""
        if self._committed is None or self.foreign_offset is not None:
            return range(0)
        return range(self.known or 0, self._committed.offset)

    async def lost(self) -> str | None:
        """Return the loss as a sentence, if the input has lost records below the position; else None."""
        position = self.position
        if position is None or position != self.known:
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
            pass  # not a lost end; the operator's plan shows the partition's offsets
        return None

    async def write(self, owner: Owner, position: int, *, forget: bool) -> None:
        """Commit the newest decision of the owner entry in a transaction.

        Raises:
            Fenced: the lane has taken over again.
            Aborted: the transaction failed and none of it is visible.
        """
        await self.commit(self.state.moved(owner, position, forget=forget), position, owner.topics[INPUT].id)

    async def commit(
        self, entries: Iterable[EncodedBatch], position: int, input_id: str, epoch: int = NO_EPOCH
    ) -> None:
        """Commit entries of the changelog together with the group's offset.

        Args:
            entries: changelog entries, with the input position
            position: input offset to read next
            input_id: id of the input topic, as text.
            epoch: leader epoch of the input batch that ends before position

        Raises:
            Fenced, Aborted: as in `write`.
        """
        changelog = self.state.changelog
        self._producer.begin([(changelog, self.partition)])
        for each in entries:
            await self._producer.produce(changelog, self.partition, each)
        metadata = offset_metadata(input_id, UNKNOWN_EPOCH if epoch == NO_EPOCH else epoch)
        await self._producer.commit(self.topic, self.partition, position, metadata)

    def close(self) -> None:
        """Close the local store."""
        self.state.close()
