"""A lane goes on from numbers only where they belong to what is there: topic ids, leader epochs, owner entries."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
from aiokafka.protocol.struct import Struct
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    OffsetSpec,
)

from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.producers import made_topic
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.tables.recovery import Ownership
from kafka_ratchet.tables.totals import PROGRESS, Progress
from kafka_ratchet.transport.client.topic_id import FetchByIdRequest, FetchRequest_v13
from kafka_ratchet.transport.lane_spec import LaneState
from kafka_ratchet.transport.move import PartitionMove
from kafka_ratchet.transport.owner import FORMAT
from kafka_ratchet.transport.owner import Owner as OwnerEntry
from kafka_ratchet.transport.owner import Topic as OwnedTopic
from tests.topic_config import set_topic_config
from tests.transport.kafka_side import LIMIT_S, until
from tests.transport.lane_site import Owner, Site
from tests.transport.test_lane import event, events, numbers

HALTED_AGAIN = 2
"""Tries that a halted lane makes before it is believed that it stays halted."""


def ends_at(bootstrap: str, topic: str) -> int:
    where = TopicPartition(topic, 0)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            end: int = admin.list_offsets({where: OffsetSpec.latest()})[where].result(30).offset
            return end
        except KafkaException:  # a new leader takes a moment to know that it is
            assert time.monotonic() < deadline, f"{topic} has no end"
            time.sleep(0.05)


def recreate(bootstrap: str, topic: str, **config: str) -> None:
    """Deleted and created again, as an operator does it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    deadline = time.monotonic() + LIMIT_S
    while not made_topic(admin, NewTopic(topic, 1, 1, config=config), 30):  # the deletion is still under way
        assert time.monotonic() < deadline, f"{topic} is still there"
    assert ends_at(bootstrap, topic) == 0


async def stays_halted(owner: Owner, said: str) -> None:
    """Halted, and so after further tries of its own."""
    await until(lambda: owner.lane.status.state is LaneState.HALTED, f"{said!r}; {owner.lane.status}")
    for _ in range(HALTED_AGAIN):
        owner.lane.status.error = None
        await until(lambda: owner.lane.status.error)
        assert owner.lane.status.state is LaneState.HALTED
    assert said in (owner.lane.status.error or "")


async def served(site: Site, count: int, **options: Any) -> Owner:
    """An owner that has committed events 1 to count and ended."""
    site.produce(events(*range(1, count + 1)))
    owner = await site.owner(**options)
    owner.lane.start()
    await owner.reach(count)
    return owner


async def test_an_input_that_is_created_again_under_a_lane_halts_it_however_long_it_grows(site: Site) -> None:
    owner = await served(site, 3)
    await asyncio.to_thread(recreate, site.bootstrap, site.input)
    site.produce(events(*range(1, 21)))  # far beyond the old position
    await stays_halted(owner, "its input was")
    assert owner.last().persisted == 3
    assert len(site.output_values()) == 3


@pytest.mark.parametrize("what", ["as it was", "group offsets expired", "local store lost", "both"])
async def test_an_input_created_again_while_nobody_ran_halts_the_next_owner(site: Site, what: str) -> None:
    first = await served(site, 3)
    await first.close()
    await asyncio.to_thread(recreate, site.bootstrap, site.input)
    site.produce(events(*range(1, 21)))
    group = {"group": f"another-{site.input}"} if what in ("group offsets expired", "both") else {}
    second = await site.owner("b" if what in ("local store lost", "both") else "a", **group)
    second.lane.start()
    await stays_halted(second, "its input was")
    assert len(site.output_values()) == 3


async def test_a_deleted_input_is_said_to_be_gone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_ratchet.transport.client.cluster.GONE_AFTER_S", 0.5)
    owner = await served(site, 3)
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    admin.delete_topics([site.input])[site.input].result(30)
    await stays_halted(owner, f"{site.input}: the topic does not exist any more")


async def test_an_output_created_again_halts_the_lane(site: Site) -> None:
    owner = await served(site, 3)
    await asyncio.to_thread(recreate, site.bootstrap, site.output)
    owner.lane.look_at(await owner.cluster.topics([site.output]))
    site.produce(events(4))
    await stays_halted(owner, "its output was")
    assert site.output_values() == []


