import asyncio
from collections.abc import Callable

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from aiokafka.structs import TopicPartition
from confluent_kafka import Consumer

from kafka_ratchet.app.status.group import (
    Group,
    accepted_url,
    describe_group,
    sentence_of_strangers,
    worker_address,
)
from kafka_ratchet.app.status.problems import about_group
from kafka_ratchet.errors import BrokerUnavailable
from kafka_ratchet.transport.assignor import is_worker
from kafka_ratchet.transport.client.groups import CLASSIC, CONSUMER, SHARE, STREAMS, GroupDescription, Member, strangers
from kafka_ratchet.transport.transactions.requests import offset_metadata
from tests.app.worker.known_worker import member, settings_for


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:6066", "http://worker-2.example:80", "http://[::1]:6066", "http://worker_1:8080"]
)
def test_a_bare_http_address_is_accepted(url: str) -> None:
    assert accepted_url(url) == url
    assert accepted_url(url + "/") == url


@pytest.mark.parametrize(
    "url",
    [
        None,
        7,
        "",
        "worker:6066",
        "http://worker",
        "http://worker:0",
        "http://worker:99999",
        "https://worker:6066",
        "file:///etc/passwd",
        "gopher://worker:70",
        "http://user@worker:6066",
        "http://user:secret@worker:6066",
        "http://worker:6066/admin",
        "http://worker:6066?x=1",
        "http://worker:6066#x",
        "http://worker:6066/ ",
        " http://worker:6066",
        "http://wor\nker:6066",
        "http://wörker:6066",
        "http://169.254.169.254:80",
        "http://[fe80::1]:80",
        "http://[::ffff:169.254.169.254]:80",
        "http://0.0.0.0:80",
        "http://224.0.0.1:80",
        "http://" + "a" * 400 + ":80",
    ],
)
def test_other_addresses_are_refused(url: object) -> None:
    assert accepted_url(url) is None


@pytest.mark.parametrize(
    "user_data", [b"", b"\xff\xfe", b"[]", b"{}", b'{"url": ["http://a:1"]}', b"[" * 100_000, b'{"url": "ftp://a:1"}']
)
def test_metadata_of_strangers_is_no_address(user_data: bytes) -> None:
    assert worker_address(ConsumerProtocolMemberMetadata(0, ["t"], user_data).encode()) is None


def test_bytes_that_are_no_metadata_are_no_address() -> None:
    assert worker_address(b"") is None
    assert worker_address(b"\x00\x01\xff\xff\xff") is None


async def test_members_are_found_with_what_the_group_committed(broker: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=2)
    settings = settings_for(broker, topic)
    async with member(settings, topic, "http://127.0.0.1:16066/") as consumer:
        await consumer.commit(
            {TopicPartition(topic, 0): 5, TopicPartition(topic, 1): (0, offset_metadata("A" * 22, -1))}
        )
        group = await describe_group(broker, settings)
        assert group.state == "Stable"
        assert group.workers == ["http://127.0.0.1:16066"]
        assert group.members == 1
        assert group.committed == {(topic, 1): 0}
        assert group.foreign == {(topic, 0): 5}
        assert group.strangers == ""
    assert (await describe_group(broker, settings)).workers == []


async def test_a_member_that_is_no_worker_is_counted_but_not_asked(broker: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=1)
    settings = settings_for(broker, topic)
    async with member(settings, topic, "http://169.254.169.254:80"):
        group = await describe_group(broker, settings)
    assert (group.workers, group.members) == ([], 1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "1 client that is no Ratchet worker (assignor 'range'): client id 'console' at "),
        ({"group.protocol": "consumer"}, "a consumer group of the new protocol: 1 member: client id 'console' at "),
    ],
)
async def test_a_stranger_in_the_group_is_named(
    broker: str, new_topic: Callable[..., str], options: dict[str, str], named: str
) -> None:
    topic = new_topic(partitions=1)
    settings = settings_for(broker, topic)
    stranger = Consumer({"bootstrap.servers": broker, "group.id": settings.app, "client.id": "console", **options})
    stranger.subscribe([topic])
    try:
        async with asyncio.timeout(60):
            while named not in (group := await describe_group(broker, settings)).strangers:
                await asyncio.to_thread(stranger.poll, 0.1)
        sentence = sentence_of_strangers(broker, settings.app, group)
        assert sentence.startswith(f"others use the group {settings.app!r}: {named}")
        assert about_group(settings, group, group.workers) == [sentence]
    finally:
        stranger.close()
    assert (await describe_group(broker, settings)).strangers == ""


@pytest.mark.parametrize(
    ("found", "phrase"),
    [
        (GroupDescription(SHARE, "Empty"), "a share group: empty, but not deleted"),
        (
            GroupDescription(SHARE, "Stable", members=(Member("s", "/h"),)),
            "a share group: 1 member: client id 's' at h",
        ),
        (GroupDescription(CONSUMER, "Empty"), ""),
        (GroupDescription(STREAMS, "Stable"), "a streams group (KIP-1071)"),
        (GroupDescription(CLASSIC, "Empty"), ""),
        (
            GroupDescription(CLASSIC, "Stable", "connect", "sessioned", (Member("c", "/h", b"\xff"),)),
            "1 client that is no Ratchet worker (type connect, assignor 'sessioned'): client id 'c' at h",
        ),
        (GroupDescription(CLASSIC, "PreparingRebalance", "consumer", "", (Member("c", "/h"),)), ""),
        (GroupDescription("", "Dead"), ""),
    ],
)
def test_strangers_of_each_protocol(found: GroupDescription, phrase: str) -> None:
    assert strangers(found, is_worker) == phrase


def test_an_empty_share_group_comes_with_the_command_that_deletes_it() -> None:
    group = Group("Empty", kind=SHARE, strangers="a share group: empty, but not deleted")
    sentence = sentence_of_strangers("host:9092", "shop", group)
    assert "`kafka-share-groups.sh --bootstrap-server host:9092 --delete --group shop`" in sentence


async def test_a_group_that_never_was_has_nobody(broker: str) -> None:
    group = await describe_group(broker, settings_for(broker, "never"))
    assert (group.workers, group.members, group.committed) == ([], 0, {})


async def test_a_broker_that_does_not_answer_is_named(unused_tcp_port: int) -> None:
    bootstrap = f"127.0.0.1:{unused_tcp_port}"
    with pytest.raises(BrokerUnavailable, match=f"group-of-events.*{bootstrap}.*Check that Kafka runs"):
        await describe_group(bootstrap, settings_for(bootstrap))
