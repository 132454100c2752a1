"""Standby: a warm copy of a partition that another worker serves.

A standby applies the changelog's committed entries to the state that a lane would use, and writes nothing to Kafka.
When the group assigns the partition to this worker, the lane starts with that state. It replays only the entries that
the standby had not fetched yet (docs/decisions/0005-standby.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import structlog

from kafka_ratchet.errors import RatchetError
from kafka_ratchet.transport.batch.chunk import BATCH_MOST
from kafka_ratchet.transport.changelog import Changelog, passed_s
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.correlation import correlate
from kafka_ratchet.transport.partition_state import PartitionState
from kafka_ratchet.transport.until_stopped import done_before

log = structlog.get_logger(__name__)

PAUSE_FIRST_S: Final = 1.0
PAUSE_MOST_S: Final = 30.0
"""Longest pause between two attempts, in seconds. Nothing waits for a standby, so it may pause longer than a lane."""


class Standby:
    """Follower of a changelog partition, which keeps a copy of the partition's state until stopped."""

    def __init__(
        self,
        cluster: Cluster,
        state: PartitionState,
        partition: int,
        batch_most: int = BATCH_MOST,
        passed: Callable[[], tuple[float, float]] = passed_s,
        stream: str = "",
    ) -> None:
        """Prepare the standby without starting it.

        Args:
            cluster: connected client of the Kafka cluster.
            state: state that receives the changelog entries.
            partition: number of the changelog partition.
            batch_most: bytes that one batch may unpack to.
            passed: function like `passed_s`, to notice that the process was suspended.
            stream: stream of the partition, for the log.
        """
        self.state, self.partition, self.stream = state, partition, stream
        self.log = log.bind(changelog=state.changelog, partition=partition)
        connection = ("standby", state.changelog, partition)
        self._changelog = Changelog(cluster, state, partition, connection, batch_most, passed)
        self._is_late = False
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the standby's task, and return at once."""
        self._task = asyncio.create_task(self._run(), name=f"standby {self.state.changelog}-{self.partition}")

    async def stop(self, *, close: bool = True) -> None:
        """Stop the standby. close: False to leave the state open for the lane that follows."""
        self._stopping.set()
        if self._task is not None:
            await self._task
        if close:
            self.state.close()

    def _correlation(self) -> dict[str, object]:
        return {"stream": self.stream, "changelog": self.state.changelog, "partition": self.partition}

    async def _run(self) -> None:
        correlate(self._correlation)
        pause_s = PAUSE_FIRST_S
        while not self._stopping.is_set():
            try:
                await self._follow()
                return
            except RatchetError as error:
                self.log.warning("standby starts again", reason=str(error))
            except Exception:
                self.log.exception("standby failed")
            self.state.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            pause_s = min(pause_s * 2, PAUSE_MOST_S)

    async def _follow(self) -> None:
        await asyncio.to_thread(self.state.open)
        while await self._or_stopped(self._changelog.restore()):
            self.log.info("standby follows", changelog_offset=self.state.position)
            while await self._or_stopped(self._keep_up()):
                if self._is_late:
                    break

    async def _keep_up(self) -> None:
        self._is_late = not await self._changelog.keep_up()
        if self._is_late:
            self.log.warning(
                "Kafka did not answer for long; checking the whole changelog again", offset=self.state.position
            )

    async def _or_stopped(self, work: Coroutine[Any, Any, Any]) -> bool:
        """Run the work until it is done or the standby is stopped; return False after a stop."""
        return await done_before(self._stopping, work) and not self._stopping.is_set()