@pytest.mark.parametrize("what", ["as it was", "group offsets expired"])
async def test_a_changelog_created_again_halts_whoever_has_an_old_store(site: Site, what: str) -> None:
    first = await served(site, 3)
    await first.close()
    await asyncio.to_thread(recreate, site.bootstrap, site.changelog, **{"cleanup.policy": "compact"})
    group = {"group": f"another-{site.input}"} if what == "group offsets expired" else {}
    # Somebody without a store has filled it beyond what the old store stands for.
    producer = Producer({"bootstrap.servers": site.bootstrap})
    for number in range(50):
        producer.produce(site.changelog, number.to_bytes(8, "big"), b"i%d" % number)
    assert producer.flush(30) == 0
    second = await site.owner(**group)
    fetch, positions = second.cluster.fetch, list[int]()

    async def noted(topic: str, partition: int, position: int, *rest: Any, **options: Any) -> Any:
        positions.append(position)
        return await fetch(topic, partition, position, *rest, **options)

    second.cluster.fetch = noted  # type: ignore[method-assign]
    second.lane.start()
    await stays_halted(second, f"{site.changelog}: the name belonged to topic id")
    # Each try looks for a person's decision, and none looks through the same once more.
    assert (positions.count(0), positions.count(50) >= HALTED_AGAIN) == (1, True)


async def test_a_changelog_created_again_halts_whoever_has_no_store(site: Site) -> None:
    first = await served(site, 3)
    await first.close()
    await asyncio.to_thread(recreate, site.bootstrap, site.changelog, **{"cleanup.policy": "compact"})
    second = await site.owner("b")
    second.lane.start()
    await stays_halted(second, "has committed offset 3")


def cut(broker: EmbeddedBroker, topic: str, keep_batches: int) -> None:
    """The broker loses all but the first batches of a log, as an unclean leader election does, and comes back."""
    broker.stop()
    try:
        (folder,) = broker.folder.rglob(f"{topic}-0")
        log = folder / "00000000000000000000.log"
        data, at = log.read_bytes(), 0
        for _ in range(keep_batches):
            at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        log.write_bytes(data[:at])
        for clean in broker.folder.rglob(".kafka_cleanshutdown"):
            clean.unlink()
    finally:
        broker.start()  # the tests that follow need it


async def test_an_input_that_lost_its_end_halts_the_lane_however_long_it_grows_again(
    site: Site, own_broker: EmbeddedBroker
) -> None:
    for number in (1, 2, 3):
        site.produce(events(number))
    owner = await site.owner()
    owner.lane.start()
    await owner.reach(3)
    await owner.close()
    await asyncio.to_thread(cut, own_broker, site.input, 1)
    assert ends_at(site.bootstrap, site.input) == 1
    site.produce(events(*range(11, 31)))
    second = await site.owner()
    second.lane.start()
    await stays_halted(second, f"{site.input}, partition 0: the log was read up to offset 3 in leader epoch")
    assert site.output_values() == numbers(1, 3)
    # `ratchet resume` finds it as well: the position fits by its number, and going on from it would skip records.
    state = SequencePartition(site.folder / "resume", site.changelog, 0, Identity.PRODUCER, 1_000_000)
    move = PartitionMove(
        second.cluster,
        state,
        topic=site.input,
        partition=0,
        app="app",
        group=f"group-{site.input}",
        transactional_id=f"id-{site.input}",
        writes=(site.output, site.dead, site.changelog),
    )
    await move.read()
    assert move.position == 3
    assert "was read up to offset 3 in leader epoch" in (await move.lost() or "")
    move.close()


