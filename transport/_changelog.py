"""Reading a changelog partition into the state that stands behind it: to its end, or on and on."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Protocol

from errors import PositionLost, StateAhead
from transport._cluster import EARLIEST, LATEST, Cluster
from transport._record_batch import RecordBatch, read_chunk

FETCH_BYTES: Final = 2 << 20
"""A fetch's size. Smaller costs a round trip more often; larger keeps the other lanes of the worker waiting longer."""
FETCH_WAIT_MS: Final = 250
"""How long the broker may hold back an empty answer; also how late a stop can be noticed by the broker."""


class ChangelogReader(Protocol):
    """What takes over committed changelog entries."""

    changelog: str
    position: int
    """Next changelog offset to apply: everything below is in the local store."""

    def apply(self, batch: RecordBatch) -> None:
        """Take over committed changelog entries."""

    def restoring(self) -> None:
        """A replay to the end begins."""

    def restored(self) -> bool:
        """It is done. False: all that was known is forgotten, for it was too old; replay from the new position."""


class Changelog:
    """One changelog partition and the state it is read into. Only committed entries are seen."""

    def __init__(self, cluster: Cluster, state: ChangelogReader, partition: int, connection: Hashable) -> None:
        self.cluster, self.state, self.partition, self._connection = cluster, state, partition, connection

    async def restore(self) -> int:
        """Replay everything from the state's position to the end, as it is now.

        Returns:
            entries applied

        Raises:
            StateAhead: the state stands for more than there is.
            PositionLost: entries were deleted that the state has not seen.
        """
        state, topic, partition = self.state, self.state.changelog, self.partition
        first = await self.cluster.offset(topic, partition, EARLIEST, self._connection)
        end = await self.cluster.offset(topic, partition, LATEST, self._connection)
        if state.position > end:
            raise StateAhead(
                f"{topic}, partition {partition}: the local store stands for everything below offset "
                f"{state.position}, but the changelog ends at {end}. It was deleted and created again, or lost its "
                "end; see docs/reference/halted.md"
            )
        if state.position < first:
            raise PositionLost(
                f"{topic}, partition {partition}: the local store ends at offset {state.position}, but the "
                f"changelog begins at {first}: what lies between is gone. A changelog must be compacted, never deleted "
                "from; see docs/reference/halted.md"
            )
        restored = 0
        state.restoring()
        while state.position < end or not state.restored():
            restored += await self.follow()
        return restored

    async def follow(self) -> int:
        """Apply what one fetch brings, which may be nothing; waits for it up to FETCH_WAIT_MS.

        Returns:
            entries applied

        Raises:
            PositionLost: the changelog does not hold the state's position (any more).
        """
        state, topic, partition = self.state, self.state.changelog, self.partition
        fetched = await self.cluster.fetch(
            topic, partition, state.position, self._connection, max_bytes=FETCH_BYTES, max_wait_ms=FETCH_WAIT_MS
        )
        batch = read_chunk(topic, partition, state.position, fetched.data, fetched.aborted)
        if batch.next > state.position:
            state.apply(batch)
        return batch.count
