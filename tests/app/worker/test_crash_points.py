"""The worker is killed at every named point of the durable order, and nothing is lost or doubled."""

from __future__ import annotations

import itertools
import signal
import uuid
from pathlib import Path

import pytest

from faults.count import Difference
from faults.environment import PATIENCE_S, Environment
from faults.kafka import Kafka
from kafka_ratchet.transport.transactions.crash_points import POINTS as CRASH_POINTS

KILLED = 128 + signal.SIGKILL
EVENTS = 20_000


def run(broker: str, folder: Path, crashes: list[str]) -> None:
    environment = Environment(
        Kafka(broker), folder / "environment", workers=1, seed=len(crashes), app=f"crash-{uuid.uuid4().hex[:8]}"
    )
    worker = environment.workers[0]
    try:
        for number, point in enumerate(crashes, 1):
            worker.start(crash_at=point)
            environment.wait_for(lambda: not worker.is_running, f"the crash at {point}")
            assert worker.started is not None
            assert worker.started.wait() == KILLED, f"{point}:\n{worker.output()[-3000:]}"
            environment.feed.allow(EVENTS * number // len(crashes))
        worker.start()
        sent, difference, _ = environment.finish()
    finally:
        environment.close()
    assert len(sent) >= EVENTS
    assert difference == Difference()


@pytest.mark.timeout(900)
def test_crash_around_a_commit(broker: str, tmp_path: Path) -> None:
    run(broker, tmp_path, ["produced:3", "offered:3", "committed:3"])


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_crash_at_every_point(broker: str, tmp_path: Path) -> None:
    # The third pass: by then the points of a take-over lie between lanes that run and lanes that do not.
    run(broker, tmp_path, [f"{point}:3" for point in CRASH_POINTS])


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_crash_at_every_pair_of_points(broker: str, tmp_path: Path) -> None:
    # A run that dies at one point is followed by one that dies at another: all ordered pairs, in one chain.
    pairs = itertools.product(CRASH_POINTS, CRASH_POINTS)
    run(broker, tmp_path, [f"{point}:{1 + number % 5}" for number, pair in enumerate(pairs) for point in pair])


def test_unknown_point_is_refused(broker: str, tmp_path: Path) -> None:
    environment = Environment(
        Kafka(broker), tmp_path / "environment", workers=1, seed=1, app=f"crash-{uuid.uuid4().hex[:8]}"
    )
    try:
        worker = environment.workers[0]
        worker.start(crash_at="nowhere")
        environment.wait_for(lambda: not worker.is_running, "the refusal", PATIENCE_S)
        assert worker.started is not None
        assert worker.started.wait() == 1
        assert "unknown crash point" in worker.output()
    finally:
        environment.close()
