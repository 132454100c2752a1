"""Commits of a group as Kafka's own log records them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_ratchet.transport.batch.rows import encode_pairs
from kafka_ratchet.transport.client.cluster import LATEST, Cluster, FetchedPartition
from kafka_ratchet.transport.client.group_log import Commit, GroupHistory, GroupLog, group_log, partition_of
from kafka_ratchet.transport.client.groups import Member
from kafka_ratchet.transport.client.topic_id import TopicState

NewTopic = Callable[..., str]
KEY = b"\x00\x01\x00\x04shop\x00\x02in\x00\x00\x00\x03"
VALUE = b"\x00\x04" + (94).to_bytes(8, "big") + b"\xff\xff\xff\xff\x01" + bytes(9)


@pytest.mark.parametrize(
    ("group", "partition"),
    [("hello", 99_162_322 % 50), ("polygenelubricants", 0), ("", 0), ("\U0001f600", 1_772_899 % 50)],
)
def test_a_group_is_in_the_partition_that_java_computes(group: str, partition: int) -> None:
    assert partition_of(group, 50) == partition  # by String.hashCode, of which the second has the least


def test_a_commit_without_members_or_with_unknown_ones() -> None:
    history = GroupHistory("shop")
    history.take(KEY, VALUE, 5)
    assert history.commits == {("in", 3): Commit(94, 5, None)}
    history.take(b"\x00\x02\x00\x04shop", None, 6)
    history.take(KEY, VALUE, 7)
    assert history.commits == {("in", 3): Commit(94, 7, ())}
    assert "no members" in str(history.commits["in", 3])
    history.take(KEY, None, 8)
    assert history.commits == {}


def text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


@pytest.mark.parametrize("form", range(4))
def test_members_of_a_classic_group_are_read_in_each_format(form: int) -> None:
    members = b""
    for client in ("console", "kcat"):
        instance = b"\xff\xff" if form == 3 and client == "kcat" else text("instance") if form == 3 else b""
        timeouts = bytes(8 if form >= 1 else 4)
        members += text("id") + instance + text(client) + text("/10.0.0.7") + timeouts + b"\0\0\0\2ab" + bytes(4)
    head = form.to_bytes(2, "big") + text("consumer") + bytes(4) + text("range") + text("id")
    history = GroupHistory("shop")
    history.take(b"\x00\x02\x00\x04shop", head + bytes(8 if form >= 2 else 0) + (2).to_bytes(4, "big") + members, 1)
    history.take(KEY, VALUE, 5)
    assert history.commits["in", 3].members == (Member("console", "/10.0.0.7"), Member("kcat", "/10.0.0.7"))


def test_a_member_with_a_long_name_comes_and_leaves() -> None:
    client = "c" * 300
    compact = bytes([301 & 0x7F | 0x80, 301 >> 7]) + client.encode()
    member = b"\x00\x05\x00\x04shop\x00\x01a"
    history = GroupHistory("shop")
    history.take(member, b"\x00\x00" + b"\x00\x00" + compact + b"\x0a/10.0.0.7", 1)
    history.take(KEY, VALUE, 5)
    assert history.commits == {("in", 3): Commit(94, 5, (Member(client, "/10.0.0.7"),))}
    history.take(member, None, 6)
    history.take(KEY, VALUE, 7)
    assert history.commits == {("in", 3): Commit(94, 7, ())}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (KEY[:-2], VALUE),
        (KEY, VALUE[:5]),
        (KEY.replace(b"shop", b"shoq"), VALUE),
        (b"\x00\x02\x00\x04shop", b"\x00\x03\x7f\xff"),
        (b"\x00\x02\x00\x04shop", b"\x00\x63"),
        (b"\x00\x05\x00\x04shop\x00\x01a", b"\x00\x00\xff\xff\xff"),
        (b"\x00\x63\x00\x04shop", b"\x00\x00"),
    ],
)
def test_bytes_that_cannot_be_read_are_left_out(key: bytes, value: bytes) -> None:
    history = GroupHistory("shop")
    history.take(key, value, 1)
    assert history.commits == {}


class Recreated:
    """A cluster with a log of one partition, deleted and created again by another `id`."""

    def __init__(self) -> None:
        self.id, self.pairs = b"first", list[tuple[bytes, bytes | None]]()
        self.fetched_from: list[int] = []

    async def topics(self, names: list[str]) -> dict[str, TopicState]:
        return {name: TopicState(self.id, 1) for name in names}

    async def offset(self, _topic: str, _partition: int, which: int, _connection: object) -> int:
        return len(self.pairs) if which == LATEST else 0

    async def fetch(self, _topic: str, _partition: int, position: int, *_: Any, **__: Any) -> FetchedPartition:
        self.fetched_from.append(position)
        data = b"".join(bytes(each.as_fetched(position)) for each in encode_pairs(self.pairs[position:], 1 << 20))
        return FetchedPartition(data, [], len(self.pairs), len(self.pairs))


async def test_a_log_is_read_on_until_it_is_created_again() -> None:
    there = Recreated()
    cluster, log = cast("Cluster", there), GroupLog("shop")
    there.pairs = [(KEY, VALUE)]
    assert await log.commit(cluster, "in", 3, 94, "test") is not None
    there.pairs.append((b"another key", VALUE))
    assert await log.commit(cluster, "in", 3, 94, "test") is not None
    assert there.fetched_from == [0, 1]
    there.id, there.pairs = b"second", [(b"another key", VALUE)] * 3
    assert await log.commit(cluster, "in", 3, 94, "test") is None
    assert there.fetched_from == [0, 1, 0]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_commit_names_its_members_and_its_time(
    cluster: Cluster, broker: str, new_topic: NewTopic, protocol: str
) -> None:
    topic = group = new_topic(1)
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(topic, b"one")
    producer.flush(30)
    before_ms = int(time.time() * 1000)
    options = {"client.id": "console", "auto.offset.reset": "earliest", "group.protocol": protocol}

    def read() -> None:
        stranger = Consumer({"bootstrap.servers": broker, "group.id": group, **options})
        stranger.subscribe([topic])
        assert len(stranger.consume(1, 60)) == 1
        stranger.close()  # which commits and leaves

    await asyncio.to_thread(read)
    known = group_log(cluster, group)
    found = await known.commit(cluster, topic, 0, 1, "test")
    assert found is not None
    assert found.members == (Member("console", "/127.0.0.1"),)
    assert before_ms - 60_000 <= found.at_ms <= time.time() * 1000 + 60_000
    assert "1 member: client id 'console' at 127.0.0.1" in str(found)
    assert await known.commit(cluster, topic, 0, 2, "test") is None  # another commit than the one in question

    admin = AdminClient({"bootstrap.servers": broker})
    moved = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 0)])]
    await asyncio.to_thread(admin.alter_consumer_group_offsets(moved)[group].result, 30)
    by_tool = await known.commit(cluster, topic, 0, 0, "test")
    assert by_tool is not None
    assert by_tool.members == ()
    assert group_log(cluster, group) is known


async def test_a_group_without_commits_is_not_told(cluster: Cluster, new_topic: NewTopic) -> None:
    assert await group_log(cluster, "nobody").commit(cluster, new_topic(1), 0, 0, "test") is None
