"""A batch that is damaged in Kafka's own log: the lane halts there, and goes on when it is whole again."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.transport.lane_spec import LaneState
from tests.clock import let_skip, skip
from tests.transport.kafka_side import Read, until
from tests.transport.lane_site import PRODUCER, SEQUENCE, Site

NOW_MS = int(time.time() * 1000)
"""Now: Kafka deletes records that are older than the topic's retention, whenever it comes round to it."""


def event(sequence: int) -> Read:
    return Read(None, b"event %04d" % sequence, ((PRODUCER, b"me"), (SEQUENCE, b"%d" % sequence)), NOW_MS)


@pytest.fixture
async def site(own_broker: EmbeddedBroker, tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(own_broker.bootstrap, tmp_path, "damaged")
    yield site
    await asyncio.gather(*(owner.close() for owner in site.lanes))


def values(first: int, last: int) -> list[bytes | None]:
    return [event(sequence).value for sequence in range(first, last + 1)]


async def test_a_halted_lane_is_logged_once_and_then_once_a_minute(site: Site, own_broker: EmbeddedBroker) -> None:
    let_skip()
    log = own_broker.data_folder / f"{site.input}-0" / f"{0:020}.log"
    site.produce([event(1)])
    flip(log, log.read_bytes().index(b"event 0001"))
    owner = await site.owner()
    with capture_logs() as logged:
        owner.lane.start()
        await until(lambda: owner.lane.status.restarts >= 3)
        skip(61)
        await until(lambda: owner.lane.status.restarts >= 4)
    lines = [line for line in logged if line["log_level"] == "error"]
    assert [line["event"] for line in lines] == ["partition halted", "partition is still halted"]
    assert all("the checksum does not match" in line["error"] for line in lines)


async def test_a_lane_halts_at_a_damaged_batch_and_does_not_pass_it(site: Site, own_broker: EmbeddedBroker) -> None:
    log = own_broker.data_folder / f"{site.input}-0" / f"{0:020}.log"
    first = await site.owner()
    first.lane.start()
    site.produce([event(1), event(2)])
    await first.reach(2)
    await first.close()
    site.produce([event(3), event(4)])
    site.produce([event(5)])
    at = log.read_bytes().index(b"event 0004")
    flip(log, at)

    second = await site.owner()
    second.lane.start()
    await until(lambda: second.lane.status.state is LaneState.HALTED)
    assert second.lane.status.error == (
        f"{site.input}, partition 0, record batch at offset 2: the checksum does not match its bytes; "
        "the broker's log or the connection is damaged. Repair the log of this partition, or skip the batch; see "
        "docs/reference/halted.md"
    )
    # Again and again, and never past it.
    await until(lambda: second.lane.status.state is not LaneState.HALTED)
    await until(lambda: second.lane.status.state is LaneState.HALTED)
    assert site.output_values() == values(1, 2)
    assert second.lane.status.position == 2

    flip(log, at)
    await second.reach(5)
    assert site.output_values() == values(1, 5)
    assert second.last().persisted == 5


def flip(log: Path, at: int) -> None:
    """One bit of a byte, in place, as a bad disk does."""
    with log.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