async def test_a_changelog_that_lost_its_end_halts_whoever_has_an_old_store(
    site: Site, own_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_ratchet.transport.transactions.outcome.ORPHANED_FOR_S", 0.5)
    owner = await served(site, 3)
    await until(lambda: owner.sequences.partition(0).sighting)
    site.produce(events(4))
    await owner.reach(4)
    await owner.close()
    await asyncio.to_thread(cut, own_broker, site.changelog, 1)
    producer = Producer({"bootstrap.servers": site.bootstrap})
    for number in range(50):
        producer.produce(site.changelog, number.to_bytes(8, "big"), b"i%d" % number)
    assert producer.flush(30) == 0
    second = await site.owner()
    second.lane.start()
    await stays_halted(second, f"{site.changelog}, partition 0: the log was read up to offset")


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (
            {"app": "shop", "stream": "eu-orders"},
            {"app": "shop-eu", "stream": "orders"},
            "belongs to application 'shop', stream 'eu-orders', and this is application 'shop-eu', stream 'orders'",
        ),
        (
            {"rule": {"identity": "producer", "sequence": "header:n"}},
            {"rule": {"identity": "producer", "sequence": "field:n"}},
            "judged with sequence = 'header:n', but the settings say 'field:n'",
        ),
    ],
)
async def test_a_changelog_of_another_application_or_rule_is_refused(
    site: Site, before: dict[str, Any], now: dict[str, Any], said: str
) -> None:
    first = await served(site, 3, **before)
    await first.close()
    site.produce(events(4))
    second = await site.owner("b", **now)
    second.lane.start()
    await stays_halted(second, said)
    assert "ratchet resume --stream" in (second.lane.status.error or "")
    assert len(site.output_values()) == 3
    third = await site.owner("c", **before)  # put back, it goes on by itself
    await second.close()
    third.lane.start()
    await third.reach(4)


@pytest.mark.matrix
async def test_what_was_mirrored_from_another_cluster_is_not_gone_on_from(site: Site) -> None:
    """A mirror copies the changelog byte for byte; the topics have its names, other ids, and other offsets."""
    there = {name: OwnedTopic(topic, "AAAAAAAAAAAAAAAAAAAAAA") for name, topic in (("input", site.input),)}
    producer = Producer({"bootstrap.servers": site.bootstrap})
    for key, value in (
        OwnerEntry("", "", {}, there).pack(),
        (PROGRESS, Progress(2, 2, 0, 0, 0).pack()),
        (b"ime", (2).to_bytes(8, "big")),
    ):
        producer.produce(site.changelog, value, key)
    assert producer.flush(30) == 0
    site.produce(events(*range(1, 6)))
    owner = await site.owner()
    owner.lane.start()
    await stays_halted(owner, f"its input was {site.input} (id AAAAAAAAAAAAAAAAAAAAAA)")
    assert site.output_values() == []


async def test_a_changelog_of_a_newer_format_is_refused(site: Site) -> None:
    producer = Producer({"bootstrap.servers": site.bootstrap})
    producer.produce(site.changelog, b'{"format": %d, "who": ["knows"]}' % (FORMAT + 1), b"o")
    assert producer.flush(30) == 0
    owner = await site.owner()
    site.produce(events(1))
    owner.lane.start()
    await stays_halted(
        owner,
        f"{site.changelog}, partition 0, offset 0: the owner entry was written in format {FORMAT + 1} "
        "by a newer Ratchet",
    )


async def test_state_without_an_owner_entry_gets_it_without_waiting_for_an_event(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Ownership, "encode", lambda self: [])
        patch.setattr(Ownership, "commit", lambda self: None)
        first = await served(site, 3)
        await first.close()
    second = await site.owner()
    assert second.sequences.partition(0).owner is None
    second.lane.start()
    await until(lambda: second.sequences.partition(0).owner)
    await second.close()
    assert site.output_values() == numbers(1, 3)
    await asyncio.to_thread(recreate, site.bootstrap, site.input)
    third = await site.owner("b")
    third.lane.start()
    await stays_halted(third, "its input was")


async def test_a_raised_limit_lets_a_halted_lane_go_on_by_itself(site: Site) -> None:
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    await asyncio.to_thread(set_topic_config, admin, site.output, "max.message.bytes", "2000")
    site.produce([event(1), event(2)._replace(value=random.Random(1).randbytes(5_000)), event(3)])
    owner = await site.owner(output_limit=2_000)
    owner.lane.start()
    await stays_halted(owner, "max.message.bytes of 2000")
    await asyncio.to_thread(set_topic_config, admin, site.output, "max.message.bytes", "10000")
    await owner.reach(3)
    assert len(site.output_values()) == 3


@pytest.mark.parametrize("seed", range(5))
def test_a_fetch_is_written_as_its_schema_says(seed: int) -> None:
    chance = random.Random(seed)
    request = FetchByIdRequest(
        chance.randbytes(16),
        chance.randrange(1 << 31),
        chance.randrange(1 << 63),
        chance.choice([-1, 0, chance.randrange(1 << 31)]),
        chance.randrange(1, 1 << 31),
        chance.randrange(1 << 31),
    ).build(FetchRequest_v13)
    assert request.encode() == Struct.encode(request)
