"""Times of a consumer group's commits, and the group's members at those times, from `__consumer_offsets`.

A committed offset shows neither time nor client. Reading the topic needs a right that workers do not need otherwise, so
every answer here may be None.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Hashable
from datetime import UTC, datetime
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import structlog
from aiokafka import errors as kafka

from kafka_ratchet.errors import RatchetError
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.client.cluster import EARLIEST, LATEST, Cluster
from kafka_ratchet.transport.client.errors import explained
from kafka_ratchet.transport.client.groups import Member, named
from kafka_ratchet.transport.client.partition_reader import FetchOptions, PartitionAddress, PartitionReader

log = structlog.get_logger(__name__)

TOPIC: Final = "__consumer_offsets"
LOOKED_AT: Final = 500_000
"""Number of offsets to read before the end of the log: some 70 MB."""
FETCH_BYTES: Final = 2 << 20
ANSWER_S: Final = 10.0
"""Maximum seconds to search for the client of a commit; after that the message names no client."""
AGAIN_S: Final = 300.0
"""Seconds until the next try after a failure: without the right to read, every try takes all of `ANSWER_S`."""
COMMIT_KEYS: Final = (0, 1)
CLASSIC_KEY: Final = 2
CONSUMER_KEY: Final = 5
"""Type of a record's key: the record describes one member of a group with the new consumer protocol.

