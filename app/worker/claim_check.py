"""Check of a running worker's claims: it may write only to topics that it still owns.

A worker claims its topics before it joins its consumer group. `ratchet resume --adopt`, which moves a claim to another
application, refuses while the former application's group has members. A starting worker is not a member yet: the
command does not find it, and the worker has read only the earlier claims. So each lane reads the claims once more when
it starts, after its worker has joined. Either the lane reads the new claim, or the command finds the worker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from kafka_ratchet.app.names import OWNERS_TOPIC
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.worker.claims import WriterClaim, take_claim, taken
from kafka_ratchet.errors import RatchetError, TopicTaken
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.changelog import Changelog, StorelessReader
from kafka_ratchet.transport.client.cluster import EARLIEST, LATEST, Cluster
from kafka_ratchet.transport.lane import Lane

log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 1.0
"""Seconds between requests for the end offset of the claims topic, which is read again only if it has grown."""
CONNECTION: Final = "claims"


class _Claims(StorelessReader):
    """Claims by topic, collected from one read of the claims topic."""

    def __init__(self, position: int) -> None:
        self.changelog, self.position = OWNERS_TOPIC, position
        self.by_topic: dict[str, WriterClaim] = {}

    def apply(self, batch: RecordBatch) -> None:
        for index in range(batch.count):
            take_claim(self.by_topic, batch.key(index), batch.value(index), int(batch.offsets[index]))
        self.position = batch.next


class ClaimCheck:
    """Checker of topic claims, shared by all lanes of a running worker."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        """Prepare without reading any claim."""
        self._cluster, self._settings = cluster, settings
        self._reading = asyncio.Lock()
        self._claims: dict[str, WriterClaim] = {}
        self._began = float("-inf")
        """Time at which the last read of the claims began, by the monotonic clock."""

    async def refuse(self, stream: str, changelog: str) -> None:
        """Read the claims; raise an error if another application or stream owns the output or changelog.

        Raises:
            TopicTaken: another application or stream has claimed one of these topics.
            TopicReplaced: the claims topic was deleted.
            TopicError: the claims topic cannot be read.
        """
        called = time.monotonic()
        async with self._reading:
            if self._began < called:  # lanes that start together share one reading
                began = time.monotonic()
                self._claims = await self._read()
                self._began = began
        app = self._settings.app
        for topic in (self._settings.streams[stream].output, changelog):
            known = self._claims.get(topic)
            if known is not None and not known.is_of(app, stream):
                raise taken(topic, known, app, stream)

    async def _read(self) -> dict[str, WriterClaim]:
        await self._cluster.found([OWNERS_TOPIC])  # a deleted topic would never have an offset
        claims = _Claims(await self._cluster.offset(OWNERS_TOPIC, 0, EARLIEST, CONNECTION))
        await Changelog(self._cluster, claims, 0, CONNECTION).restore()
        return claims.by_topic

    async def watch(self, lanes: Callable[[], Iterable[Lane]]) -> None:
        """Halt each running lane after another application has claimed its topics; never return.

        `ratchet resume --adopt` writes its claim, and then ends with an error if the former application still has a
        worker in its group. The claim is valid nevertheless: that worker must not write any more.
        """
        seen: int | None = None
        while True:
            try:
                end = await self._cluster.offset(OWNERS_TOPIC, 0, LATEST, CONNECTION)
                if end != seen:
                    await asyncio.gather(*map(self._look, lanes()))
                seen = end
            except RatchetError as error:
                log.warning("the claims cannot be read; trying again", topic=OWNERS_TOPIC, reason=str(error))
            except Exception:
                log.exception("the check of the claims failed; trying again")
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self, lane: Lane) -> None:
        try:
            await self.refuse(lane.spec.stream, lane.state.changelog)
        except TopicTaken as error:
            lane.halt(error)
