"""Reading a changelog partition into the state that stands behind it: to its end, or on and on."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple, Protocol

import structlog

from kafka_ratchet.errors import Aborted, LogTruncated, PositionLost, RatchetError, StateAhead, TopicReplaced
from kafka_ratchet.transport import owner as owners
from kafka_ratchet.transport.batch.chunk import BATCH_MOST, read_chunk
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.client.cluster import EARLIEST, LATEST, Cluster
from kafka_ratchet.transport.client.errors import replaced
from kafka_ratchet.transport.client.fetch_session import Spot
from kafka_ratchet.transport.client.topic_id import NO_EPOCH, id_text
from kafka_ratchet.transport.owner import Owner

log = structlog.get_logger(__name__)

SILENT_S: Final = 3_600.0
"""Who follows and heard nothing for this long looks anew at what there is (`restore`): entries that it has not seen may
have been compacted away. Far less than tombstones are kept for, and seldom enough for its few requests."""

FETCH_BYTES: Final = 2 << 20
"""A fetch's size. Smaller costs a round trip more often; larger keeps the other lanes of the worker waiting longer."""
FETCH_WAIT_MS: Final = 250
"""How long the broker may hold back an empty answer; also how late a stop can be noticed by the broker."""


def passed_s() -> tuple[float, float]:
    """Seconds of two clocks that go on while this process is suspended: one can be set, one stops with its machine."""
    return time.time(), time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Sighting(NamedTuple):
    """The batch that ends before `position` was written in leader epoch `epoch`."""

    position: int
    epoch: int


class LookedThrough(NamedTuple):
    """How far a log was looked through, and the newest owner entry up to there. topic_id: 16 bytes."""

    topic_id: bytes
    to: Sighting
    newest: Owner | None


class ChangelogReader(Protocol):
    """What takes over committed changelog entries."""

    changelog: str
    position: int
    """Next changelog offset to apply: everything below is in the local store."""

    @property
    def owner(self) -> Owner | None:
        """Whose changelog it is, as of `position`; None where no entry has said so yet."""

    @property
    def sighting(self) -> Sighting | None:
        """The last changelog offset below `position` whose leader epoch is known; None where none is."""

    def discard(self) -> None:
        """Throw the local store away and begin anew at position 0."""

    def apply(self, batch: RecordBatch) -> None:
        """Take over committed changelog entries."""

    def restoring(self) -> None:
        """A replay to the end begins."""

    def restored(self) -> bool:
        """It is done. False: all that was known is forgotten, for it was too old; replay from the new position."""


class WithoutStore:
    """A `ChangelogReader` that keeps nothing on disk: it is read from the beginning at every start."""

    owner: Owner | None = None
    sighting: Sighting | None = None

    def discard(self) -> None:
        """There is no store."""

    def restoring(self) -> None:
        """A replay to the end begins: nothing to note."""

    def restored(self) -> bool:
        """It is done; what was known before can be too old for nothing."""
        return True


