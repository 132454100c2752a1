"""Start of a hosted worker: the moment from which its tasks run."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_ratchet.app.faust_host.transport import until_lanes_run
from kafka_ratchet.transport.lane_spec import LaneState


class StartingWorker:
    """Faust app and lanes whose states change with each pause of the waiting function."""

    def __init__(self, rounds: list[Any]) -> None:
        """rounds: states of the lanes, as (state, number of restarts); None: not joined; "stop": the app stops."""
        self._rounds: Iterator[Any] = iter(rounds)
        self.has_joined, self.waiting, self.should_stop = False, set[Any](), False
        self.running: dict[Any, Any] = {}
        self.pauses = -1

    async def sleep(self, _: float) -> None:
        self.pauses += 1
        found = next(self._rounds)
        self.should_stop, self.has_joined = found == "stop", found is not None
        lanes = found if isinstance(found, list) else []
        self.waiting = {number for number, each in enumerate(lanes) if each is None}
        self.running = {
            number: SimpleNamespace(status=SimpleNamespace(state=each[0], restarts=each[1]))
            for number, each in enumerate(lanes)
            if each is not None
        }


STARTING, RESTORING, RUNNING = (LaneState.STARTING, 0), (LaneState.RESTORING, 0), (LaneState.RUNNING, 0)


@pytest.mark.parametrize(
    ("rounds", "has_stopped"),
    [
        ([None, None, []], False),
        ([None, [None, STARTING], [RUNNING, RESTORING], [RUNNING, RUNNING]], False),
        ([[STARTING], [(LaneState.HALTED, 0)]], False),
        ([[STARTING], [(LaneState.STARTING, 1)]], False),
        ([None, "stop"], True),
        ([[STARTING], "stop"], True),
    ],
)
async def test_tasks_wait_until_each_lane_runs_or_has_failed(rounds: list[Any], has_stopped: bool) -> None:
    worker: Any = StartingWorker(rounds)
    await worker.sleep(0)
    assert await until_lanes_run(worker, worker) == has_stopped
    assert worker.pauses == len(rounds) - 1
