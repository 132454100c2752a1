"""The end of a transaction that is asked for twice, and whose first copy arrives in the middle of the next transaction.

On a Kafka of three nodes. The lane's connection to the coordinator swallows the request; when the lane has given up, it
asks again on another one and is answered. The first copy arrives when half of the next transaction has been appended.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from faults.kafka import EmbeddedKafka
from faults.proxy import Proxy
from kafka_ratchet.transport.client.cluster import LATEST, TRANSACTION, Cluster
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.lane import Lane
from kafka_ratchet.transport.transactions.requests import TransactionRequests
from tests.transport.kafka_side import Read, has_open_transaction, read_topic, until, values
from tests.transport.lane_site import PRODUCER, SEQUENCE, Owner, Site
from tests.transport.test_model_finds import end_without_doubt

pytestmark = pytest.mark.matrix  # a Kafka of three nodes

TIMEOUT_MS = 2_000
"""Milliseconds after which the lane gives a request up; held requests are held for longer."""


def rows(texts: list[bytes], first: int) -> list[Read]:
    headers = ((PRODUCER, b"me"),)
    now = time.time_ns() // 1_000_000  # what is old is deleted by retention
    return [
        Read(None, text, (*headers, (SEQUENCE, str(first + number).encode())), now) for number, text in enumerate(texts)
    ]


async def owner_behind_a_proxy(kafka: EmbeddedKafka, site: Site) -> tuple[Owner, Proxy]:
    """A lane, and the proxy on its way to the node that coordinates its transactions."""
    cluster = Cluster(client_options(kafka.bootstrap_of(0), {}), TIMEOUT_MS)
    await cluster.start(60)
    for topic in (site.input, site.output, site.dead, site.changelog):
        await cluster.offset(topic, 0, LATEST, "here")
    owner = Owner(site, cluster, site.folder / "a", {"commit_interval_ms": 20})
    owner.lane.start()
    # Kafka creates its own topics when they are asked for first.
    await until(lambda: owner.lane.status.state == "running", "the lane")
    return owner, kafka.proxy(0, await cluster.coordinator(TRANSACTION, f"id-{site.input}"))


@pytest.mark.parametrize("initialises", [True, False])
@pytest.mark.parametrize("raises", [True, False])
async def test_nothing_is_committed_half_way_or_twice(
    three_nodes: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raises: bool, initialises: bool
) -> None:
    """Protect an end by the epoch that each end raises, or by initialising the id after one in doubt.

    Without either (both taken out here) it happens: then this shows that the test would see it.
    """
    site = Site(three_nodes.bootstrap, tmp_path, "late")
    if not raises:
        monkeypatch.setattr("kafka_ratchet.transport.transactions.requests.ends_raise_epochs", nobody)
    if not initialises:
        monkeypatch.setattr(TransactionRequests, "end", end_without_doubt)
    owner, proxy = await owner_behind_a_proxy(three_nodes, site)
    held = list[str]()

    def crash_point(point: str) -> None:
        if point == "offered" and owner.lane.status.commits == 2 and not held:
            held.append(point)
            proxy.hold()

    monkeypatch.setattr("kafka_ratchet.transport.transactions.producer.crash_point", crash_point)
    site.produce(rows([b"a"], 1))
    await until(lambda: owner.lane.status.position == 1, "the first commit of a record")
    site.produce(rows([b"b", b"c"], 2))
    await until(lambda: owner.lane.status.position == 3, "the end that is asked for twice")
    assert held
    commit = Lane._commit
    half_way = list[list[bytes | None]]()

    async def commit_late(lane: Lane) -> None:
        await lane._producer.delivered()
        if not half_way:
            answers = proxy.answers
            proxy.release()
            await until(lambda: proxy.answers > answers, "the late request's answer")
            await asyncio.sleep(1)  # Kafka answers before it has written the markers
            if not (raises or initialises):  # else it ends nothing, and what is open stays open
                await until(lambda: not has_open_transaction(site.bootstrap, [site.output]), "the late end's marker")
            half_way.append(values(read_topic(site.bootstrap, site.output)))
        await commit(lane)

    monkeypatch.setattr(Lane, "_commit", commit_late)
    site.produce(rows([b"d", b"e"], 4))
    await owner.reach(5)
    await owner.close()
    whole: list[bytes | None] = [b"a", b"b", b"c", b"d", b"e"]
    if raises or initialises:
        assert half_way == [whole[:3]]
        assert site.output_values() == whole
    else:
        # Under load d and e have come to the lane in two batches: then only d was appended before the late end.
        assert len(half_way) == 1
        assert half_way[0] in (whole[:4], whole)
        assert site.output_values() == [*half_way[0], *whole[3:]]


async def nobody(*_: object) -> bool:
    return False
