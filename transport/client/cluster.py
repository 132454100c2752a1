"""Requests to the Kafka cluster over aiokafka's connections: leaders, coordinators, topics, fetches.

aiokafka gives sockets, SASL, TLS, version negotiation and metadata. Its consumer and producer are not used: the lanes
need record batches as bytes, and transactions under their own control, step by step (docs/decisions/0003-lanes.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition
from aiokafka import errors as kafka
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.offset import OffsetRequest

from kafka_ratchet.errors import BrokerUnavailable, PositionLost, TopicMissing, TopicReplaced, TransportError
from kafka_ratchet.transport.client.connection import mend_connections, refused_by
from kafka_ratchet.transport.client.descriptions import Descriptions
from kafka_ratchet.transport.client.errors import explained, raise_for, replaced, truncated
from kafka_ratchet.transport.client.retry import Retry
from kafka_ratchet.transport.client.topic_id import (
    NO_EPOCH,
    NOT_THIS_TOPIC,
    READ_COMMITTED,
    FetchByIdRequest,
    TopicsRequest,
    TopicState,
    diverging,
    fetched_partition,
    id_text,
)
from kafka_ratchet.transport.client.watch import Watch

mend_connections()

ANSWER_LEAST_MS: Final = 100
"""Minimum milliseconds to wait for a broker's first answer, even if the time limit is shorter."""


async def connected(options: dict[str, Any], timeout_s: float, request_timeout_ms: int) -> AIOKafkaClient:
    """Connect a client to a cluster, and return it once a broker has answered.

    Args:
        options: options of aiokafka
        timeout_s: maximum seconds to try
        request_timeout_ms: maximum milliseconds that the client waits for each later answer

    Raises:
        BrokerUnavailable: no broker answered within timeout_s.
        KafkaRefused: Kafka refuses this client, or has a certificate that this client refuses.
    """
    retry = Retry("reach Kafka", bootstrap=options["bootstrap_servers"])
    while True:
        left_ms = max(ANSWER_LEAST_MS, int((timeout_s - retry.seconds) * 1000))
        client = AIOKafkaClient(
            **{"client_id": "ratchet", **options}, request_timeout_ms=min(left_ms, request_timeout_ms)
        )
        try:
            await client.bootstrap()
        except kafka.KafkaError as error:
            await client.close()
            if (refusal := refused_by(options["bootstrap_servers"])) is not None:
                raise refusal from None
            if retry.seconds > timeout_s:
                servers = ", ".join(options["bootstrap_servers"])
                raise BrokerUnavailable(
                    f"no Kafka broker answered at {servers} within {timeout_s:.0f} s ({error}). Start a broker "
                    "(ratchet broker), or correct bootstrap in the settings"
                ) from None
            await retry.wait(error)
        else:
            # The short limit was only for the start; later connections have the usual one.
            client._request_timeout_ms = request_timeout_ms  # noqa: SLF001
            return client


REFRESH_S: Final = 0.0001
"""Minimum seconds between two metadata requests, for each partition in the metadata.

Decoding an answer takes a fifth of this pause.
"""
SHARED: Final = 16
"""Number of connections that all lanes share for requests which Kafka answers at once.

Without shared connections, each lane would need two connections of its own. A broker answers the requests of a
connection one after the other, so this is also the number of lanes that may start at the same time.
"""

LATEST: Final = -1
EARLIEST: Final = -2

GROUP, TRANSACTION = 0, 1
"""Coordinator types of FindCoordinator (KIP-98)."""

GONE_AFTER_S: Final = 10.0
"""Seconds until a missing topic counts as deleted, and an unknown leader epoch as lost.

A broker that has just returned lists no topics for a moment, and a replaced leader does not know its
successor's epoch.
"""
TOPIC_RESOURCE: Final = 2
THROTTLED_FOR_S: Final = 15.0
"""Seconds after a delay by Kafka's quota during which that delay counts as the reason of a standstill."""


def shared(number: int) -> Hashable:
    """Return the name of the connection for a partition's short requests. Requests that wait must not use it."""
    return "shared", number % SHARED