class Changelog:
    """One changelog partition and the state it is read into. Only committed entries are seen."""

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
        """Nothing is read yet.

        Args:
            cluster: connected
            state: what it is read into
            partition: number
            connection: on which to read what may wait or be long
            batch_most: bytes that one batch may unpack to
            passed: seconds of two clocks that go on while this process is suspended
            asking: the connection on which to ask what is answered at once; None: the same
        """
        self.cluster, self.state, self.partition, self._connection = cluster, state, partition, connection
        self._asking = connection if asking is None else asking
        self._batch_most, self._passed = batch_most, passed
        self.topic_id = b""
        """16 bytes, as of the last `restore`."""
        self._seen = Sighting(0, NO_EPOCH)
        self._sighted = 0
        self._end = Sighting(0, NO_EPOCH)
        """Where the log ended behind the state's last commit, as far as it was looked at."""
        self._looked_through = LookedThrough(b"", Sighting(0, NO_EPOCH), None)
        self._heard = self._passed()

    async def restore(self) -> int:
        """Replay everything from the state's position to the end, as it is now.

        Returns:
            entries applied

        Raises:
            StateAhead: the state stands for more than there is.
            PositionLost: entries were deleted that the state has not seen.
            TopicReplaced: the state was made from another topic of this name, and nobody has decided to go on.
            LogTruncated: the changelog lost entries that the state has.
        """
        state, topic, partition = self.state, self.state.changelog, self.partition
        self.topic_id = (await self.cluster.found([topic]))[topic].id
        try:
            await self._compare()
        except (TopicReplaced, LogTruncated, StateAhead) as error:
            await self._decided(error)
        first = await self.cluster.offset(topic, partition, EARLIEST, self._asking)
        end = await self.cluster.offset(topic, partition, LATEST, self._asking)
        if state.position < first:
            raise PositionLost(
                f"{topic}, partition {partition}: the local store ends at offset {state.position}, but the "
                f"changelog begins at {first}: what lies between is gone. A changelog must be compacted, never deleted "
                "from; see docs/reference/halted.md"
            )
        restored = 0
        state.restoring()
        self._heard = self._passed()
        while state.position < end or not state.restored():
            batch = await self._next()
            if self._was_silent():
                state.discard()
                raise Aborted(
                    f"{topic}, partition {partition}: was not heard of for more than {SILENT_S:.0f} s while it was "
                    "read, so nulls may have been missed; it is read from its beginning"
                )
            restored += batch.count
            self._apply(batch)
        self._heard = self._passed()
        epoch = self._seen.epoch if self._seen.position == state.position else NO_EPOCH
        self._sighted, self._end = state.position, Sighting(state.position, epoch)
        return restored

    async def keep_up(self) -> bool:
        """Apply what one fetch brings, which may be nothing; waits for it up to FETCH_WAIT_MS.

        Returns:
            False where nothing was heard for so long that entries may be missing: nothing is applied, `restore` has to
            look.

        Raises:
            PositionLost: the changelog does not hold the state's position (any more).
            TopicReplaced: behind its name is another topic now.
            LogTruncated: it lost entries that were applied.
            BatchTooLarge: a batch unpacks to more than it may.
        """
        batch = await self._next()
        if self._was_silent():
            return False
        self._apply(batch)
        return True

    @property
    def silent_s(self) -> float:
        """Seconds since the last answer."""
        return max(after - before for after, before in zip(self._passed(), self._heard, strict=True))

    def _was_silent(self) -> bool:
        """Return whether the last answer came so long before this one that nulls may have been missed."""
        now = self._passed()
        if max(after - before for after, before in zip(now, self._heard, strict=True)) > SILENT_S:
            return True
        self._heard = now
        return False

    async def refuse_truncation(self) -> None:
        """Refuse a log without the last entries of the state, whatever transactions are open.

        Raises:
            LogTruncated: it lost them.
        """
        if (seen := self.state.sighting) is not None:
            self.topic_id = (await self.cluster.found([self.state.changelog]))[self.state.changelog].id
            await self._probe(seen)

    async def _compare(self) -> None:
        """Whether the state was made from this topic, and from this log."""
        state, topic, owner = self.state, self.state.changelog, self.state.owner
        before = owner.topics.get(owners.CHANGELOG) if owner else None
        if before is not None and before.id != id_text(self.topic_id):
            raise replaced(topic, before.id, id_text(self.topic_id))
        end = await self.cluster.offset(topic, self.partition, LATEST, self._asking)
        if state.position > end:
            raise StateAhead(
                f"{topic}, partition {self.partition}: the local store stands for everything below offset "
                f"{state.position}, but the changelog ends at {end}: it lost its end, or was deleted and created "
                "again; see docs/reference/halted.md"
            )
        if (seen := state.sighting) is not None:
            await self._probe(seen)

    async def _decided(self, error: RatchetError) -> None:
        """Begin anew where a person has decided to go on without what the state knows; otherwise raise the error."""
        newest = await self._owner_in_log()
        known = self.state.owner.decisions if self.state.owner else ()
        if newest is None or not newest.decisions or newest.decisions[-1] in known:
            raise error
        log.warning(
            "the local store is rebuilt from the changelog, as a person has decided",
            changelog=self.state.changelog,
            partition=self.partition,
            decision=newest.decisions[-1].reason,
            otherwise=str(error),
        )
        self.state.discard()

    async def _owner_in_log(self) -> Owner | None:
        """The newest entry of the whole log, whatever the state stands for.

        A lane that stays halted asks again and again: what was looked through stays so while the log goes on from it.
        """
        topic, partition = self.state.changelog, self.partition
        end = await self.cluster.offset(topic, partition, LATEST, self._asking)
        if not await self._goes_on(end):
            first = await self.cluster.offset(topic, partition, EARLIEST, self._asking)
            self._looked_through = LookedThrough(self.topic_id, Sighting(first, NO_EPOCH), None)
        _, (position, epoch), newest = self._looked_through
        while position < end:
            batch = await self._fetch(position, epoch, max_bytes=FETCH_BYTES, max_wait_ms=FETCH_WAIT_MS)
            for index in owners.indices(batch).tolist():
                newest = owners.read(batch, index)
            position, epoch = batch.next, batch.epoch
        self._looked_through = LookedThrough(self.topic_id, Sighting(position, epoch), newest)
        return newest

    async def _goes_on(self, end: int) -> bool:
        """Whether the log is still the one that was looked through, as far as it was."""
        topic_id, to, _ = self._looked_through
        if topic_id != self.topic_id or to.epoch == NO_EPOCH or to.position > end:
            return False
        try:
            await self._probe(to)
        except (PositionLost, LogTruncated):
            return False
        return True

    async def _probe(self, at: Sighting) -> RecordBatch:
        """One batch from there, at once: for what the broker says of the place. What it brings comes again."""
        return await self._fetch(at.position, at.epoch, max_bytes=1, max_wait_ms=0)

    async def sight(self) -> Sighting | None:
        """The leader epoch behind the state's position; None where nothing new is to be seen.

        What stands there is the end marker of the last transaction: a few bytes, whatever that one brought.

        Raises:
            TopicReplaced: behind its name is another topic now.
        """
        position = self.state.position
        if position <= self._sighted:
            return None
        batch = await self._probe(Sighting(position, NO_EPOCH))
        if batch.epoch < 0:
            return None  # the marker is still being written
        self._sighted, self._end = position, Sighting(batch.next, batch.epoch)
        return self._end

    @property
    def is_behind(self) -> bool:
        """Whether something was committed that `sight` has not yet seen."""
        return self.state.position > self._sighted

    @property
    def end(self) -> Spot:
        """Where the log ended behind the state's last commit, as far as it was looked at."""
        return Spot(self.topic_id, self.partition, *self._end)

    async def has_grown(self) -> bool:
        """Whether there is more than the state's last commit. While its lane has no transaction open, another wrote it.

        Raises:
            TopicReplaced: behind its name is another topic now.
            LogTruncated: it lost entries that the state has.
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
            self._seen = Sighting(batch.next, batch.epoch)

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
