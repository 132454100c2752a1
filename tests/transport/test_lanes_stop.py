"""End of a worker's lanes: what a rebalance has begun goes on, and what it begins later starts nothing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from kafka_ratchet.transport.assignment import Lanes


class Busy:
    """Lane, or standby, whose stop waits until it is let go, and then fails where it has a failure."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.is_started = self.is_committed = False
        self.may_end = asyncio.Event()

    def start(self) -> None:
        self.is_started = True

    async def stop(self) -> None:
        await self.may_end.wait()
        if self.failure is not None:
            raise self.failure
        self.is_committed = True


class Group:
    """Faust app with an assignor that assigns as a test says."""

    def __init__(self) -> None:
        self.on_partitions_assigned = SimpleNamespace(connect=lambda _: None)
        self.assignor = self
        self.actives: list[int] = []
        self.changelog_distribution = {"me": {"changelog": [0, 1]}}

    def assigned_actives(self) -> list[Any]:
        return [SimpleNamespace(topic="changelog", partition=number) for number in self.actives]

    def assigned_standbys(self) -> list[Any]:
        return []


class Site:
    """Lanes of a worker in such a group, over two partitions."""

    def __init__(self) -> None:
        self.group, self.made = Group(), dict[int, Busy]()
        make = {"changelog": self.make}
        self.lanes = Lanes(self.group, {"changelog": 2}, make, make)

    def make(self, number: int) -> Any:
        return self.made.setdefault(number, Busy())

    async def assign(self, *numbers: int) -> None:
        self.group.actives = [*numbers]
        await self.lanes._on_assigned(self.group, ())
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_a_stop_waits_for_the_commits_of_lanes_that_a_rebalance_takes_away() -> None:
    site = Site()
    await site.assign(0)
    await site.assign()
    stopping = asyncio.create_task(site.lanes.stop())
    for _ in range(5):
        await asyncio.sleep(0)
    site.made[0].may_end.set()
    await stopping
    assert site.made[0].is_committed


async def test_an_assignment_that_comes_after_the_stop_starts_no_lane() -> None:
    site = Site()
    await site.assign(0)
    stopping = asyncio.create_task(site.lanes.stop())
    await asyncio.sleep(0)
    await site.assign(0, 1)
    site.made[0].may_end.set()
    await stopping
    await site.assign(0, 1)
    assert (site.lanes.running, site.lanes.waiting, sorted(site.made)) == ({}, set(), [0])


@pytest.mark.parametrize("failure", [RuntimeError("not rolled back"), OSError("the disk")])
async def test_a_partition_that_fails_to_stop_keeps_no_other_from_its_start(failure: Exception) -> None:
    site = Site()
    site.made[0] = Busy(failure)
    await site.assign(0)
    with capture_logs() as said:
        await site.assign(1)
        site.made[0].may_end.set()
        for _ in range(5):
            await asyncio.sleep(0)
    assert site.lanes.waiting == set()
    assert site.made[1].is_started
    assert [line["reason"] for line in said if line["log_level"] == "error"] == [repr(failure)]
