"""A worker that its group refuses: how soon it asks again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import errors as kafka

from kafka_ratchet.app.status.group import JOINS_WITHIN_S
from kafka_ratchet.transport.assignment import ALIVE_EVERY_S, REFUSED_MOST_S, Lanes


class Coordinator:
    """Membership in a group that refuses, until `error` is None."""

    def __init__(self, error: kafka.KafkaError) -> None:
        self.error: kafka.KafkaError | None = error
        self.asked = 0
        self._heartbeat_task = None
        self._coordination_task = SimpleNamespace(done=lambda: False)

    def check_errors(self) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error


def app() -> Any:
    return SimpleNamespace(on_partitions_assigned=SimpleNamespace(connect=lambda _: None))


@pytest.mark.parametrize(
    "error",
    [
        kafka.InconsistentGroupProtocolError("a classic stranger"),
        kafka.KafkaError("UnknownError: a group of the new protocol has members"),
    ],
)
async def test_the_pause_of_a_refused_worker_is_bounded(error: kafka.KafkaError) -> None:
    async def explain() -> str:
        return "others use the group"

    lanes, coordinator, loop = Lanes(app(), {}, {}, {}, explain), Coordinator(error), asyncio.get_running_loop()
    pauses, planned = [], []
    for number in range(1, 9):
        await lanes._check_membership(coordinator, loop)
        pauses.append(lanes._check_at - loop.time())
        planned.append(lanes._refused_s)
        assert coordinator.asked == number
        await lanes._check_membership(coordinator, loop)
        assert coordinator.asked == number  # not before the pause is over
        lanes._check_at = 0.0
    assert planned == [1, 2, 4, 8, 10, 10, 10, 10]
    assert max(pauses) <= REFUSED_MOST_S
    assert ALIVE_EVERY_S + REFUSED_MOST_S < JOINS_WITHIN_S  # the time that a sentence promises
    assert not lanes.has_joined


async def test_a_task_that_has_ended_is_forgotten() -> None:
    lanes = Lanes(app(), {}, {}, {}, None)
    await lanes._spawn(asyncio.sleep(0))
    await asyncio.sleep(0)
    assert not lanes._tasks
