"""Reader of a changelog partition, which applies the entries to a state, once or continuously."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple, Protocol

import structlog

from kafka_ratchet.errors import (
    Aborted,
    LogTruncated,
    PositionLost,
    RatchetError,
    StateAhead,
    TopicReplaced,
    TransactionError,
)
from kafka_ratchet.transport import owner as owners
from kafka_ratchet.transport.batch.chunk import BATCH_MOST, read_chunk
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.client.cluster import EARLIEST, LATEST, Cluster
from kafka_ratchet.transport.client.errors import replaced
from kafka_ratchet.transport.client.fetch_session import PositionToWatch
from kafka_ratchet.transport.client.retry import Retry
from kafka_ratchet.transport.client.topic_id import NO_EPOCH, READ_UNCOMMITTED, id_text
from kafka_ratchet.transport.owner import Owner

log = structlog.get_logger(__name__)

SILENT_S: Final = 3_600.0
"""Seconds without Kafka's answer after which a reader must not simply continue.

Compaction may have removed tombstones before the reader read them. So a standby checks the whole log again (`restore`),
and a replay starts again. The time is far below the retention of tombstones, and long enough that the check's few
requests do not matter.
"""

FETCH_BYTES: Final = 2 << 20
"""Maximum size of one fetch in bytes. Smaller fetches need more round trips; larger ones delay the worker's other
lanes."""
FETCH_WAIT_MS: Final = 250
"""Milliseconds that the broker may hold back an empty answer; a stop is noticed after at most this time."""

OPEN_WITHIN_S: Final = 10.0
"""Seconds after which a transaction of a fenced owner counts as left open. Its end marker takes milliseconds."""


def passed_s() -> tuple[float, float]:
    """Return the seconds of two clocks that continue while this process is suspended.

    The first is the wall clock, which can be set. The second cannot be set; on some systems it stops while the machine
    sleeps.
    """
    return time.time(), time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class KnownPosition(NamedTuple):
    """Offset reached in a log, with the leader epoch of the batch before it."""

    position: int
    epoch: int


class SearchedRange(NamedTuple):
    """Range of a changelog already searched for owner entries, with the newest entry found. topic_id: 16 bytes."""

    topic_id: bytes
    to: KnownPosition
    newest: Owner | None


class ChangelogReader(Protocol):
    """Interface of a state that receives committed changelog entries."""

    changelog: str
    position: int
    """Next changelog offset to apply: everything below is in the local store."""

    @property
    def owner(self) -> Owner | None:
        """Return the changelog's owner entry as of `position`; None if no entry up to there names an owner."""

    @property
    def sighting(self) -> KnownPosition | None:
        """Return the last position in the changelog with a known leader epoch; None if no epoch is known."""

    def discard(self) -> None:
        """Discard the local store and begin again at position 0."""

    def apply(self, batch: RecordBatch) -> None:
        """Apply a batch of committed changelog entries to the state."""

    def restoring(self) -> None:
        """Mark the start of a replay up to the changelog's end."""

    def restored(self) -> bool:
        """Record the end of the replay, and check the age of the store it started from.

        Returns:
            False if the store was too old: it has been discarded, and the replay must start again at position 0.
        """


class StorelessReader:
    """`ChangelogReader` without a store on disk: every start replays the changelog from its beginning."""

    owner: Owner | None = None
    sighting: KnownPosition | None = None

    def discard(self) -> None:
        """Do nothing: there is no store."""

    def restoring(self) -> None:
        """Do nothing at the start of a replay."""

    def restored(self) -> bool:
        """Return True: without a store, nothing can be too old."""
        return True


