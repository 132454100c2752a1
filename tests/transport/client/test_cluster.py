import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from aiokafka import errors as kafka
from aiokafka.protocol.admin import ApiVersionRequest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as Topic

from kafka_ratchet.errors import PositionLost, TransportError
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.client import cluster as cluster_module
from kafka_ratchet.transport.client.cluster import EARLIEST, LATEST, TRANSACTION, Cluster, FetchedPartition
from kafka_ratchet.transport.client.errors import explained, raise_for
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.client.topic_id import TopicState
from kafka_ratchet.transport.transactions.producer import TransactionalProducer
from tests.transport.kafka_side import delete_before, read_topic

NewTopic = Callable[..., str]


def publish(broker: str, topic: str, count: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 0})
    for i in range(count):
        producer.produce(topic, b"%d" % i, partition=partition)
    assert producer.flush(30) == 0


async def fetch(cluster: Cluster, topic: str, *arguments: Any, **options: Any) -> FetchedPartition:
    """Fetch by the topic's present id."""
    topic_id = (await cluster.found([topic]))[topic].id
    return await cluster.fetch(topic, *arguments, topic_id=topic_id, **options)


async def test_partitions_are_counted_anew(cluster: Cluster, new_topic: NewTopic) -> None:
    three, one = new_topic(3), new_topic(1)
    assert await cluster.partition_counts([three, one, "no-such-topic"]) == {three: 3, one: 1, "no-such-topic": 0}
    assert await cluster.partition_counts([one]) == {one: 1}


async def test_a_topic_that_is_not_there(cluster: Cluster) -> None:
    with pytest.raises(kafka.LeaderNotAvailableError, match="no-such-topic, partition 0"):
        await cluster.leader("no-such-topic", 0)


