"""The services of docker-compose.yml as processes of this machine: their commands, variables and health checks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kafka_ratchet.app.local.ports import free_port
from tests.app.worker_process import PATIENCE_S, read_all

ROOT = Path(__file__).parents[2]
services: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]

Start = Callable[..., "Service"]


class Service:
    """One process, with its log.

    Args:
        port: takes the place of the one in the variables, which all of this machine share; None: it has none.
    """

    def __init__(self, name: str, folder: Path, broker: str, app: str, port: str | None = None, **more: str) -> None:
        self.service, self.log = services[name], folder / f"{name}.log"
        stream = "RATCHET_STREAMS__EVENTS__"
        # What a machine without Docker's network has otherwise: addresses, folders, one broker for all tests.
        otherwise = {
            "RATCHET_APP": app,
            "RATCHET_BOOTSTRAP": broker,
            "RATCHET_STATE_FOLDER": str(folder / f"{name}-state"),
            "RATCHET_WEB__HOST": "127.0.0.1",
            f"{stream}REPLICATION": "1",
            **{f"{stream}{part}": f"{app}-{part.lower()}" for part in ("INPUT", "OUTPUT", "DEAD_LETTERS")},
            **more,
        }
        self._port = str(free_port())
        if port is not None:
            self._in_place_of = str(self.service["environment"][port])
            otherwise[port] = self._port
        kept = {key: value for key, value in os.environ.items() if not key.startswith("RATCHET_")}
        kept |= {"RATCHET_CACHE": os.environ["RATCHET_CACHE"]} if "RATCHET_CACHE" in os.environ else {}
        given = {key: str(value) for key, value in self.service["environment"].items()}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kafka_ratchet", *map(str, self.service["command"])],
                env=kept | given | otherwise | {"PYTHONPATH": str(ROOT)},
                cwd=ROOT,  # the image's working folder has the same files
                stdout=log,
                stderr=log,
            )

    def is_healthy(self) -> bool:
        """Return the result of the health check that Docker would run."""
        _, *command = self.service["healthcheck"]["test"]
        assert command[0] == "python"
        asked = [sys.executable, *(word.replace(f":{self._in_place_of}/", f":{self._port}/") for word in command[1:])]
        return subprocess.run(asked, capture_output=True).returncode == 0

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, self.log.read_text("utf-8", "replace")[-3000:]
            assert time.monotonic() < deadline, self.log.read_text("utf-8", "replace")[-3000:]
            time.sleep(0.1)


@pytest.fixture
def start(broker: str, tmp_path: Path) -> Iterator[Start]:
    app, started = f"compose-{uuid.uuid4().hex[:8]}", list[Service]()

    def one(name: str, **more: str) -> Service:
        started.append(Service(name, tmp_path, broker, app, **more))
        return started[-1]

    one.app = app  # type: ignore[attr-defined]
    yield one
    for each in started:
        each.process.terminate()
    for each in started:
        each.process.wait(PATIENCE_S)


@pytest.mark.long
def test_events_of_the_source_pass_the_worker_and_the_page_is_healthy(start: Start, broker: str) -> None:
    worker = start("worker", port="RATCHET_WEB__STATUS_PORT")
    page = start("web", port="RATCHET_WEB__PORT")
    worker.wait_for(worker.is_healthy)
    page.wait_for(page.is_healthy)
    source = start("source")
    out = f"{start.app}-output"  # type: ignore[attr-defined]
    source.wait_for(lambda: any(read_all(broker, out).values()))


@pytest.mark.long
@pytest.mark.postgres
def test_the_sink_writes_them_to_postgresql(start: Start) -> None:
    import psycopg

    from faults.postgres import run_postgres

    with run_postgres() as postgres:
        worker = start("worker", port="RATCHET_WEB__STATUS_PORT")
        worker.wait_for(worker.is_healthy)  # as Docker waits
        assert services["sink"]["depends_on"]["worker"] == {"condition": "service_healthy"}
        start("source")
        sink = start(
            "sink",
            port="RATCHET_SINK__METRICS_PORT",
            RATCHET_SINK__URL=postgres.url,
            RATCHET_SINK__PASSWORD=postgres.password,
            RATCHET_SINK__METRICS_HOST="127.0.0.1",
        )

        def has_rows() -> bool:
            try:
                with psycopg.connect(postgres.url, password=postgres.password) as database:
                    found = database.execute("select sum(added) from results where repository is not null").fetchone()
            except psycopg.errors.UndefinedTable:
                return False
            return found is not None and found[0] is not None

        sink.wait_for(has_rows)
        sink.wait_for(sink.is_healthy)
        sink.process.terminate()
        assert sink.process.wait(PATIENCE_S) == 0
