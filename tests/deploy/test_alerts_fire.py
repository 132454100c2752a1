"""A real Prometheus over real workers, a producer and a sink: what it is asked has data, and each failure is told."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from faults.postgres import PostgresServer, run_postgres
from kafka_ratchet.app.local.ports import free_port
from tests.app.worker.test_large_batches import MIB
from tests.app.worker.test_large_batches import publish as publish_batch
from tests.app.worker_process import PATIENCE_S, Site, WorkerProcess
from tests.deploy.prometheus import Prometheus, asked, needed, run_prometheus

SETTINGS = """
session_timeout_ms = 6000
max_batch_mb = 2
[web]
status_port = {port}
[streams.events]
input = "{app}.in"
output = "{app}.out"
dead_letters = "{app}.dead"
partitions = 4
[sink]
store = "postgres"
url = "{url}"
password = "{password}"
columns = "n long"
metrics_port = {sink}
"""
WANTED = {"RatchetPartitionHalted", "RatchetWorkerDown", "RatchetSinkStuck", "RatchetNoWorkers"}


def wait(condition: Callable[[], object], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)


class Stack:
    """Two workers, one of them of two processes, a publisher and a sink; each is scraped at a fixed address."""

    def __init__(self, folder: Path, broker: str, postgres: PostgresServer) -> None:
        self.app, self.postgres = f"alerts-{uuid.uuid4().hex[:8]}", postgres
        self.ports = {name: free_port() for name in ("first", "second", "sink", "producer")}
        self.sites = {}
        for name in ("first", "second"):
            (folder / name).mkdir()
            settings = SETTINGS.format(
                app=self.app,
                port=self.ports[name],
                url=postgres.url,
                password=postgres.password,
                sink=self.ports["sink"],
            )
            self.sites[name] = Site(folder / name, broker, self.app, settings)
        self.workers = {name: WorkerProcess(site) for name, site in self.sites.items()}
        self.events = folder / "events.ndjson"
        self.events.write_text("".join(json.dumps({"n": n, "key": f"k{n % 16}"}) + "\n" for n in range(100_000)))
        self.log = folder / "commands.log"

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self.ports[name]}"

    def command(self, *arguments: str) -> subprocess.Popen[bytes]:
        site = self.sites["first"]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "kafka_ratchet", *arguments, "--config", str(site.config)],
                env=site.environment,
                cwd=site.folder,
                stdout=log,
                stderr=log,
            )

    def ready(self, name: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address(name)}/readyz", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@pytest.fixture
def stack(broker: str, tmp_path: Path) -> Iterator[Stack]:
    with ExitStack() as cleanup:
        stack = Stack(tmp_path, broker, cleanup.enter_context(run_postgres()))
        for worker, arguments in zip(stack.workers.values(), (("--processes", "2"), ()), strict=True):
            cleanup.callback(worker.end)
            worker.start(arguments=arguments)
        for name, worker in stack.workers.items():
            worker.wait_for(lambda name=name: stack.ready(name), "readiness")  # type: ignore[misc]
        publisher = ("publish", str(stack.events), "--producer=till", "--key=key", "--rate=50")
        for command in ((*publisher, f"--metrics-port={stack.ports['producer']}"), ("sink", "--mode=stream")):
            process = stack.command(*command)
            cleanup.callback(process.wait, 60)
            cleanup.callback(process.kill)
        yield stack


def scraped(prometheus: Prometheus) -> set[str]:
    return {sample["metric"]["instance"] for sample in prometheus.vector("up == 1")}


def without_data(prometheus: Prometheus) -> list[str]:
    return [f"{where}: {expression}" for where, expression in asked().items() if not prometheus.vector(expression)]


@needed
@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_prometheus_is_asked_has_data_and_each_failure_fires(broker: str, stack: Stack, tmp_path: Path) -> None:
    targets = {
        "ratchet-worker": [stack.address("first"), stack.address("second")],
        "ratchet-sink": [stack.address("sink")],
        "ratchet-producer": [stack.address("producer")],
    }
    with run_prometheus(tmp_path / "prometheus", targets) as prometheus:

        def fires(alert: str) -> dict[str, str]:
            wait(lambda: alert in prometheus.firing(), lambda: f"{alert} does not fire: {prometheus.firing()}")
            (labels,) = prometheus.firing()[alert]
            return labels

        wait(lambda: len(scraped(prometheus)) == 4, lambda: f"{scraped(prometheus)}\n{stack.log.read_text()[-3000:]}")
        wait(lambda: not without_data(prometheus), lambda: without_data(prometheus))
        # A worker that joins may have been unready, and a sink that starts down, for longer than two seconds.
        wait(lambda: not prometheus.firing(), prometheus.firing)
        assert not prometheus.vector(f'ALERTS{{alertname=~"{"|".join(WANTED)}"}}')

        publish_batch(stack.sites["first"], 0, 1, bytes(3 * MIB))
        halted = fires("RatchetPartitionHalted")
        assert (halted["stream"], halted["partition"], halted["reason"]) == ("events", "0", "BatchTooLarge")
        assert stack.ready("first")
        assert stack.ready("second")
        assert not (WANTED - {"RatchetPartitionHalted"}) & prometheus.firing().keys()

        with psycopg.connect(stack.postgres.url, password=stack.postgres.password) as other:
            other.execute("LOCK TABLE results IN ACCESS EXCLUSIVE MODE")
            stuck = fires("RatchetSinkStuck")
            assert (stuck["sink"], stuck["topic"]) == ("results", f"{stack.app}.out")
            assert not {"RatchetWorkerDown", "RatchetSinkDown"} & prometheus.firing().keys()
        wait(lambda: "RatchetSinkStuck" not in prometheus.firing(), prometheus.firing)

        stack.workers["second"].kill()
        assert fires("RatchetWorkerDown")["instance"] == stack.address("second")
        assert "RatchetNoWorkers" not in prometheus.firing()
        stack.workers["first"].kill()
        fires("RatchetNoWorkers")