async def test_a_partition_that_is_not_there(cluster: Cluster, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    with pytest.raises(kafka.LeaderNotAvailableError, match="partition 2"):
        await cluster.leader(topic, 2)


async def test_a_topic_that_appears_while_it_is_waited_for(cluster: Cluster, broker: str, new_topic: NewTopic) -> None:
    topic = new_topic(1) + "-later"
    waiting = asyncio.create_task(cluster.offset(topic, 0, LATEST, "here"))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([Topic(topic, 1, 1)])[topic].result(30)
    assert await asyncio.wait_for(waiting, 60) == 0


async def test_a_negative_offset_is_asked_for_again(
    cluster: Cluster, broker: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, sent, refused = new_topic(1), cluster.send, list[int]()
    publish(broker, topic, 3)

    async def send(node: Any, request: Any, *arguments: Any) -> Any:
        response = await sent(node, request, *arguments)
        if not refused:
            [(name, [(partition, code, at, _)])] = response.topics
            response.topics = [(name, [(partition, code, at, -1001)])]
            refused.append(partition)
        return response

    monkeypatch.setattr(cluster, "send", send)
    assert await cluster.offset(topic, 0, LATEST, "here") == 3
    assert refused == [0]
    assert await cluster.offset(topic, 0, 2**60, "here") == -1  # no record is as late


async def test_offsets_are_asked_of_each_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, asked = Cluster({}), dict[int, list[tuple[int, int]]]()

    async def leader(_topic: str, partition: int) -> int:
        return partition % 2

    async def send(node: int, request: Any, _connection: object) -> Any:
        [(topic, asked[node])] = request._topics
        return SimpleNamespace(topics=[(topic, [(partition, 0, -1, 100 + partition) for partition, _ in asked[node]])])

    monkeypatch.setattr(cluster, "leader", leader)
    monkeypatch.setattr(cluster, "send", send)
    assert await cluster.offsets("in", [2, 0, 1], LATEST, "here") == {0: 100, 1: 101, 2: 102}
    assert asked == {0: [(0, LATEST), (2, LATEST)], 1: [(1, LATEST)]}


async def test_a_closed_cluster_has_closed_its_connections() -> None:
    class Client:
        closed = 0

        async def close(self) -> None:
            self.closed += 1

    cluster, client = Cluster({}), Client()
    cluster._client = client
    await cluster.close()
    await cluster.close()
    assert client.closed == 1
    with pytest.raises(kafka.KafkaConnectionError, match="the connection to Kafka is closed"):
        _ = cluster.client


async def test_offsets_and_what_is_fetched_from_them(cluster: Cluster, broker: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    publish(broker, topic, 10, 1)
    assert await cluster.offset(topic, 1, EARLIEST, "here") == 0
    assert await cluster.offset(topic, 1, LATEST, "here") == 10
    assert await cluster.offset(topic, 0, LATEST, "here") == 0
    fetched = await fetch(cluster, topic, 1, 4, "here", max_bytes=1 << 20, max_wait_ms=100)
    batch = read_chunk(topic, 1, 4, fetched.data, fetched.aborted)
    assert [batch.value(i) for i in range(batch.count)] == [b"%d" % i for i in range(4, 10)]
    assert (fetched.aborted, fetched.stable_end) == ([], 10)


async def test_a_fetch_at_the_end_is_empty(cluster: Cluster, new_topic: NewTopic) -> None:
    fetched = await fetch(cluster, new_topic(1), 0, 0, "here", max_bytes=1 << 20, max_wait_ms=10)
    assert fetched == (b"", [], 0, 0)


async def test_one_batch_beyond_max_bytes_comes_whole(cluster: Cluster, broker: str, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(topic, b"x" * 100_000)
    producer.flush(30)
    fetched = await fetch(cluster, topic, 0, 0, "here", max_bytes=1_000, max_wait_ms=100)
    assert read_chunk(topic, 0, 0, fetched.data, []).value(0) == b"x" * 100_000


async def test_a_position_that_retention_has_deleted(cluster: Cluster, broker: str, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    publish(broker, topic, 10)
    delete_before(broker, topic, 6)
    with pytest.raises(PositionLost, match=rf"{topic}, partition 0: offset 3 .* holds 6 to 10\. Retention has deleted"):
        await fetch(cluster, topic, 0, 3, "here", max_bytes=1 << 20, max_wait_ms=10)


async def test_a_position_beyond_the_end(cluster: Cluster, new_topic: NewTopic) -> None:
    with pytest.raises(PositionLost, match=r"offset 3 .* holds 0 to 0\. The topic was deleted and created again"):
        await fetch(cluster, new_topic(1), 0, 3, "here", max_bytes=1 << 20, max_wait_ms=10)


async def test_no_committed_offset_is_none(cluster: Cluster, new_topic: NewTopic) -> None:
    assert await cluster.committed("a-group-nobody-has", new_topic(1), 0, "here") is None


async def test_the_coordinator_is_remembered_until_it_is_forgotten(cluster: Cluster) -> None:
    # On a new broker the coordinator comes with its topic, a moment after it is first asked for.
    await TransactionalProducer(cluster, "some-id", "group", 10_000, []).initialise()
    node = await cluster.coordinator(TRANSACTION, "some-id")
    cluster._coordinators[TRANSACTION, "some-id"] = 4_711
    assert await cluster.coordinator(TRANSACTION, "some-id") == 4_711
    cluster.forget_coordinator(TRANSACTION, "some-id")
    assert await cluster.coordinator(TRANSACTION, "some-id") == node


async def test_connections_that_are_cut_are_made_again(cluster: Cluster, broker: str, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    assert await cluster.offset(topic, 0, LATEST, "here") == 0
    waiting = asyncio.create_task(fetch(cluster, topic, 0, 0, "there", max_bytes=1 << 20, max_wait_ms=20_000))
    await asyncio.sleep(0.1)
    for connection in cluster.client._conns.values():
        connection._writer.transport.abort()
    await asyncio.to_thread(publish, broker, topic, 3)
    assert await cluster.offset(topic, 0, LATEST, "here") == 3
    fetched = await asyncio.wait_for(waiting, 60)
    batch = read_chunk(topic, 0, 0, fetched.data, [])
    assert batch.count >= 1
    assert len(await asyncio.to_thread(read_topic, broker, topic)) == 3


@pytest.mark.parametrize(("code", "kind"), [(1, kafka.OffsetOutOfRangeError), (90, kafka.ProducerFenced)])
def test_error_numbers_become_exceptions(code: int, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        raise_for(code, "topic, partition 1")
    raise_for(0)


def test_a_right_that_is_missing_names_the_page() -> None:
    for kind in (kafka.GroupAuthorizationFailedError, kafka.TransactionalIdAuthorizationFailed):
        assert explained(kind("shop")) == f"{kind.__name__}('shop'). Give this user the rights of docs/guide/rights.md"
    assert explained(kafka.NotLeaderForPartitionError("shop")) == "NotLeaderForPartitionError('shop')"


def test_a_connection_that_closes_while_it_is_written_to_is_a_connection_error(broker: str) -> None:
    """uvloop raises a RuntimeError there, and a worker ended by it."""

    async def ask() -> None:
        cluster = Cluster(client_options(broker, {}))
        await cluster.start(60)
        try:
            node = cluster.client.get_random_node()
            assert node is not None
            await cluster.send(node, ApiVersionRequest(), "here")
            (connection,) = (each for (_, group), each in cluster.client._conns.items() if group == "here")
            # As between the end of the transport and the moment at which aiokafka hears of it.
            connection._read_task.cancel()
            connection._writer.transport.abort()
            await asyncio.sleep(0.1)
            connection._reader = asyncio.StreamReader()
            with pytest.raises(kafka.KafkaConnectionError):
                await cluster.send(node, ApiVersionRequest(), "here")
        finally:
            await cluster.close()

    uvloop.run(ask())


async def test_a_topic_that_this_user_may_not_see_is_not_taken_for_deleted(
    cluster: Cluster, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(1)
    there = (await cluster.topics([topic]))[topic]

    async def described(names: object) -> dict[str, TopicState]:
        return {topic: hidden}

    hidden = TopicState(there.id, 0, is_hidden=True)
    monkeypatch.setattr(cluster, "_described", described)
    monkeypatch.setattr(cluster_module, "GONE_AFTER_S", 0.2)
    assert await cluster.topics([topic]) == {}
    with pytest.raises(TransportError, match=f"{topic}: this user may not see the topic: .*rights.md"):
        await cluster.found([topic])
    finding = asyncio.create_task(cluster.found([topic]))
    await asyncio.sleep(0)
    hidden = there
    assert await finding == {topic: there}
