"""Tasks of a worker beside its lanes: an unexpected error is logged, and ends no look that is to come again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import errors as kafka
from structlog.testing import capture_logs

from kafka_ratchet.app.worker import stall_watch
from kafka_ratchet.app.worker.application import start_background
from kafka_ratchet.transport import assignment
from kafka_ratchet.transport.assignment import Lanes


class Failing:
    """Fails at its first use; afterwards it lets a test go on."""

    def __init__(self) -> None:
        self.uses = 0
        self.is_used_again = asyncio.Event()

    def use(self) -> None:
        self.uses += 1
        if self.uses == 1:
            raise ValueError("a mistake of the program")
        self.is_used_again.set()


async def ends_or_is_used_again(task: asyncio.Task[None], failing: Failing) -> bool:
    """Return True if it is used again."""
    again = asyncio.create_task(failing.is_used_again.wait())
    await asyncio.wait((task, again), return_when=asyncio.FIRST_COMPLETED)
    for each in (task, again):
        each.cancel()
    await asyncio.gather(task, again, return_exceptions=True)
    return failing.is_used_again.is_set()


async def test_partitions_are_looked_at_again_after_a_look_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall_watch, "LOOK_EVERY_S", 0.0)
    failing = Failing()

    def lanes() -> Collection[Any]:
        failing.use()
        return []

    cluster: Any = None
    with capture_logs() as said:
        assert await ends_or_is_used_again(asyncio.create_task(stall_watch.watch(cluster, lanes)), failing)
    assert [line["log_level"] for line in said] == ["error"]


async def test_the_group_hears_of_the_worker_after_a_look_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "ALIVE_EVERY_S", 0.0)
    failing = Failing()

    async def explain() -> str:
        failing.use()
        return "others use the group"

    def check_errors() -> None:
        raise kafka.InconsistentGroupProtocolError("a stranger")

    going_on = SimpleNamespace(done=lambda: False)
    coordinator = SimpleNamespace(check_errors=check_errors, _heartbeat_task=None, _coordination_task=going_on)
    subscription = SimpleNamespace(fetch_context=nullcontext)
    consumer = SimpleNamespace(_subscription=subscription, _coordinator=coordinator)
    thread = SimpleNamespace(_consumer=consumer, thread_loop=asyncio.get_running_loop())
    app: Any = SimpleNamespace(
        on_partitions_assigned=SimpleNamespace(connect=lambda _: None), consumer=SimpleNamespace(_thread=thread)
    )
    lanes = Lanes(app, {}, {}, {}, explain)
    with capture_logs():
        assert await ends_or_is_used_again(asyncio.create_task(lanes._stay_alive()), failing)


async def test_the_end_of_a_task_is_logged() -> None:
    async def fail() -> None:
        raise ValueError("a mistake of the program")

    with capture_logs() as said:
        await start_background("history", fail())
    assert [(line["log_level"], line["task"]) for line in said] == [("error", "history")]
