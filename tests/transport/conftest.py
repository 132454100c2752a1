"""A cluster to talk to, and a Kafka of this folder's own that may be killed and looked into."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.kafka import EmbeddedKafka
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.security import client_options
from tests.transport.lane_site import MakeSite, Site


@pytest.fixture
async def cluster(broker: str) -> AsyncIterator[Cluster]:
    cluster = Cluster(client_options(broker, {}))
    await cluster.start(30)
    yield cluster
    await cluster.close()


@pytest.fixture(scope="session")
def own_broker() -> Iterator[EmbeddedBroker]:
    """A Kafka whose files are here, that may be restarted, and that looks for timed-out transactions often."""
    options = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    with EmbeddedBroker(options=options) as broker:
        yield broker


@pytest.fixture(scope="session")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A Kafka whose nodes may be stopped one by one, and a network to it (of worker 0) that can fail.

    A node that stands still for seconds is to stay a leader, and coordinators are to stay where they are: what is to go
    wrong here is stopped on purpose.
    """
    options = {"broker.session.timeout.ms": "6000", "auto.leader.rebalance.enable": "false"}
    with EmbeddedKafka(tmp_path_factory.mktemp("nodes"), nodes=3, workers=1, options=options) as kafka:
        yield kafka


@pytest.fixture
async def make_site(own_broker: EmbeddedBroker, tmp_path: Path) -> AsyncIterator[MakeSite]:
    sites: list[Site] = []

    def make(name: str, **options: Any) -> Site:
        sites.append(Site(own_broker.bootstrap, tmp_path / name, name, **options))
        return sites[-1]

    yield make
    await asyncio.gather(*(owner.close() for site in sites for owner in site.lanes))


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site("lane")
