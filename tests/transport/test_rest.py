"""A lane without records asks for none by itself; it is called, and then it is as if it had never rested."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kafka_ratchet.transport import rest as resting
from kafka_ratchet.transport.client.fetch_session import PositionToWatch
from kafka_ratchet.transport.client.watch import WatchedPosition
from kafka_ratchet.transport.rest import IdleWait
from kafka_ratchet.transport.turns import StartLimit
from tests.transport.kafka_side import LIMIT_S, until
from tests.transport.lane_site import Owner, Site
from tests.transport.test_lane import events

HERE = PositionToWatch(b"t" * 16, 0, 5)


class Watch:
    """Covers who waits when it is told to."""

    def __init__(self, looks: bool = True) -> None:
        self.places: list[WatchedPosition] = []
        self.left = 0
        self.looks = looks

    def place(self, topic: str, spot: PositionToWatch) -> WatchedPosition | None:
        if not self.looks:
            return None
        self.places.append(WatchedPosition(spot, None))  # type: ignore[arg-type]
        return self.places[-1]

    def leave(self, place: WatchedPosition) -> None:
        self.left += 1


async def test_who_starts_looks_once_and_waits_until_it_is_called() -> None:
    watch = Watch()
    rest = IdleWait(watch, "t", 0)
    assert await rest.over(HERE)
    waiting = asyncio.create_task(rest.over(HERE))
    await until(lambda: watch.places)
    await asyncio.sleep(0)
    assert not waiting.done()
    watch.places[0].call()
    assert await waiting
    rest.wake()
    assert watch.left == 1
    assert not await rest.over(HERE)  # it asks as often as ever


async def test_who_was_heard_asks_until_the_watch_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "QUIET_S", 0.0)
    watch = Watch()
    rest = IdleWait(watch, "t", 0)
    rest.wake()
    assert not await rest.over(HERE)
    assert not await rest.over(HERE)
    assert len(watch.places) == 1
    watch.places[0].is_covered = True
    before = rest.is_at_rest
    assert before
    waiting = asyncio.create_task(rest.over(HERE))
    await asyncio.sleep(0)
    watch.places[0].call()
    assert await waiting
    assert not rest.is_at_rest
    assert not await rest.over(HERE._replace(position=6))  # another spot, another place
    assert [place.spot.position for place in watch.places] == [5, 6]


async def test_without_a_watch_it_asks_itself() -> None:
    rest = IdleWait(Watch(looks=False), "t", 0)
    assert await rest.over(HERE)
    assert not await rest.over(HERE)
    assert not rest.is_still(HERE)
    assert (rest.is_at_rest, rest.answered_at) == (False, 0)


async def test_what_is_still_is_looked_at_all_the_same_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    rest = IdleWait(watch, "t", 0)
    assert not rest.is_still(HERE)
    watch.places[0].is_covered = True
    assert rest.is_still(HERE)
    rest._look_every_s = 0.0
    assert not rest.is_still(HERE)
    rest._look_every_s = 60.0
    assert rest.is_still(HERE)
    watch.places[0].call()
    assert not rest.is_still(HERE)


async def test_turns_are_few_and_one_that_takes_long_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_ratchet.transport.turns.TURN_S", 0.05)
    turns, inside, most = StartLimit(2), 0, 0
    stuck = asyncio.Event()

    async def take(work: Callable[[], Awaitable[Any]]) -> None:
        nonlocal inside, most
        async with turns.turn():
            inside += 1
            most = max(most, inside)
            await work()
            inside -= 1

    quick = [asyncio.create_task(take(lambda: asyncio.sleep(0))) for _ in range(20)]
    await asyncio.gather(*quick)
    assert most == 2
    held = [asyncio.create_task(take(stuck.wait)) for _ in range(6)]
    await until(lambda: inside == 6)
    stuck.set()
    await asyncio.gather(*held)
    most = 0
    await asyncio.gather(*(take(lambda: asyncio.sleep(0)) for _ in range(20)))
    assert most == 2  # each was given back once


async def at_rest(owner: Owner) -> list[int]:
    """Wait until it rests. Returns the positions that it asks for from then on."""
    await until(lambda: owner.lane._rest is not None and owner.lane._rest.is_at_rest, "rest")
    fetch, asked = owner.cluster.fetch, list[int]()

    async def noted(topic: str, partition: int, position: int, *rest: Any, **options: Any) -> Any:
        asked.append(position)
        return await fetch(topic, partition, position, *rest, **options)

    owner.cluster.fetch = noted  # type: ignore[method-assign]
    return asked


async def test_a_lane_rests_and_is_called_and_rests_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "QUIET_S", 0.1)
    owner = await site.owner()
    owner.lane.start()
    asked = await at_rest(owner)
    looked = owner.lane.status.fetched_at
    # The watch answers again and again, the changelog's place is there as well, and the lane asks nobody.
    await until(lambda: (owner.lane.status.fetched_at or 0) > (looked or 0) + 2)
    asked.clear()
    looked = owner.lane.status.fetched_at
    await until(lambda: (owner.lane.status.fetched_at or 0) > (looked or 0) + 2)
    assert asked == []
    assert (owner.lane.status.position, owner.lane.status.end) == (0, 0)
    for count in (3, 5):
        await asyncio.to_thread(site.produce, events(*range(count - 2, count + 1)))
        await until(lambda: owner.last().persisted >= count)  # noqa: B023
        await at_rest(owner)
    assert len(site.output_values()) == 5
    assert owner.lane.status.restarts == 0


async def test_a_lane_at_rest_is_stopped_and_fenced_as_any_other(site: Site) -> None:
    first, second = await site.owner("a"), await site.owner("b")
    first.lane.start()
    await at_rest(first)
    second.lane.start()
    await asyncio.to_thread(site.produce, events(1, 2))
    await until(lambda: second.last().persisted == 2 or first.last().persisted == 2)
    await asyncio.wait_for(second.lane.stop(), LIMIT_S)
    await asyncio.to_thread(site.produce, events(2, 3))
    await until(lambda: first.last().persisted == 3)
    await at_rest(first)
    await asyncio.wait_for(first.lane.stop(), LIMIT_S)
    assert len(site.output_values()) == 3