A record with a key of type `CLASSIC_KEY` describes all members of a classic group.
"""
CLASSIC_FORMATS: Final = range(4)


class Commit(NamedTuple):
    """Commit of one offset by a consumer group.

    members: members of the group at that time; None if the log does not show them
    """

    offset: int
    at_ms: int
    members: tuple[Member, ...] | None

    def __str__(self) -> str:
        at = datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
        text = f"committed at {at} UTC"
        if self.members is None:
            return text
        if not self.members:
            return f"{text}, when the group had no members: by an admin tool, or a client without a subscription"
        return f"{text}, when the group had {named('member', self.members)}"


class _Fields:
    """Reader of the fields of a key or value in `__consumer_offsets`, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def text(self) -> str:
        return self._bytes(self.number("h")).decode(errors="replace")

    def blob(self) -> bytes:
        return self._bytes(self.number("i"))

    def compact_text(self) -> str:
        size = shift = 0
        while True:
            byte = self.number("B")
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                return self._bytes(size - 1).decode(errors="replace")
            shift += 7

    def _bytes(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise struct.error(f"{size} bytes at {self._at} of {len(self._data)}")
        begin, self._at = self._at, self._at + max(0, size)
        return self._data[begin : self._at]


def partition_of(group: str, partitions: int) -> int:
    """Return the partition of `__consumer_offsets` that belongs to a group, as Kafka computes it."""
    code = 0
    units = group.encode("utf-16-be")
    for at in range(0, len(units), 2):
        code = (31 * code + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >= 1 << 31 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


class GroupHistory:
    """Newest commit of each partition by one group, and the members at that time."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.commits: dict[tuple[str, int], Commit] = {}
        self._prefix = struct.pack(">h", len(group.encode())) + group.encode()
        self._classic: tuple[Member, ...] | None = None
        self._consumers: dict[str, Member] = {}

    def take(self, key: bytes, value: bytes | None, at_ms: int) -> None:
        """Apply one record of `__consumer_offsets`; ignore records of other groups and of unknown formats."""
        if key[2 : 2 + len(self._prefix)] != self._prefix:
            return
        kind, fields = int.from_bytes(key[:2], "big"), _Fields(key[2 + len(self._prefix) :])
        try:
            if kind in COMMIT_KEYS:
                self._commit((fields.text(), fields.number("i")), value, at_ms)
            elif kind == CLASSIC_KEY:
                self._classic = _classic_members(value) if value is not None else ()
            elif kind == CONSUMER_KEY:
                self._consumer(fields.text(), value)
        except struct.error:
            log.warning("record of the group cannot be read", group=self.group, kind=kind)

    def _commit(self, place: tuple[str, int], value: bytes | None, at_ms: int) -> None:
        if value is None:
            self.commits.pop(place, None)
            return
        members = None if self._classic is None and not self._consumers else (self._classic or ())
        if members is not None:
            members = (*members, *self._consumers.values())
        self.commits[place] = Commit(_Fields(value[2:]).number("q"), at_ms, members)

    def _consumer(self, member: str, value: bytes | None) -> None:
        self._classic = self._classic or ()
        if value is None:
            self._consumers.pop(member, None)
            return
        fields = _Fields(value[2:])
        _instance, _rack = fields.compact_text(), fields.compact_text()
        self._consumers[member] = Member(fields.compact_text(), fields.compact_text())


def _classic_members(value: bytes) -> tuple[Member, ...] | None:
    fields = _Fields(value)
    if (form := fields.number("h")) not in CLASSIC_FORMATS:
        return None
    _type, _generation, _protocol, _leader = fields.text(), fields.number("i"), fields.text(), fields.text()
    if form >= 2:
        fields.number("q")
    members = []
    for _ in range(fields.number("i")):
        fields.text()
        if form >= 3:
            fields.text()
        members.append(Member(fields.text(), fields.text()))
        fields.number("q" if form >= 1 else "i")  # timeouts
        fields.blob()
        fields.blob()
    return tuple(members)


class GroupLog:
    """Reader of a group's commits in `__consumer_offsets`, so that an error message can name the client of a commit."""

    def __init__(self, group: str) -> None:
        self._group, self._history = group, GroupHistory(group)
        self._topic_id, self._next, self._ask_at = b"", 0, float("-inf")
        self._reading = asyncio.Lock()

    async def commit(
        self, cluster: Cluster, topic: str, partition: int, offset: int, connection: Hashable
    ) -> Commit | None:
        """Return the group's newest commit of a partition; None if the log does not show it in time.

        Args:
            cluster: connected client of the Kafka cluster.
            topic: topic of the commit.
            partition: number of the partition.
            offset: committed offset; the result is None if the newest commit has another offset.
            connection: connection of the requests.
        """
        clock = asyncio.get_running_loop().time
        async with self._reading:
            if clock() >= self._ask_at:
                try:
                    async with asyncio.timeout(ANSWER_S):
                        await self._read(cluster, connection)
                except (RatchetError, kafka.KafkaError, TimeoutError) as error:
                    self._ask_at = clock() + AGAIN_S
                    log.warning("commits of the group cannot be read", group=self._group, reason=explained(error))
        found = self._history.commits.get((topic, partition))
        return found if found is not None and found.offset == offset else None

    async def _read(self, cluster: Cluster, connection: Hashable) -> None:
        there = (await cluster.topics([TOPIC])).get(TOPIC)
        if there is None:
            return
        number = partition_of(self._group, there.partitions)
        end = await cluster.offset(TOPIC, number, LATEST, connection)
        first = await cluster.offset(TOPIC, number, EARLIEST, connection)
        if there.id != self._topic_id:
            self._topic_id, self._history, self._next = there.id, GroupHistory(self._group), 0
        self._next = max(self._next, first, end - LOOKED_AT)
        fetching = FetchOptions(connection, FETCH_BYTES, wait_ms=0)
        reader = PartitionReader(cluster, PartitionAddress(TOPIC, number, there.id), self._next, fetching)
        async for batch in reader.batches(end):
            self._take(batch)
            self._next = reader.position
        self._next = reader.position

    def _take(self, batch: RecordBatch) -> None:
        for index, at_ms in enumerate(batch.timestamps.tolist()):
            if (key := batch.key(index)) is not None:
                self._history.take(key, batch.value(index), at_ms)


_LOGS: Final[WeakKeyDictionary[Cluster, dict[str, GroupLog]]] = WeakKeyDictionary()


def group_log(cluster: Cluster, group: str) -> GroupLog:
    """Return the commit log of a group; all lanes on a cluster client share it."""
    logs = _LOGS.setdefault(cluster, {})
    return logs.setdefault(group, GroupLog(group))
