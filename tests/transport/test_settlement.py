"""Kafka 4.3 calls a transaction complete although a partition that had no leader never got its marker."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from aiokafka.errors import KafkaError
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec
from kafka_side import read_topic, values
from test_transaction import batch_of

from errors import TransactionError
from faults._kafka import EmbeddedKafka
from transport import Cluster, client_options
from transport._cluster import GROUP, LATEST, TRANSACTION
from transport._transaction import TransactionalProducer

NODE = 3
PLACES = {"out": NODE, "changelog": 1, "dead": 2}
TOPICS = [(topic, 0) for topic in PLACES]
LEADERLESS_WITHIN_S = 30.0


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(tmp_path_factory.mktemp("nodes"), nodes=3, workers=0) as kafka:
        admin = kafka.admin()
        topics = [NewTopic(topic, 1, replica_assignment=[[node]]) for topic, node in PLACES.items()]
        for created in admin.create_topics(topics).values():
            created.result(30)
        yield kafka


@pytest.fixture
async def cluster(kafka: EmbeddedKafka) -> AsyncIterator[Cluster]:
    cluster = Cluster(client_options(kafka.bootstrap, {}))
    await cluster.start(30)
    for topic, partition in TOPICS:
        await cluster.offset(topic, partition, LATEST, "here")
    yield cluster
    await cluster.close()


@pytest.fixture
async def name(cluster: Cluster) -> str:
    """Of a group and a transactional id whose coordinators are on the nodes that stay."""
    for number in range(100):
        name = f"name-{number}-{time.monotonic_ns()}"
        if NODE not in [await coordinator(cluster, kind, name) for kind in (GROUP, TRANSACTION)]:
            return name
    raise AssertionError("every coordinator is on one node")


async def coordinator(cluster: Cluster, kind: int, name: str) -> int:
    while True:
        try:
            return await cluster.coordinator(kind, name)
        except KafkaError:
            await asyncio.sleep(0.1)  # Kafka creates its own topics when they are asked for first


def wait_until_leaderless(kafka: EmbeddedKafka, topic: str) -> None:
    admin = kafka.admin()
    deadline = time.monotonic() + LEADERLESS_WITHIN_S
    while (leader := admin.list_topics(topic, 10).topics[topic].partitions[0].leader) != -1:
        assert time.monotonic() < deadline, f"{topic} is still led by {leader}"
        time.sleep(0.1)


def open_records(kafka: EmbeddedKafka, topic: str) -> int:
    """Records and markers beyond the last stable offset."""
    admin, place = kafka.admin(), TopicPartition(topic, 0)
    ends = [
        admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=level)[place].result(30).offset
        for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
    ]
    return ends[0] - ends[1]


@pytest.mark.parametrize("commit", [True, False])
async def test_what_kafka_left_open_ends_as_its_transaction_did(
    kafka: EmbeddedKafka, cluster: Cluster, name: str, commit: bool
) -> None:
    before = values(read_topic(kafka.bootstrap, "out"))
    producer = TransactionalProducer(cluster, name, name, 30_000, TOPICS)
    await producer.initialise()
    producer.begin([("out", 0), ("changelog", 0)])
    await producer.produce("out", 0, batch_of(b"a", b"b"))
    await producer.produce("changelog", 0, batch_of(b"state"))
    await producer.delivered()
    kafka.nodes[NODE - 1].stop()
    try:
        wait_until_leaderless(kafka, "out")
        await (
            producer.commit("changelog", 0, 7) if commit else producer.abort()
        )  # neither is told that anything is wrong
    finally:
        kafka.nodes[NODE - 1].start()
    await cluster.offset("out", 0, LATEST, "here")
    assert (open_records(kafka, "out"), open_records(kafka, "changelog")) == (2, 0), "Kafka does not do it any more"

    successor = TransactionalProducer(cluster, name, name, 30_000, TOPICS)
    await successor.initialise()
    assert open_records(kafka, "out") == 0
    assert values(read_topic(kafka.bootstrap, "out"))[len(before) :] == ([b"a", b"b"] if commit else [])

    successor.begin([("out", 0), ("changelog", 0)])
    await successor.produce("out", 0, batch_of(b"c"))
    await successor.commit("changelog", 0, 8)
    assert values(read_topic(kafka.bootstrap, "out"))[len(before) :] == ([b"a", b"b", b"c"] if commit else [b"c"])


async def test_what_is_open_in_the_usual_way_is_left_to_the_coordinator(
    kafka: EmbeddedKafka, cluster: Cluster, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = values(read_topic(kafka.bootstrap, "out"))
    for text in (b"d", b"e"):
        producer = TransactionalProducer(cluster, name, name, 30_000, TOPICS)
        await producer.initialise()
        producer.begin([("out", 0)])
        await producer.produce("out", 0, batch_of(text))
        await producer.delivered()
    await producer.commit("changelog", 0, 9)
    assert values(read_topic(kafka.bootstrap, "out"))[len(before) :] == [b"e"]
    assert "left open" not in "".join(capfd.readouterr())


async def test_what_nobody_knows_how_to_end_is_refused(
    kafka: EmbeddedKafka, cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last of these tests: what it leaves open hides all that comes after.
    producer = TransactionalProducer(cluster, name, name, 30_000, TOPICS)
    await producer.initialise()
    producer.begin([("out", 0)])
    await producer.produce("out", 0, batch_of(b"x"))
    await producer.delivered()
    kafka.nodes[NODE - 1].stop()
    try:
        wait_until_leaderless(kafka, "out")
        await producer.commit("changelog", 0, 7)
    finally:
        kafka.nodes[NODE - 1].start()
    await cluster.offset("out", 0, LATEST, "here")
    # An owner that takes over the id, and dies before it has ended what was open.
    await TransactionalProducer(cluster, name, name, 30_000, []).initialise()

    monkeypatch.setattr("transport._transaction.END_FOR_S", 0.5)
    with pytest.raises(TransactionError, match=r"open in \[\('out', 0\)\], and its state is Empty.*nobody knows how"):
        await TransactionalProducer(cluster, name, name, 30_000, TOPICS).initialise()
    assert open_records(kafka, "out") == 1
