"""A Kafka that gives its clients less than they ask for: an answer without records, and without the partition."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.transport.lane_spec import LaneState
from tests.transport.kafka_side import Read
from tests.transport.lane_site import PRODUCER, SEQUENCE, Site

CONFIG = "kafka.admin.ConfigCommand"


@pytest.fixture
def few_bytes(own_broker: EmbeddedBroker, kafka_tool: Callable[..., str]) -> Iterator[None]:
    """Limit the bytes a second that clients may fetch."""
    clients = "--bootstrap-server", own_broker.bootstrap, "--alter", "--entity-type", "clients", "--entity-default"
    kafka_tool(CONFIG, *clients, "--add-config", "consumer_byte_rate=20000")
    yield
    kafka_tool(CONFIG, *clients, "--delete-config", "consumer_byte_rate")


@pytest.mark.usefixtures("few_bytes")
async def test_a_quota_slows_a_lane_down_and_ends_nothing(site: Site) -> None:
    site.produce(
        [
            Read(None, bytes(1_000), ((PRODUCER, b"me"), (SEQUENCE, b"%d" % number)), int(time.time() * 1000))
            for number in range(200)
        ]
    )
    owner = await site.owner()
    owner.lane.start()
    await owner.reach(200)
    assert owner.lane.status.state is LaneState.RUNNING
    for number in range(200, 203):
        site.produce(
            [Read(None, bytes(1_000), ((PRODUCER, b"me"), (SEQUENCE, b"%d" % number)), int(time.time() * 1000))]
        )
        await owner.reach(number + 1)
    assert owner.lane.status.restarts == 0, owner.lane.status
    assert len(site.output_values()) == 203
