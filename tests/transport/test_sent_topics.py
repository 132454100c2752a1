"""Topics to which agents send: a lane follows their partition counts, and Kafka has each record once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

import pytest
from aiokafka.partitioner import murmur2
from confluent_kafka.admin import AdminClient, NewPartitions

from kafka_ratchet.agents.deduplicate import Deduplicator
from kafka_ratchet.agents.program import App
from kafka_ratchet.agents.run import StreamProgram
from kafka_ratchet.errors import PartitionsDiffer, TopicReplaced
from kafka_ratchet.transport.client import cluster as clusters
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.topic_id import TopicState
from kafka_ratchet.transport.sent_topics import SentTopic, ask, changed
from tests.app.worker_process import read_all
from tests.transport.kafka_side import LIMIT_S, Read, create_topic
from tests.transport.lane_site import PRODUCER, READ, SEQUENCE, Site

NOW_MS: Final = int(time.time() * 1000)


def add_partitions(bootstrap: str, topic: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_partitions([NewPartitions(topic, count)]).values():
        made.result(30)


async def test_what_is_known_of_a_topic_is_asked_for(
    broker: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create_topic(broker, "sent", max_message_bytes=5_000)
    sends = {topic: SentTopic()}
    assert await ask(cluster, sends, "here") == {topic: SentTopic(1, 5_000)}
    as_read = {topic: SentTopic(1, 0, "second")}
    assert await ask(cluster, as_read, "here") == {topic: SentTopic(1, 5_000, "second")}
    add_partitions(broker, topic, 3)
    there = await partitions_of(cluster, topic, 3)
    assert changed({topic: SentTopic(1, 5_000)}, there) == topic
    assert changed({topic: SentTopic(3, 5_000), "gone": SentTopic(1, 1)}, there) is None
    with pytest.raises(PartitionsDiffer, match=r"had 1 partitions .* has 3 now\. It is the input of stream second"):
        await ask(cluster, as_read, "here")
    monkeypatch.setattr(clusters, "GONE_AFTER_S", 0.0)
    with pytest.raises(TopicReplaced, match="the topic does not exist any more"):
        await ask(cluster, {f"{topic}-not-there": SentTopic()}, "here")


async def partitions_of(cluster: Cluster, topic: str, count: int) -> Mapping[str, TopicState]:
    """The topic as Kafka describes it, once it has so many partitions."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            there = await cluster.topics([topic])
            if topic in there and there[topic].partitions == count:
                return there
            await asyncio.sleep(0.05)


def rows(first: int, last: int) -> list[Read]:
    return [
        Read(b"key-%d" % number, b"%d" % number, ((PRODUCER, b"me"), (SEQUENCE, b"%d" % number)), NOW_MS)
        for number in range(first, last)
    ]


async def test_keys_follow_the_partitions_that_there_are(site: Site) -> None:
    alerts = create_topic(site.bootstrap, "alerts")
    app = App()

    @app.agent(app.stream("in"))
    async def send(stream: Any) -> None:
        async for event in stream.events():
            await app.topic(alerts).send(key=event.key, value=event.value)

    owner = await site.owner(sends={alerts: SentTopic()})
    program = StreamProgram(app.of("in"), [], lambda number: owner.sequences.partition(number).tables)
    owner.agent.cancel()
    owner.lane._processor = processor = Deduplicator(owner.sequences, READ, program.take)
    owner.agent = asyncio.create_task(processor.connect(owner.deliveries).agent(owner.deliveries.each()))
    owner.lane.start()
    site.produce(rows(0, 50))
    await owner.reach(50)
    add_partitions(site.bootstrap, alerts, 3)
    owner.lane.look_at(await partitions_of(owner.cluster, alerts, 3))
    site.produce(rows(50, 100))
    await owner.reach(100)
    assert owner.lane.status.restarts == 1
    found = {
        number: [(message.key(), int(message.value())) for message in messages]
        for number, messages in read_all(site.bootstrap, alerts).items()
    }
    chosen = {number: 0 if number < 50 else (murmur2(b"key-%d" % number) & 0x7FFFFFFF) % 3 for number in range(100)}
    assert found == {
        partition: [(b"key-%d" % number, number) for number in range(100) if chosen[number] == partition]
        for partition in range(3)
    }