class Changelog:
    """One changelog partition and the state that its entries are applied to. Only committed entries are read."""

    def __init__(
        self,
        cluster: Cluster,
        state: ChangelogReader,
        partition: int,
        connection: Hashable,
        batch_most: int = BATCH_MOST,
        passed: Callable[[], tuple[float, float]] = passed_s,
        asking: Hashable = None,
    ) -> None:
        """Bind a state to its changelog partition; reads nothing yet.

        Args:
            cluster: connected client of the Kafka cluster.
            state: state that receives the entries.
            partition: number of the changelog's partition.
            connection: connection for requests with long waits or long answers.
            batch_most: bytes that one batch may unpack to.
            passed: function like `passed_s`, to notice that the process was suspended.
            asking: connection for requests answered at once; None: `connection`.
        """
        self.cluster, self.state, self.partition, self._connection = cluster, state, partition, connection
        self._asking = connection if asking is None else asking
        self._batch_most, self._passed = batch_most, passed
        self.topic_id = b""
        """Id of the changelog's topic as of the last `restore`, 16 bytes."""
        self._seen = KnownPosition(0, NO_EPOCH)
        self._sighted = 0
        self._end = KnownPosition(0, NO_EPOCH)
        """Position after the state's last commit and its end marker, as of the last `restore` or `sight`."""
        self._last_search = SearchedRange(b"", KnownPosition(0, NO_EPOCH), None)
        self._answered = self._passed()

    async def restore(self, *, is_fenced: bool = False) -> int:
        """Replay all entries from the state's position to the changelog's present end.

        If the operator has decided to go on without a state that no longer fits the log, the state is discarded first.

        Args:
            is_fenced: True if the caller has fenced the changelog's only writer, so that no transaction may be open.

        Returns:
            number of entries applied

        Raises:
            StateAhead: the state is ahead of the log, and the operator has not decided.
            TopicReplaced: the state was made from another topic of this name, and the operator has not decided.
            LogTruncated: the changelog lost entries contained in the state, and the operator has not decided.
            PositionLost: entries were deleted before the state read them.
            TransactionError: Kafka has left a transaction open, and the replay would lack its entries.
            Aborted: Kafka was silent for so long that compaction may have removed entries; the state is discarded.
        """
        state, topic, partition = self.state, self.state.changelog, self.partition
        self.topic_id = (await self.cluster.found([topic]))[topic].id
        try:
            await self._compare(is_fenced=is_fenced)
        except (TopicReplaced, LogTruncated, StateAhead) as error:
            await self._discard_or_raise(error)
        first = await self.cluster.offset(topic, partition, EARLIEST, self._asking)
        end = await self.cluster.offset(topic, partition, LATEST, self._asking)
        if state.position < first:
            raise PositionLost(
                f"{topic}, partition {partition}: the local store ends at offset {state.position}, but the "
                f"changelog begins at {first}: the entries between are lost. Set the changelog's cleanup.policy "
                "to compact, without delete; see docs/reference/halted.md"
            )
        restored = 0
        state.restoring()
        self._answered = self._passed()
        while state.position < end or not state.restored():
            batch = await self._next()
            if self._was_silent():
                state.discard()
                raise Aborted(
                    f"{topic}, partition {partition}: Kafka did not answer for more than {SILENT_S:.0f} s during the "
                    "read of the changelog, so deletions may have been missed; the worker reads it again from its "
                    "beginning"
                )
            restored += batch.count
            self._apply(batch)
        self._answered = self._passed()
        epoch = self._seen.epoch if self._seen.position == state.position else NO_EPOCH
        self._sighted, self._end = state.position, KnownPosition(state.position, epoch)
        return restored

    async def keep_up(self) -> bool:
        """Fetch once and apply the entries, if any. Waits up to FETCH_WAIT_MS.

        Returns:
            False if Kafka was silent for so long that compaction may have removed entries: nothing is applied, and
            `restore` is needed.

        Raises:
            PositionLost: the changelog does not hold the state's position (any more).
            TopicReplaced: the changelog's name now belongs to another topic.
            LogTruncated: the changelog lost applied entries.
            BatchTooLarge: a batch unpacks to more than the limit.
        """
        batch = await self._next()
        if self._was_silent():
            return False
        self._apply(batch)
        return True

    @property
    def silent_s(self) -> float:
        """Return the seconds since the last answer from Kafka."""
        return max(after - before for after, before in zip(self._passed(), self._answered, strict=True))

    def _was_silent(self) -> bool:
        """Return True if the time since the previous answer was so long that tombstones may have been missed."""
        now = self._passed()
        if max(after - before for after, before in zip(now, self._answered, strict=True)) > SILENT_S:
            return True
        self._answered = now
        return False

    async def refuse_truncation(self) -> None:
        """Check that the changelog still has the last entries that the state contains.

        Transactions may be open during the check.

        Raises:
            LogTruncated: the changelog lost these entries.
        """
        if (seen := self.state.sighting) is not None:
            self.topic_id = (await self.cluster.found([self.state.changelog]))[self.state.changelog].id
            await self._probe(seen)

    async def _compare(self, *, is_fenced: bool) -> None:
        """Check that the state was made from this topic, and that the topic has not lost entries since."""
        state, topic, owner = self.state, self.state.changelog, self.state.owner
        before = owner.topics.get(owners.CHANGELOG) if owner else None
        if before is not None and before.id != id_text(self.topic_id):
            raise replaced(topic, before.id, id_text(self.topic_id))
        if is_fenced:
            await self._refuse_open()
        end = await self.cluster.offset(topic, self.partition, LATEST, self._asking)
        if state.position > end:
            raise StateAhead(
                f"{topic}, partition {self.partition}: the local store holds the entries below offset "
                f"{state.position}, but the changelog ends at offset {end}: the topic lost its end, or was deleted "
                "and created again. See docs/reference/halted.md for the remedies"
            )
        if (seen := state.sighting) is not None:
            await self._probe(seen)

    async def _refuse_open(self) -> None:
        """Check that the changelog has no open transaction; wait OPEN_WITHIN_S for an end marker on its way.

        The lane's producer finds a transaction that Kafka left open by the transactional id's last transaction. Once
        Kafka has forgotten the id, only the log shows it.

        Raises:
            TransactionError: a transaction is open.
            LogTruncated: the changelog lost entries of the state, perhaps with end markers.
        """
        topic, partition = self.state.changelog, self.partition
        retry = Retry("wait for the end of a fenced transaction", topic=topic, partition=partition)
        while True:
            high = await self.cluster.offset(topic, partition, LATEST, self._asking, isolation=READ_UNCOMMITTED)
            stable = await self.cluster.offset(topic, partition, LATEST, self._asking)
            if stable >= high:
                return
            if retry.seconds > OPEN_WITHIN_S:
                break
            await retry.wait(f"offsets {stable} to {high - 1} are open")
        if (seen := self.state.sighting) is not None:
            await self._probe(seen)
        raise TransactionError(
            f"{topic}, partition {partition}: the transaction from offset {stable} on is open, its owner is fenced, "
            "and Kafka has forgotten its end. `ratchet resume --open-transaction commit` (or `abort`) shows the "
            "transaction; add --execute to end it; see docs/reference/halted.md"
        )

    async def _discard_or_raise(self, error: RatchetError) -> None:
        """Discard the state if the operator has decided so since the state was made; otherwise raise the error."""
        newest = await self._owner_in_log()
        known = self.state.owner.decisions if self.state.owner else ()
        if newest is None or not newest.decisions or newest.decisions[-1] in known:
            raise error
        log.warning(
            "the local store is rebuilt from the changelog, as the operator has decided",
            changelog=self.state.changelog,
            partition=self.partition,
            decision=newest.decisions[-1].reason,
            otherwise=str(error),
        )
        self.state.discard()

    async def _owner_in_log(self) -> Owner | None:
        """Search the whole changelog for its newest owner entry, regardless of the state's position.

        A halted lane repeats this search. Each time it searches only the entries after the range already searched, as
        long as the log still contains that range.
        """
        topic, partition = self.state.changelog, self.partition
        end = await self.cluster.offset(topic, partition, LATEST, self._asking)
        if not await self._goes_on(end):
            first = await self.cluster.offset(topic, partition, EARLIEST, self._asking)
            self._last_search = SearchedRange(self.topic_id, KnownPosition(first, NO_EPOCH), None)
        _, (position, epoch), newest = self._last_search
        while position < end:
            batch = await self._fetch(position, epoch, max_bytes=FETCH_BYTES, max_wait_ms=FETCH_WAIT_MS)
            for index in owners.indices(batch).tolist():
                newest = owners.read(batch, index)
            position, epoch = batch.next, batch.epoch
        self._last_search = SearchedRange(self.topic_id, KnownPosition(position, epoch), newest)
        return newest

    async def _goes_on(self, end: int) -> bool:
        """Return True if the log still contains the searched range; then only newer entries need a search."""
        topic_id, to, _ = self._last_search
        if topic_id != self.topic_id or to.epoch == NO_EPOCH or to.position > end:
            return False
        try:
            await self._probe(to)
        except (PositionLost, LogTruncated):
            return False
        return True

    async def _probe(self, at: KnownPosition) -> RecordBatch:
        """Fetch one batch at the position, so that the broker checks position and leader epoch.

        The fetched records are not used; they are fetched again later.
        """
        return await self._fetch(at.position, at.epoch, max_bytes=1, max_wait_ms=0)

    async def sight(self) -> KnownPosition | None:
        """Return the position after the last transaction's end marker, with the marker's leader epoch.

        None: the state has no new commit, or the marker is not written yet. Only the marker is fetched: a few bytes,
        even after a large transaction.

        Raises:
            TopicReplaced: the changelog's name now belongs to another topic.
        """
        position = self.state.position
        if position <= self._sighted:
            return None
        batch = await self._probe(KnownPosition(position, NO_EPOCH))
        if batch.epoch < 0:
            return None  # the marker is still being written
        self._sighted, self._end = position, KnownPosition(batch.next, batch.epoch)
        return self._end

    @property
    def is_behind(self) -> bool:
        """Return True if `sight` has not seen the state's newest commit yet."""
        return self.state.position > self._sighted

    @property
    def end(self) -> PositionToWatch:
        """Return the position after the state's last commit, to be watched for new entries."""
        return PositionToWatch(self.topic_id, self.partition, *self._end)

    async def has_grown(self) -> bool:
        """Return True if the log has entries after the state's last commit.

        If the lane has no open transaction, such entries come from another writer.

        Raises:
            TopicReplaced: the changelog's name now belongs to another topic.
            LogTruncated: the changelog lost entries contained in the state.
        """
        batch = await self._probe(self._end)
        return batch.next > self._end.position

    async def _next(self) -> RecordBatch:
        position = self.state.position
        epoch = self._seen.epoch if self._seen.position == position else NO_EPOCH
        return await self._fetch(position, epoch, max_bytes=FETCH_BYTES, max_wait_ms=FETCH_WAIT_MS)

    def _apply(self, batch: RecordBatch) -> None:
        if batch.next > self.state.position:
            self.state.apply(batch)
            self._seen = KnownPosition(batch.next, batch.epoch)

    async def _fetch(self, position: int, epoch: int, *, max_bytes: int, max_wait_ms: int) -> RecordBatch:
        topic, partition = self.state.changelog, self.partition
        fetched = await self.cluster.fetch(
            topic,
            partition,
            position,
            self._connection if max_wait_ms else self._asking,
            max_bytes=max_bytes,
            max_wait_ms=max_wait_ms,
            topic_id=self.topic_id,
            last_epoch=epoch,
        )
        return read_chunk(topic, partition, position, fetched.data, fetched.aborted, most=self._batch_most)
