"""The worker is killed at every named point of the durable order, and nothing is lost or doubled."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import pytest
from killing_ground import IDENTITIES, Feed, check, make_site
from worker_process import PATIENCE_S, Site, WorkerProcess

from transport._crash import POINTS


@pytest.fixture
def site(broker: str, tmp_path: Path) -> Site:
    return make_site(broker, tmp_path, session_timeout_ms=1500)


def crash(worker: WorkerProcess, point: str) -> None:
    worker.start(crash_at=point)
    assert worker.process.wait(PATIENCE_S) == -signal.SIGKILL, f"{point}:\n{worker.text()[-3000:]}"


def run(site: Site, crashes: list[str]) -> None:
    feed = Feed(site)
    worker = WorkerProcess(site)
    inputs = [f"{site.app}.{identity}.in" for identity in IDENTITIES]
    feed.start()
    try:
        for point in crashes:
            crash(worker, point)
        sent = feed.finish()
        worker.start()
        everything = len(inputs) * len(sent)
        worker.wait_for(lambda: sum(site.position(topic) for topic in inputs) >= everything, "the end of the input")
        worker.stop()
    finally:
        worker.end()
    check(site, sent)


def test_crash_at_every_point(site: Site) -> None:
    # The third pass: by then the points of a take-over lie between lanes that run and lanes that do not.
    run(site, [f"{point}:3" for point in POINTS])


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_crash_at_every_pair_of_points(site: Site) -> None:
    # A run that dies at one point is followed by one that dies at another: all ordered pairs, in one chain.
    pairs = itertools.product(POINTS, POINTS)
    run(site, [f"{point}:{1 + number % 5}" for number, pair in enumerate(pairs) for point in pair])


def test_unknown_point_is_refused(site: Site) -> None:
    worker = WorkerProcess(site)
    worker.start(crash_at="nowhere")
    assert worker.process.wait(PATIENCE_S) == 1
    assert "there is no such point" in worker.text()
