"""Windows and timers in a real worker on a real Kafka, which dies, loses its store, and has an agent that hangs."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as Client

from tests.app.worker_process import Site, WorkerProcess, read_all

SETTINGS = """
session_timeout_ms = 6000
commit_interval_ms = 20
transaction_timeout_ms = 5000

[streams.views]
input = "{name}.in"
output = "{name}.out"
dead_letters = "{name}.dead"
partitions = 1
"""
PROGRAM = """
import asyncio
from pathlib import Path

from kafka_ratchet import App

app = App()
views = app.stream("views")
counts = app.Table("counts", default=int).hopping(10, 5, expires=20)
calls = app.Table("calls", default=int)

@app.agent(views)
async def count(views):
    async for page in views:
        if page == "slow" and not Path("mended").exists():
            await asyncio.sleep(3600)
        counts[page] += 1
        yield [page, counts[page].value(), counts.late]

@app.timer(0.1, stream=views)
async def report():
    calls["report"] += 1
    yield {"call": calls["report"]}

@app.on_started
async def started():
    print("the program has started", flush=True)
"""
View = tuple[str, int]
"""A page, and when in seconds."""
FIRST: list[View] = [("a", 1), ("b", 7), ("a", 12), ("a", 3), ("a", 41), ("a", 3), ("b", 26), ("b", 42)]
SECOND: list[View] = [("slow", 42), ("a", 9), ("a", 44)]


def send(site: Site, views: list[View], first: int) -> None:
    client = Client({"bootstrap.servers": site.broker})
    for number, (page, at) in enumerate(views, first):
        headers: list[Any] = [("ratchet-producer", b"web"), ("ratchet-sequence", str(number).encode())]
        client.produce(f"{site.app}.in", json.dumps(page), timestamp=1000 * at, headers=headers)
    assert client.flush(30) == 0


def expected(views: list[View]) -> list[Any]:
    """Return the expected records, by a plain reading of the program."""
    counts, found, late, time = dict[tuple[str, int], int](), [], 0, 0
    for page, at in views:
        time = max(time, at)
        newest = at // 5 * 5
        for start in (newest - 5, newest):
            if start + 10 + 20 <= time:
                late += 1
            else:
                counts[page, start] = counts.get((page, start), 0) + 1
        found.append([page, counts.get((page, newest), 0) if newest + 30 > time else 0, late])
    return found


@pytest.fixture
def worker(broker: str, tmp_path: Path) -> Iterator[WorkerProcess]:
    name = f"views-{uuid.uuid4().hex[:8]}"
    (tmp_path / "program.py").write_text(PROGRAM)
    worker = WorkerProcess(Site(tmp_path, broker, name, SETTINGS.format(name=name)))
    yield worker
    worker.end()


@pytest.mark.long
def test_windows_and_timers_survive_what_workers_die_of(worker: WorkerProcess) -> None:
    site, arguments = worker.site, ("--app", "program:app")
    worker.start("logged:4", arguments=arguments)
    send(site, FIRST, 0)
    assert worker.process.wait(60) == -9, worker.text()[-3000:]
    shutil.rmtree(worker.state)
    worker.start(arguments=arguments)
    worker.wait_for(lambda: site.position(f"{site.app}.in") == len(FIRST), "the end of the input")
    send(site, SECOND, len(FIRST))
    line = 1 + next(number for number, each in enumerate(PROGRAM.splitlines()) if "sleep" in each)
    held = f"offset {len(FIRST)}: agent count ({site.folder}/program.py:{line}) has held its transaction"
    worker.wait_for(lambda: held in worker.text(), "what is said of the agent that hangs")
    (site.folder / "mended").touch()
    worker.wait_for(lambda: site.position(f"{site.app}.in") == len(FIRST + SECOND), "the end of the input")
    worker.stop()
    assert "the program has started" in worker.text()
    values = [json.loads(each.value()) for each in read_all(site.broker, f"{site.app}.out")[0]]
    calls = [value["call"] for value in values if isinstance(value, dict)]
    assert calls == list(range(1, len(calls) + 1))
    assert calls
    assert [value for value in values if isinstance(value, list)] == expected(FIRST + SECOND)
