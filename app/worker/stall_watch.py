"""Periodic check of the worker's partitions: names the transactions that block them, and logs stalls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Final

import structlog
from aiokafka import errors as kafka

from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.errors import explained
from kafka_ratchet.transport.lane import Lane
from kafka_ratchet.transport.stalls import Stall, StallCause
from kafka_ratchet.transport.transactions.open_transactions import find_open, named

log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 5.0
"""Seconds between checks. A stall is detected 15 s after the last progress, and must be visible within 30 s."""
ASK_S: Final = 5.0
"""Seconds to wait for Kafka's list of open transactions. The next check requests the list again."""


async def watch(cluster: Cluster, lanes: Callable[[], Collection[Lane]]) -> None:
    """Check the lanes every `LOOK_EVERY_S`, name blocking transactions and log stalls; never return.

    Args:
        cluster: connected client of the Kafka cluster
        lanes: function that returns the lanes running in this worker
    """
    stalled: dict[tuple[str, int], Stall] = {}
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            there = {(lane.spec.topic, lane.spec.partition): lane for lane in lanes()}
            await _name_transactions(cluster, there)
            _log_changes(stalled, there)
        except Exception:
            log.exception("the check for partitions that stand still failed; trying again")


async def _name_transactions(cluster: Cluster, lanes: dict[tuple[str, int], Lane]) -> None:
    now_s = time.time()
    unnamed = {
        place: lane
        for place, lane in lanes.items()
        if lane.status.blocked_since is not None
        and not lane.status.blocked_by
        and now_s - lane.status.blocked_since >= LOOK_EVERY_S
    }
    if not unnamed:
        return
    try:
        async with asyncio.timeout(ASK_S):
            found = await find_open(cluster, unnamed, "stalls")
    except TimeoutError:
        return
    except kafka.KafkaError as error:
        for lane in unnamed.values():
            lane.status.blocked_by = f" (Kafka does not name its producer: {explained(error)})"
        return
    for (topic, partition), lane in unnamed.items():
        lane.status.blocked_by = named(one for one in found if (one.topic, one.partition) == (topic, partition))


def _log_changes(stalled: dict[tuple[str, int], Stall], lanes: dict[tuple[str, int], Lane]) -> None:
    """Log the begin and the end of each stall once, except for halted partitions: their lanes log the halt."""
    for place, lane in lanes.items():
        now, before = lane.stall(), stalled.get(place)
        if now is not None and now.cause != StallCause.HALTED:
            if before is None or before.cause != now.cause:
                lane.log.warning("partition stands still", cause=now.cause, reason=now.text)
            stalled[place] = now
        elif before is not None:
            del stalled[place]
            if now is None:
                lane.log.info("partition moves again", cause=before.cause)
    for place in stalled.keys() - lanes.keys():
        del stalled[place]
