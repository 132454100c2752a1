"""SIGKILL, again and again, while events go through: every identity's output is its distinct input, in order."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from killing_ground import EVENTS, IDENTITIES, Feed, check, make_site
from worker_process import Site, WorkerProcess

KILLS = 6


@pytest.fixture
def site(broker: str, tmp_path: Path) -> Site:
    return make_site(broker, tmp_path, session_timeout_ms=3000)


def test_killed_worker_neither_loses_nor_doubles_nor_reorders(site: Site) -> None:
    feed = Feed(site)
    inputs = [f"{site.app}.{identity}.in" for identity in IDENTITIES]
    worker = WorkerProcess(site)
    choose = random.Random(6)

    def position() -> int:
        return sum(site.position(topic) for topic in inputs)

    feed.start()
    try:
        for _ in range(KILLS):
            before = position()
            worker.start()
            worker.wait_for(lambda before=before: position() > before + 300, "progress")
            time.sleep(choose.uniform(0, 0.3))
            worker.kill()
        sent = feed.finish()
        assert len(sent) >= EVENTS
        worker.start()
        worker.wait_for(lambda: position() >= len(inputs) * len(sent), "the end of the input")
        worker.stop()
    finally:
        worker.end()
    check(site, sent)
