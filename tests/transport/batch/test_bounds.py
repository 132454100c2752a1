"""Bounds on a real Kafka: evictions are in the transaction of the output and the offset, by Kafka's own clock."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from kafka_ratchet.app.worker.answers import _partition_status
from kafka_ratchet.tables.eviction import EvictionLimits
from kafka_ratchet.tables.totals import EvictedTotals
from kafka_ratchet.transport.client.cluster import FetchedPartition
from tests.transport.kafka_side import Read
from tests.transport.lane_site import PRODUCER, SEQUENCE, Site


def event(name: bytes, sequence: int) -> Read:
    return Read(None, b"", ((PRODUCER, name), (SEQUENCE, b"%d" % sequence)), int(time.time() * 1000))


@pytest.fixture
async def site(broker: str, tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(broker, tmp_path, "bounds", bounds=EvictionLimits(most=2, inactive_s=600))
    yield made
    await asyncio.gather(*(owner.close() for owner in made.lanes))


def changelog_of(site: Site) -> list[tuple[int, int, bytes, bytes | None]]:
    """(offset, ms, key, value) of every committed entry."""
    options: dict[str, Any] = {"bootstrap.servers": site.bootstrap, "group.id": "reader", "enable.auto.commit": False}
    consumer = Consumer({**options, "isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([TopicPartition(site.changelog, 0, 0)])
    found = []
    try:
        while (message := consumer.poll(30)) is not None and message.error() is None:
            found.append((message.offset(), message.timestamp()[1], message.key() or b"", message.value()))
        assert message is not None
        return found
    finally:
        consumer.close()


async def test_who_is_evicted_is_gone_with_the_transaction_that_says_so(site: Site) -> None:
    owner = await site.owner()
    owner.lane.start()
    table = owner.sequences.partition(0)
    # One that is displaced, by one transaction of three names after another.
    site.produce([event(b"a", 1), event(b"b", 1)])
    await owner.reach(2)
    site.produce([event(b"c", 1)])
    await owner.reach(3)
    assert len(table) == 2
    assert table.last(b"c").persisted == 1
    first = b"a" if table.last(b"a").persisted < 0 else b"b"
    # One that is quiet, while another goes on. Not sooner: on a machine that stands still everybody is quiet.
    await owner.lane.stop()
    site.bounds = EvictionLimits(most=2, inactive_s=1)
    owner = await site.owner()
    owner.lane.start()
    table = owner.sequences.partition(0)
    for number in itertools.count(4):
        site.produce([event(b"c", number)])
        await owner.reach(number)
        if len(table) == 1:
            break
        await asyncio.sleep(0.2)
    second = b"b" if first == b"a" else b"a"
    status = _partition_status(owner.lane)
    assert (status.keys, status.evicted_displaced, status.evicted_inactive) == (1, 1, 1)
    # Each null is in one transaction with the progress that it is counted in: markers have offsets of their own.
    log = changelog_of(site)
    nulls = [entry for entry in log if entry[3] is None]
    assert [key for _, _, key, _ in nulls] == [b"i" + first, b"i" + second]
    keys = {offset: key for offset, _, key, _ in log}
    for offset, *_ in nulls:
        assert [keys[offset - back] for back in (3, 2, 1)] == [b"p", b"ic", b"e"]
        assert offset + 1 not in keys
    active_ms = next(ms for _, ms, key, _ in log if key == b"i" + second)
    assert nulls[1][1] - active_ms > 1_000
    # Another worker, with nothing but the changelog, knows the same; what is sent again now passes.
    await owner.lane.stop()
    other = await site.owner("b")
    site.produce([event(first, 1), event(b"c", 1)])
    other.lane.start()
    await other.reach(number + 2)
    assert other.sequences.partition(0).last(first).persisted == 1
    assert sum(other.sequences.partition(0).evicted) == sum(EvictedTotals(1, 1))
    assert len(site.output_values()) == number + 1


async def test_nobody_is_quiet_for_a_worker_that_was_stopped(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop it as SIGSTOP does, between its last look at the input's end and the commit; a duplicate waits."""
    site.bounds = EvictionLimits(inactive_s=1)
    owner = await site.owner()
    owner.lane.start()
    site.produce([event(b"a", 1)])
    await owner.reach(1)
    stopped: list[int | None] = []

    def stop_at(point: str) -> None:
        if point == "produced" and not stopped:  # c is judged, and the input ended behind it
            stopped.append(owner.lane.status.end)
            site.produce([event(b"a", 1)])
            time.sleep(4)  # all of the process: longer than its `inactive_s` and what is added to it

    fetch = owner.cluster.fetch

    async def slow(*args: Any, **options: Any) -> FetchedPartition:
        """The answer to what it asked before comes after that to what it asks now: brokers differ."""
        fetched = await fetch(*args, **options)
        await asyncio.sleep(1.0 if stopped else 0.0)
        return fetched

    monkeypatch.setattr(owner.cluster, "fetch", slow)
    monkeypatch.setattr("kafka_ratchet.transport.lane.crash_point", stop_at)
    await asyncio.to_thread(site.produce, [event(b"c", 1)])
    await owner.reach(3)
    assert stopped == [2]
    assert len(site.output_values()) == 2
    progress = owner.sequences.partition(0).progress
    assert progress is not None
    assert progress[1:3] == (2, 1)
