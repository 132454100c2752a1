"""Switch of deduplication, for one stream or all: policies and settings, and how workers follow them.

Four policies and settings can decide; the first one set wins (docs/decisions/0010-the-switch.md):

    stream policy     live, in the policy topic          ratchet policy set off --stream NAME
    stream setting    streams.NAME.deduplicate           read when the worker starts
    global policy     live                               ratchet policy set off --global
    global setting    deduplicate

If none is set, deduplication is on. The topic is compacted and has one partition. Keys are `["global"]` and
`["stream", NAME]`, values `{"deduplicate": true}` or `false`, both JSON; a null value unsets the policy. The topic also
has the requests of `ratchet forget` (forget_requests.py). A header of a policy's record names the user who set it.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final, NamedTuple

import structlog

from kafka_ratchet.app.names import policy_topic
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.streams import STREAM_NAME
from kafka_ratchet.app.worker.forget_requests import ReadRequests, stream_and_id
from kafka_ratchet.errors import (
    Aborted,
    LogTruncated,
    PolicyLost,
    PositionLost,
    RatchetError,
    TopicReplaced,
    TransportError,
)
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.changelog import SILENT_S, Changelog, StorelessReader
from kafka_ratchet.transport.client.cluster import EARLIEST, LATEST, Cluster
from kafka_ratchet.transport.client.retry import Attempts
from kafka_ratchet.transport.policy import Policy, Requests

log = structlog.get_logger(__name__)

BY_HEADER: Final = "ratchet-by"
"""Header of a policy's record with the user who set it."""
MAX_KEY_BYTES: Final = 256
"""Longest key in bytes, far above the longest stream name. Longer keys are ignored."""
MAX_VALUE_BYTES: Final = 1024
PAUSE_S: Final = 5.0
"""Seconds before an unreadable policy topic is tried again."""
SHOWN: Final = 60
"""Maximum number of bytes that the log shows of an unknown key."""


class PolicyOrigin(StrEnum):
    """Policy or setting that decided a stream's deduplication, in order of precedence."""

    STREAM_POLICY = "stream policy"
    STREAM_SETTING = "stream setting"
    GLOBAL_POLICY = "global policy"
    GLOBAL_SETTING = "global setting"
    DEFAULT = "default"


class EffectivePolicy(NamedTuple):
    """Deduplication switch of a stream, with the policy or setting that decided it."""

    deduplicate: bool
    origin: PolicyOrigin


class StoredPolicy(NamedTuple):
    """Newest policy record for one stream or for all. `deduplicate` is None if the record unsets the policy."""

    deduplicate: bool | None
    next: int
    """Offset after the record."""


NOTHING: Final = StoredPolicy(None, 0)


def policy_key(stream: str | None) -> bytes:
    """Return the key of a policy record. stream: None for the policy of all streams."""
    return json.dumps(["global"] if stream is None else ["stream", stream], separators=(",", ":")).encode()


def policy_value(deduplicate: bool) -> bytes:
    """Return the value of a record that sets a policy. deduplicate: True to switch deduplication on."""
    return json.dumps({"deduplicate": deduplicate}, separators=(",", ":")).encode()