class CommittedPosition(NamedTuple):
    """Committed position of a group: the next offset to read, and the metadata text committed with the offset."""

    offset: int
    metadata: str


class FetchedPartition(NamedTuple):
    """One partition's part of a fetch response.

    data: record batches; a read-only view of the response's own memory. aborted: (producer id, first offset) of aborted
    transactions in the data. stable_end: the last stable offset; committed readers see nothing beyond it.
    high_watermark: end of the log for readers of uncommitted records.
    """

    data: bytes | memoryview
    aborted: list[tuple[int, int]]
    stable_end: int
    high_watermark: int


class Cluster:
    """Client of a Kafka cluster, used by a worker.

    Every caller names the connection of its requests, so that a long fetch does not delay other requests.
    """

    def __init__(self, options: dict[str, Any], request_timeout_ms: int = 30_000) -> None:
        self._options = options
        self.request_timeout_ms = request_timeout_ms
        self._client: AIOKafkaClient | None = None
        self._coordinators: dict[tuple[int, str], int] = {}
        self._refresh_at = self._throttled_at = float("-inf")
        self._throttle_s = 0.0
        self._watches: dict[str, Watch] = {}
        self._descriptions = Descriptions(self._send_anywhere)

    async def start(self, timeout_s: float) -> None:
        """Connect to the cluster.

        Raises:
            BrokerUnavailable: no broker answered within timeout_s.
            KafkaRefused: Kafka refuses this client, or has a certificate that this client refuses.
        """
        self._client = await connected(self._options, timeout_s, self.request_timeout_ms)

    async def close(self) -> None:
        """Close all connections."""
        watches, self._watches = self._watches, {}
        for each in watches.values():
            await each.close()
        if self._client is not None:
            await self._client.close()
            self._client = None

    @property
    def client(self) -> AIOKafkaClient:
        """Return the underlying aiokafka client; call `start` first."""
        if self._client is None:
            raise kafka.KafkaConnectionError("the connection to Kafka is closed")
        return self._client

    async def send(self, node: int, request: Any, connection: Hashable) -> Any:
        """Send a request to a broker over the named connection, and wait for the answer.

        Raises:
            aiokafka.errors.KafkaError: not connected, or no answer in time. The broker may or may not have carried out
            the request.
        """
        response = await self.client.send(node, request, group=connection)
        if throttle_ms := getattr(response, "throttle_time_ms", 0):
            self._throttled_at, self._throttle_s = asyncio.get_running_loop().time(), throttle_ms / 1000
        return response

    @property
    def throttle_s(self) -> float:
        """Return the seconds of Kafka's last quota delay; 0 if the last delay is long past."""
        until = self._throttled_at + self._throttle_s + THROTTLED_FOR_S
        return self._throttle_s if asyncio.get_running_loop().time() < until else 0.0

    def watch(self, name: str) -> Watch:
        """Return the watcher of this name for idle partitions; the first call creates it with its own connection."""
        if name not in self._watches:
            self._watches[name] = Watch(self, name)
        return self._watches[name]

    def known_leader(self, topic: str, partition: int) -> int | None:
        """Return the broker that leads a partition according to cached metadata; None if the cache has no leader."""
        if self._client is None:
            return None
        node = self._client.cluster.leader_for_partition(TopicPartition(topic, partition))
        return None if node is None or node == -1 else int(node)

    async def leader(self, topic: str, partition: int) -> int:
        """Return the broker that leads a partition.

        Raises:
            aiokafka.errors.KafkaError: no leader is known now; the metadata is being refreshed.
        """
        client = self.client
        node = self.known_leader(topic, partition)
        if node is None:
            await client.add_topic(topic)  # requests its metadata if the topic is new
            node = self.known_leader(topic, partition)
        if node is None:
            await client.force_metadata_update()
            node = self.known_leader(topic, partition)
        if node is None and topic in client.cluster.unauthorized_topics:
            raise kafka.TopicAuthorizationFailedError(topic)
        if node is None:
            raise kafka.LeaderNotAvailableError(f"{topic}, partition {partition} has no leader")
        return node

    async def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Fetch the partition count of each topic with one request; 0 if the topic does not exist.

        If Kafka does not answer, the result has the last counts received.
        """
        client = self.client
        wanted = list(topics)
        for topic in wanted:
            client.add_topic(topic)
        await client.force_metadata_update()
        return {topic: len(client.cluster.partitions_for_topic(topic) or ()) for topic in wanted}

    async def coordinator(self, kind: int, key: str) -> int:
        """Return the coordinator of a group or a transactional id; cached until `forget_coordinator`."""
        node = self._coordinators.get((kind, key))
        if node is None:
            node = int(await self.client.coordinator_lookup(kind, key))
            if self.client.cluster.broker_metadata(node) is None:
                await self.client.force_metadata_update()
            self._coordinators[kind, key] = node
        return node

    def forget_coordinator(self, kind: int, key: str) -> None:
        """Remove a coordinator from the cache, because it has moved or did not answer."""
        self._coordinators.pop((kind, key), None)

    @asynccontextmanager
    async def asking_coordinator(self, kind: int, key: str) -> AsyncIterator[int]:
        """Yield the coordinator, and remove it from the cache if a request inside the block fails."""
        try:
            yield await self.coordinator(kind, key)
        except kafka.KafkaError:
            self.forget_coordinator(kind, key)
            raise

    def refresh(self) -> None:
        """Fetch the metadata again in the background, because leaders have moved.

        Does nothing right after another fetch of the metadata, since thousands of lanes may call this at once. A caller
        calls again if its request still fails.
        """
        if self._client is None:
            return
        now, known = asyncio.get_running_loop().time(), self._client.cluster
        if now >= self._refresh_at:
            partitions = sum(len(known.partitions_for_topic(topic) or ()) for topic in known.topics())
            self._refresh_at = now + REFRESH_S * partitions
            self._client.force_metadata_update()

    async def offset(
        self, topic: str, partition: int, which: int, connection: Hashable, *, isolation: int = READ_COMMITTED
    ) -> int:
        """Return the first offset (EARLIEST) or last stable offset (LATEST) of a partition.

        Retries until Kafka answers.

        isolation: with READ_UNCOMMITTED, LATEST is the high watermark
        """
        return (await self.offsets(topic, [partition], which, connection, isolation=isolation))[partition]

    async def offsets(
        self,
        topic: str,
        partitions: Iterable[int],
        which: int,
        connection: Hashable,
        *,
        isolation: int = READ_COMMITTED,
    ) -> dict[int, int]:
        """Return the offsets of several partitions, with one request to each leader. Retries until Kafka answers.

        which: EARLIEST, LATEST or a time in milliseconds; the offset of a time after all records is -1.
        """
        missing, found = set(partitions), dict[int, int]()
        retry = Retry("list offsets", topic=topic, partitions=sorted(missing))
        while missing:
            try:
                by_leader: dict[int, list[tuple[int, int]]] = {}
                for partition in sorted(missing):
                    by_leader.setdefault(await self.leader(topic, partition), []).append((partition, which))
                for leader, wanted in by_leader.items():
                    request = OffsetRequest(-1, isolation, [(topic, wanted)])
                    response = await self.send(leader, request, connection)
                    for partition, code, _, offset in response.topics[0][1]:
                        raise_for(code)
                        # No partition begins or ends at -1. For a time, -1 means that no record is as late.
                        if offset < 0 and which < 0:
                            raise kafka.LeaderNotAvailableError(
                                f"{topic}, partition {partition}: Kafka answers with the invalid offset {offset}"
                            )
                        found[partition] = int(offset)
                        missing.discard(partition)
            except kafka.KafkaError as error:
                self.refresh()
                await retry.wait(error)
        return found

    async def committed(self, group: str, topic: str, partition: int, connection: Hashable) -> CommittedPosition | None:
        """Return the position that the group has committed; None without one. Retries until Kafka answers.

        Initialise the partition's transactional id before the call; otherwise offsets of an open transaction are
        missing.
        """
        retry = Retry("read committed offset", group=group, topic=topic, partition=partition)
        while True:
            try:
                async with self.asking_coordinator(GROUP, group) as node:
                    response = await self.send(node, OffsetFetchRequest(group, [(topic, [partition])]), connection)
                    raise_for(response.error_code)
                    _, offset, metadata, code = response.topics[0][1][0]
                    raise_for(code)
                return CommittedPosition(int(offset), metadata or "") if offset >= 0 else None
            except kafka.KafkaError as error:
                await retry.wait(error)

    async def committed_positions(
        self, group: str, topic: str, partitions: Iterable[int], connection: Hashable
    ) -> dict[int, CommittedPosition]:
        """Return the positions that the group has committed, by partition; one request, without a retry.

        Partitions without a position, or with an error of their own, are left out.

        Raises:
            KafkaError: Kafka does not answer, or refuses the request.
        """
        async with self.asking_coordinator(GROUP, group) as node:
            request = OffsetFetchRequest(group, [(topic, sorted(partitions))])
            response = await self.send(node, request, connection)
            raise_for(response.error_code)
        answers = response.topics[0][1] if response.topics else []
        return {
            int(number): CommittedPosition(int(offset), metadata or "")
            for number, offset, metadata, code in answers
            if code == 0 and offset >= 0
        }

    async def topics(self, names: Iterable[str]) -> dict[str, TopicState]:
        """Return the topics in `names` that exist. Retries until Kafka answers.

        A topic that this user may not see is left out as well.

        Raises:
            TransportError: Kafka is older than 3.1 and knows no topic ids.
        """
        return {name: state for name, state in (await self._described(names)).items() if not state.is_hidden}

    async def _described(self, names: Iterable[str]) -> dict[str, TopicState]:
        wanted = set(names)
        retry = Retry("describe topics", topics=sorted(wanted))
        while True:
            try:
                found = await self._descriptions.ask(wanted)
                return {name: state for name, state in found.items() if name in wanted}
            except (kafka.IncompatibleBrokerVersion, NotImplementedError) as error:
                raise TransportError(f"topic ids need Kafka 3.1 or newer: {error}. Upgrade the brokers") from None
            except kafka.KafkaError as error:
                self.refresh()
                await retry.wait(error)

    async def _send_anywhere(self, request: TopicsRequest) -> Any:
        return await self.send(self.client.get_random_node(), request, "topics")

    async def found(self, names: Iterable[str], besides: Iterable[str] = ()) -> dict[str, TopicState]:
        """Return the descriptions of the topics in `names`; wait for missing ones up to GONE_AFTER_S.

        besides: further topics, included if they exist.

        Raises:
            TopicReplaced: a topic did not exist for GONE_AFTER_S.
            TransportError: this user had no right to see a topic for GONE_AFTER_S.
        """
        wanted = set(names)
        retry = Retry("find topics", topics=sorted(wanted))
        while True:
            described = await self._described([*wanted, *besides])
            there = {name: state for name, state in described.items() if not state.is_hidden}
            if hidden := sorted(wanted & described.keys() - there.keys()):
                refused = kafka.TopicAuthorizationFailedError(hidden[0])
                if retry.seconds > GONE_AFTER_S:
                    raise TransportError(f"{hidden[0]}: this user may not see the topic: {explained(refused)}")
                await retry.wait(refused)
                continue
            if missing := sorted(wanted - there.keys()):
                if retry.seconds > GONE_AFTER_S:
                    raise TopicReplaced(
                        f"{missing[0]}: the topic does not exist any more. Restore the topic, or see "
                        "docs/reference/halted.md for other remedies"
                    )
                await retry.wait(TopicMissing(f"topic {missing[0]} does not exist"))
                continue
            return there

    async def message_limits(self, topics: Iterable[str], connection: Hashable) -> dict[str, int]:
        """Return the present max.message.bytes of each topic. Retries until Kafka answers.

        Raises:
            TransportError: this user has no right to read the topic's configuration.
        """
        wanted = sorted(set(topics))
        request = DescribeConfigsRequest([(TOPIC_RESOURCE, topic, ["max.message.bytes"]) for topic in wanted])
        retry = Retry("ask for max.message.bytes", topics=wanted)
        while True:
            try:
                response = await self.send(self.client.get_random_node(), request, connection)
                limits = {}
                for code, _, _, topic, entries in response.resources:
                    raise_for(code, topic)
                    limits[topic] = next(int(value) for name, value, *_ in entries if name == "max.message.bytes")
                return limits
            except kafka.TopicAuthorizationFailedError as error:
                raise TransportError(explained(error)) from None
            except kafka.KafkaError as error:
                self.refresh()
                await retry.wait(error)

    async def fetch(
        self,
        topic: str,
        partition: int,
        position: int,
        connection: Hashable,
        *,
        max_bytes: int,
        max_wait_ms: int,
        topic_id: bytes,
        last_epoch: int = NO_EPOCH,
    ) -> FetchedPartition:
        """Fetch committed record batches, starting at a position. Retries until Kafka answers; the answer may be empty.

        Args:
            topic: topic's name, to find the leader and for messages.
            partition: number of the partition.
            position: offset of the first record to fetch.
            connection: connection of the request.
            max_bytes: maximum size of the answer.
            max_wait_ms: milliseconds that the broker may hold back an empty answer.
            topic_id: 16 bytes, id of the topic that the position belongs to.
            last_epoch: leader epoch of the last batch that the caller has read before position; NO_EPOCH without one.

        Raises:
            PositionLost: the topic does not hold that position (any more).
            TopicReplaced: the topic of that id was deleted; its name belongs to another topic, or to none.
            LogTruncated: the log lost its end after it was read up to position.
            TransportError: this user had no right to see the topic for GONE_AFTER_S.
        """
        request = FetchByIdRequest(topic_id, partition, position, last_epoch, max_bytes, max_wait_ms)
        retry = Retry("fetch", topic=topic, partition=partition, position=position)
        while True:
            try:
                response = await self.send(await self.leader(topic, partition), request, connection)
                _, code, high, stable_end, _, aborted, _, records, tags = fetched_partition(response)
                if code in NOT_THIS_TOPIC:
                    await self._check_topic_id(topic, topic_id)
                raise_for(code)
                if (parting := diverging(tags)) is not None:
                    instead = f"epoch {parting.epoch} ends at {parting.end}"
                    error = truncated(topic, partition, position, last_epoch, instead)
                    error.is_certain = True
                    raise error
                return FetchedPartition(records or b"", [entry[:2] for entry in aborted or []], stable_end, high)
            except kafka.OffsetOutOfRangeError:
                await self._check_position(topic, partition, position, connection)
                if last_epoch != NO_EPOCH and retry.seconds > GONE_AFTER_S:
                    raise truncated(topic, partition, position, last_epoch, "no such epoch is known") from None
                self.refresh()
                await retry.wait("offset out of range")
            except kafka.KafkaError as error:
                self.refresh()
                if retry.seconds > GONE_AFTER_S:
                    await self._check_topic_id(topic, topic_id)  # a deleted topic never has a leader again
                await retry.wait(error)

    async def _check_position(self, topic: str, partition: int, position: int, connection: Hashable) -> None:
        """Check that the partition holds this offset, or ends there.

        Raises:
            PositionLost: the offset was deleted or does not exist yet.
        """
        first = await self.offset(topic, partition, EARLIEST, connection)
        end = await self.offset(topic, partition, LATEST, connection)
        if first <= position <= end:
            return
        why = (
            "Retention has deleted unread records"
            if position < first
            else "The topic was deleted and created again, or lost its end"
        )
        raise PositionLost(
            f"{topic}, partition {partition}: offset {position} is to be read next, but the topic holds {first} to "
            f"{end}. {why}; see docs/reference/halted.md for the remedies"
        ) from None

    async def _check_topic_id(self, topic: str, topic_id: bytes) -> None:
        """Check that the topic of that name still has that id.

        Raises:
            TopicReplaced: the name belongs to another topic, or to none.
            TransportError: this user had no right to see the topic for GONE_AFTER_S.
        """
        now = (await self.found([topic]))[topic].id
        if now != topic_id:
            raise replaced(topic, id_text(topic_id), id_text(now))
