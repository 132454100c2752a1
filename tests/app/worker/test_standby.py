"""Take-over with a standby: the worker has the sequences already, and replays next to nothing."""

from __future__ import annotations

import re
import uuid
from functools import partial
from pathlib import Path

import pytest

from faults.count import Difference
from faults.environment import Environment, Worker
from faults.events import PARTITIONS
from faults.kafka import Kafka

EVENTS = 10_000
LANE_RUNS = re.compile(r"lane runs +changelog_offset=(\d+) .*restored=(\d+)")


def stands_by(worker: Worker, lanes: int) -> bool:
    """Return whether a worker follows so many partitions as their standby."""
    return worker.output().count("standby follows") >= lanes


@pytest.mark.matrix
def test_a_killed_workers_partitions_are_taken_over_warm(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATCHET_NUM_STANDBY_REPLICAS", "1")
    monkeypatch.setenv("RATCHET_SESSION_TIMEOUT_MS", "10000")  # a worker that stands still for 3 s is to keep its lanes
    environment = Environment(
        Kafka(broker), tmp_path / "environment", workers=2, seed=2, app=f"standby-{uuid.uuid4().hex[:8]}"
    )
    try:
        first, second = environment.workers
        first.start()
        environment.wait_for_progress(environment.positions(), "the first commits")
        second.start()
        half = PARTITIONS // 2 * len(environment.inputs)
        for worker in environment.workers:
            environment.wait_for(partial(stands_by, worker, half), f"{worker.name} standing by")
        environment.feed.allow(EVENTS)
        environment.wait_for(
            lambda: sum(environment.positions().values()) >= EVENTS * len(environment.inputs),
            "a changelog worth replaying",
        )
        second.mark()
        since = environment.positions()
        first.process().kill()
        environment.wait_for_progress(since, "the take-over")
        environment.wait_for(lambda: second.output_since_mark().count("lane runs") >= half, "all lanes")
        taken_over = [tuple(map(int, found)) for found in LANE_RUNS.findall(second.output_since_mark())][:half]
        replayed, whole = sum(restored for _, restored in taken_over), sum(offset for offset, _ in taken_over)
        assert replayed < whole / 10, taken_over
        sent, difference, _ = environment.finish()
    finally:
        environment.close()
    assert len(sent) >= EVENTS
    assert difference == Difference()
