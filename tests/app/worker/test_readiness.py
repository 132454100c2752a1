"""Readiness of a worker whose Kafka is out of reach."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_ratchet.app.worker.readiness import why_not_ready
from kafka_ratchet.transport.lane_spec import LaneState
from kafka_ratchet.transport.stalls import Stall, StallCause


def lane(cause: str | None, halted: str = "") -> Any:
    stall = None if cause is None else Stall(cause, "text", time.time() - 40)
    return SimpleNamespace(status=SimpleNamespace(halted=halted, state=LaneState.RUNNING), stall=lambda: stall)


@pytest.mark.parametrize(
    ("lanes", "is_ready"),
    [
        ([], True),
        ([lane(None), lane(StallCause.NO_ANSWER)], True),
        ([lane(StallCause.NO_ANSWER), lane(StallCause.NO_ANSWER)], False),
        ([lane(StallCause.NO_ANSWER), lane(None, halted="PolicyLost")], False),
        ([lane(StallCause.OPEN_TRANSACTION)], True),
        ([lane(StallCause.NO_LEADER)], True),
    ],
)
def test_a_worker_without_kafka_is_not_ready(lanes: list[Any], is_ready: bool) -> None:
    running = {("c", number): each for number, each in enumerate(lanes)}
    found: Any = SimpleNamespace(has_joined=True, waiting={}, running=running)
    said = why_not_ready(found, {"c": "orders"})
    assert bool(said) != is_ready
    assert all("Kafka has answered none of" in line and line.endswith(" s") for line in said)
