"""Start of a hosted worker: the topics that it creates, and the moment from which its tasks run."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faust
import pytest

from kafka_ratchet.app.faust_host.transport import hosted_app, prepare_all, until_lanes_run
from kafka_ratchet.app.worker.topics import config_of
from kafka_ratchet.producers import admin_client
from kafka_ratchet.topic_log.clients import partition_counts
from kafka_ratchet.transport.lane_spec import LaneState
from kafka_ratchet.transport.stalls import Stall, StallCause


class StartingWorker:
    """Faust app and lanes whose states change with each pause of the waiting function."""

    def __init__(self, rounds: list[Any]) -> None:
        """Store the result of each pause.

        rounds: states of the lanes, as (state, number of restarts, cause of a stall); None: not joined; "stop": the app
            stops.
        """
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
            number: SimpleNamespace(status=SimpleNamespace(state=each[0], restarts=each[1]), stall=stalled(*each[2:]))
            for number, each in enumerate(lanes)
            if each is not None
        }


def stalled(cause: StallCause | None = None) -> Callable[[], Stall | None]:
    return lambda: None if cause is None else Stall(cause, "orders, partition 0: stands still", 0.0)


STARTING, RESTORING, RUNNING = (LaneState.STARTING, 0), (LaneState.RESTORING, 0), (LaneState.RUNNING, 0)
BLOCKED, REPLAYING = (LaneState.STARTING, 0, StallCause.NO_LEADER), (LaneState.RESTORING, 0, StallCause.RESTORING)
QUEUED, WITHOUT_POLICY = (LaneState.STARTING, 0, StallCause.STARTING), (LaneState.RESTORING, 0, StallCause.NO_ANSWER)


@pytest.mark.parametrize(
    ("rounds", "has_stopped"),
    [
        ([None, None, []], False),
        ([None, [None, STARTING], [RUNNING, RESTORING], [RUNNING, RUNNING]], False),
        ([[STARTING], [(LaneState.HALTED, 0)]], False),
        ([[STARTING], [(LaneState.STARTING, 1)]], False),
        ([[STARTING, RUNNING], [BLOCKED, REPLAYING], [BLOCKED, RUNNING]], False),
        ([[QUEUED], [REPLAYING], [WITHOUT_POLICY]], False),
        ([None, "stop"], True),
        ([[STARTING], "stop"], True),
    ],
)
async def test_tasks_wait_until_each_lane_runs_or_has_failed_or_stalled(rounds: list[Any], has_stopped: bool) -> None:
    worker: Any = StartingWorker(rounds)
    await worker.sleep(0)
    assert await until_lanes_run(worker, worker) == has_stopped
    assert worker.pauses == len(rounds) - 1


def test_missing_topics_are_created_with_the_options_of_the_program(broker: str, tmp_path: Path) -> None:
    name = f"options-{uuid.uuid4().hex[:8]}"
    app = faust.App(
        name, broker=f"ratchet://{broker}", store="ratchet://", autodiscover=False, datadir=str(tmp_path / "data")
    )
    orders = app.topic(f"{name}-orders", partitions=3, retention=timedelta(days=30), deleting=True)
    done = app.topic(f"{name}-done", partitions=2, compacting=True, config={"min.insync.replicas": 1})
    plain = app.topic(f"{name}-plain")

    @app.agent(orders)
    async def agent(stream: Any) -> None:
        async for value in stream:
            await done.send(value=value)
            await plain.send(value=value)

    hosted, settings = hosted_app(app)
    prepare_all(hosted, settings, broker)
    admin = admin_client({"bootstrap.servers": broker})
    topics = [orders.get_topic_name(), done.get_topic_name(), plain.get_topic_name()]
    assert [partition_counts(admin, topics)[topic] for topic in topics] == [3, 2, 3]
    configs = [config_of(admin, topic) for topic in topics]
    assert [each["cleanup.policy"] for each in configs] == ["delete", "compact", "delete"]
    assert configs[0]["retention.ms"] == str(30 * 24 * 3600 * 1000)
    assert configs[1]["min.insync.replicas"] == "1"


def test_options_of_a_topic_may_be_in_several_objects() -> None:
    app = faust.App("several", broker="ratchet://127.0.0.1:9", store="ratchet://", autodiscover=False)
    orders = app.topic("orders", replicas=2, config={"unclean.leader.election.enable": False})
    again = app.topic("orders", retention=60, partitions=5)

    @app.agent(orders)
    async def agent(stream: Any) -> None:
        async for _ in stream:
            pass

    hosted, settings = hosted_app(app)
    assert again.get_topic_name() == "orders"
    assert (settings.streams["orders"].partitions, settings.streams["orders"].replication) == (5, 2)
    config = {"retention.ms": "60000", "unclean.leader.election.enable": "false"}
    assert hosted.engine.topic_options["orders"].config == config