class Policies(StorelessReader):
    """Contents of the policy topic so far; implements `kafka_ratchet.transport.changelog.ChangelogReader`."""

    def __init__(self, settings: Settings) -> None:
        """Start without any policy."""
        self.settings = settings
        self.changelog = policy_topic(settings.app)
        self.position = 0
        self.stored: dict[str | None, StoredPolicy] = {}
        """Newest policy records by stream; under None, the one for all streams."""
        self.requests = ReadRequests()

    def effective(self, stream: str) -> EffectivePolicy:
        """Return the deduplication switch of a stream, from policies and settings."""
        settings = self.settings
        candidates = (
            (self.stored.get(stream, NOTHING).deduplicate, PolicyOrigin.STREAM_POLICY),
            (settings.streams[stream].deduplicate, PolicyOrigin.STREAM_SETTING),
            (self.stored.get(None, NOTHING).deduplicate, PolicyOrigin.GLOBAL_POLICY),
            (settings.deduplicate, PolicyOrigin.GLOBAL_SETTING),
        )
        for deduplicate, origin in candidates:
            if deduplicate is not None:
                return EffectivePolicy(deduplicate, origin)
        return EffectivePolicy(True, PolicyOrigin.DEFAULT)

    def policy(self, stream: str) -> Policy:
        """Return a stream's policy for its lane.

        Its position is the offset after the newest policy record for the stream or for all streams.
        """
        position = max(self.stored.get(key, NOTHING).next for key in (None, stream))
        return Policy(self.effective(stream).deduplicate, position)

    def apply(self, batch: RecordBatch) -> None:
        """Apply records of the policy topic.

        A record with an unreadable key is ignored, and so is an unreadable request to forget. An unreadable policy
        counts as unset.
        """
        for index in range(batch.count):
            self._take(batch.key(index), batch.value(index), int(batch.offsets[index]))
        self.position = batch.next

    def _take(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        try:
            parts = _key_of(key)
            if (forget := stream_and_id(parts)) is not None:
                self._take_request(*forget, value, offset)
                return
            stream = _stream_of(parts)
        except ValueError as error:
            shown = None if key is None else repr(key[:SHOWN])
            log.warning(
                "a record of the policy topic is not a policy; the worker ignores it",
                topic=self.changelog,
                offset=offset,
                key=shown,
                reason=str(error),
            )
            return
        deduplicate = None
        if value is not None:
            try:
                deduplicate = _deduplicate_of(value)
            except ValueError as error:
                # Not ignored: compaction removes the policy that it follows, and then workers would differ by when they
                # have read the topic.
                log.warning(
                    "a policy cannot be read; it counts as unset",
                    topic=self.changelog,
                    offset=offset,
                    reason=str(error),
                )
        self.stored[stream] = StoredPolicy(deduplicate, offset + 1)
        if stream is not None and stream not in self.settings.streams:
            log.info(
                "the policy topic has a policy for a stream that these settings lack", stream=stream, offset=offset
            )
        else:
            now = {name: str(self.effective(name)[0]) for name in self.settings.streams if stream in (None, name)}
            log.info("policy", set_for=stream or "all streams", deduplicate=deduplicate, effective=now, offset=offset)

    def _take_request(self, stream: str, request: str, value: bytes | None, offset: int) -> None:
        try:
            self.requests.take(stream, request, value, offset)
        except ValueError as error:
            log.warning(
                "a request in the policy topic cannot be read; the worker ignores it",
                topic=self.changelog,
                offset=offset,
                reason=str(error),
            )
            return
        what = "request to forget" if value is not None else "a request to forget was withdrawn"
        log.info(what, stream=stream, request=request, offset=offset)


def _key_of(key: bytes | None) -> Any:
    if key is None or len(key) > MAX_KEY_BYTES:
        raise ValueError(f"the key has {0 if key is None else len(key)} bytes, and may have 1 to {MAX_KEY_BYTES}")
    return _parsed(key)


def _stream_of(parts: Any) -> str | None:
    if parts == ["global"]:
        return None
    if isinstance(parts, list) and len(parts) == 2 and parts[0] == "stream" and isinstance(parts[1], str):
        if not STREAM_NAME.fullmatch(parts[1]):
            raise ValueError("the key has a name that no stream can have")
        return parts[1]
    raise ValueError('the key must be ["global"] or ["stream", NAME]')


def _deduplicate_of(value: bytes) -> bool:
    if len(value) > MAX_VALUE_BYTES:
        raise ValueError(f"the value has {len(value)} bytes, more than {MAX_VALUE_BYTES}")
    found = _parsed(value)
    deduplicate = found.get("deduplicate") if isinstance(found, dict) and len(found) == 1 else None
    if not isinstance(deduplicate, bool):
        raise ValueError('the value must be {"deduplicate": true} or {"deduplicate": false}')
    return deduplicate


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {type(error).__name__}") from None


class StreamSwitch:
    """Policy and requests to forget for one lane; implements `kafka_ratchet.transport.policy.PolicySource`."""

    def __init__(self, follower: PolicyFollower, stream: str) -> None:
        self._follower, self._stream = follower, stream
        self._reading = 0
        """Number of the complete read of the topic that the lane has waited for; 0: no read yet."""

    @property
    def policy(self) -> Policy:
        """Return the present policy.

        Raises:
            Aborted: a new read of the whole topic has begun since `known_to`; the lane starts again and waits for it.
        """
        return self._follower.policy(self._stream, self._reading)

    @property
    def requests(self) -> Requests:
        """Return the present requests to forget identities of the stream.

        Raises:
            Aborted: see `policy`.
        """
        return self._follower.read_to_the_end(self._reading).requests.of(self._stream)

    @property
    def attempts(self) -> Attempts:
        """Return the fetches of the policy topic in progress."""
        return self._follower.attempts

    async def known_to(self, position: int) -> None:
        """Wait until the policy topic is read up to `position`; see `PolicyFollower.known_to`.

        Raises:
            Aborted: see `policy`.
            RatchetError: see `PolicyFollower.known_to`.
        """
        self._reading = await self._follower.known_to(position)
        _ = self.policy


class PolicyFollower:
    """Reader of the policy topic, one per worker: reads to the end, then waits for new records.

    If the topic was created again, or has lost records, it is read again from its beginning. No lane gets a policy
    until the new read reaches the end, because the records of the earlier read may no longer be valid.
    """

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        """Prepare without reading; see `start`."""
        self.policies = Policies(settings)
        """Policies of the last read that reached the end of the topic."""
        self.attempts = Attempts()
        """Fetches in progress."""
        self._cluster, self._settings = cluster, settings
        self._connection = ("policy", self.policies.changelog)
        self._changelog = Changelog(cluster, self.policies, 0, self._connection)
        self._complete = False
        self._reading = 1
        """Number of the latest read of the whole topic, in progress or complete. It rises when the topic must be read
        again.
        """
        self._error: RatchetError | None = None
        self._read = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task that reads the topic."""
        self._task = asyncio.create_task(self._run(), name=f"policies of {self.policies.changelog}")

    async def stop(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def policy(self, stream: str, reading: int) -> Policy:
        """Return a stream's policy. reading: number that `known_to` returned to the lane.

        Raises:
            Aborted: see `read_to_the_end`; or the policy is "off", and the topic could not be read for too long.
        """
        found = self.read_to_the_end(reading).policy(stream)
        if not found.deduplicate and (silent_s := self._changelog.silent_s) > SILENT_S:
            raise Aborted(
                f"{self.policies.changelog}: could not be read for {silent_s:.0f} s. Deduplication of stream {stream} "
                "was off before that, and it is unknown whether it still is. The partition waits until the topic can "
                "be read"
            )
        return found

    def read_to_the_end(self, reading: int) -> Policies:
        """Return the contents of the topic. reading: number that `known_to` returned to the lane.

        Raises:
            Aborted: another reading of the topic from its beginning has begun since.
        """
        if reading != self._reading or not self._complete:
            raise Aborted(
                f"{self.policies.changelog}: the topic was replaced or truncated, or this worker could not read it for "
                "too long. Until the worker has read it again, it does not know whether to deduplicate, and the "
                "partition waits. It continues by itself, unless the topic was replaced or lost records"
            )
        return self.policies

    async def known_to(self, position: int) -> int:
        """Wait until the topic is read to its end, at least up to offset `position`.

        Returns:
            number of the current reading, which the lane passes to `policy`. Each reading of the topic from its
            beginning has the next number.

        Raises:
            PolicyLost: the topic ends before that position.
            RatchetError: the topic could not be read even once; the text says why.
        """
        async with self._read:
            await self._read.wait_for(lambda: self._complete or self._error)
            if not self._complete and self._error is not None:
                raise self._error
            reading = self._reading
        if self.policies.position < position:
            end = await self._cluster.offset(self.policies.changelog, 0, LATEST, self._connection)
            if end < position:
                raise PolicyLost(
                    f"{self.policies.changelog}: ends at offset {end}, but the policies last applied to the partition "
                    f"reach up to offset {position}. The topic was deleted and created again, or lost its end, so it "
                    "is unknown whether to judge records. See docs/reference/halted.md"
                )
            async with self._read:
                await self._read.wait_for(lambda: self._reading != reading or self.policies.position >= position)
        return reading

    async def read(self) -> None:
        """Read the topic from its beginning to its end, then replace the known policies.

        Raises:
            RatchetError: the topic cannot be read.
        """
        policies = Policies(self._settings)
        changelog = Changelog(self._cluster, policies, 0, self._connection)
        policies.position = await self._cluster.offset(policies.changelog, 0, EARLIEST, self._connection)
        await changelog.restore()
        self.policies, self._changelog, self._complete = policies, changelog, True

    async def _run(self) -> None:
        self.attempts.follow()
        while True:
            try:
                if not self._complete:
                    await self.read()
                await self._tell(None)
                while await self._changelog.keep_up():
                    await self._tell(None)
                # A policy may have been unset in the silence, and its null compacted away since.
                log.warning("the policy topic was not read for too long; partitions wait until it is read again")
                self._complete = False
                self._reading += 1
                continue
            except (TopicReplaced, LogTruncated, PositionLost) as error:
                # Where it is another topic, the lanes find that at their next start, and halt until the
                # operator decides.
                log.error(
                    "the policy topic was replaced or truncated; partitions wait until it is read again",
                    reason=str(error),
                )
                was_complete, self._complete = self._complete, False
                self._reading += 1
                await self._tell(None if was_complete else error)
                if was_complete:
                    continue
            except RatchetError as error:
                # The policies read so far stay valid.
                log.error("the policy topic cannot be read; trying again", reason=str(error))
                await self._tell(error)
            except Exception as error:
                log.exception("following the policy topic failed; trying again")
                await self._tell(TransportError(f"{self.policies.changelog}: cannot be read: {error!r}"))
            self.attempts.clear()  # the traceback of a kept exception keeps them alive
            await asyncio.sleep(PAUSE_S)

    async def _tell(self, error: RatchetError | None) -> None:
        async with self._read:
            self._error = error
            self._read.notify_all()
