"""A cluster to talk to, and a Kafka of this folder's own that may be killed and looked into."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from app._broker import EmbeddedBroker
from transport import Cluster, client_options


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
